//! What vLLM shows of itself.

use serde::Deserialize;

use crate::exposition::{Sample, samples};
use crate::failure::RemoteError;
use crate::look::{Look, PoolSize, millionths, whole};

/// What one engine is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The model as its engine names it.
    pub model: String,
    /// Where the engine has the model from: its tokenizer is there.
    pub root: Option<String>,
    /// Longest prompt and answer together, in tokens.
    pub context: Option<u32>,
    /// Its release.
    pub version: String,
    /// One life of it.
    pub started: Option<u64>,
    /// Its pool.
    pub pool: Option<PoolSize>,
}

/// A counter has a suffix in the exposition, or has not, depending on the release.
fn is(sample: &Sample<'_>, name: &str) -> bool {
    let own = sample.name;
    own == name || own.strip_suffix("_total") == Some(name)
}

/// Reads `/metrics`. Several engine cores of one front end are added up.
#[must_use]
pub fn look(page: &str) -> Look {
    let mut look = Look::default();
    for sample in samples(page) {
        let value = whole(sample.value);
        let (work, load) = (&mut look.work, &mut look.load);
        let counted = match sample.name {
            "process_start_time_seconds" => {
                look.started = Some(sample.value.to_bits());
                continue;
            }
            "vllm:cache_config_info" => {
                look.pool = pool(&sample);
                continue;
            }
            "vllm:kv_cache_usage_perc" => {
                load.used = load.used.max(millionths(sample.value));
                continue;
            }
            "vllm:num_requests_running" => &mut load.running,
            "vllm:num_requests_waiting" => &mut load.waiting,
            "vllm:num_requests_waiting_by_reason" if has(&sample, "reason", "deferred") => &mut load.deferred,
            "vllm:iteration_tokens_total_count" => &mut work.steps,
            _ if is(&sample, "vllm:prompt_tokens") => &mut work.prompt_tokens,
            _ if is(&sample, "vllm:generation_tokens") => &mut work.output_tokens,
            _ if is(&sample, "vllm:request_success") => &mut work.finished,
            _ if is(&sample, "vllm:prompt_tokens_by_source") && has(&sample, "source", "external_kv_transfer") => {
                &mut look.external_tokens
            }
            _ if is(&sample, "vllm:nixl_num_kv_expired_reqs") => &mut look.expired,
            _ if is(&sample, "vllm:nixl_num_notifications_after_expiry") => &mut look.late_reads,
            _ => continue,
        };
        *counted = counted.saturating_add(value);
    }
    look
}

fn has(sample: &Sample<'_>, label: &str, value: &str) -> bool {
    sample.label(label).as_deref() == Some(value)
}

fn pool(sample: &Sample<'_>) -> Option<PoolSize> {
    let number = |label: &str| sample.label(label)?.parse().ok().filter(|number| *number > 0);
    Some(PoolSize {
        pages: number("num_gpu_blocks")?,
        page_tokens: number("block_size")?,
    })
}

/// Reads `/v1/models`: name, root, context.
///
/// # Errors
/// [`RemoteError::Unreadable`] if no model is in it.
pub(super) fn model(body: &[u8]) -> Result<(String, Option<String>, Option<u32>), RemoteError> {
    #[derive(Deserialize)]
    struct Models {
        data: Vec<Model>,
    }
    #[derive(Deserialize)]
    struct Model {
        id: String,
        root: Option<String>,
        max_model_len: Option<u32>,
    }
    let unreadable = |why: String| RemoteError::Unreadable {
        what: "the question for its models",
        why,
    };
    let models: Models = serde_json::from_slice(body).map_err(|error| unreadable(error.to_string()))?;
    let model = models.data.into_iter().next();
    let model = model.ok_or_else(|| unreadable("it serves none".to_owned()))?;
    Ok((model.id, model.root, model.max_model_len))
}

/// Reads `/version`; an engine without one has none.
pub(super) fn version(body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Version {
        version: String,
    }
    serde_json::from_slice(body).map_or_else(|_| "unknown".to_owned(), |read: Version| read.version)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::look::{Counts, Load};

    const PAGE: &str = r#"# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 2.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 3.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 1.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="deferred"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.125
vllm:prompt_tokens_total{engine="0",model_name="tiny"} 640.0
vllm:prompt_tokens_created{engine="0",model_name="tiny"} 1.7e+09
vllm:prompt_tokens_by_source_total{engine="0",model_name="tiny",source="local_compute"} 600.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="tiny",source="external_kv_transfer"} 40.0
vllm:generation_tokens_total{engine="0",model_name="tiny"} 99.0
vllm:iteration_tokens_total_sum{engine="0",model_name="tiny"} 700.0
vllm:iteration_tokens_total_count{engine="0",model_name="tiny"} 12.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="tiny"} 4.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny"} 5.0
vllm:nixl_num_kv_expired_reqs_total{engine="0"} 1.0
vllm:cache_config_info{block_size="128",engine="0",num_gpu_blocks="96",num_gpu_blocks_override="96"} 1.0
process_start_time_seconds 1.76e+09
"#;

    #[test]
    fn a_page_is_read() {
        let look = super::look(PAGE);
        let expected = Look {
            started: Some(1.76e9f64.to_bits()),
            work: Counts {
                prompt_tokens: 640,
                output_tokens: 99,
                steps: 12,
                finished: 9,
            },
            load: Load {
                running: 2,
                waiting: 3,
                deferred: 2,
                used: 125_000,
                ..Load::default()
            },
            external_tokens: 40,
            expired: 1,
            late_reads: 0,
            pool: Some(PoolSize {
                pages: 96,
                page_tokens: 128,
            }),
        };
        assert_eq!(look, expected);
    }

    #[test]
    fn a_page_of_something_else_is_an_empty_look() {
        assert_eq!(super::look("<html>404</html>\nfoo 1\n"), Look::default());
        let none = r#"vllm:cache_config_info{block_size="128",num_gpu_blocks="None"} 1.0"#;
        assert_eq!(super::look(none).pool, None);
    }

    #[test]
    fn models_and_versions() {
        let body = br#"{"object":"list","data":[{"id":"tiny","root":"/models/tiny","max_model_len":8192}]}"#;
        let read = model(body).expect("a model");
        assert_eq!(read, ("tiny".to_owned(), Some("/models/tiny".to_owned()), Some(8192)));
        assert!(model(br#"{"data":[]}"#).is_err() && model(b"").is_err());
        assert_eq!(version(br#"{"version":"0.32.0"}"#), "0.32.0");
        assert_eq!(version(b"Not Found"), "unknown");
    }

    proptest! {
        #[test]
        fn no_page_hurts(cut in 0usize..1800, junk in "(?s).{0,80}", value in any::<f64>()) {
            let at = PAGE.char_indices().map(|(at, _)| at).nth(cut).unwrap_or(PAGE.len());
            let (head, tail) = PAGE.split_at(at);
            let _ = super::look(&format!("{head}{junk}{tail}vllm:prompt_tokens_total {value}\nvllm:prompt_tokens_total {value}\n"));
        }
    }
}
