//! KV that goes from one engine to another: by tickets at vLLM, in rooms at SGLang.

use std::time::Instant;

use super::Core;
use super::request::{Out, Reach, Role, State, TicketOf, Unsent, notice};

impl Core {
    /// A ticket of another engine was given back here. Known engines are told at once.
    pub(in crate::standin) fn give_back(&mut self, ticket: TicketOf, now: Instant) -> Option<Reach> {
        if self.config.bugs.notice_lost {
            return None;
        }
        if self.met.contains(&ticket.engine) {
            return Some(notice(ticket));
        }
        self.unsent.push(Unsent {
            ticket,
            at: now + self.config.wire_up,
            stepped: false,
        });
        None
    }

    /// Another engine has read the KV of a request, or will not.
    pub(in crate::standin) fn hear(&mut self, request: String) {
        self.notices.push(request);
    }

    /// Another engine reads pages: whatever is in them now, unless it is too late and this is a good engine.
    pub(in crate::standin) fn read(&mut self, ticket: &TicketOf) -> Result<Vec<Vec<u32>>, String> {
        if !self.kept.contains_key(&ticket.request) {
            self.counted.late_reads += 1;
            if !self.config.bugs.late_pull_foreign {
                return Err("the blocks are not kept any more".to_owned());
            }
        }
        Ok(ticket.blocks.iter().map(|block| self.pages.content(*block)).collect())
    }

    /// A read has ended.
    pub(in crate::standin) fn read_done(&mut self, key: u64, read: Result<Vec<Vec<u32>>, String>) -> Option<Reach> {
        let request = self.requests.get_mut(&key)?;
        let Role::Pull(ticket) = request.ask.role.clone() else {
            return None;
        };
        match read {
            Ok(content) if !request.orphan => {
                self.met.insert(ticket.engine.clone());
                self.counted.external_tokens += request.ask.prompt.len() as u64;
                request.state = State::Decoding;
                for (page, content) in request.pages.iter().zip(content) {
                    self.pages.put(*page, content);
                }
                Some(notice(ticket))
            }
            Ok(_) => {
                self.finish(key, Out::Error("aborted".to_owned()));
                Some(notice(ticket))
            }
            Err(why) => {
                self.finish(key, Out::Error(format!("KV load failed: {why}")));
                None
            }
        }
    }

    /// Decode's engine is in the room.
    pub(in crate::standin) fn met(&mut self, key: u64) {
        if let Some(request) = self.requests.get_mut(&key) {
            request.state = State::Computing;
        }
    }

    /// Whether a request of this room waits for its KV here.
    pub(in crate::standin) fn waits_in(&self, room: u64) -> bool {
        self.requests
            .values()
            .any(|request| request.ask.role == Role::TakeIn(room) && request.state == State::Meeting)
    }

    /// The KV of a request that is in flight.
    pub(in crate::standin) fn in_flight(&self, key: u64) -> Vec<Vec<u32>> {
        let pages = self.requests.get(&key).map(|request| request.pages.clone());
        pages
            .unwrap_or_default()
            .into_iter()
            .map(|page| self.pages.content(page))
            .collect()
    }

    /// Prefill's part is over: the KV was taken, or it will not be.
    pub(in crate::standin) fn handed_over(&mut self, key: u64, taken: Result<(), String>) {
        match taken {
            Ok(()) if self.config.bugs.keeps_handed_over => {
                if let Some(request) = self.requests.get_mut(&key) {
                    request.state = State::Forgotten;
                }
            }
            Ok(()) => {
                self.counted.work.finished += 1;
                let reason = "length";
                self.finish(key, Out::Done { reason, ticket: None });
            }
            Err(why) => self.finish(key, Out::Error(why)),
        }
    }

    /// Takes the KV of a room in. Whether anybody waited for it.
    pub(in crate::standin) fn take_in(&mut self, room: u64, content: Vec<Vec<u32>>) -> bool {
        let waiting = self
            .requests
            .values_mut()
            .find(|request| request.ask.role == Role::TakeIn(room) && request.state == State::Meeting);
        let Some(request) = waiting else { return false };
        for (page, content) in request.pages.iter().zip(content) {
            self.pages.put(*page, content);
        }
        request.state = State::Decoding;
        true
    }
}
