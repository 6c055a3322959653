//! Who owed the next step, since when, and what shows it.

use innkeeper_room::evidence::owes;
use innkeeper_room::{Evidence, Owes, Phase, Reason, Role};

use super::{Facts, words};
use crate::recorder::record::{Cause, Kind, Record, StreamNote};

/// A step that was owed.
pub(super) struct Debt {
    pub(super) who: Owes,
    pub(super) since_ms: Option<u64>,
    pub(super) what: &'static str,
}

impl Facts<'_> {
    /// Who owes, or at the end owed, the next step. The word of whoever waited goes before the phase table.
    pub(super) fn debt(&self) -> Debt {
        let phase = self.phase();
        let done = self.verdict().is_some_and(|verdict| verdict == "done");
        let waited = self.waited().filter(|_| !done);
        let (who, since_ms) = match (waited, self.case.row) {
            _ if done => (Owes::Nobody, None),
            (_, Some(row)) if self.is_live() => (row.owes, self.since_progress()),
            (Some((who, since)), _) => (who, Some(since)),
            (None, _) => (owes(phase, &self.counters()), self.since_progress()),
        };
        // What names the debt goes before who happened to wait for whom.
        let who = match self.reason() {
            Some(Reason::QueueTimeout | Reason::Aborted | Reason::ClientStalled | Reason::Overloaded) => Owes::Nobody,
            _ => who,
        };
        Debt {
            who,
            since_ms: since_ms.filter(|_| who != Owes::Nobody),
            what: words::step(who, phase),
        }
    }

    /// The phase that the room was in last.
    pub(super) fn phase(&self) -> Phase {
        match (self.case.row, self.router) {
            (Some(row), _) if self.is_live() => row.phase,
            (_, Some(record)) => record.last_phase(),
            (_, None) => self.workers().map(Record::last_phase).max().unwrap_or(Phase::Queued),
        }
    }

    /// Whom the worker that reported the end had waited for, and since when: without a report, either of them.
    fn waited(&self) -> Option<(Owes, u64)> {
        let seen = |record: &Record| {
            let evidence = match record.role {
                Role::Prefill => record.evidence.prefill,
                Role::Decode | Role::Router => record.evidence.decode,
            }?;
            let since = record.ended_unix_ms?.saturating_sub(evidence.waited.0);
            (evidence.waited_for != Owes::Nobody).then_some((evidence.waited_for, since))
        };
        let cause = self.router.and_then(|record| record.cause);
        let accuser = match cause {
            Some(Cause::Worker(role)) => [Some(role), None],
            // A worker whose connection broke is the last to ask.
            Some(Cause::Connection(Role::Decode) | Cause::Member(Role::Decode)) => [Some(Role::Prefill), None],
            Some(Cause::Connection(Role::Prefill) | Cause::Member(Role::Prefill)) => [Some(Role::Decode), None],
            Some(_) => return None,
            None => [Some(Role::Prefill), Some(Role::Decode)],
        };
        // The router saw that connection break and gave the lease back: who then asked it, as the lease was gone, did not wait for it.
        let seen_by_router = matches!(cause, Some(Cause::Connection(_) | Cause::Member(_)));
        let of = |role: Role| self.workers().find(|record| record.role == role);
        let mut waits = accuser.into_iter().flatten().filter_map(of).filter_map(seen);
        waits.find(|(who, _)| !(seen_by_router && *who == Owes::Router))
    }

    /// Since nothing has moved, as far as the router (or a worker) was told.
    fn since_progress(&self) -> Option<u64> {
        Some(self.any.began_unix_ms + self.any.progress_ms)
    }

    fn counters(&self) -> innkeeper_room::Counters {
        let mut all = innkeeper_room::Counters::default();
        for record in self.case.records {
            all.raise(record.counters);
        }
        all
    }

    /// A party for people.
    pub(super) fn party(&self, who: Owes) -> String {
        match who {
            Owes::Nobody => "nobody".to_owned(),
            Owes::Prefill => self.node(Role::Prefill),
            Owes::Decode => self.node(Role::Decode),
            Owes::Router => self.node(Role::Router),
        }
    }

    /// What shows who owed.
    pub(super) fn evidence(&self, debt: &Debt) -> Vec<String> {
        let mut found = vec![];
        self.how_far(&mut found);
        if let Some(record) = self.router {
            self.of_router(record, debt, &mut found);
        }
        for record in self.workers() {
            self.of_worker(record, &mut found);
        }
        // What workers told the router, where their own records are missing.
        for (role, own) in [(Role::Prefill, self.prefill), (Role::Decode, self.decode)] {
            let told = self.router.and_then(|record| match role {
                Role::Prefill => record.evidence.prefill,
                Role::Decode | Role::Router => record.evidence.decode,
            });
            if let Some(evidence) = told.filter(|_| own.is_none()) {
                self.seen(role, &evidence, "told the router that it", &mut found);
            }
        }
        for missing in self.case.missing {
            let name = missing.name.clone().unwrap_or_else(|| missing.incarnation.to_string());
            let kind = words::kind(missing.role);
            found.push(format!("{kind} {name} says nothing now: {}", missing.why));
        }
        found
    }

    /// Computed, sealed, sent, verified; tokens.
    fn how_far(&self, found: &mut Vec<String>) {
        let counters = self.counters();
        found.push(self.kv(&counters));
        let passed = self.router.map(|record| record.tokens.count);
        let made = self
            .decode
            .map_or(u64::from(counters.tokens_made), |record| record.tokens.count);
        if made > 0 || passed.is_some_and(|passed| passed > 0) {
            let taken = passed.map_or_else(String::new, |passed| format!(", {passed} passed the router"));
            found.push(format!(
                "tokens: {made} of at most {} produced{taken}",
                self.any.max_tokens
            ));
        }
    }

    fn kv(&self, counters: &innkeeper_room::Counters) -> String {
        let prompt = self.any.prompt_tokens;
        let all = self.case.records.iter().find_map(|record| record.bytes_expected);
        // Counters are those of the last report, which may be older than the commit.
        if self.phase() == Phase::Decoding {
            let all = all.map_or_else(String::new, |all| format!(" ({})", words::bytes(all)));
            return format!("KV: that of all {prompt} prompt tokens{all} was verified by decode");
        }
        let of = all.map_or_else(String::new, |all| format!(" of {}", words::bytes(all)));
        format!(
            "KV: {} sealed, {} handed over, {} verified by decode{of}; {} of {prompt} prompt tokens computed",
            words::bytes(counters.bytes_sealed),
            words::bytes(counters.bytes_sent.max(counters.bytes_verified)),
            words::bytes(counters.bytes_verified),
            counters.tokens_computed,
        )
    }

    fn of_router(&self, record: &Record, debt: &Debt, found: &mut Vec<String>) {
        let end = record.ended_unix_ms.unwrap_or(self.case.now_ms);
        let before_end = |since_begin: u64| end.saturating_sub(record.began_unix_ms + since_begin);
        let before = if self.is_live() { "ago" } else { "before the end" };
        if debt.who != Owes::Nobody {
            let (what, since) = match (debt.who, self.phase(), record.verified_ms) {
                (Owes::Decode, Phase::WaitingForInput | Phase::Transferring, verified) => {
                    ("the last newly verified bytes", verified.unwrap_or(0))
                }
                _ => ("the last progress of any kind", record.progress_ms),
            };
            found.push(format!(
                "{what} that the router was told of came {} {before}; the progress TTL is {}",
                words::time(before_end(since)),
                words::time(record.ttl_ms)
            ));
        }
        if let Some(note) = &record.stream_broke {
            found.push(format!(
                "the control connection to {} broke {} {before}: {}",
                self.node(note.side),
                words::time(before_end(note.at_ms)),
                plain(note, record.ttl_ms)
            ));
        }
        if let Some(stopped) = record.stopped_ms {
            found.push(format!(
                "the router itself had been stopped for {} while the room lived",
                words::time(stopped)
            ));
        }
        match &record.lease {
            Some(lease) if lease.renewals > 0 => found.push(format!(
                "the lease was last renewed {} {before}, of {} renewals, because {}",
                words::time(before_end(lease.renewed_ms.unwrap_or(0))),
                lease.renewals,
                lease.why
            )),
            Some(lease) if lease.granted_ms.is_some() => {
                found.push("the lease was granted and never renewed".to_owned())
            }
            Some(_) | None => found.push("the room had no lease".to_owned()),
        }
    }

    fn of_worker(&self, record: &Record, found: &mut Vec<String>) {
        let node = self.node(record.role);
        let evidence = match record.role {
            Role::Prefill => record.evidence.prefill,
            Role::Decode | Role::Router => record.evidence.decode,
        };
        // One who did its part accuses nobody.
        if let Some(evidence) = evidence.filter(|_| record.kind() != Kind::Good) {
            self.seen(record.role, &evidence, "", found);
        }
        if let Some(broke) = record.broke {
            let how = match (broke.refused, broke.unacked) {
                (true, _) => "it was refused",
                (false, true) => "bytes that it had sent were not acknowledged by the peer's kernel",
                (false, false) => "it was reset or closed",
            };
            found.push(format!(
                "{node}: its data connection broke {} (last after {}, epoch {}): {how}",
                times(broke.times),
                words::time(broke.at_ms),
                broke.epoch
            ));
        }
        if record.epochs > 1 {
            found.push(format!("{node}: the transfer was begun {} times", record.epochs));
        }
        if record.tokens.count > record.tokens.taken && record.role == Role::Decode {
            let open = record.tokens.count - record.tokens.taken;
            found.push(format!(
                "{node}: {open} tokens that it sent were not confirmed by the router"
            ));
        }
    }

    fn seen(&self, role: Role, evidence: &Evidence, told: &str, found: &mut Vec<String>) {
        let node = self.node(role);
        let mut saw = vec![];
        let waited = words::time(evidence.waited.0);
        match (evidence.waited_for, role) {
            (Owes::Nobody, _) => {}
            (Owes::Prefill, Role::Prefill) | (Owes::Decode, Role::Decode) => {
                saw.push(format!("owed the next step itself, for {waited}"));
            }
            (other, _) => saw.push(format!("had waited {waited} for {}", self.party(other))),
        }
        if evidence.unacked {
            saw.push("had sent bytes that the peer's kernel did not acknowledge".to_owned());
        }
        if evidence.data_link_broken {
            saw.push("had no data connection to its peer any more".to_owned());
        }
        if evidence.engine_owes.0 > 0 {
            saw.push(format!(
                "had a step of its engine in hand for {}",
                words::time(evidence.engine_owes.0)
            ));
        }
        if evidence.was_stopped {
            saw.push("had itself been stopped".to_owned());
        }
        if !saw.is_empty() {
            let told = if told.is_empty() {
                String::new()
            } else {
                format!("{told} ")
            };
            found.push(format!("{node} {told}{}", saw.join(", ")));
        }
    }
}

/// What the break says: a node that answers pings also reports itself, twenty times in a TTL. And the network's own words.
fn plain(note: &StreamNote, ttl_ms: u64) -> String {
    let why = if note.why.is_empty() {
        "the network does not say why"
    } else {
        &note.why
    };
    match note.silent_ms {
        Some(silent) if silent > ttl_ms / 4 => format!(
            "pings were not answered, and it had reported nothing of itself for {} ({why})",
            words::time(silent)
        ),
        Some(silent) => format!(
            "it was closed, reset or refused; the last report of itself had come {} before ({why})",
            words::time(silent)
        ),
        None => why.to_owned(),
    }
}

fn times(count: u32) -> String {
    match count {
        1 => "once".to_owned(),
        _ => format!("{count} times"),
    }
}
