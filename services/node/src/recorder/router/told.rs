//! What a router's room hears, and what its workers are told.

use innkeeper_room::ledger::router::{Event, Side};
use innkeeper_room::{FromWorker, Moment, RoomId, ToWorker};

use super::{decided, name, with};
use crate::recorder::Table;
use crate::recorder::record::{LeaseNote, What};
use crate::recorder::timeline::Timeline;
use crate::recorder::worker::{code, restarted};

/// What concerns one room.
pub(super) fn heard(timeline: &mut Timeline, event: &Event, now: Moment) {
    match event {
        Event::FromWorker { side, message, .. } => worker_says(timeline, *side, message, now),
        Event::StreamEnded { side, broken: true, .. } => {
            let why = timeline
                .record
                .stream_broke
                .as_ref()
                .map_or("", |note| note.why.as_str());
            let detail = format!("{}: {why}", name(&timeline.record, *side));
            timeline.add(What::StreamBroke, detail, now);
        }
        Event::LeaseGranted { .. } => {
            let since = timeline.since(now);
            timeline.record.lease.get_or_insert_default().granted_ms = Some(since);
            timeline.add(What::LeaseGranted, String::new(), now);
        }
        Event::LeaseRenewed { .. } => {
            let since = timeline.since(now);
            let lease = timeline.record.lease.get_or_insert_default();
            lease.renewals += 1;
            lease.renewed_ms = Some(since);
        }
        Event::LeaseFailed { exists, .. } => {
            let why = if *exists {
                "the id was taken"
            } else {
                "the store did not confirm it"
            };
            lease_lost(timeline, What::LeaseFailed, why, now);
        }
        Event::RenewFailed { not_found: true, .. } => {
            lease_lost(timeline, What::RenewFailed, "the store does not have it any more", now);
        }
        Event::RenewFailed { .. } => timeline.add(What::RenewFailed, "the store did not answer".to_owned(), now),
        Event::DoorGone { .. } => lease_lost(timeline, What::DoorGone, "", now),
        Event::DoorAbsent { .. } => lease_lost(timeline, What::DoorAbsent, "", now),
        Event::Evict { .. } => timeline.add(What::Evicted, String::new(), now),
        Event::ActorDied { .. } => timeline.add(What::ActorDied, String::new(), now),
        _ => {}
    }
}

fn lease_lost(timeline: &mut Timeline, what: What, why: &str, now: Moment) {
    let lease: &mut LeaseNote = timeline.record.lease.get_or_insert_default();
    lease.lost = true;
    timeline.add(what, why.to_owned(), now);
}

fn worker_says(timeline: &mut Timeline, side: Side, message: &FromWorker, now: Moment) {
    let named = name(&timeline.record, side);
    match message {
        FromWorker::Admitted { .. } => timeline.add(What::Admitted, named, now),
        FromWorker::Refused(refusal) => {
            timeline.record.refused = true;
            timeline.add(What::Refused, format!("{named}: {refusal:?}"), now);
        }
        FromWorker::State(state) => {
            if side == Side::Prefill {
                restarted(timeline, state.epoch, now);
            }
            timeline.raise(state.counters, now);
        }
        FromWorker::Started { .. } => timeline.add(What::Started, named, now),
        FromWorker::Committed => timeline.add(What::Committed, named, now),
        FromWorker::Ask => timeline.add(What::AskedRouter, named, now),
        FromWorker::Ended { end, evidence, relayed } => {
            timeline.raise(evidence.counters, now);
            let relays = if *relayed { ", as the other worker told it" } else { "" };
            timeline.add(What::PartEnded, format!("{named}: {}{relays}", end.code()), now);
        }
        FromWorker::Evidence(evidence) => {
            let detail = format!(
                "{named}: had waited {} ms for {}",
                evidence.waited.0,
                evidence.waited_for.name()
            );
            timeline.add(What::EvidenceHeard, detail, now);
        }
        FromWorker::Unknown => timeline.add(What::PartEnded, format!("{named}: does not know the room"), now),
        FromWorker::AlreadyEnded(_) | FromWorker::Tokens { .. } => {}
    }
}

pub(super) fn told_worker(table: &mut Table, room: RoomId, side: Side, message: &ToWorker, now: Moment) {
    let what = match message {
        ToWorker::Taken(_) => return,
        ToWorker::Abort(_) | ToWorker::Verdict(_) => {
            decided(table, room, now);
            What::Abort
        }
        ToWorker::Committed => What::Committed,
        ToWorker::Live => What::Vouched,
        ToWorker::Unknown => What::UnknownToRouter,
    };
    with(table, room, |timeline| {
        let named = name(&timeline.record, side);
        let detail = match message {
            ToWorker::Abort(reason) => format!("{named}: {}", reason.code()),
            ToWorker::Verdict(verdict) => format!("{named}: {}", code(*verdict)),
            ToWorker::Committed => format!("{named} is told"),
            ToWorker::Taken(_) | ToWorker::Live | ToWorker::Unknown => named,
        };
        timeline.add(what, detail, now);
    });
}
