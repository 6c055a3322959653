//! What workers say about rooms, and what becomes of it. Every report is applied, counted or answered: none is lost in
//! silence.

use super::{Effect, Ledger, Side};
use crate::evidence::Evidence;
use crate::ids::{Epoch, RoomId};
use crate::message::{FromWorker, PartState, ToWorker};
use crate::planted;
use crate::reason::{PartEnd, Reason};
use crate::room::Heard;

impl Ledger {
    pub(super) fn hear_worker(&mut self, id: RoomId, side: Side, message: FromWorker) {
        match self.rooms.get(&id) {
            Some(room) if room.is_live() => self.live_report(id, side, message),
            Some(_) => self.late_report(id, side, message),
            None => self.stray_report(id, side, &message),
        }
    }

    fn live_report(&mut self, id: RoomId, side: Side, message: FromWorker) {
        match message {
            FromWorker::Admitted { data_addr, token } => self.admitted(id, side, data_addr, token),
            FromWorker::Refused(refusal) => self.refused(id, side, refusal),
            FromWorker::State(state) => self.state(id, side, state),
            FromWorker::Started { epoch, .. } => self.started(id, side, epoch),
            FromWorker::Committed => match side {
                Side::Decode => self.committed(id),
                Side::Prefill => self.fenced += 1,
            },
            FromWorker::Tokens { position, count } => self.tokens(id, side, position, count),
            FromWorker::Ended { end, evidence, relayed } => self.part_ended(id, side, end, Some(evidence), relayed),
            FromWorker::AlreadyEnded(end) => self.part_ended(id, side, end, None, false),
            FromWorker::Ask => self.ask(id, side),
            // Nobody has asked: R asks after the verdict.
            FromWorker::Evidence(_) => self.fenced += 1,
            FromWorker::Unknown => self.part_unknown(id, side),
        }
    }

    /// The room has its verdict and blame is awaited.
    fn late_report(&mut self, id: RoomId, side: Side, message: FromWorker) {
        match message {
            FromWorker::Tokens { count, .. } if planted::two_speakers() => self.pass_anyway(id, count),
            FromWorker::Ended { evidence, relayed, .. } => {
                self.answer_verdict(id, side);
                self.hear_evidence(id, speaker(side, relayed), Some(evidence));
            }
            FromWorker::Evidence(evidence) => self.hear_evidence(id, side, Some(evidence)),
            // It answers, but has nothing to tell: not silent, and no debt.
            FromWorker::AlreadyEnded(_) | FromWorker::Unknown => self.hear_evidence(id, side, None),
            FromWorker::Admitted { .. }
            | FromWorker::Refused(_)
            | FromWorker::State(_)
            | FromWorker::Started { .. }
            | FromWorker::Committed
            | FromWorker::Tokens { .. }
            | FromWorker::Ask => self.answer_verdict(id, side),
        }
    }

    /// What the gate must never do: see `planted`.
    fn pass_anyway(&mut self, id: RoomId, count: u32) {
        let Some(room) = self.rooms.get(&id) else { return };
        let request = room.spec.request;
        self.push(Effect::Pass {
            request,
            room: id,
            skip: 0,
            count,
        });
        self.answer_verdict(id, Side::Decode);
    }

    /// R remembers at most the room's verdict. Answers are not answered again: that would never end.
    fn stray_report(&mut self, id: RoomId, side: Side, message: &FromWorker) {
        match message {
            FromWorker::Evidence(_) | FromWorker::AlreadyEnded(_) | FromWorker::Unknown => self.fenced += 1,
            FromWorker::Admitted { .. }
            | FromWorker::Refused(_)
            | FromWorker::State(_)
            | FromWorker::Started { .. }
            | FromWorker::Committed
            | FromWorker::Tokens { .. }
            | FromWorker::Ended { .. }
            | FromWorker::Ask => self.answer_verdict(id, side),
        }
    }

    fn answer_verdict(&mut self, id: RoomId, side: Side) {
        self.fenced += 1;
        if planted::update_after_clear_is_noop() {
            return;
        }
        let message = self.verdict_of(id).map_or(ToWorker::Unknown, ToWorker::Verdict);
        self.push(Effect::Tell {
            room: id,
            side,
            message,
        });
    }

    fn state(&mut self, id: RoomId, side: Side, state: PartState) {
        let (now, settings) = (self.now, self.settings.clone());
        let Some(room) = self.live_mut(id) else { return };
        let committed = room.committed;
        let heard = room.hear_state(side, state, now, &settings);
        let (news, sealed) = (room.committed && !committed, room.sealed);
        if sealed {
            self.prompt_computed(id);
        }
        match heard {
            Heard::Progress => self.progress(id),
            Heard::Nothing => {}
            Heard::Fenced => self.fenced += 1,
        }
        if news {
            self.tell_commit(id);
        }
    }

