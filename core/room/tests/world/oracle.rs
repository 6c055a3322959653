//! What must hold after every run, whatever the adversary did.

use innkeeper_room::ledger::Gauges;
use innkeeper_room::ledger::router::Outcome;
use innkeeper_room::{Blame, Phase, Reason, RequestKey, Verdict};

use crate::faults::Fault;
use crate::node::{Brain, index_of};
use crate::world::{Client, PAGE_BYTES, PAGE_TOKENS, World};

impl World {
    /// By when a request must be answered.
    fn bound(&self, client: &Client) -> u64 {
        let s = &self.settings;
        let prompt = client.prompt + client.max_tokens;
        let bytes = u64::from(prompt.div_ceil(PAGE_TOKENS).max(1)) * PAGE_BYTES;
        let hello = (s.handshake_ttl.0 + s.router_slack.0) * u64::from(s.max_epochs);
        let attempt = 2 * s.connect_timeout.0
            + hello
            + s.prefill_budget(prompt).0
            + s.transfer_budget(bytes).0
            + s.decode_budget(client.max_tokens).0
            + 3 * s.router_slack.0
            + s.blame_wait.0;
        let attempts = u64::from(s.max_attempts) + u64::from(self.pauses);
        let whole = (s.queue_timeout.0 + attempts * attempt).min(s.request_timeout.0);
        let until = client.arrives + whole + self.router_paused + 1000;
        match client.gave_up {
            // What R knew of it went with R.
            Some(at) if at < client.arrives && self.router_died() => until,
            Some(at) => until.min(at.max(client.arrives) + 250 + self.router_paused),
            None => until,
        }
    }

    fn router_died(&self) -> bool {
        self.faults.iter().any(|fault| matches!(fault, Fault::Crash(0, _)))
    }

    /// Whether every client has what it gets.
    pub(crate) fn all_answered(&self) -> bool {
        self.clients
            .values()
            .all(|client| client.answer.is_some() || client.cut_off)
    }

    /// The requests' answers: once, in time, and as good as the faults allow.
    pub(crate) fn check_answers(&mut self) {
        // Each revoke may cost a request one attempt, and it has two.
        let revokes = self
            .faults
            .iter()
            .filter(|fault| matches!(fault, Fault::Revoke | Fault::Evict))
            .count();
        let store_only = revokes < 2
            && self
                .faults
                .iter()
                .all(|fault| fault.is_of_store() || fault.is_harmless());
        let harmless = self.faults.iter().all(|fault| fault.is_harmless());
        let pairs = self.shape.prefills > 1 && self.shape.decodes > 1;
        let survives = pairs && self.faults.len() == 1 && self.faults.iter().all(|fault| fault.leaves_another_pair());
        let r_died = self.router_died();
        let clients: Vec<(RequestKey, Client)> = self
            .clients
            .iter()
            .map(|(key, client)| (*key, client.clone()))
            .collect();
        for (key, client) in clients {
            let bound = self.bound(&client);
            match client.answer {
                None if client.cut_off => {}
                None => self.wrong(format!("I2: request {} is never answered", key.0)),
                Some((_, at)) if at > bound => {
                    self.wrong(format!("I2: request {} is answered at {at}, later than {bound}", key.0));
                }
                Some((outcome, _)) => {
                    let aborted = matches!(
                        outcome,
                        Outcome::Failed {
                            reason: Reason::Aborted,
                            ..
                        }
                    );
                    if client.gave_up.is_some_and(|at| at < client.arrives) && !aborted && !r_died {
                        self.wrong(format!(
                            "I3: request {} was aborted before it arrived, and got {outcome:?}",
                            key.0
                        ));
                    }
                    if aborted && client.gave_up.is_none() {
                        self.wrong(format!("I3: nobody aborted request {}", key.0));
                    }
                    if store_only && outcome != Outcome::Done {
                        self.wrong(format!(
                            "only the lease store was touched, but request {} got {outcome:?}",
                            key.0
                        ));
                    }
                    if survives && outcome != Outcome::Done {
                        self.wrong(format!("another pair is well, but request {} got {outcome:?}", key.0));
                    }
                    if harmless && client.failed_rooms > 0 {
                        self.wrong(format!(
                            "an attempt of request {} failed although nothing happened",
                            key.0
                        ));
                    }
                }
            }
        }
    }

