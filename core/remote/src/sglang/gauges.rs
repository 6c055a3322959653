//! What SGLang shows of itself. `/v1/loads` comes out of memory that the scheduler writes, and is right while it waits;
//! its `/metrics` are not.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde::Deserialize;

use crate::failure::RemoteError;
use crate::look::{Load, Look, PoolSize, millionths};

/// What one engine is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The model as its engine names it.
    pub model: String,
    /// Where its tokenizer is.
    pub root: Option<String>,
    /// `prefill`, `decode`, or `null` for one that is not disaggregated.
    pub mode: String,
    /// Where decode's engine meets this one, if it is prefill's.
    pub bootstrap_port: Option<u16>,
    /// Its release.
    pub version: String,
    /// Tokens in one page.
    pub page_tokens: u32,
}

#[derive(Deserialize)]
struct Loads {
    #[serde(default)]
    loads: Vec<Rank>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Rank {
    num_running_reqs: u64,
    num_waiting_reqs: u64,
    num_waiting_uncached_tokens: u64,
    num_used_tokens: u64,
    num_total_tokens: u64,
    max_total_num_tokens: u64,
    gen_throughput: f64,
    disaggregation: Option<Disaggregation>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Disaggregation {
    prefill_bootstrap_queue_reqs: u64,
    prefill_inflight_queue_reqs: u64,
    decode_prealloc_queue_reqs: u64,
    decode_transfer_queue_reqs: u64,
    decode_retracted_queue_reqs: u64,
}

/// Reads `/v1/loads`. Several ranks are added up.
///
/// # Errors
/// [`RemoteError::Unreadable`]; an engine that starts has an empty list, which says nothing either.
pub fn look(body: &[u8]) -> Result<Look, RemoteError> {
    let unreadable = |why: String| RemoteError::Unreadable {
        what: "a look at its loads",
        why,
    };
    let loads: Loads = serde_json::from_slice(body).map_err(|error| unreadable(error.to_string()))?;
    if loads.loads.is_empty() {
        return Err(unreadable("no rank is in it".to_owned()));
    }
    let (mut load, mut mark) = (Load::default(), DefaultHasher::new());
    let (mut used, mut most) = (0u64, 0u64);
    for rank in &loads.loads {
        let none = Disaggregation::default();
        let disagg = rank.disaggregation.as_ref().unwrap_or(&none);
        let add = |to: &mut u64, more: &[u64]| *to = more.iter().fold(*to, |sum, more| sum.saturating_add(*more));
        add(&mut load.running, &[rank.num_running_reqs]);
        add(&mut load.waiting, &[rank.num_waiting_reqs]);
        add(&mut load.inflight, &[disagg.prefill_inflight_queue_reqs]);
        let queues = [disagg.decode_prealloc_queue_reqs, disagg.decode_transfer_queue_reqs];
        add(&mut load.deferred, &queues);
        add(&mut used, &[rank.num_used_tokens]);
        add(&mut most, &[rank.max_total_num_tokens]);
        (rank.num_used_tokens, rank.gen_throughput.to_bits()).hash(&mut mark);
        (rank.num_total_tokens, rank.num_waiting_uncached_tokens).hash(&mut mark);
        (
            disagg.prefill_bootstrap_queue_reqs,
            queues,
            disagg.decode_retracted_queue_reqs,
        )
            .hash(&mut mark);
    }
    load.mark = mark.finish();
    load.used = millionths(used as f64 / most.max(1) as f64);
    Ok(Look {
        load,
        pool: u32::try_from(most)
            .ok()
            .filter(|most| *most > 0)
            .map(|pages| PoolSize { pages, page_tokens: 1 }),
        ..Look::default()
    })
}

/// How many of a prefill engine's open legs, the oldest first, have been computed and wait for decode to take their KV.
#[must_use]
pub fn handed_over_next(open: usize, look: &Look) -> usize {
    usize::try_from(look.load.inflight).unwrap_or(usize::MAX).min(open)
}

/// Reads `/server_info`.
///
/// # Errors
/// [`RemoteError::Unreadable`].
pub fn identity(body: &[u8]) -> Result<Identity, RemoteError> {
    #[derive(Deserialize)]
    struct Info {
        model_path: String,
        #[serde(default)]
        served_model_name: Option<String>,
        #[serde(default)]
        tokenizer_path: Option<String>,
        #[serde(default)]
        disaggregation_mode: Option<String>,
        #[serde(default)]
        disaggregation_bootstrap_port: Option<u16>,
        #[serde(default)]
        page_size: Option<u32>,
        #[serde(default)]
        version: Option<String>,
    }
    let info: Info = serde_json::from_slice(body).map_err(|error| RemoteError::Unreadable {
        what: "the question what it is",
        why: error.to_string(),
    })?;
    let mode = info.disaggregation_mode.unwrap_or_else(|| "null".to_owned());
    Ok(Identity {
        model: info.served_model_name.unwrap_or_else(|| info.model_path.clone()),
        root: Some(info.tokenizer_path.unwrap_or(info.model_path)),
        bootstrap_port: info.disaggregation_bootstrap_port.filter(|_| mode == "prefill"),
        mode,
        version: info.version.unwrap_or_else(|| "unknown".to_owned()),
        page_tokens: info.page_size.unwrap_or(1).max(1),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn loads(inflight: u64, used: u64) -> Vec<u8> {
        format!(
            r#"{{"timestamp":"t","version":"0.5.23","loads":[{{"dp_rank":0,"num_running_reqs":1,"num_waiting_reqs":2,
            "num_used_tokens":{used},"num_total_tokens":4000,"max_total_num_tokens":16384,"token_usage":0.1,
            "gen_throughput":1.5,"disaggregation":{{"mode":"prefill","prefill_bootstrap_queue_reqs":1,
            "prefill_inflight_queue_reqs":{inflight},"decode_transfer_queue_reqs":0}},"queues":null,"memory":null}}]}}"#
        )
        .into_bytes()
    }

    #[test]
    fn loads_are_read_and_every_step_leaves_a_mark() {
        let first = look(&loads(1, 1900)).expect("good");
        assert_eq!((first.load.inflight, first.load.running), (1, 1));
        assert_eq!(first.load.used, 115_967);
        assert!(!first.has_moved(&look(&loads(1, 1900)).expect("good"), true));
        assert!(first.has_moved(&look(&loads(1, 1901)).expect("good"), true));
        assert_eq!(handed_over_next(3, &first), 1);
        assert_eq!(handed_over_next(0, &first), 0);
        assert!(look(br#"{"loads":[]}"#).is_err());
    }

    #[test]
    fn an_engine_says_what_it_is() {
        let body = br#"{"model_path":"/m/tiny","served_model_name":"tiny","disaggregation_mode":"prefill",
            "disaggregation_bootstrap_port":8998,"page_size":64,"version":"0.5.23","other":[1]}"#;
        let read = identity(body).expect("good");
        assert_eq!((read.mode.as_str(), read.bootstrap_port), ("prefill", Some(8998)));
        assert_eq!((read.model.as_str(), read.root.as_deref()), ("tiny", Some("/m/tiny")));
        let alone = identity(br#"{"model_path":"m","disaggregation_bootstrap_port":8998}"#).expect("good");
        assert_eq!((alone.mode.as_str(), alone.bootstrap_port), ("null", None));
    }

    proptest! {
        #[test]
        fn no_page_hurts(bytes in proptest::collection::vec(any::<u8>(), 0..100), at in 0usize..500, used in any::<u64>()) {
            let mut damaged = loads(u64::MAX, used);
            let _ = look(&damaged);
            let at = at % damaged.len();
            damaged.splice(at.., bytes.iter().copied());
            for body in [&bytes, &damaged] {
                let _ = look(body);
                let _ = identity(body);
            }
        }
    }
}
