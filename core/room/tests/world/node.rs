//! A node of the world: its ledger, its engine, its pool of pages, and what its executor keeps of each room.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use innkeeper_room::ledger::{Gauges, decode, prefill, router};
use innkeeper_room::{Counters, Epoch, Incarnation, Moment, Role, RoomId, RoomSpec};

use crate::data::DataMsg;

/// What reaches a node. Everything waits while the process is stopped; what goes to the ledger waits while that hangs.
#[derive(Clone, Debug, Hash)]
pub(crate) enum In {
    /// A report period is over.
    Period,
    /// The alarm that was set for then rings.
    Due(u64),
    /// For a router's ledger.
    R(router::Event),
    /// For a prefill worker's ledger.
    P(prefill::Event),
    /// For a decode worker's ledger.
    D(decode::Event),
    /// R opens a room here.
    Open {
        spec: Box<RoomSpec>,
        token: u64,
        generation: u32,
    },
    /// R wants to know what the ledger sees of a room.
    Evidence { room: RoomId, generation: u32, until: u64 },
    /// The chunk or step in hand is finished.
    EngineStep(u64),
    /// The pause before a connection is over.
    Dial { room: RoomId, epoch: Epoch },
    /// Something arrived on a data connection.
    Data { session: u64, msg: DataMsg },
    /// This end of a data connection lets go of the pages.
    LetGo { session: u64 },
    /// The lease keeper renews this node's key.
    Keeper,
}

impl In {
    /// Whether it goes through the ledger's mailbox.
    pub(crate) const fn is_for_ledger(&self) -> bool {
        !matches!(
            self,
            Self::EngineStep(_) | Self::Dial { .. } | Self::Data { .. } | Self::LetGo { .. } | Self::Keeper
        )
    }
}

/// A ledger of any role.
#[derive(Clone, Hash)]
pub(crate) enum Brain {
    R(Box<router::Ledger>),
    P(Box<prefill::Ledger>),
    D(Box<decode::Ledger>),
}

impl Brain {
    /// Its counts.
    pub(crate) fn gauges(&self, now: Moment) -> Gauges {
        match self {
            Self::R(ledger) => ledger.gauges(now),
            Self::P(ledger) => ledger.gauges(now),
            Self::D(ledger) => ledger.gauges(now),
        }
    }
}

/// KV pages with an owner and a content tag each.
#[derive(Clone, Default, Hash)]
pub(crate) struct Pool {
    pub(crate) owner: Vec<Option<RoomId>>,
    /// Whose KV is in the page: stays when the page is given back.
    pub(crate) tag: Vec<u64>,
    pub(crate) of: BTreeMap<RoomId, Vec<usize>>,
}

impl Pool {
    pub(crate) fn new(pages: u32) -> Self {
        Self {
            owner: vec![None; pages as usize],
            tag: vec![0; pages as usize],
            of: BTreeMap::new(),
        }
    }

    /// Takes pages for a room; `false`: the ledger promised what is not there.
    pub(crate) fn open(&mut self, room: RoomId, pages: u32) -> bool {
        let free: Vec<usize> = (0..self.owner.len())
            .filter(|page| self.owner[*page].is_none())
            .collect();
        if free.len() < pages as usize || self.of.contains_key(&room) {
            return false;
        }
        let taken: Vec<usize> = free.into_iter().take(pages as usize).collect();
        taken.iter().for_each(|page| self.owner[*page] = Some(room));
        self.of.insert(room, taken);
        true
    }

    /// Gives a room's pages back; `false`: it had none.
    pub(crate) fn close(&mut self, room: RoomId) -> bool {
        let Some(pages) = self.of.remove(&room) else {
            return false;
        };
        pages.iter().for_each(|page| self.owner[*page] = None);
        true
    }
}

/// A job of an engine: a prompt to compute, or tokens to make.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Job {
    pub(crate) room: RoomId,
    pub(crate) done: u32,
    pub(crate) total: u32,
    pub(crate) cancel: bool,
}

/// One engine: one chunk or step in hand at a time.
#[derive(Clone, Default, Hash)]
pub(crate) struct Engine {
    pub(crate) jobs: VecDeque<Job>,
    pub(crate) progress: u64,
    pub(crate) in_hand: Option<u64>,
    /// The number of the step in hand, so that a late end of another one means nothing.
    pub(crate) step: u64,
    pub(crate) wedged: bool,
    /// The step in hand would be finished if the engine were not wedged.
    pub(crate) finished_behind: bool,
    /// The next job that finishes a step fails.
    pub(crate) fail_next: bool,
    /// The next manifest is wrong.
    pub(crate) corrupt_next: bool,
}

/// What a worker's executor keeps of a room.
#[derive(Clone, Hash)]
pub(crate) struct WRoom {
    pub(crate) spec: RoomSpec,
    pub(crate) token: u64,
    /// P: pages sealed so far, and whether the manifest is.
    pub(crate) sealed: u32,
    pub(crate) manifest: Option<bool>,
    pub(crate) counters: Counters,
    /// Sessions of this room at this node that have not let go.
    pub(crate) sessions: BTreeMap<Epoch, u64>,
    /// P: sessions of this epoch and before were destroyed, also those not made yet.
    pub(crate) fenced: Epoch,
    /// P: connections that are to be made after a pause.
    pub(crate) dialing: BTreeSet<Epoch>,
    /// D: the slabs that were written and verified.
    pub(crate) covered: Vec<bool>,
    pub(crate) ended: bool,
}

/// The worker's end of a room's stream.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) struct WStream {
    pub(crate) generation: u32,
}

/// A node.
#[derive(Clone, Hash)]
pub(crate) struct Node {
    pub(crate) index: usize,
    pub(crate) role: Role,
    pub(crate) life: u32,
    pub(crate) incarnation: Incarnation,
    pub(crate) up: bool,
    pub(crate) stopped: Option<u64>,
    pub(crate) hung: bool,
    pub(crate) inbox: VecDeque<In>,
    pub(crate) mailbox: VecDeque<In>,
    pub(crate) brain: Brain,
    pub(crate) alarm: Option<u64>,
    pub(crate) serving: bool,
    pub(crate) draining: bool,
    pub(crate) engine: Engine,
    pub(crate) pool: Pool,
    pub(crate) rooms: BTreeMap<RoomId, WRoom>,
    pub(crate) streams: BTreeMap<RoomId, WStream>,
    /// How much later than usual it lets go of pages.
    pub(crate) late: u64,
    /// How much slower than usual its engine is.
    pub(crate) slow: u64,
}

impl Node {
    /// The name in stories.
    pub(crate) fn name(&self) -> String {
        let letter = match self.role {
            Role::Router => "R",
            Role::Prefill => "P",
            Role::Decode => "D",
        };
        format!("{letter}{}", self.index)
    }
}

/// Which node of the world an incarnation is a life of.
pub(crate) fn index_of(incarnation: Incarnation) -> usize {
    usize::try_from(incarnation.get() / 1000).unwrap_or(0)
}

/// The incarnation of a node's life.
pub(crate) fn incarnation(index: usize, life: u32) -> Incarnation {
    Incarnation::new(index as u64 * 1000 + u64::from(life) + 1)
}
