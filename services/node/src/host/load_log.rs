//! A worker's load as a line of its log, in the shape that SGLang's operators grep for. Only while there is load.

use std::sync::Arc;
use std::time::{Duration, Instant};

use innkeeper_room::Role;
use innkeeper_room::ledger::{Gauges, Queues};

use crate::metrics::LEDGER_DEADLINE;
use crate::view::{EngineCounts, NodeView};

/// How often a line is written.
const EVERY: Duration = Duration::from_secs(5);

/// Writes lines until the node ends.
pub(super) async fn run(view: Arc<dyn NodeView>, name: String) {
    let (mut before, mut since) = (view.engine().unwrap_or_default(), Instant::now());
    loop {
        tokio::time::sleep(EVERY).await;
        let now = view.engine().unwrap_or_default();
        let took = std::mem::replace(&mut since, Instant::now()).elapsed();
        let before = std::mem::replace(&mut before, now);
        let gauges = tokio::time::timeout(LEDGER_DEADLINE, view.gauges()).await;
        if let Ok(Some(gauges)) = gauges
            && (gauges.room_permits > 0 || now.steps > before.steps)
        {
            tracing::info!(node = name, "{}", line(view.node().role, &gauges, before, now, took));
        }
    }
}

fn line(role: Role, gauges: &Gauges, before: EngineCounts, now: EngineCounts, took: Duration) -> String {
    let Queues {
        handshake,
        turn,
        engine,
        transfer,
    } = gauges.queues;
    let total = f64::from(gauges.pages.total().max(1));
    let usage = f64::from(gauges.pages.held + gauges.pages.quarantined) / total;
    let rate = |new: u64, old: u64| per_second(new.saturating_sub(old), took);
    match role {
        Role::Prefill => format!(
            "Prefill batch, #new-token: {}, token usage: {usage:.2}, #running-req: {engine}, #queue-req: {turn}, \
             #bootstrap-req: {handshake}, #inflight-req: {transfer}, input throughput (token/s): {:.2}",
            now.prompt_tokens.saturating_sub(before.prompt_tokens),
            rate(now.prompt_tokens, before.prompt_tokens)
        ),
        Role::Decode | Role::Router => format!(
            "Decode batch, #running-req: {engine}, token usage: {usage:.2}, #prealloc-req: {handshake}, \
             #transfer-req: {transfer}, #retracted-req: 0, gen throughput (token/s): {:.2}, #queue-req: {turn}",
            rate(now.output_tokens, before.output_tokens)
        ),
    }
}

#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn per_second(count: u64, took: Duration) -> f64 {
    count as f64 / took.as_secs_f64().max(1e-3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_has_the_fields_that_are_grepped_for() {
        let gauges = Gauges {
            queues: Queues {
                handshake: 1,
                turn: 2,
                engine: 3,
                transfer: 4,
            },
            ..Gauges::default()
        };
        let now = EngineCounts {
            steps: 9,
            prompt_tokens: 100,
            output_tokens: 50,
        };
        let of = |role| line(role, &gauges, EngineCounts::default(), now, Duration::from_secs(5));
        let prefill = of(Role::Prefill);
        for part in [
            "Prefill batch, #new-token: 100,",
            "#running-req: 3, #queue-req: 2, #bootstrap-req: 1, #inflight-req: 4,",
            "input throughput (token/s): 20.00",
        ] {
            assert!(prefill.contains(part), "{prefill}");
        }
        let decode = of(Role::Decode);
        for part in [
            "Decode batch, #running-req: 3,",
            "#prealloc-req: 1, #transfer-req: 4, #retracted-req: 0,",
            "gen throughput (token/s): 10.00",
        ] {
            assert!(decode.contains(part), "{decode}");
        }
    }
}