    /// I9: blame names nobody whom the adversary did not touch. How often it names nobody, of how many failures.
    pub(crate) fn check_blame(&mut self) -> (u32, u32) {
        let (mut nobody, mut failed) = (0, 0);
        let ends: Vec<_> = self.ends.values().copied().collect();
        for end in ends {
            let Verdict::Failed(reason) = end.verdict else { continue };
            if matches!(reason, Reason::ProtocolError | Reason::UnknownRoom) {
                self.wrong(format!(
                    "room {} ended as {reason}, but nobody breaks the protocol here",
                    end.room
                ));
            }
            let refused = matches!(
                reason,
                Reason::Overloaded | Reason::Draining | Reason::Aborted | Reason::ClientStalled
            );
            failed += u32::from(!refused);
            let touched = match end.blame {
                Blame::Nobody => {
                    nobody += u32::from(!refused);
                    true
                }
                Blame::Client => self.faults.iter().any(|fault| matches!(fault, Fault::Stalls(_))),
                Blame::Router(node) | Blame::Prefill(node) | Blame::Decode(node) => {
                    self.touched_nodes.contains(&index_of(node))
                }
                Blame::Link { prefill, decode } => {
                    let (p, d) = (index_of(prefill), index_of(decode));
                    // Engines that read from each other see the same of a link that fails and of a peer that does.
                    let of_engines = self.shape.remote && [p, d].iter().any(|w| self.touched_nodes.contains(w));
                    self.touched_links.contains(&(p, d)) || of_engines
                }
            };
            if !touched {
                self.wrong(format!(
                    "I9: room {} ({reason}) blames {:?}, which nobody touched",
                    end.room, end.blame
                ));
            }
        }
        (nobody, failed)
    }

    /// The parts and rooms that live: all of them, or those in which somebody owes.
    pub(crate) fn living(&self, queued_too: bool) -> Vec<String> {
        let mut found = vec![];
        for n in self.nodes.iter().filter(|n| n.up) {
            let now = self.clock(n.index);
            let rows = match &n.brain {
                Brain::R(ledger) => ledger.rows(now),
                Brain::P(ledger) => ledger.rows(now),
                Brain::D(ledger) => ledger.rows(now),
            };
            let owed = rows.iter().filter(|row| queued_too || row.phase != Phase::Queued);
            found.extend(owed.map(|row| format!("{} at {} in {}", row.room, n.name(), row.phase)));
        }
        found
    }

    /// I2: with no message from anybody, everybody's own timers end everything within its bound. Returns how long it took,
    /// in ms, until every request was answered, and until nothing lived anywhere.
    pub(crate) fn check_closure(&mut self) -> (u64, u64) {
        let (ttl, silent) = (self.settings.progress_ttl.0, self.now);
        let answered = self.run_while(|world| world.clients.values().any(|client| client.is_open() && !client.cut_off));
        if answered > silent + ttl + 2000 {
            self.wrong("I2: in silence a request is not answered within TTL + 2 s".into());
        }
        // What waits for its turn at P computes first, with nobody listening.
        let owed = self.run_while(|world| !world.living(false).is_empty());
        if owed > silent + ttl + 6000 {
            self.wrong("I2: in silence a room in which somebody owes lives too long".into());
        }
        let over = self.run_while(|world| !world.living(true).is_empty());
        if over > silent + self.settings.queue_timeout.0 + 2 * ttl + 1000 {
            self.wrong("I2: in silence a room outlives the backstop".into());
        }
        self.run_until(self.now + 2 * ttl + 1000);
        for n in &self.nodes {
            let now = self.clock(n.index);
            let gauges = n.brain.gauges(now);
            let total = self.shape.pages_of(n.index);
            if !is_clean(&gauges, total) {
                let what = format!("I7: in silence {} keeps {gauges:?}", n.name());
                self.wrong(what);
                break;
            }
        }
        (answered - silent, over - silent)
    }

