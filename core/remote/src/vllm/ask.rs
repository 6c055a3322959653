//! Bodies of requests. Everything that vLLM would take from the model's own configuration is set, so that the same request
//! means the same on every engine.

use serde::Serialize;
use serde_json::value::RawValue;

use crate::leg::{Leg, Prompt};

/// The prompt of a request that only asks whether the engine moves.
const CANARY: [u32; 1] = [1];

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    prompt: &'a [u32],
    max_tokens: u32,
    stream: bool,
    temperature: f32,
    top_p: f32,
    top_k: i32,
    min_p: f32,
    repetition_penalty: f32,
    presence_penalty: f32,
    frequency_penalty: f32,
    ignore_eos: bool,
    stop_token_ids: &'a [u32],
    return_token_ids: bool,
    return_tokens_as_token_ids: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_salt: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kv_transfer_params: Option<Kv<'a>>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Kv<'a> {
    Keep(Keep),
    Ticket(&'a RawValue),
}

/// To prefill's engine: keep the KV for somebody who will read it.
#[derive(Serialize)]
struct Keep {
    do_remote_decode: bool,
    do_remote_prefill: bool,
    remote_engine_id: Option<()>,
    remote_block_ids: Option<()>,
    remote_host: Option<()>,
    remote_port: Option<()>,
}

impl<'a> Body<'a> {
    /// One token, whichever is the most likely. No seed: prefill's token is thrown away, and a seeded request whose prompt
    /// comes in chunks kills the CPU engine.
    const fn one(model: &'a str, prompt: &'a [u32]) -> Self {
        Self {
            model,
            prompt,
            max_tokens: 1,
            stream: false,
            temperature: 0.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            ignore_eos: true,
            stop_token_ids: &[],
            return_token_ids: true,
            return_tokens_as_token_ids: true,
            seed: None,
            logprobs: None,
            cache_salt: None,
            kv_transfer_params: None,
        }
    }

    fn json(&self) -> Vec<u8> {
        // Numbers, text and JSON that was read: nothing that could fail.
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// The leg at prefill's engine.
pub(super) fn prefill(model: &str, prompt: &Prompt) -> Vec<u8> {
    let mut body = Body::one(model, &prompt.ids);
    body.cache_salt = prompt.salt.as_deref();
    body.kv_transfer_params = Some(Kv::Keep(Keep {
        do_remote_decode: true,
        do_remote_prefill: false,
        remote_engine_id: None,
        remote_block_ids: None,
        remote_host: None,
        remote_port: None,
    }));
    body.json()
}

/// The leg at decode's engine; without a ticket, one that computes all itself.
pub(super) fn decode(model: &str, leg: &Leg, ticket: Option<&RawValue>) -> Vec<u8> {
    let mut body = Body::one(model, &leg.prompt.ids);
    body.max_tokens = leg.max_tokens;
    body.stream = true;
    body.stop_token_ids = &leg.stop_ids;
    body.cache_salt = leg.prompt.salt.as_deref();
    body.logprobs = Some(leg.sampling.top_logprobs);
    if leg.sampling.temperature > 0.0 {
        body.temperature = leg.sampling.temperature;
        body.top_p = leg.sampling.top_p;
        // Its seeds are signed.
        body.seed = Some(leg.sampling.seed & (u64::MAX >> 1));
    }
    body.kv_transfer_params = ticket.map(Kv::Ticket);
    body.json()
}

/// A request that decode's engine refuses, and for that tells prefill's engine that nobody will read.
pub(super) fn release(model: &str, ticket: &RawValue) -> Vec<u8> {
    let mut body = Body::one(model, &CANARY);
    body.kv_transfer_params = Some(Kv::Ticket(ticket));
    body.json()
}

/// One token of one.
pub(super) fn canary(model: &str) -> Vec<u8> {
    Body::one(model, &CANARY).json()
}

/// Ids to abort. An empty list would be read as all of them by some front ends, and is never sent.
pub(super) fn abort(ids: &[&str]) -> Vec<u8> {
    #[derive(Serialize)]
    struct Ids<'a> {
        request_ids: &'a [&'a str],
    }
    serde_json::to_vec(&Ids { request_ids: ids }).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use innkeeper_room::{Attempt, RoomId, Sampling, Work};
    use serde_json::{Value, json};

    use super::*;

    fn leg(sampling: Sampling) -> Leg {
        let work = Work {
            prompt: Arc::from([5, 6, 7]),
            sampling,
            stop_ids: Arc::from([2]),
            ..Work::default()
        };
        Leg::new(RoomId::from_random(9), Attempt(1), &work, 40)
    }

    fn read(body: &[u8]) -> Value {
        serde_json::from_slice(body).expect("JSON")
    }

    #[test]
    fn prefills_leg_has_no_seed_and_asks_to_keep_the_kv() {
        let leg = leg(Sampling {
            temperature: 1.0,
            seed: 8,
            ..Sampling::default()
        });
        let body = read(&prefill("tiny", &leg.prompt));
        assert_eq!(body["prompt"], json!([5, 6, 7]));
        assert_eq!(body["max_tokens"], 1);
        assert_eq!(body["stream"], false);
        assert_eq!(body["temperature"], 0.0);
        assert_eq!(body["kv_transfer_params"]["do_remote_decode"], true);
        assert_eq!(body["kv_transfer_params"]["remote_host"], Value::Null);
        for absent in ["seed", "min_tokens", "stream_options", "cache_salt"] {
            assert!(body.get(absent).is_none(), "{absent}");
        }
    }

    #[test]
    fn decodes_leg_says_everything_itself() {
        let ticket = RawValue::from_string(r#"{"x": 1.50}"#.to_owned()).expect("JSON");
        let bytes = decode("tiny", &leg(Sampling::default()), Some(&ticket));
        assert!(String::from_utf8_lossy(&bytes).contains(r#""kv_transfer_params":{"x": 1.50}"#));
        let body = read(&bytes);
        assert_eq!((&body["max_tokens"], &body["stream"]), (&json!(40), &json!(true)));
        assert_eq!(body["stop_token_ids"], json!([2]));
        assert_eq!(body["ignore_eos"], true);
        assert!(body.get("seed").is_none(), "greedy needs none");
        let sampled = read(&decode(
            "tiny",
            &leg(Sampling {
                temperature: 0.5,
                top_p: 0.25,
                seed: u64::MAX,
                top_logprobs: 3,
            }),
            None,
        ));
        assert_eq!(sampled["seed"], u64::MAX >> 1);
        assert_eq!((&sampled["top_p"], &sampled["logprobs"]), (&json!(0.25), &json!(3)));
        assert!(sampled.get("kv_transfer_params").is_none());
    }
}
