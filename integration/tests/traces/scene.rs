//! A cluster that tells a Jaeger what it does, and requests that fare differently.

use std::time::Duration;

use innkeeper_integration::{Answer, Cluster, Jaeger, Options, Room, Trace, completion, until};
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::whole::{CALLER, Expected};

const SOON: Duration = Duration::from_secs(20);

/// Two pairs of separate processes; transfers and answers take seconds.
pub(crate) struct Scene {
    pub(crate) cluster: Cluster,
    jaeger: Jaeger,
}

impl Scene {
    pub(crate) async fn start() -> Self {
        let jaeger = Jaeger::start().await;
        let options = Options::mock()
            .workers(2, 2)
            .etcd()
            .ttl_ms(2000)
            .flag("mock-decode-us-per-token", 20_000)
            .flag("mock-kv-bytes-per-token", 4_096)
            .flag("transfer-max-bytes-per-second", 400_000)
            .flag("otlp", jaeger.otlp_grpc())
            .fault("on");
        let cluster = Cluster::start(options).await;
        Self { cluster, jaeger }
    }

    pub(crate) async fn healthy(&self) -> Trace {
        ask(&self.cluster, &self.jaeger, 1, &long_answer(), Expected::rooms(1, 1, 1)).await
    }

    pub(crate) async fn restarted(&self) -> Trace {
        for worker in ["prefill-0", "prefill-1"] {
            self.cluster.order(worker, "fail-write=3").await;
        }
        ask(
            &self.cluster,
            &self.jaeger,
            2,
            &long_transfer(),
            Expected::rooms(1, 1, 1),
        )
        .await
    }

    pub(crate) async fn evicted(&self) -> Trace {
        let asked = self.submit(3, &long_answer());
        let room = self.leased("decoding").await;
        self.cluster.revoke(&room).await;
        assert_eq!(asked.await.unwrap().status, 200);
        self.trace(3, Expected::rooms(2, 2, 2)).await
    }

    pub(crate) async fn aborted(&self) -> Trace {
        let asked = self.submit(4, &long_answer());
        self.leased("decoding").await;
        assert_eq!(self.cluster.client.abort(&rid(4)).await, "aborted");
        assert_eq!(asked.await.unwrap().code(), "aborted");
        self.trace(4, Expected::rooms(1, 1, 1)).await
    }

    pub(crate) async fn retried(&self) -> Trace {
        self.kill_decode_while("transferring", 5, &long_transfer()).await
    }

    pub(crate) async fn migrated(&self) -> Trace {
        self.kill_decode_while("decoding", 6, &long_answer()).await
    }

    async fn kill_decode_while(&self, phase: &str, number: u8, body: &Value) -> Trace {
        let asked = self.submit(number, body);
        let room = self.leased(phase).await;
        let victim = self.cluster.name_of(&room.decode).await;
        self.cluster.kill(&victim).await;
        let answer = asked.await.unwrap();
        assert_eq!(answer.status, 200, "{answer:?}");
        self.trace(number, Expected::rooms(2, 2, 1)).await
    }

    fn submit(&self, number: u8, body: &Value) -> JoinHandle<Answer> {
        let (client, body) = (self.cluster.client.clone(), body.clone());
        tokio::spawn(async move { client.post_traced(&traceparent(number), &rid(number), &body).await })
    }

    async fn leased(&self, phase: &str) -> Room {
        until(SOON, &format!("a leased room is {phase}"), || async {
            let rooms = self.cluster.router_rooms().await?;
            let found = rooms.iter().find(|room| room.leased && room.phase == phase);
            found.cloned().ok_or(format!("{rooms:?}"))
        })
        .await
    }

    async fn trace(&self, number: u8, expected: Expected) -> Trace {
        whole(&self.jaeger, number, expected).await
    }
}

/// A request within a trace of its own, and that trace.
pub(crate) async fn ask(cluster: &Cluster, jaeger: &Jaeger, number: u8, body: &Value, expected: Expected) -> Trace {
    let answer = cluster
        .client
        .post_traced(&traceparent(number), &rid(number), body)
        .await;
    assert_eq!(answer.status, 200, "{answer:?}");
    whole(jaeger, number, expected).await
}

async fn whole(jaeger: &Jaeger, number: u8, expected: Expected) -> Trace {
    jaeger.trace(&trace_id(number), |trace| expected.is_there(trace)).await
}

fn trace_id(number: u8) -> String {
    format!("4bf92f3577b34da6a3ce929d0e0e47{number:02x}")
}

fn traceparent(number: u8) -> String {
    format!("00-{}-{CALLER}-01", trace_id(number))
}

fn rid(number: u8) -> String {
    format!("traced-{number}")
}

/// 200 tokens, 800 kB: a transfer of two seconds.
fn long_transfer() -> Value {
    completion("mock", "transfer".repeat(25), 5)
}

/// An answer of four seconds.
fn long_answer() -> Value {
    completion("mock", "decode", 200)
}
