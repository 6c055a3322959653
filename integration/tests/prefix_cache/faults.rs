//! Rooms that read pages of the prefix cache, and end badly while they do: their client gives them up, their decode worker dies or
//! stops, the link between the pair breaks. What is kept stays as it was, what was not proven is not kept, pages that went to others
//! meanwhile show nothing of anybody else, and the same prompt is answered as by a cluster that keeps nothing.
//!
//! The mock engine answers with tokens that follow from every byte of KV, looks at all of it again at the end (`engine_failed`), and
//! pages keep the checksums of their first seal (`kv_corrupt`): an answer that is right and was found means pages that are right.

use innkeeper_integration::{Answer, Cluster, Options, Room, completion, oracle, within};
use serde_json::Value;

use crate::{SOON, prompt, reusable, until_kept};

const PATH: &str = "/v1/completions";
const KV_BYTES: u32 = 4_096;
/// Tokens that the prompts have in common: three pages.
const SHARED: u32 = 48;
/// Tokens of a prompt: what is not in common takes 0.7 s, and all of its KV 2.5 s to send.
const WHOLE: u32 = 120;

fn options() -> Options {
    Options::mock()
        // One prefill worker: what is kept is where the next prompt goes.
        .workers(1, 2)
        .etcd()
        .ttl_ms(2000)
        .flag("mock-prefill-us-per-token", 10_000)
        .flag("mock-kv-bytes-per-token", KV_BYTES)
        .flag("transfer-max-bytes-per-second", 200_000)
        // Two prompts and what is kept: pages that come back are soon another's, and what is kept has to go for it.
        .flag("kv-pages", 16)
}

fn text(own: char, tokens: u32) -> Value {
    let common = "c".repeat(SHARED as usize);
    let rest = String::from(own).repeat((tokens - SHARED) as usize);
    completion("mock", common + &rest, 8)
}

/// A prompt that begins as all of them do.
fn long(own: char) -> Value {
    text(own, WHOLE)
}

/// One that has nothing in common with them: two whole pages and a half.
fn beside() -> Value {
    completion("mock", "x".repeat(40), 8)
}

/// A cluster whose prefill worker keeps what the prompts have in common, and another one that keeps nothing.
struct Scene {
    cluster: Cluster,
    cold: Cluster,
}

impl Scene {
    async fn of(cluster: Cluster) -> Self {
        let cold = Options::mock()
            .flag("mock-kv-bytes-per-token", KV_BYTES)
            .flag("prefix-cache-percent", 0);
        let cold = Cluster::start(cold).await;
        let scene = Self { cluster, cold };
        assert_eq!(scene.right(&text('w', SHARED + 1)).await, 0);
        until_kept(&scene.cluster, f64::from(SHARED / crate::PAGE)).await;
        scene
    }

    /// An answer must be the one of a cluster that keeps nothing; how much of its prompt was found.
    async fn is_right(&self, body: &Value, answer: &Answer) -> u32 {
        assert_eq!(answer.status, 200, "{answer:?}");
        let alone = self.cold.client.complete(body).await;
        assert_eq!(prompt(&alone.body["usage"]).1, 0, "the cold one is cold");
        assert_eq!(answer.token_ids(), alone.token_ids());
        prompt(&answer.body["usage"]).1
    }

    /// Asks; as [`Self::is_right`].
    async fn right(&self, body: &Value) -> u32 {
        let answer = within(SOON, "an answer", self.cluster.submit(body)).await.unwrap();
        self.is_right(body, &answer).await
    }

    /// Nothing is left of the rooms that are over, and none of them ended over bytes that were not its own.
    async fn clean(&self) {
        oracle(&self.cluster).await;
        for node in self.cluster.ps().await {
            let metrics = self.cluster.metrics(node["http"].as_str().unwrap()).await.unwrap();
            for (reason, _, count) in metrics.ended() {
                assert!(
                    !["kv_corrupt", "engine_failed", "protocol_error", "internal_error"].contains(&reason.as_str()),
                    "{}: {count} × {reason}",
                    node["name"]
                );
            }
        }
    }

