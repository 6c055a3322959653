//! Aborts: they count from the moment they are accepted, before the request arrives, in every phase, and after the end.

use super::{AbortAnswer, Effect, Ledger, Outcome, Timer};
use crate::ids::RequestKey;
use crate::reason::{Blame, Reason};
use crate::request::Stage;

impl Ledger {
    /// Ends every request that lives under the id; else remembers the abort for those that will arrive under it.
    pub(super) fn abort(&mut self, rid: &str, client: &str, ticket: u64) {
        let live: Vec<RequestKey> = self.by_rid.get(rid).into_iter().flatten().copied().collect();
        let answer = if live.is_empty() {
            self.abort_nobody(rid, client)
        } else {
            AbortAnswer::Aborted
        };
        for key in live {
            self.end_request(key, Reason::Aborted, Blame::Nobody);
        }
        self.push(Effect::AnswerAbort { ticket, answer });
    }

    fn abort_nobody(&mut self, rid: &str, client: &str) -> AbortAnswer {
        if self.ended_lately(rid) {
            return AbortAnswer::AlreadyEnded;
        }
        self.dirty.insert(Timer::Tombstones);
        if self.tombstones.accept(rid, client, self.now) {
            AbortAnswer::Accepted
        } else {
            AbortAnswer::Refused
        }
    }

    fn ended_lately(&self, rid: &str) -> bool {
        let ended = self.ended_rids.get(rid).and_then(|key| self.ended.get(key));
        ended.is_some_and(|(_, until)| self.now < *until)
    }

    /// The client closed the connection: the abort that always arrives. After the answer it means nothing.
    pub(super) fn client_gone(&mut self, request: RequestKey) {
        self.end_request(request, Reason::Aborted, Blame::Nobody);
    }

    pub(super) fn client_stalled(&mut self, request: RequestKey) {
        self.end_request(request, Reason::ClientStalled, Blame::Client);
    }

    /// The gate found the end of the answer. What already passed is enough, even if the room has failed since.
    pub(super) fn satisfied(&mut self, key: RequestKey) {
        let Some(request) = self.requests.get(&key) else { return };
        match request.stage {
            Stage::Running(room) => self.done(room),
            Stage::Waiting | Stage::Judging(_) => self.answer(key, Outcome::Done),
        }
    }
}
