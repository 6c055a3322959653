//! Bodies of requests. Both legs ask for the same; prefill makes one token of it by itself, and its logprob travels with
//! the KV.

use serde::Serialize;

use crate::ids::rid;
use crate::leg::Leg;
use crate::ticket::Bootstrap;

#[derive(Serialize)]
struct Body<'a> {
    input_ids: &'a [u32],
    sampling_params: Sampling<'a>,
    stream: bool,
    rid: &'a str,
    bootstrap_host: &'a str,
    bootstrap_port: u16,
    bootstrap_room: u64,
    return_logprob: bool,
    logprob_start_len: i32,
    top_logprobs_num: u8,
    return_text_in_logprobs: bool,
}

#[derive(Serialize)]
struct Sampling<'a> {
    temperature: f32,
    top_p: f32,
    top_k: i32,
    min_p: f32,
    repetition_penalty: f32,
    presence_penalty: f32,
    frequency_penalty: f32,
    max_new_tokens: u32,
    stop_token_ids: &'a [u32],
    /// It makes the engine deaf to `stop_token_ids` as well: only for answers that nothing but their length ends.
    ignore_eos: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    sampling_seed: Option<u64>,
}

/// A leg; `stream` at decode's engine. Prefill's is not: its failure then is a status.
pub(super) fn leg(leg: &Leg, place: &Bootstrap, stream: bool) -> Vec<u8> {
    let greedy = leg.sampling.temperature <= 0.0;
    let body = Body {
        input_ids: &leg.prompt.ids,
        sampling_params: Sampling {
            temperature: leg.sampling.temperature.max(0.0),
            top_p: if greedy { 1.0 } else { leg.sampling.top_p },
            top_k: -1,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            max_new_tokens: leg.max_tokens,
            stop_token_ids: &leg.stop_ids,
            ignore_eos: leg.stop_ids.is_empty(),
            // Its seeds are 32 bits wide.
            sampling_seed: (!greedy).then_some(leg.sampling.seed & u64::from(u32::MAX >> 1)),
        },
        stream,
        rid: &rid(leg.prompt.room),
        bootstrap_host: &place.host,
        bootstrap_port: place.port,
        bootstrap_room: place.room.get(),
        return_logprob: true,
        logprob_start_len: -1,
        top_logprobs_num: leg.sampling.top_logprobs,
        return_text_in_logprobs: false,
    };
    // Numbers and text: nothing that could fail.
    serde_json::to_vec(&body).unwrap_or_default()
}

/// An abort of one request, or of those whose id begins like this one: ours are all of one length.
pub(super) fn abort(rid: &str) -> Vec<u8> {
    #[derive(Serialize)]
    struct Abort<'a> {
        rid: &'a str,
        abort_all: bool,
    }
    serde_json::to_vec(&Abort { rid, abort_all: false }).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use innkeeper_room::{Attempt, RoomId, Sampling, Work};
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn both_legs_ask_for_the_same() {
        let room = RoomId::from_random(0xab);
        let work = Work {
            prompt: Arc::from([5, 6]),
            sampling: Sampling {
                temperature: 0.5,
                seed: u64::MAX,
                top_logprobs: 2,
                ..Sampling::default()
            },
            stop_ids: Arc::from([2]),
            ..Work::default()
        };
        let asked = Leg::new(room, Attempt(1), &work, 9);
        let place = Bootstrap {
            host: "p".to_owned(),
            port: 8998,
            room,
        };
        let read = |stream| -> Value { serde_json::from_slice(&leg(&asked, &place, stream)).expect("JSON") };
        let (mut prefill, decode) = (read(false), read(true));
        assert_eq!(decode["bootstrap_room"], 0xab);
        assert_eq!(decode["rid"], "ik-00000000000000ab");
        assert_eq!(decode["sampling_params"]["sampling_seed"], u32::MAX >> 1);
        assert_eq!(decode["sampling_params"]["stop_token_ids"], json!([2]));
        assert_eq!(decode["sampling_params"]["ignore_eos"], false);
        prefill["stream"] = json!(true);
        assert_eq!(prefill, decode);
    }
}