    /// Runs while something holds, but no longer than two minutes; returns when it ended.
    fn run_while(&mut self, holds: impl Fn(&Self) -> bool) -> u64 {
        let end = self.now + 120_000;
        while holds(self) && self.now < end && self.errors.is_empty() {
            self.step();
        }
        self.now
    }

    /// Whether nothing is left to be given back.
    pub(crate) fn is_quiet(&self) -> bool {
        let clean = |n: &crate::node::Node| {
            let total = self.shape.pages_of(n.index);
            n.up && is_clean(&n.brain.gauges(self.clock(n.index)), total)
                && n.streams.is_empty()
                && n.engine.jobs.is_empty()
                && n.pool.of.is_empty()
        };
        self.all_answered()
            && self.nodes.iter().all(clean)
            && self.router.streams.is_empty()
            && self.store.rooms.is_empty()
            && self.live_sessions().is_empty()
    }

    /// Data connections of which an end has not let go.
    fn live_sessions(&self) -> Vec<String> {
        self.sessions
            .values()
            .filter(|s| {
                let p = self.nodes[s.p].life == s.p_life && !s.at_p.quiesced;
                let d = self.nodes[s.d].life == s.d_life && !s.at_d.quiesced;
                p || d
            })
            .map(|s| format!("{} epoch {}", s.room, s.epoch.0))
            .collect()
    }

    /// Everything has healed: new requests are Done, and all is given back after them.
    pub(crate) fn check_heals(&mut self) {
        // A node that was away registers within a third of the lease's TTL, and is heard of one period later.
        let known = self.settings.lease_ttl.scale(1, 3) + self.settings.report_period.scale(2, 1);
        let now = self.now + known.0;
        let fresh: Vec<_> = (0..2)
            .map(|number| self.new_client(5 + number, 3, now + 50 * u64::from(number)))
            .collect();
        let slow = self.exact.map_or(0, |exact| exact.step * 20);
        self.run_until(now + 4000 + slow);
        for key in fresh {
            let answer = self.clients.get(&key).and_then(|client| client.answer);
            if !matches!(answer, Some((Outcome::Done, _))) {
                self.wrong(format!("after all faults are off request {} gets {answer:?}", key.0));
            }
        }
        self.run_until(self.now + 500);
        self.check_clean();
    }

    /// After quiesce everything is back.
    pub(crate) fn check_clean(&mut self) {
        for index in 0..self.nodes.len() {
            let (now, name) = (self.clock(index), self.nodes[index].name());
            if !self.nodes[index].up {
                self.wrong(format!("{name} is down"));
                continue;
            }
            let gauges = self.nodes[index].brain.gauges(now);
            let total = self.shape.pages_of(index);
            if !is_clean(&gauges, total) {
                self.wrong(format!("I7: {name} is not clean: {gauges:?}"));
            }
            if self.nodes[index].pool.owner.iter().any(Option::is_some) {
                self.wrong(format!("I7: {name}'s pool has pages out"));
            }
            if !self.nodes[index].engine.jobs.is_empty() {
                self.wrong(format!("{name}'s engine has jobs"));
            }
            if !self.nodes[index].streams.is_empty() {
                self.wrong(format!("{name} has streams {:?}", self.nodes[index].streams));
            }
        }
        if !self.router.streams.is_empty() {
            self.wrong(format!("R has streams {:?}", self.router.streams));
        }
        if !self.store.rooms.is_empty() {
            self.wrong(format!("the store has keys {:?}", self.store.rooms));
        }
        let live = self.live_sessions();
        if !live.is_empty() {
            self.wrong(format!("sessions live: {live:?}"));
        }
    }
}

fn is_clean(gauges: &Gauges, total: u32) -> bool {
    gauges.rooms.iter().all(|rooms| *rooms == 0)
        && gauges.pages.held == 0
        && gauges.pages.quarantined == 0
        && gauges.pages.total() == total
        && gauges.room_permits == 0
        && gauges.session_permits == 0
        && gauges.engine_permits == 0
        && gauges.quarantined_rooms == 0
        && gauges.requests == 0
        && gauges.stuck == 0
        && gauges.pinned.is_none()
}
