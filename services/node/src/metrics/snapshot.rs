//! What is true of a node at the moment of a scrape.

use std::fmt;

use innkeeper_engine::Seen;
use innkeeper_room::ledger::Gauges;
use innkeeper_room::{Class, Millis, Phase, Role};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;

use crate::view::{EngineCounts, NodeState, NodeView, PageSize};

/// What is true of a node at the moment of a scrape.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) role: Role,
    name: String,
    incarnation: String,
    state: NodeState,
    ready: bool,
    pub(super) gauges: Option<Gauges>,
    tasks: Vec<(&'static str, u64)>,
    connections: Vec<(&'static str, u64)>,
    refused: Vec<(&'static str, u64)>,
    zombies: u64,
    engine: Option<EngineCounts>,
    next_door: Option<Seen>,
    pub(super) page: Option<PageSize>,
    pub(super) spans: Option<[(&'static str, u64); 3]>,
    pub(super) recorder: Option<[(&'static str, u64); 4]>,
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
            refused: view.refused_connections(),
            zombies: view.zombies(),
            engine: view.engine(),
            next_door: view.next_door(),
            page: view.page(),
            spans: None,
            recorder: None,
        }
    }

    fn ledger(&self, page: &mut Page<'_>, gauges: &Gauges) -> fmt::Result {
        self.rooms(page, gauges)?;
        self.pages(page, gauges)?;
        let permits = [
            ("room", gauges.room_permits),
            ("session", gauges.session_permits),
            ("engine", gauges.engine_permits),
            ("request", gauges.requests),
        ];
        let help = "Places and permits that are taken, by kind";
        page.gauges("permits", help, of("kind", permits))?;
        let help = "Accepted aborts of requests that have not arrived";
        page.gauge("tombstones", help, gauges.tombstones)?;
        let help = "Requests that wait for admission";
        page.gauge("queued_requests", help, gauges.queued_requests)?;
        if self.role == Role::Router {
            self.overload(page, gauges)?;
        }
        let help = "Live rooms without a confirmed lease";
        page.gauge("unleased_rooms", help, gauges.unleased)?;
        let avoided = [("node", gauges.avoided_nodes), ("link", gauges.avoided_links)];
        let help = "Workers and data links that get no rooms because they were blamed for several in a row";
        page.gauges("avoided", help, of("party", avoided))?;
        let help = "Messages and frames of another epoch or life, which changed nothing";
        page.counter("fenced", help, gauges.fenced)
    }

    /// What waits, what is booked, and what was refused because more came than fits.
    fn overload(&self, page: &mut Page<'_>, gauges: &Gauges) -> fmt::Result {
        let classes = Class::ALL.map(Class::label).into_iter();
        let help = "Requests in the admission queue, by class";
        page.gauges(
            "waiting_requests",
            help,
            of("class", classes.clone().zip(gauges.waiting)),
        )?;
        let help = "Tokens of prompt and answer in the admission queue, by class";
        page.gauges(
            "waiting_tokens",
            help,
            of("class", classes.clone().zip(gauges.waiting_tokens)),
        )?;
        let help = "How long a request of a class would wait that came now, by what waits and how fast that goes down, in seconds";
        let waits = classes.zip(gauges.predicted_wait);
        let waits = waits.map(|(class, wait)| ([("class", class)], seconds(wait)));
        page.numbers("predicted_wait_seconds", help, waits)?;
        page.gauge(
            "waiting_tenants",
            "Tenants in the admission queue",
            gauges.waiting_tenants,
        )?;
        let help = "KV pages of decode workers that are booked for this router's rooms";
        page.gauge("booked_pages", help, gauges.booked_pages)?;
        let help = "Prompt tokens that are booked at prefill workers and are not computed yet";
        page.gauge("booked_prompt_tokens", help, gauges.booked_prompt_tokens)?;
        let shed = [
            ("queue_full", gauges.shed.queue_full),
            ("predicted_wait", gauges.shed.predicted_wait),
            ("displaced", gauges.shed.displaced),
        ];
        page.counters(
            "shed",
            "Requests refused at once because more came than fits, by why",
            "reason",
            &shed,
        )
    }

    fn rooms(&self, page: &mut Page<'_>, gauges: &Gauges) -> fmt::Result {
        let role = self.role.name();
        let by_phase = |values: [u64; 7]| {
            let phases = Phase::ALL.into_iter().zip(values);
            phases.map(|(phase, value)| ([("role", role), ("phase", phase.name())], value))
        };
        let help = "Live parts of rooms (of a router: rooms that it owns), by phase";
        page.gauges("rooms", help, by_phase(gauges.rooms.map(u64::from)))?;
        let help = "How long the oldest of them has been in its phase, in seconds";
        let oldest = Phase::ALL.into_iter().zip(gauges.oldest);
        let oldest = oldest.map(|(phase, age)| ([("phase", phase.name())], seconds(age)));
        page.numbers("oldest_in_phase_seconds", help, oldest)?;
        let help = "How much of its budget the live part that comes closest to its end has used; at 1 it is ended";
        page.number("room_budget_used_ratio_max", help, f64::from(gauges.budget_used) / 1e3)?;
        let help = "Live parts older than their absolute deadline + 1 s; must be 0";
        page.gauge("stuck_rooms", help, gauges.stuck)?;
        let help = "Rooms that are over but whose pages may still be touched";
        page.gauge("quarantined_rooms", help, gauges.quarantined_rooms)
    }

    fn pages(&self, page: &mut Page<'_>, gauges: &Gauges) -> fmt::Result {
        let pages = gauges.pages;
        let by_state = [
            ("free", pages.free),
            ("cached", pages.cached),
            ("held", pages.held),
            ("quarantined", pages.quarantined),
        ];
        page.gauges("pages", "KV pages by state", of("state", by_state))?;
        // A gauge may not be called a total, and the name is kept: so it has no type.
        let help = "KV pages in the pool";
        let mut total = page
            .0
            .encode_descriptor("pages_total", help, None, MetricType::Unknown)?;
        total.encode_gauge(&i64::from(pages.total()))?;
        if let Some(size) = self.page {
            let bytes = u64::from(pages.quarantined) * size.bytes;
            let help = "KV memory that is in quarantine, in bytes";
            page.gauge("quarantined_bytes", help, bytes)?;
        }
        Ok(())
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
        let help = "Connections that found no place or came to no TLS handshake, by kind";
        page.counters("connections_refused", help, "kind", &self.refused)?;
        page.gauge("zombies", "Actors that did not stop when killed", self.zombies)?;
        if let Some(spans) = self.spans {
            let help = "Spans that ended, by what became of them: exported, or lost to a full queue or a collector that took none";
            page.outcomes("spans", help, &spans)?;
        }
        if let Some(recorder) = self.recorder {
            let help = "Records of rooms that ended badly, by what became of them: written, or lost to a full queue or the disk";
            page.outcomes("recorder", help, &recorder)?;
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
        self.next_door.map_or(Ok(()), |seen| next_door(&mut page, &seen))
    }
}

/// An engine that is a process of its own, as it shows itself.
fn next_door(page: &mut Page<'_>, seen: &Seen) -> fmt::Result {
    let help = "How long the engine has shown no step, in seconds";
    page.number("engine_step_age_seconds", help, seconds(seen.step_age))?;
    let help = "What the engine's last canary took that was answered, in seconds";
    page.number("engine_canary_seconds", help, seconds(seen.canary.unwrap_or_default()))?;
    let help = "KV pages that the engine itself says are in use";
    page.gauge("engine_pages", help, seen.used_pages)?;
    let help = "Processes of the engine, by how they came: ordered from here, or seen to begin";
    page.counters(
        "engine_restarts",
        help,
        "by",
        &[("ordered", seen.restarts), ("seen", seen.lives)],
    )?;
    let help = "Tickets that nobody read by, and that were given back to prefill's engine";
    page.counter("engine_orphan_tickets", help, seen.orphan_tickets)?;
    let help = "Reads of KV that were not proven to lie within their lease, and whose tokens were thrown away";
    page.counter("engine_unproven", help, seen.unproven)?;
    let help = "Whether the engine is given up: nobody starts it anew, and its worker takes no rooms";
    page.gauge("engine_given_up", help, u32::from(seen.given_up))
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

#[expect(clippy::cast_precision_loss, reason = "milliseconds of ages, not of the world")]
fn seconds(age: Millis) -> f64 {
    age.0 as f64 / 1e3
}

/// What is written so far.
pub(super) struct Page<'a>(pub(super) DescriptorEncoder<'a>);

impl Page<'_> {
    pub(super) fn number(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        let mut encoder = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        encoder.encode_gauge(&value)
    }

    fn numbers<'v, const LABELS: usize>(
        &mut self,
        name: &str,
        help: &str,
        values: impl Iterator<Item = ([(&'v str, &'v str); LABELS], f64)>,
    ) -> fmt::Result {
        let mut encoder = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in values {
            encoder.encode_family(&labels)?.encode_gauge(&value)?;
        }
        Ok(())
    }

    pub(super) fn gauge(&mut self, name: &str, help: &str, value: impl Into<u64>) -> fmt::Result {
        let mut encoder = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        encoder.encode_gauge(&shown(value.into()))
    }

    pub(super) fn gauges<'v, const LABELS: usize>(
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

    /// Counters by outcome.
    fn outcomes(&mut self, name: &str, help: &str, counts: &[(&'static str, u64)]) -> fmt::Result {
        self.counters(name, help, "outcome", counts)
    }

    /// Counters by one label.
    fn counters(&mut self, name: &str, help: &str, label: &str, counts: &[(&'static str, u64)]) -> fmt::Result {
        let mut encoder = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (value, count) in counts {
            ConstCounter::new(*count).encode(encoder.encode_family(&[(label, *value)])?)?;
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