    fn started(&mut self, id: RoomId, side: Side, epoch: Epoch) {
        let (now, settings) = (self.now, self.settings.clone());
        let heard = match (side, self.live_mut(id)) {
            (Side::Prefill, Some(room)) => room.hear_started(epoch, now, &settings),
            // Only P has a turn.
            (Side::Decode, _) | (Side::Prefill, None) => Heard::Fenced,
        };
        match heard {
            Heard::Progress => self.progress(id),
            Heard::Nothing => {}
            Heard::Fenced => self.fenced += 1,
        }
    }

    /// A worker's part has ended. `relayed`: the other worker said so, and it counts as that one's report.
    fn part_ended(&mut self, id: RoomId, side: Side, end: PartEnd, evidence: Option<Evidence>, relayed: bool) {
        let Some(room) = self.rooms.get(&id) else { return };
        let (counted, taken) = (room.counts(side), room.taken);
        let accuser = speaker(side, relayed);
        self.record_end(id, side, end);
        if let Some(room) = self.live_mut(id) {
            let part = room.part_mut(accuser);
            part.evidence = part.evidence.or(evidence);
        }
        match (side, end) {
            (Side::Prefill, PartEnd::HandedOver) => self.committed(id),
            // P heard that D is done: D's own word comes after its last token.
            (Side::Prefill, PartEnd::Done) if relayed => self.committed(id),
            (Side::Decode, PartEnd::Done) if taken > 0 => self.done(id),
            (Side::Prefill | Side::Decode, PartEnd::Done) | (Side::Decode, PartEnd::HandedOver) => {
                self.fail(id, Reason::ProtocolError, Some(side), Some(side));
            }
            (Side::Prefill | Side::Decode, PartEnd::Failed(reason)) => {
                // After the commit P's own failure is none of the room's; what it relays is D's word.
                if counted || relayed {
                    self.fail(id, reason, named_by(reason, accuser), Some(accuser));
                } else {
                    self.fenced += 1;
                }
            }
        }
    }

    /// The worker does not know a room that lives: it has lost its part.
    fn part_unknown(&mut self, id: RoomId, side: Side) {
        if self.rooms.get(&id).is_some_and(|room| room.counts(side)) {
            self.fail(id, side.lost(), Some(side), Some(side));
        } else {
            self.fenced += 1;
        }
    }

    /// The room's lease is gone and the worker asks: answered at once. A room that is overdue is decided first.
    fn ask(&mut self, id: RoomId, side: Side) {
        if planted::ask_unanswered() {
            return;
        }
        if !self.held {
            self.fire_room(id);
        }
        if self.rooms.get(&id).is_some_and(|room| room.is_live()) {
            self.push(Effect::Tell {
                room: id,
                side,
                message: ToWorker::Live,
            });
        } else {
            self.answer_verdict(id, side);
        }
    }

    pub(super) fn stream_ended(&mut self, id: RoomId, side: Side, broken: bool) {
        let held = self.held;
        let Some(room) = self.room_mut(id) else { return };
        let (live, counts) = (room.is_live(), room.counts(side));
        let part = room.part_mut(side);
        part.stream = false;
        if !live {
            // What it had to say on this stream it has said.
            part.heard |= broken;
            return self.finish_if_heard(id);
        }
        if part.ended.is_some() {
            return;
        }
        if !counts {
            // P's part is over with the commit, and without its stream nobody hears of its end: the room may go on for long.
            let node = part.node;
            return self.unbook(node, id);
        }
        if held {
            part.cut = true;
        } else {
            // A reset stream says of that worker what a broken connection says; the link between the pair has no part in it.
            self.fail(id, side.lost(), Some(side), None);
        }
    }

    /// R's own actor of the room died, for whatever reason.
    pub(super) fn actor_died(&mut self, id: RoomId) {
        self.fail(id, Reason::InternalError, None, None);
    }
}

/// Whose report it is: a relayed one, with its evidence, is the other worker's.
const fn speaker(side: Side, relayed: bool) -> Side {
    if relayed { side.other() } else { side }
}

/// Reasons in which a node speaks of itself.
const fn named_by(reason: Reason, accuser: Side) -> Option<Side> {
    match reason {
        Reason::EngineFailed
        | Reason::EngineStalled
        | Reason::EngineWedged
        | Reason::EngineRestarted
        | Reason::EngineError
        | Reason::InternalError
        | Reason::SelfPaused => Some(accuser),
        Reason::QueueTimeout
        | Reason::RequestTimeout
        | Reason::HandshakeTimeout
        | Reason::PrefillStalled
        | Reason::TransferStalled
        | Reason::DecodeStalled
        | Reason::RouterStalled
        | Reason::PrefillLost
        | Reason::DecodeLost
        | Reason::RouterLost
        | Reason::TransferLost
        | Reason::LeaseExpired
        | Reason::LeaseRevoked
        | Reason::LeaseLost
        | Reason::MemberLost
        | Reason::Aborted
        | Reason::ClientStalled
        | Reason::KvCorrupt
        | Reason::KvUnproven
        | Reason::WrongIncarnation
        | Reason::Draining
        | Reason::ProtocolError
        | Reason::UnknownRoom
        | Reason::NoPrefillWorker
        | Reason::NoDecodeWorker
        | Reason::TooLarge
        | Reason::Overloaded
        | Reason::RetryBudgetSpent => None,
    }
}
