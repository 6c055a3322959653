//! vLLM's surface.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::core::{Ask, Out, Role, TicketOf};
use super::process::Shared;
use super::surface::{Answer, Events, Taken, error, health, ids, json_of, text};
use super::{Chooser, VOCABULARY};

const MODEL: &str = "tiny";

pub(super) fn get(shared: &Shared, path: &str) -> Answer {
    match path {
        "/health" => health(shared),
        "/version" => json_of(200, &json!({"version": "0.32.0-standin"})),
        "/v1/models" => json_of(
            200,
            &json!({"object": "list", "data": [{"id": MODEL, "root": "/models/tiny", "max_model_len": 8192}]}),
        ),
        "/metrics" => text(200, metrics(shared)),
        _ => error(404, "Not Found"),
    }
}

fn metrics(shared: &Shared) -> String {
    let core = shared.core();
    let gauges = core.gauges();
    let (work, load) = (gauges.work, gauges.load);
    let labels = "engine=\"0\",model_name=\"tiny\"";
    let lines = [
        format!("process_start_time_seconds {}", shared.started),
        format!("vllm:num_requests_running{{{labels}}} {}.0", load.running),
        format!("vllm:num_requests_waiting{{{labels}}} {}.0", load.waiting),
        format!(
            "vllm:num_requests_waiting_by_reason{{{labels},reason=\"deferred\"}} {}.0",
            load.deferred
        ),
        format!("vllm:kv_cache_usage_perc{{{labels}}} {}", load.used as f64 / 1e6),
        format!("vllm:prompt_tokens_total{{{labels}}} {}.0", work.prompt_tokens),
        format!("vllm:generation_tokens_total{{{labels}}} {}.0", work.output_tokens),
        format!("vllm:iteration_tokens_total_count{{{labels}}} {}.0", work.steps),
        format!(
            "vllm:request_success_total{{{labels},finished_reason=\"length\"}} {}.0",
            work.finished
        ),
        format!(
            "vllm:prompt_tokens_by_source_total{{{labels},source=\"external_kv_transfer\"}} {}.0",
            gauges.external_tokens
        ),
        format!("vllm:nixl_num_kv_expired_reqs_total{{{labels}}} {}.0", gauges.expired),
        format!(
            "vllm:nixl_num_notifications_after_expiry_total{{{labels}}} {}.0",
            gauges.late_reads
        ),
        format!(
            "vllm:cache_config_info{{block_size=\"{}\",num_gpu_blocks=\"{}\"}} 1.0",
            core.config.page_tokens, core.config.pages
        ),
    ];
    lines.join("\n") + "\n"
}

pub(super) async fn post(shared: &Arc<Shared>, path: &str, body: &Value, id: &str) -> Answer {
    match path {
        "/v1/completions" => completions(shared, body, id).await,
        "/inference/v1/abort_requests" => abort(shared, body),
        _ => error(404, "Not Found"),
    }
}

fn abort(shared: &Shared, body: &Value) -> Answer {
    let mut core = shared.core();
    let mut known = true;
    for id in body["request_ids"].as_array().into_iter().flatten() {
        known &= core.abort_id(&format!("cmpl-{}", id.as_str().unwrap_or_default()));
    }
    if known || core.config.bugs.unknown_abort_ok {
        text(200, String::new())
    } else {
        error(404, "no such request")
    }
}

fn ticket(params: &Value) -> Option<TicketOf> {
    let blocks = params["remote_block_ids"].as_array()?.iter().flat_map(ids).collect();
    Some(TicketOf {
        engine: params["remote_engine_id"].as_str()?.to_owned(),
        request: params["remote_request_id"].as_str()?.to_owned(),
        blocks,
    })
}

async fn completions(shared: &Arc<Shared>, body: &Value, id: &str) -> Answer {
    let params = &body["kv_transfer_params"];
    let temperature = body["temperature"].as_f64().unwrap_or(1.0);
    let refused = if body["model"] != MODEL {
        Some(error(404, "The model does not exist."))
    } else if !(0.0..=100.0).contains(&temperature) {
        Some(error(400, "temperature must be non-negative"))
    } else {
        None
    };
    if let Some(refused) = refused {
        // Refused at the door, for which prefill's engine is told.
        if let Some(ticket) = ticket(params) {
            let now = Instant::now();
            let reach = shared.core().give_back(ticket, now);
            if let Some(reach) = reach {
                shared.reach(reach, now);
            }
        }
        return refused;
    }
    let prompt = ids(&body["prompt"]);
    if prompt.is_empty() || prompt.iter().any(|id| *id >= VOCABULARY) {
        return error(400, "the prompt is empty or has ids outside of the vocabulary");
    }
    let role = match (params["do_remote_decode"] == true, ticket(params)) {
        (true, _) => Role::Keep,
        (false, Some(ticket)) => Role::Pull(ticket),
        (false, None) => Role::Plain,
    };
    let ask = |out| Ask {
        id: format!("cmpl-{id}-0"),
        role,
        prompt,
        max_tokens: usize::try_from(body["max_tokens"].as_u64().unwrap_or(16)).unwrap_or(16),
        stop_ids: ids(&body["stop_token_ids"]),
        chooser: Chooser {
            temperature: temperature as f32,
            seed: body["seed"].as_u64().unwrap_or(0),
        },
        out,
    };
    let taken = Taken::submit(shared, Duration::ZERO, ask);
    let top = body["logprobs"].as_u64();
    if body["stream"] == true {
        return Events::answer(taken, Box::new(move |out| vec![event(out, top)]));
    }
    whole(taken, top).await
}

fn event(out: Out, top: Option<u64>) -> Value {
    match out {
        Out::Token(id) => choice(&[id], None, top),
        Out::Done { reason, .. } => choice(&[], Some(reason), top),
        Out::Error(message) => json!({"error": {"message": message, "type": "InternalServerError", "code": 500}}),
    }
}

fn choice(ids: &[u32], finish: Option<&str>, top: Option<u64>) -> Value {
    let logprobs = top.map(|_| {
        let best: Vec<_> = ids.iter().map(|id| json!({format!("token_id:{id}"): -0.5})).collect();
        json!({"token_logprobs": vec![-0.5; ids.len()], "top_logprobs": best})
    });
    json!({"object": "text_completion", "model": MODEL, "choices": [{
        "index": 0, "text": "x".repeat(ids.len()), "token_ids": ids, "logprobs": logprobs, "finish_reason": finish,
    }]})
}

async fn whole(mut taken: Taken, top: Option<u64>) -> Answer {
    let mut ids = vec![];
    loop {
        match taken.next().await {
            Some(Out::Token(id)) => ids.push(id),
            Some(Out::Done { reason, ticket }) => {
                let mut answer = choice(&ids, Some(reason), top);
                let ticket = ticket.and_then(|ticket| serde_json::from_str(&ticket).ok());
                answer["kv_transfer_params"] = ticket.unwrap_or(Value::Null);
                return json_of(200, &answer);
            }
            Some(Out::Error(message)) => return error(500, &message),
            None => return error(500, "the core has gone"),
        }
    }
}
