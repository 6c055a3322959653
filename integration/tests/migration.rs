//! Streams whose decode worker dies or stops in the middle are carried on elsewhere: each token comes once, and the text, the
//! logprobs and the usage are those of the undisturbed answer, under greedy and under seeded sampling, across characters of
//! several bytes and stop strings. `INNKEEPER_VERIFY=1`: a hundred of them.

#![allow(clippy::unwrap_used, reason = "the helpers of tests fail as tests do")]

use std::time::Duration;

use innkeeper_integration::{Cluster, Options, Stopped, Stream, completion, oracle, verify_everything, within};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(30);
const PATH: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

fn options() -> Options {
    Options::mock()
        .workers(1, 3)
        .etcd()
        .ttl_ms(2000)
        .flag("mock-decode-us-per-token", 25_000)
        // What is looked at here is not how many attempts a failing fleet may have.
        .flag("retry-bucket", 1000)
}

/// How many streams must have been carried on.
fn wanted() -> usize {
    if verify_everything() { 100 } else { 8 }
}

/// All that a client gets of one choice.
#[derive(Debug, Default, PartialEq)]
struct Got {
    text: String,
    ids: Vec<u64>,
    logprobs: Vec<Value>,
    finish: String,
    usage: Value,
}

impl Got {
    fn whole(body: &Value) -> Self {
        let mut got = Self::default();
        got.take(body);
        got
    }

    /// Adds a whole answer or a piece of a stream.
    fn take(&mut self, event: &Value) {
        if event["usage"].is_object() {
            self.usage = event["usage"].clone();
            // Of the same prompt more is found in a cache the second time.
            self.usage
                .as_object_mut()
                .unwrap()
                .remove("prompt_tokens_details")
                .unwrap();
        }
        let choice = &event["choices"][0];
        let text = [
            &choice["text"],
            &choice["message"]["content"],
            &choice["delta"]["content"],
        ];
        self.text.extend(text.into_iter().filter_map(Value::as_str));
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        self.ids
            .extend(list(&choice["token_ids"]).iter().filter_map(Value::as_u64));
        self.logprobs.extend(list(&choice["logprobs"]["token_logprobs"]));
        self.logprobs.extend(list(&choice["logprobs"]["content"]));
        if let Some(finish) = choice["finish_reason"].as_str() {
            finish.clone_into(&mut self.finish);
        }
    }
}

/// What is asked, where, and what an undisturbed cluster answers.
struct Question {
    path: &'static str,
    body: Value,
    undisturbed: Got,
}

async fn question(cluster: &Cluster, path: &'static str, body: Value) -> Question {
    let answer = cluster.client.post(path, &body).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let undisturbed = Got::whole(&answer.body);
    let mut body = body;
    body["stream_options"] = json!({ "include_usage": true });
    Question {
        path,
        body,
        undisturbed,
    }
}

async fn questions(cluster: &Cluster) -> Vec<Question> {
    let greedy = completion("mock", "greedy", 100);
    let mut seeded = completion("mock", "seeded", 100);
    (seeded["temperature"], seeded["seed"], seeded["top_p"]) = (json!(1.3), json!(7), json!(0.95));
    let mut scored = completion("mock", "scored", 100);
    scored["logprobs"] = json!(2);
    let mut chat = json!({
        "model": "mock", "messages": [{ "role": "user", "content": "grüß dich 👋" }], "max_tokens": 100, "seed": 3,
        "temperature": 0.8, "ignore_eos": true, "return_token_ids": true, "logprobs": true, "top_logprobs": 1,
    });
    // A stop string that the answer comes to late, and that lies across tokens.
    let said = cluster.client.post(CHAT, &chat).await;
    let text: Vec<char> = Got::whole(&said.body).text.chars().collect();
    let stop: String = text[text.len() * 3 / 4..].iter().take(3).collect();
    chat["stop"] = json!([stop]);
    let mut all = vec![];
    for (path, body) in [(PATH, greedy), (PATH, seeded), (PATH, scored), (CHAT, chat)] {
        all.push(question(cluster, path, body).await);
    }
    assert!(
        all.iter().any(|question| !question.undisturbed.text.is_ascii()),
        "some character has several bytes"
    );
    assert_eq!(all[3].undisturbed.finish, "stop");
    all
}

/// Opens the streams and reads a little of each.
async fn begun(cluster: &Cluster, questions: &[Question]) -> Vec<(Stream, Got)> {
    let mut streams = vec![];
    for question in questions {
        let stream = cluster
            .client
            .stream(question.path, None, &question.body)
            .await
            .unwrap();
        assert_eq!(stream.status, 200);
        streams.push((stream, Got::default()));
    }
    for (stream, got) in &mut streams {
        while got.ids.len() < 5 {
            got.take(&stream.next().await.unwrap().unwrap());
        }
    }
    streams
}

async fn migrations(cluster: &Cluster) -> f64 {
    cluster.router_metrics().await.sum("innkeeper_migrations_total", &[])
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_are_carried_on_without_a_seam() {
    let cluster = Cluster::start(options()).await;
    let questions = questions(&cluster).await;
    let (mut round, mut carried) = (0, 0);
    while carried < wanted() {
        let before = migrations(&cluster).await;
        let streams = begun(&cluster, &questions).await;
        let rooms = cluster.router_rooms().await.unwrap();
        let victim = cluster.name_of(&rooms[round % rooms.len()].decode).await;
        let mut stopped: Option<Stopped> = None;
        if round % 2 == 0 {
            cluster.kill(&victim).await;
        } else {
            stopped = Some(cluster.stop(&victim).await);
        }
        for ((mut stream, mut got), question) in streams.into_iter().zip(&questions) {
            let rest = within(SOON, "the rest of the stream", stream.rest()).await.unwrap();
            rest.iter().for_each(|event| got.take(event));
            assert_eq!(got, question.undisturbed, "round {round}, {victim}: {}", question.body);
        }
        carried += (migrations(&cluster).await - before) as usize;
        assert!(round < 4 * wanted(), "only {carried} of {round} rounds were carried on");
        round += 1;
        drop(stopped);
        cluster.wait_whole().await;
    }
    eprintln!(
        "{carried} streams were carried on in {round} rounds of {}",
        questions.len()
    );
    oracle(&cluster).await;
}

/// A client that wants no seam at all: an honest end instead.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_not_to_be_carried_on_ends_with_the_error() {
    let cluster = Cluster::start(options().flag("on-failure", "completions=fail")).await;
    let questions = questions(&cluster).await;
    // The chat's route has the other policy.
    let streams = begun(&cluster, &questions[..3]).await;
    for name in ["decode-0", "decode-1", "decode-2"] {
        cluster.kill(name).await;
    }
    for (mut stream, _) in streams {
        let rest = within(SOON, "the end of the stream", stream.rest()).await.unwrap();
        let error = &rest.last().unwrap()["error"];
        assert_eq!(error["code"], "decode_lost", "{rest:?}");
        assert!(error["message"].as_str().unwrap().contains("attempts: 1"), "{error}");
    }
    assert_eq!(migrations(&cluster).await, 0.0);
    cluster.wait_whole().await;
    oracle(&cluster).await;
}
