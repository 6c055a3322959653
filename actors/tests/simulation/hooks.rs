//! What the ledgers say ended: told, and held to "once".

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use innkeeper_actors::hooks::Hooks;
use innkeeper_room::ledger::router::{Outcome, RoomEnd};
use innkeeper_room::{Evidence, PartEnd, RoomId};

use crate::story::{Story, lock, tell, wrong};

/// Ends by (node's life and room); and how requests were answered, for the tally.
#[derive(Default)]
pub(crate) struct Ends {
    parts: BTreeMap<(String, RoomId), PartEnd>,
    rooms: BTreeMap<RoomId, String>,
    pub(crate) verdicts: BTreeMap<String, u64>,
}

/// The hooks of one life.
pub(crate) struct StoryHooks {
    story: Arc<Story>,
    name: String,
    ends: Arc<Mutex<Ends>>,
}

impl StoryHooks {
    /// For a node of this name.
    pub(crate) fn new(story: Arc<Story>, name: String, ends: Arc<Mutex<Ends>>) -> Self {
        Self { story, name, ends }
    }
}

impl Hooks for StoryHooks {
    fn part_ended(&self, room: RoomId, end: PartEnd, evidence: &Evidence) {
        let waited = (evidence.waited_for.name(), evidence.waited.0);
        tell!(
            self.story,
            "{}: part of {room} ended: {}, waited {waited:?} ms",
            self.name,
            end.code()
        );
        let before = lock(&self.ends).parts.insert((self.name.clone(), room), end);
        if let Some(before) = before {
            wrong!(
                self.story,
                "I1: {} ended {room} twice: {before:?}, then {end:?}",
                self.name
            );
        }
    }

    fn room_ended(&self, end: &RoomEnd) {
        let verdict = end.verdict.code();
        tell!(
            self.story,
            "{}: room {} (attempt {}) ended: {verdict}, blame {:?}",
            self.name,
            end.room,
            end.attempt.0,
            end.blame
        );
        let mut ends = lock(&self.ends);
        *ends.verdicts.entry(verdict.to_owned()).or_default() += 1;
        if let Some(before) = ends.rooms.insert(end.room, verdict.to_owned()) {
            drop(ends);
            wrong!(
                self.story,
                "I1: room {} has two verdicts: {before}, then {verdict}",
                end.room
            );
        }
    }

    fn answered(&self, outcome: &Outcome) {
        tell!(self.story, "{}: a request is answered {outcome:?}", self.name);
    }
}
