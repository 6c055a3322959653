//! SGLang's surface.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::core::{Ask, Out, Role};
use super::process::Shared;
use super::surface::{Answer, Events, Taken, error, health, ids, json_of, text};
use super::{Chooser, Kind, VOCABULARY};

pub(super) async fn get(shared: &Arc<Shared>, path: &str) -> Answer {
    match path {
        "/health" => health(shared),
        "/health_generate" => health_generate(shared).await,
        "/server_info" => json_of(200, &server_info(shared)),
        "/v1/loads" => json_of(200, &loads(shared)),
        _ => error(404, "Not Found"),
    }
}

fn mode(shared: &Shared) -> &'static str {
    match shared.core().config.kind {
        Kind::SglangPrefill => "prefill",
        Kind::SglangDecode => "decode",
        Kind::Vllm => "null",
    }
}

fn server_info(shared: &Shared) -> Value {
    let mode = mode(shared);
    json!({
        "model_path": "/models/tiny", "served_model_name": "tiny", "disaggregation_mode": mode,
        "disaggregation_bootstrap_port": 8998, "page_size": 1, "version": "0.5.23-standin",
    })
}

fn loads(shared: &Shared) -> Value {
    let mode = mode(shared);
    let core = shared.core();
    let gauges = core.gauges();
    let page = core.config.page_tokens as usize;
    let used = gauges.held * page;
    json!({"timestamp": "now", "version": "0.5.23-standin", "loads": [{
        "dp_rank": 0, "num_running_reqs": gauges.load.running, "num_waiting_reqs": gauges.load.waiting,
        "num_waiting_uncached_tokens": 0, "num_used_tokens": used, "num_total_tokens": used,
        "max_total_num_tokens": core.config.pages as usize * page, "max_running_requests": core.config.max_seqs,
        "gen_throughput": gauges.work.output_tokens as f64,
        "disaggregation": {
            "mode": mode, "prefill_bootstrap_queue_reqs": gauges.bootstrap,
            "prefill_inflight_queue_reqs": gauges.load.inflight, "decode_prealloc_queue_reqs": 0,
            "decode_transfer_queue_reqs": gauges.transfer, "decode_retracted_queue_reqs": 0,
        },
        "queues": {"waiting": gauges.load.waiting, "grammar": 0, "paused": 0, "retracted": 0},
    }]})
}

async fn health_generate(shared: &Arc<Shared>) -> Answer {
    let ask = |out| Ask {
        id: "HEALTH_CHECK".to_owned(),
        role: Role::Plain,
        prompt: vec![0],
        max_tokens: 1,
        stop_ids: vec![],
        chooser: greedy(),
        out,
    };
    let mut taken = Taken::submit(shared, Duration::ZERO, ask);
    loop {
        match taken.next().await {
            Some(Out::Token(_)) => {}
            Some(Out::Done { .. }) => return text(200, String::new()),
            Some(Out::Error(_)) | None => return error(503, "unhealthy"),
        }
    }
}

const fn greedy() -> Chooser {
    Chooser {
        temperature: 0.0,
        seed: 0,
    }
}

pub(super) async fn post(shared: &Arc<Shared>, path: &str, body: &Value) -> Answer {
    match path {
        "/generate" => generate(shared, body).await,
        "/abort_request" => {
            let mut core = shared.core();
            let known = core.abort_id(body["rid"].as_str().unwrap_or("-"));
            if known || core.config.bugs.unknown_abort_ok {
                text(200, String::new())
            } else {
                error(404, "no such request")
            }
        }
        _ => error(404, "Not Found"),
    }
}

async fn generate(shared: &Arc<Shared>, body: &Value) -> Answer {
    let prompt = ids(&body["input_ids"]);
    let Some(room) = body["bootstrap_room"].as_u64().filter(|room| *room != 0) else {
        return error(400, "Disaggregated request received without bootstrap room id");
    };
    if prompt.is_empty() || prompt.iter().any(|id| *id >= VOCABULARY) {
        return error(400, "the prompt is empty or has ids outside of the vocabulary");
    }
    let rid = body["rid"].as_str().unwrap_or("none").to_owned();
    let streams = body["stream"] == true;
    let (kind, notice) = {
        let core = shared.core();
        if core.lives(&rid) {
            return error(400, "Duplicate request ID detected");
        }
        let notice = if streams {
            Duration::ZERO
        } else {
            core.config.close_notice
        };
        (core.config.kind, notice)
    };
    let role = match kind {
        Kind::SglangPrefill => Role::HandOver(room),
        Kind::SglangDecode | Kind::Vllm => Role::TakeIn(room),
    };
    let arrival = shared.core().config.arrival;
    tokio::time::sleep(arrival).await;
    if kind == Kind::SglangDecode {
        shared.fabric.wait_in(room, shared);
    }
    let sampling = &body["sampling_params"];
    let ask = |out| Ask {
        id: rid,
        role,
        prompt,
        max_tokens: usize::try_from(sampling["max_new_tokens"].as_u64().unwrap_or(16)).unwrap_or(16),
        stop_ids: ids(&sampling["stop_token_ids"]),
        chooser: Chooser {
            temperature: sampling["temperature"].as_f64().unwrap_or(1.0) as f32,
            seed: sampling["sampling_seed"].as_u64().unwrap_or(0),
        },
        out,
    };
    let mut taken = Taken::submit(shared, notice, ask);
    let leaves = Leaves(Arc::clone(shared), room);
    let mut said = vec![];
    if streams {
        return Events::answer(
            taken,
            Box::new(move |out| {
                let _stays = &leaves;
                vec![event(&mut said, out)]
            }),
        );
    }
    loop {
        match taken.next().await {
            Some(Out::Token(id)) => said.push(id),
            Some(Out::Error(message)) => return error(500, &message),
            Some(out) => return json_of(200, &event(&mut said, out)),
            None => return error(500, "the scheduler has gone"),
        }
    }
}

/// Leaves the room when the leg is over.
struct Leaves(Arc<Shared>, u64);

impl Drop for Leaves {
    fn drop(&mut self) {
        if self.0.core().config.kind == Kind::SglangDecode {
            self.0.fabric.leave_room(self.1);
        }
    }
}

/// Every event has all tokens so far.
fn event(said: &mut Vec<u32>, out: Out) -> Value {
    let finish = match out {
        Out::Token(id) => {
            said.push(id);
            Value::Null
        }
        Out::Done { reason, .. } => json!({"type": reason, "length": said.len()}),
        Out::Error(message) => return json!({"error": {"message": message, "code": 500}}),
    };
    let logprobs: Vec<_> = said.iter().map(|id| json!([-0.5, id, null])).collect();
    json!({"text": "x", "output_ids": said, "meta_info": {
        "id": "r", "completion_tokens": said.len(), "finish_reason": finish, "output_token_logprobs": logprobs,
    }})
}
