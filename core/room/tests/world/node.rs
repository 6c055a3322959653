//! A node of the world: its ledger, its engine, its pool of pages, and what its executor keeps of each room.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use innkeeper_room::ledger::{decode, prefill, router};
use innkeeper_room::{Counters, Epoch, Incarnation, Role, RoomId, RoomSpec};

use crate::data::DataMsg;

/// What reaches a node. Everything waits while the process is stopped; what goes to the ledger waits while that hangs.
#[derive(Clone, Debug)]
pub enum In {
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
    Open { spec: Box<RoomSpec>, token: u64, generation: u32 },
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
    pub const fn is_for_ledger(&self) -> bool {
        !matches!(
            self,
            Self::EngineStep(_) | Self::Dial { .. } | Self::Data { .. } | Self::LetGo { .. } | Self::Keeper
        )
    }
}

/// A ledger of any role.
pub enum Brain {
    R(Box<router::Ledger>),
    P(Box<prefill::Ledger>),
    D(Box<decode::Ledger>),
}

/// KV pages with an owner and a content tag each.
#[derive(Default)]
pub struct Pool {
    pub owner: Vec<Option<RoomId>>,
    /// Whose KV is in the page: stays when the page is given back.
    pub tag: Vec<u64>,
    pub of: BTreeMap<RoomId, Vec<usize>>,
}

impl Pool {
    pub fn new(pages: u32) -> Self {
        Self {
            owner: vec![None; pages as usize],
            tag: vec![0; pages as usize],
            of: BTreeMap::new(),
        }
    }

    /// Takes pages for a room; `false`: the ledger promised what is not there.
    pub fn open(&mut self, room: RoomId, pages: u32) -> bool {
        let free: Vec<usize> = (0..self.owner.len()).filter(|page| self.owner[*page].is_none()).collect();
        if free.len() < pages as usize || self.of.contains_key(&room) {
            return false;
        }
        let taken: Vec<usize> = free.into_iter().take(pages as usize).collect();
        taken.iter().for_each(|page| self.owner[*page] = Some(room));
        self.of.insert(room, taken);
        true
    }

    /// Gives a room's pages back; `false`: it had none.
    pub fn close(&mut self, room: RoomId) -> bool {
        let Some(pages) = self.of.remove(&room) else { return false };
        pages.iter().for_each(|page| self.owner[*page] = None);
        true
    }
}

/// A job of an engine: a prompt to compute, or tokens to make.
#[derive(Clone, Debug)]
pub struct Job {
    pub room: RoomId,
    pub done: u32,
    pub total: u32,
    pub cancel: bool,
}

/// One engine: one chunk or step in hand at a time.
#[derive(Default)]
pub struct Engine {
    pub jobs: VecDeque<Job>,
    pub progress: u64,
    pub in_hand: Option<u64>,
    /// The number of the step in hand, so that a late end of another one means nothing.
    pub step: u64,
    pub wedged: bool,
    /// The step in hand would be finished if the engine were not wedged.
    pub finished_behind: bool,
    /// The next job that finishes a step fails.
    pub fail_next: bool,
    /// The next manifest is wrong.
    pub corrupt_next: bool,
}

/// What a worker's executor keeps of a room.
pub struct WRoom {
    pub spec: RoomSpec,
    pub token: u64,
    /// P: pages sealed so far, and whether the manifest is.
    pub sealed: u32,
    pub manifest: Option<bool>,
    pub counters: Counters,
    /// Sessions of this room at this node that have not let go.
    pub sessions: BTreeMap<Epoch, u64>,
    /// P: sessions of this epoch and before were destroyed, also those not made yet.
    pub fenced: Epoch,
    /// P: connections that are to be made after a pause.
    pub dialing: BTreeSet<Epoch>,
    /// D: the slabs that were written and verified.
    pub covered: Vec<bool>,
    pub ended: bool,
}

/// The worker's end of a room's stream.
#[derive(Clone, Copy, Debug)]
pub struct WStream {
    pub generation: u32,
}

/// A node.
pub struct Node {
    pub index: usize,
    pub role: Role,
    pub life: u32,
    pub incarnation: Incarnation,
    pub up: bool,
    pub stopped: Option<u64>,
    pub hung: bool,
    pub inbox: VecDeque<In>,
    pub mailbox: VecDeque<In>,
    pub brain: Brain,
    pub alarm: Option<u64>,
    pub serving: bool,
    pub engine: Engine,
    pub pool: Pool,
    pub rooms: BTreeMap<RoomId, WRoom>,
    pub streams: BTreeMap<RoomId, WStream>,
    /// How much later than usual it lets go of pages.
    pub late: u64,
    /// How much slower than usual its engine is.
    pub slow: u64,
}

impl Node {
    /// The name in stories.
    pub fn name(&self) -> String {
        let letter = match self.role {
            Role::Router => "R",
            Role::Prefill => "P",
            Role::Decode => "D",
        };
        format!("{letter}{}", self.index)
    }
}

/// Which node of the world an incarnation is a life of.
pub fn index_of(incarnation: Incarnation) -> usize {
    usize::try_from(incarnation.get() / 1000).unwrap_or(0)
}

/// The incarnation of a node's life.
pub fn incarnation(index: usize, life: u32) -> Incarnation {
    Incarnation::new(index as u64 * 1000 + u64::from(life) + 1)
}
