//! Calls that are aborted, cancelled or not read.

use std::time::Duration;

use innkeeper_integration::rpc::{call_as, gather, generate_text, reason};
use innkeeper_integration::{Cluster, Options, oracle, until, within};
use innkeeper_proto::inference::AbortRequest;
use tonic::Code;

use crate::SOON;

#[tokio::test]
async fn the_client_s_id_comes_back_and_aborts_the_call() {
    let cluster = Cluster::start(Options::mock().flag("mock-decode-us-per-token", 20_000)).await;
    let mut client = cluster.inference().await;
    let abort = |rid: &str| AbortRequest { rid: rid.to_owned() };
    assert_eq!(
        client.abort(abort("early")).await.unwrap().into_inner().status,
        "accepted"
    );
    let status = client
        .generate(call_as("early", generate_text("x", 4)))
        .await
        .unwrap_err();
    assert_eq!(
        (status.code(), reason(&status).as_str()),
        (Code::Cancelled, "aborted"),
        "{status:?}"
    );

    let answer = client.generate(call_as("mine", generate_text("x", 400))).await.unwrap();
    assert_eq!(answer.metadata().get("x-request-id").unwrap(), "mine");
    let mut stream = answer.into_inner();
    assert!(stream.message().await.unwrap().is_some());
    let aborted = client.abort(abort("mine")).await.unwrap().into_inner();
    assert_eq!((aborted.status.as_str(), aborted.rid.as_str()), ("aborted", "mine"));
    let status = within(SOON, "the end of the call", gather(stream)).await.unwrap_err();
    assert_eq!(
        (status.code(), reason(&status).as_str()),
        (Code::Cancelled, "aborted"),
        "{status:?}"
    );
    assert_eq!(
        client.abort(abort("mine")).await.unwrap().into_inner().status,
        "already ended"
    );
    let status = client.abort(abort("")).await.unwrap_err();
    assert_eq!(
        (status.code(), reason(&status).as_str()),
        (Code::InvalidArgument, "missing_required_parameter")
    );

    let made = client.generate(generate_text("x", 1)).await.unwrap();
    assert_eq!(
        made.metadata().get("x-request-id").unwrap().len(),
        32,
        "without an id the router makes one"
    );
    drop(made);
    oracle(&cluster).await;
}

#[tokio::test]
async fn a_call_that_takes_nothing_is_given_up() {
    let slow = Options::mock()
        .flag("client-stall-ms", 1_000)
        .flag("mock-decode-us-per-token", 3_000);
    let cluster = Cluster::start(slow.flag("context", 4_096)).await;
    let mut client = cluster.inference().await;
    // Nobody reads, and the window is small: most of it waits in the router.
    let stream = client.generate(generate_text("x", 2_000)).await.unwrap().into_inner();
    until(SOON, "the router gives it up", || async {
        let log = cluster.logs();
        if log.contains("client_stalled") {
            Ok(())
        } else {
            Err(log.lines().last().map(str::to_owned))
        }
    })
    .await;
    let status = within(SOON, "the end of the call", gather(stream)).await.unwrap_err();
    assert_eq!(
        (status.code(), reason(&status).as_str()),
        (Code::Cancelled, "client_stalled"),
        "{status:?}"
    );
    oracle(&cluster).await;
}

#[tokio::test]
async fn a_burst_of_cancelled_calls_leaves_the_connection_to_the_others() {
    let cluster = Cluster::start(Options::mock().flag("mock-decode-us-per-token", 5_000)).await;
    let client = cluster.inference().await;
    let mut other = client.clone();
    let stream = other
        .generate(generate_text("goes on", 300))
        .await
        .unwrap()
        .into_inner();
    let going_on = tokio::spawn(gather(stream));
    // Some are dropped before the server has looked at them, some after.
    for wait in [1, 2, 5, 10, 20, 40, 1, 2, 5, 10, 20, 40] {
        let calls = (0..150).map(|_| {
            let mut client = client.clone();
            async move { drop(client.generate(generate_text("x", 300)).await) }
        });
        let all = futures::future::join_all(calls);
        drop(tokio::time::timeout(Duration::from_millis(wait), all).await);
    }
    let told = within(SOON, "the other call", going_on).await.unwrap();
    assert_eq!(told.expect("it is nobody else's business").ids[0].len(), 300);
    oracle(&cluster).await;
}
