use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;

#[tokio::test]
async fn connections_are_counted_and_bounded_and_the_excess_is_refused_at_once() {
    let connections = Connections::new("test", 1);
    let mut listener = CountingListener::bind(([127, 0, 0, 1], 0).into(), connections.clone())
        .await
        .unwrap();
    let addr = listener.addr().unwrap();
    let _one = TcpStream::connect(addr).await.unwrap();
    let (first, _) = listener.next().await;
    assert!(first.stream().nodelay().unwrap());
    assert_eq!(connections.count(), ("test", 1));
    let mut more = vec![];
    for _ in 0..40 {
        more.push(TcpStream::connect(addr).await.unwrap());
    }
    let began = Instant::now();
    let all_closed = async {
        for stream in &mut more {
            assert_eq!(stream.read(&mut [0; 8]).await.unwrap_or(0), 0, "closed");
        }
    };
    tokio::select! {
        _ = listener.next() => panic!("no other finds a place"),
        () = all_closed => {}
    }
    // A pause after each would take two seconds.
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    assert_eq!(connections.refused(), ("test", 40));
    drop(first);
    assert_eq!(connections.count(), ("test", 0));
}

#[tokio::test]
async fn breaking_all_wakes_who_waits() {
    let connections = Connections::new("test", 2);
    let mut listener = CountingListener::bind(([127, 0, 0, 1], 0).into(), connections.clone())
        .await
        .unwrap();
    let _peer = TcpStream::connect(listener.addr().unwrap()).await.unwrap();
    let (mut waiting, _) = listener.next().await;
    let mut byte = [0; 1];
    let read = waiting.read(&mut byte);
    let (heard, ()) = tokio::join!(read, async { connections.break_all() });
    assert_eq!(heard.unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
}

#[tokio::test(start_paused = true)]
async fn who_says_too_little_in_time_is_given_up_and_who_said_enough_is_not() {
    let limit = Duration::from_secs(5);
    let (mut peer, connection) = tokio::io::duplex(64);
    peer.write_all(b"PRI * HTTP/2").await.unwrap();
    let mut hasty = Hasty::new(connection, limit);
    let mut got = vec![0; 12];
    hasty.read_exact(&mut got).await.unwrap();
    let late = hasty.read(&mut got).await.unwrap_err();
    assert_eq!(late.kind(), io::ErrorKind::TimedOut);

    let (mut peer, connection) = tokio::io::duplex(64);
    let mut hasty = Hasty::new(connection, limit);
    peer.write_all(&[b'x'; 24]).await.unwrap();
    let mut got = vec![0; 24];
    hasty.read_exact(&mut got).await.unwrap();
    let next = tokio::time::timeout(Duration::from_secs(60), hasty.read(&mut got)).await;
    assert!(next.is_err(), "others hold it to their deadlines now");
}

/// Strangers that connect and never speak, more than there are places: who does speak gets in at once.
#[tokio::test]
async fn handshakes_that_do_not_come_keep_nobody_out() {
    let dir = tempfile::tempdir().unwrap();
    let pki = crate::security::testing::Pki::new(dir.path());
    let ((certificate, key), ca) = (pki.node("node").read(), std::fs::read(pki.ca()).unwrap());
    let server = ServerTls::node(&certificate, &key, &ca).unwrap();
    let client = ClientTls::node(&certificate, &key, &ca).unwrap();
    let connections = Connections::new("test", 8);
    let mut listener = CountingListener::bind(([127, 0, 0, 1], 0).into(), connections.clone())
        .await
        .unwrap()
        .with_tls(Some(Arc::new(server)));
    let addr = listener.addr().unwrap();
    let mut strangers = vec![];
    for _ in 0..20 {
        strangers.push(TcpStream::connect(addr).await.unwrap());
    }
    let own = Connections::new("own", 1);
    let (addr, limit) = (addr.to_string(), Duration::from_secs(20));
    let (accepted, connected) = tokio::join!(
        tokio::time::timeout(limit, listener.next()),
        connect(&addr, &own, Some(&client))
    );
    assert!(matches!(accepted.unwrap().0, Connection::Tls(_)));
    assert!(connected.is_ok());
    assert!(connections.refused().1 >= 18, "{:?}", connections.refused());
}