    /// A request whose room reads what is kept is struck while it sends, and is answered by its next attempt. `strike` returns what
    /// lasts until `heal`.
    async fn outlives<T>(&self, own: char, blamed: &str, strike: impl AsyncFnOnce(&Room) -> T, heal: impl FnOnce(T)) {
        let cluster = &self.cluster;
        let (body, before) = (long(own), cluster.failures().await);
        let asked = cluster.submit(&body);
        let room = cluster.wait_phase("transferring", SOON).await;
        let struck = strike(&room).await;
        let (reason, blame) = cluster.verdict(&before, SOON).await;
        eprintln!("{own}: {reason}, blame {blame}");
        assert_eq!(blame, blamed, "{own}: {reason}");
        let answer = within(SOON, "the next attempt's answer", asked).await.unwrap();
        assert_eq!(self.is_right(&body, &answer).await, SHARED, "what its first room found");
        // Of the pages that came back some go to another prompt, while what was struck still is.
        self.right(&beside()).await;
        heal(struck);
        self.clean().await;
        assert_eq!(
            self.right(&body).await,
            reusable(WHOLE),
            "the next attempt's pages are kept"
        );
        self.clean().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_gives_up_a_room_that_reads_what_is_kept() {
    let scene = Scene::of(Cluster::start(options()).await).await;
    let cluster = &scene.cluster;
    for (own, phase, leaves) in [
        ('a', "waiting_for_input", false),
        ('b', "waiting_for_input", true),
        ('d', "transferring", false),
        ('e', "transferring", true),
    ] {
        let (body, rid, client) = (long(own), format!("given-up-{own}"), cluster.client.clone());
        let asked = {
            let (body, rid) = (body.clone(), rid.clone());
            tokio::spawn(async move { client.post_as(&rid, PATH, &body).await })
        };
        cluster.wait_phase(phase, SOON).await;
        if leaves {
            // Its connection is closed with it.
            asked.abort();
            assert!(
                asked.await.is_err_and(|error| error.is_cancelled()),
                "it was still there"
            );
        } else {
            assert_eq!(cluster.client.abort(&rid).await, "aborted");
            let answer = within(SOON, phase, asked).await.unwrap();
            assert_eq!(answer.code(), "aborted", "{answer:?}");
        }
        scene.right(&beside()).await;
        assert_eq!(
            scene.right(&body).await,
            SHARED,
            "{phase}: what was kept is, and nothing of what was given up"
        );
        scene.clean().await;
    }
    assert_eq!(scene.right(&long('e')).await, reusable(WHOLE));
    let metrics = cluster.router_metrics().await;
    let aborted = [("reason", "aborted"), ("blame", "nobody")];
    assert_eq!(metrics.sum("innkeeper_rooms_ended_total", &aborted), 4.0);
    scene.clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decode_worker_dies_and_stops_under_a_room_that_reads_what_is_kept() {
    let scene = Scene::of(Cluster::start(options()).await).await;
    let cluster = &scene.cluster;
    let die = async |room: &Room| cluster.kill(&cluster.name_of(&room.decode).await).await;
    scene.outlives('k', "decode", die, drop).await;
    let stop = async |room: &Room| cluster.stop(&cluster.name_of(&room.decode).await).await;
    scene.outlives('s', "decode", stop, drop).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_link_of_the_pair_breaks_under_a_room_that_reads_what_is_kept() {
    let Some(cluster) = Cluster::start_apart(options()).await else {
        return;
    };
    let scene = Scene::of(cluster).await;
    let cluster = &scene.cluster;
    let link = async |room: &Room| cluster.link("prefill-0", &cluster.name_of(&room.decode).await);
    let cut = async |room: &Room| {
        let link = link(room).await;
        link.cut();
        link
    };
    scene.outlives('l', "link", cut, |link| link.heal()).await;
    let swallow = async |room: &Room| {
        let link = link(room).await;
        link.black_hole();
        link
    };
    scene.outlives('h', "link", swallow, |link| link.heal()).await;
}
