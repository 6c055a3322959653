//! What is true at the moment of a scrape, under the names that dashboards of SGLang and pickers of vLLM endpoints read.
//! `docs/metrics.md` says for each what it counts there and here.

use std::fmt;

use innkeeper_room::Role;
use innkeeper_room::ledger::{Gauges, Queues};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use super::snapshot::{Page, Snapshot};
use crate::view::PageSize;

#[derive(Debug)]
pub(super) struct Foreign {
    role: Role,
    gauges: Option<Gauges>,
    page: Option<PageSize>,
}

impl Foreign {
    pub(super) fn of(snapshot: &Snapshot) -> Self {
        Self {
            role: snapshot.role,
            gauges: snapshot.gauges.clone(),
            page: snapshot.page,
        }
    }

    fn sglang(&self, page: &mut Page<'_>, gauges: &Gauges) -> fmt::Result {
        let Queues {
            handshake,
            turn,
            engine,
            transfer,
        } = gauges.queues;
        let queues = match self.role {
            Role::Router => return Ok(()),
            Role::Prefill => [
                (
                    "num_prefill_bootstrap_queue_reqs",
                    "Parts that wait for decode's answer",
                    handshake,
                ),
                (
                    "num_prefill_inflight_queue_reqs",
                    "Parts whose KV is on its way",
                    transfer,
                ),
                ("num_queue_reqs", "Parts that wait for the engine's turn", turn),
                ("num_running_reqs", "Parts that are being computed", engine),
            ],
            Role::Decode => [
                (
                    "num_decode_prealloc_queue_reqs",
                    "Parts that wait for prefill's hello or for pages",
                    handshake,
                ),
                (
                    "num_decode_transfer_queue_reqs",
                    "Parts whose pages are reserved and whose KV is on its way",
                    transfer,
                ),
                (
                    "num_queue_reqs",
                    "Parts that wait for the engine's turn: a batch takes all at once",
                    turn,
                ),
                ("num_running_reqs", "Parts that are being decoded", engine),
            ],
        };
        for (name, help, value) in queues {
            page.gauge(&format!("sglang:{name}"), help, value)?;
        }
        let help = "KV pages that are held, as a part of all";
        page.number("sglang:token_usage", help, self.usage(gauges))
    }

    fn vllm(&self, page: &mut Page<'_>, gauges: &Gauges) -> fmt::Result {
        let queues = gauges.queues;
        let (waiting, running) = match self.role {
            Role::Router => (gauges.queued_requests, gauges.room_permits),
            Role::Prefill | Role::Decode => (queues.handshake + queues.turn, queues.engine + queues.transfer),
        };
        page.gauge("vllm:num_requests_waiting", "Requests that wait", waiting)?;
        page.gauge("vllm:num_requests_running", "Requests that are served", running)?;
        let help = "KV pages that are held, as a part of all (of a router: those of its decode workers)";
        page.number("vllm:kv_cache_usage_perc", help, self.usage(gauges))?;
        let (block, blocks) = match self.role {
            Role::Router => (gauges.fleet_page_tokens, gauges.fleet_pages),
            Role::Prefill | Role::Decode => {
                let tokens = self.page.map_or(0, |page| page.tokens);
                (tokens, gauges.pages.total().into())
            }
        };
        let (block, blocks) = (block.to_string(), blocks.to_string());
        let labels = [("block_size", &*block), ("num_gpu_blocks", &*blocks)];
        let help = "1, with tokens in a KV page and the number of pages";
        page.gauges("vllm:cache_config_info", help, [(labels, 1)].into_iter())
    }

    #[expect(clippy::cast_precision_loss, reason = "a part of all, for people")]
    fn usage(&self, gauges: &Gauges) -> f64 {
        let pages = gauges.pages;
        let (taken, total) = match self.role {
            Role::Router => (gauges.fleet_pages.saturating_sub(gauges.fleet_free), gauges.fleet_pages),
            Role::Prefill | Role::Decode => (u64::from(pages.held + pages.quarantined), pages.total().into()),
        };
        if total == 0 { 0.0 } else { taken as f64 / total as f64 }
    }
}

impl Collector for Foreign {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut page = Page(encoder);
        let Some(gauges) = &self.gauges else { return Ok(()) };
        self.sglang(&mut page, gauges)?;
        self.vllm(&mut page, gauges)
    }
}
