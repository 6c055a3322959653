//! A part that lives: its record as it grows. Bounded: the first entries and the last ones are kept, those between counted.

use std::collections::VecDeque;

use innkeeper_room::{Counters, Moment, Phase};

use super::record::{Entry, PhaseSpan, Record, What};

/// Entries of the beginning that are kept.
const FIRST: usize = 24;
/// Entries of the end that are kept.
const LAST: usize = 40;
/// Phases that are kept; a part that is sent back to its queue more often shows the last of them as one.
const PHASES: usize = 32;
/// Longest detail, in bytes.
const DETAIL: usize = 240;
/// Longest text that a client chose.
pub(super) const RID: usize = 256;

/// A record that grows.
pub(super) struct Timeline {
    pub(super) record: Record,
    began: Moment,
    last: VecDeque<Entry>,
}

impl Timeline {
    pub(super) fn new(mut record: Record, now: Moment) -> Self {
        record.phases.push(PhaseSpan {
            phase: Phase::Queued,
            from_ms: 0,
            to_ms: None,
        });
        let mut timeline = Self {
            record,
            began: now,
            last: VecDeque::new(),
        };
        timeline.add(What::Began, String::new(), now);
        timeline
    }

    /// Milliseconds since the part began.
    pub(super) const fn since(&self, now: Moment) -> u64 {
        now.since(self.began).0
    }

    pub(super) fn add(&mut self, what: What, mut detail: String, now: Moment) {
        shorten(&mut detail, DETAIL);
        let since_ms = self.since(now);
        let entry = Entry {
            at_ms: self.record.began_unix_ms + since_ms,
            since_ms,
            what,
            detail,
        };
        if self.record.entries.len() < FIRST {
            self.record.entries.push(entry);
            return;
        }
        if self.last.len() == LAST {
            self.last.pop_front();
            self.record.dropped += 1;
        }
        self.last.push_back(entry);
    }

    pub(super) fn phase(&mut self, phase: Phase, now: Moment) {
        let since = self.since(now);
        let record = &mut self.record;
        let full = record.phases.len() >= PHASES;
        match record.phases.last_mut() {
            Some(current) if current.phase == phase => return,
            Some(current) if !full || phase.is_terminal() => current.to_ms = Some(since),
            // It stands for all that follow.
            Some(current) => {
                current.phase = phase;
                return;
            }
            None => {}
        }
        record.progress_ms = since;
        if !phase.is_terminal() {
            record.phases.push(PhaseSpan {
                phase,
                from_ms: since,
                to_ms: None,
            });
            self.add(What::Phase, phase.name().to_owned(), now);
        }
    }

    /// Whether anything had moved.
    pub(super) fn raise(&mut self, counters: Counters, now: Moment) -> bool {
        let verified = self.record.counters.bytes_verified;
        let moved = self.record.counters.raise(counters);
        if moved {
            self.record.progress_ms = self.since(now);
        }
        if self.record.counters.bytes_verified > verified {
            self.record.verified_ms = Some(self.since(now));
        }
        moved
    }

    /// Tokens passed: a message of so many. No allocation but for the first one's entry.
    pub(super) fn tokens(&mut self, count: u32, now: Moment) {
        let since = self.since(now);
        let tokens = &mut self.record.tokens;
        tokens.count += u64::from(count);
        tokens.messages += 1;
        tokens.last_ms = Some(since);
        let first = tokens.first_ms.is_none();
        self.record.progress_ms = since;
        if first {
            self.record.tokens.first_ms = Some(since);
            self.add(What::FirstToken, String::new(), now);
        }
    }

    /// Nothing follows: the phase that lasts ends.
    pub(super) fn end(&mut self, now: Moment) {
        let since = self.since(now);
        self.record.ended_unix_ms = Some(self.record.began_unix_ms + since);
        if let Some(current) = self.record.phases.last_mut() {
            current.to_ms = current.to_ms.or(Some(since));
        }
    }

    /// The record as it is now.
    pub(super) fn snapshot(&self) -> Record {
        let mut record = self.record.clone();
        record.entries.extend(self.last.iter().cloned());
        record
    }

    pub(super) fn into_record(self) -> Record {
        let mut record = self.record;
        record.entries.extend(self.last);
        record.entries.shrink_to_fit();
        record.phases.shrink_to_fit();
        record
    }
}

/// Cuts a text at a character.
pub(super) fn shorten(text: &mut String, most: usize) {
    if text.len() > most {
        let end = (0..=most).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
    }
}
