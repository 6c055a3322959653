//! What is true of a node at the moment of a scrape.

use std::fmt;

use innkeeper_room::ledger::Gauges;
use innkeeper_room::{Phase, Role};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;

use crate::view::{EngineCounts, NodeState, NodeView};

/// What is true of a node at the moment of a scrape.
#[derive(Debug)]
pub(super) struct Snapshot {
    role: Role,
    name: String,
    incarnation: String,
    state: NodeState,
    ready: bool,
    gauges: Option<Gauges>,
    tasks: Vec<(&'static str, u64)>,
    connections: Vec<(&'static str, u64)>,
    zombies: u64,
    engine: Option<EngineCounts>,
    store_reachable: Option<bool>,
}

impl Snapshot {
    pub(super) fn take(role: Role, view: &dyn NodeView, gauges: Option<Gauges>) -> Self {
        let node = view.node();
        Self {
            role,
            name: node.name,
            incarnation: node.incarnation.to_string(),
            state: node.state,
            ready: view.ready(),
            gauges,
            tasks: view.tasks(),
            connections: view.connections(),
            zombies: view.zombies(),
            engine: view.engine(),
            store_reachable: view.store_reachable(),
        }
    }

    fn ledger(&self, page: &mut Page<'_>, gauges: &Gauges) -> fmt::Result {
        let role = self.role.name();
        let rooms = Phase::ALL.iter().zip(gauges.rooms);
        let rooms = rooms.map(|(phase, count)| ([("role", role), ("phase", phase.name())], count.into()));
        page.gauges(
            "rooms",
            "Live parts of rooms (of a router: rooms that it owns), by phase",
            rooms,
        )?;
        let pages = gauges.pages;
        let by_state = [
            ("free", pages.free),
            ("cached", pages.cached),
            ("held", pages.held),
            ("quarantined", pages.quarantined),
        ];
        page.gauges("pages", "KV pages by state", of("state", by_state))?;
        page.gauge("pages_total", "KV pages in the pool", pages.total())?;
        let permits = [
            ("room", gauges.room_permits),
            ("session", gauges.session_permits),
            ("engine", gauges.engine_permits),
            ("request", gauges.requests),
        ];
        page.gauges(
            "permits",
            "Places and permits that are taken, by kind",
            of("kind", permits),
        )?;
        page.gauge(
            "tombstones",
            "Accepted aborts of requests that have not arrived",
            gauges.tombstones,
        )?;
        page.gauge(
            "stuck_rooms",
            "Live parts older than their absolute deadline + 1 s; must be 0",
            gauges.stuck,
        )?;
        page.gauge(
            "quarantined_rooms",
            "Rooms that are over but whose pages may still be touched",
            gauges.quarantined_rooms,
        )?;
        page.gauge(
            "queued_requests",
            "Requests that wait for admission",
            gauges.queued_requests,
        )?;
        page.gauge(
            "unleased_rooms",
            "Live rooms without a confirmed lease",
            gauges.unleased,
        )?;
        let avoided = [("node", gauges.avoided_nodes), ("link", gauges.avoided_links)];
        page.gauges(
            "avoided",
            "Workers and data links that get no rooms because they were blamed for several in a row",
            of("party", avoided),
        )?;
        page.counter(
            "fenced",
            "Messages and frames of another epoch or life, which changed nothing",
            gauges.fenced,
        )
    }

    fn node(&self, page: &mut Page<'_>) -> fmt::Result {
        let labels = [
            ("role", self.role.name()),
            ("name", &self.name),
            ("incarnation", &self.incarnation),
        ];
        page.gauges(
            "node",
            "This node: 1, with its role, name and life",
            [(labels, 1)].into_iter(),
        )?;
        page.gauge(
            "ledger_answers",
            "Whether the ledger answered this scrape",
            u32::from(self.gauges.is_some()),
        )?;
        page.gauge(
            "alive",
            "Whether the node is as it should be",
            u32::from(self.state.is_alive()),
        )?;
        let ready = self.ready && self.state == NodeState::Serving;
        page.gauge("ready", "Whether new work may be sent here", u32::from(ready))?;
        page.gauges("tasks", "Live tasks by kind", of("kind", self.tasks.iter().copied()))?;
        page.gauges(
            "connections",
            "Open connections by kind",
            of("kind", self.connections.iter().copied()),
        )?;
        page.gauge("zombies", "Actors that did not stop when killed", self.zombies)?;
        if let Some(reachable) = self.store_reachable {
            page.gauge(
                "store_reachable",
                "Whether the lease store answers",
                u32::from(reachable),
            )?;
        }
        Ok(())
    }
}

impl Collector for Snapshot {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut page = Page(encoder);
        self.node(&mut page)?;
        if let Some(gauges) = &self.gauges {
            self.ledger(&mut page, gauges)?;
        }
        if let Some(engine) = self.engine {
            page.counter(
                "engine_steps",
                "Chunks and decode steps that the engine finished",
                engine.steps,
            )?;
            page.counter(
                "engine_prompt_tokens",
                "Prompt tokens that the engine computed",
                engine.prompt_tokens,
            )?;
            page.counter(
                "engine_output_tokens",
                "Tokens that the engine produced",
                engine.output_tokens,
            )?;
        }
        Ok(())
    }
}

/// One value per value of one label.
fn of<V: Into<u64>>(
    label: &'static str,
    values: impl IntoIterator<Item = (&'static str, V)>,
) -> impl Iterator<Item = ([(&'static str, &'static str); 1], u64)> {
    values
        .into_iter()
        .map(move |(value, count)| ([(label, value)], count.into()))
}

/// What is written so far.
struct Page<'a>(DescriptorEncoder<'a>);

impl Page<'_> {
    fn gauge(&mut self, name: &str, help: &str, value: impl Into<u64>) -> fmt::Result {
        let mut encoder = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        encoder.encode_gauge(&shown(value.into()))
    }

    fn gauges<'v, const LABELS: usize>(
        &mut self,
        name: &str,
        help: &str,
        values: impl Iterator<Item = ([(&'v str, &'v str); LABELS], u64)>,
    ) -> fmt::Result {
        let mut encoder = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in values {
            encoder.encode_family(&labels)?.encode_gauge(&shown(value))?;
        }
        Ok(())
    }

    /// The page shows it as `name_total`.
    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let encoder = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        ConstCounter::new(value).encode(encoder)
    }
}

/// Gauges are signed.
fn shown(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
