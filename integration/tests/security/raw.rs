use std::time::Duration;

use innkeeper_integration::within;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// No server here takes so long.
const HANG: Duration = Duration::from_secs(60);

/// `host:port` of a base address.
pub(crate) fn host(base: &str) -> &str {
    base.split_once("://").map_or(base, |(_, host)| host)
}

pub(crate) async fn connect(base: &str) -> TcpStream {
    let stream = TcpStream::connect(host(base)).await.unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// All that the server says until it closes; a reset counts as the end.
pub(crate) async fn rest(stream: &mut TcpStream) -> String {
    let mut all = vec![];
    within(HANG, "the server closes the connection", async {
        let mut piece = [0; 4096];
        while let Ok(got @ 1..) = stream.read(&mut piece).await {
            all.extend_from_slice(&piece[..got]);
        }
    })
    .await;
    String::from_utf8_lossy(&all).into_owned()
}

/// What the server answers to these bytes, until it closes.
pub(crate) async fn say(base: &str, bytes: &[u8]) -> String {
    let mut stream = connect(base).await;
    // It may have closed already.
    drop(stream.write_all(bytes).await);
    rest(&mut stream).await
}

/// The statuses of all answers in what a server said.
pub(crate) fn statuses(said: &str) -> Vec<u16> {
    let lines = said.split("\r\n").filter_map(|line| line.strip_prefix("HTTP/1.1 "));
    lines.filter_map(|line| line.get(..3)?.parse().ok()).collect()
}
