//! R's view of a room: phase, verdict, lease, evidence, and R's own timers. Pure: the ledger tells it what a worker said
//! and carries out what follows.

mod clocks;
mod hear;
mod lease;

pub use clocks::{Clock, Clocks};
pub use hear::{Heard, TokensHeard};
pub use lease::{Lease, LeaseDue, LeaseState};

use crate::blame::Context;
use crate::evidence::{self, Evidence, Owes};
use crate::ids::{Epoch, Incarnation};
use crate::ledger::EngineKind;
use crate::ledger::router::Side;
use crate::message::Counters;
use crate::phase::Phase;
use crate::reason::{PartEnd, Verdict};
use crate::settings::Settings;
use crate::spec::RoomSpec;
use crate::time::Moment;

/// How far the opening of a room has come.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Opening {
    /// D was asked.
    AskingDecode,
    /// D admitted while R opens nothing: P is asked when R's pause is over.
    Admitted {
        /// D's data address.
        addr: String,
        /// The room's secret.
        token: u64,
    },
    /// P was asked.
    AskingPrefill,
    /// Both admitted.
    Open,
}

/// R's view of one node's part of a room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Part {
    /// The node.
    pub node: Incarnation,
    /// The room's stream to it stands: it was opened, and neither end has ended it.
    pub stream: bool,
    /// It was asked to open the room.
    pub opened: bool,
    /// How the part ended, once it said so.
    pub ended: Option<PartEnd>,
    /// What the node saw.
    pub evidence: Option<Evidence>,
    /// It has answered what it can about the room's end, or cannot: R waits no longer for its evidence.
    pub heard: bool,
    /// Its connection broke while R was itself stopped.
    pub cut: bool,
    /// The highest epoch it reported.
    pub epoch: Epoch,
}

impl Part {
    const fn new(node: Incarnation) -> Self {
        Self {
            node,
            stream: false,
            opened: false,
            ended: None,
            evidence: None,
            heard: false,
            cut: false,
            epoch: Epoch(0),
        }
    }
}

/// The end of a room, set once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RoomVerdict {
    /// How it ended.
    pub verdict: Verdict,
    /// What blame is assigned from besides evidence.
    pub context: Option<Context>,
    /// Blame is assigned then with what is known.
    pub blame_due: Moment,
}

/// R's view of a room.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Room {
    /// What was asked of the workers.
    pub spec: RoomSpec,
    /// Whose process the engines are.
    pub engine: EngineKind,
    /// Tokens of the request that had passed the gate before this room.
    pub passed_before: u32,
    /// When it began.
    pub began: Moment,
    /// Its phase: P's until the commit, then D's.
    pub phase: Phase,
    /// When the phase began.
    pub phase_since: Moment,
    /// How far the opening is.
    pub opening: Opening,
    /// P's part.
    pub prefill: Part,
    /// D's part.
    pub decode: Part,
    /// What has moved, by both workers' reports.
    pub counters: Counters,
    /// P has said Started: chunk timers and the absolute deadline began.
    pub started: bool,
    /// P has sealed its last slab.
    pub sealed: bool,
    /// R knows that D has committed: no failure of P counts any more.
    pub committed: bool,
    /// P was told of the commit.
    pub told_commit: bool,
    /// Tokens of this room that passed the gate: the next position.
    pub taken: u32,
    /// R's own timers.
    pub clocks: Clocks,
    /// The lease.
    pub lease: Lease,
    /// R was itself stopped while the room lived.
    pub lived_through_stop: bool,
    /// The verdict, once.
    pub end: Option<RoomVerdict>,
}

impl Room {
    /// A room that begins now: D is asked first, and must answer within the connect timeout.
    #[must_use]
    pub fn new(spec: RoomSpec, passed_before: u32, now: Moment, settings: &Settings) -> Self {
        let clocks = Clocks {
            connect: Some((Side::Decode, now + settings.connect_timeout)),
            ..Clocks::default()
        };
        Self {
            prefill: Part::new(spec.prefill),
            decode: Part::new(spec.decode),
            spec,
            engine: EngineKind::Own,
            passed_before,
            began: now,
            phase: Phase::Queued,
            phase_since: now,
            opening: Opening::AskingDecode,
            counters: Counters::default(),
            started: false,
            sealed: false,
            committed: false,
            told_commit: false,
            taken: 0,
            clocks,
            lease: Lease::new(now, settings.lease_after, settings.lease_ttl),
            lived_through_stop: false,
            end: None,
        }
    }

    /// Whether it has no verdict yet.
    #[must_use]
    pub const fn is_live(&self) -> bool {
        self.end.is_none()
    }

    /// One node's part.
    #[must_use]
    pub const fn part(&self, side: Side) -> &Part {
        match side {
            Side::Prefill => &self.prefill,
            Side::Decode => &self.decode,
        }
    }

    /// One node's part, to change.
    pub const fn part_mut(&mut self, side: Side) -> &mut Part {
        match side {
            Side::Prefill => &mut self.prefill,
            Side::Decode => &mut self.decode,
        }
    }

    /// Whether a failure of this side ends the room: after the commit is known P's does not.
    #[must_use]
    pub const fn counts(&self, side: Side) -> bool {
        match side {
            Side::Prefill => !self.committed,
            Side::Decode => true,
        }
    }

    /// Who owes the next step, by the phase table.
    #[must_use]
    pub const fn owes(&self) -> Owes {
        evidence::owes(self.phase, &self.counters)
    }

    /// P's current epoch as R sees it.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.prefill.epoch.max(self.decode.epoch)
    }

    /// When R does something about the room by itself next; while Queued the request's queue deadline stands beside it.
    #[must_use]
    pub fn next_deadline(&self, settings: &Settings) -> Option<Moment> {
        match &self.end {
            Some(end) => Some(end.blame_due),
            None => {
                let clock = self.clocks.first().map(|(due, _)| due);
                [clock, self.lease.next(settings.lease_ttl.scale(1, 3))]
                    .into_iter()
                    .flatten()
                    .min()
            }
        }
    }

    /// Whether something of R's own, besides the request's deadlines, bounds the phase (while Queued nothing does).
    #[must_use]
    pub fn is_armed(&self) -> bool {
        self.end.is_some() || self.clocks.first().is_some()
    }
}
