//! A node of the world: its ledger, its engine, its pool of pages, and what its executor keeps of each room.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use innkeeper_room::ledger::{Gauges, decode, prefill, router};
use innkeeper_room::{BlockHash, Counters, Epoch, Incarnation, Moment, Role, RoomId, RoomSpec};

use crate::data::DataMsg;
use crate::remote::{Remote, RemoteIn, Ticket};

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
    /// At an engine of its own process, in this life of it.
    Remote(u32, RemoteIn),
}

impl In {
    /// Whether it goes through the ledger's mailbox.
    pub(crate) const fn is_for_ledger(&self) -> bool {
        !matches!(
            self,
            Self::EngineStep(_)
                | Self::Dial { .. }
                | Self::Data { .. }
                | Self::LetGo { .. }
                | Self::Keeper
                | Self::Remote(..)
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
    /// Pages of the prefix cache.
    pub(crate) cached: BTreeMap<BlockHash, usize>,
    /// How many of a room's pages, from its first on, are pages of the cache.
    pub(crate) shared: BTreeMap<RoomId, usize>,
    /// Pages whose content is not what was sealed.
    pub(crate) bad: BTreeSet<usize>,
}

impl Pool {
    pub(crate) fn new(pages: u32) -> Self {
        Self {
            owner: vec![None; pages as usize],
            tag: vec![0; pages as usize],
            ..Self::default()
        }
    }

    /// Takes pages for a room, beside those of the cache that it reads; `false`: the ledger promised what is not there.
    pub(crate) fn open(&mut self, room: RoomId, pages: u32, reuse: &[BlockHash]) -> bool {
        let shared: Vec<usize> = reuse.iter().filter_map(|name| self.cached.get(name).copied()).collect();
        let cached: BTreeSet<usize> = self.cached.values().copied().collect();
        let free: Vec<usize> = (0..self.owner.len())
            .filter(|page| self.owner[*page].is_none() && !cached.contains(page))
            .collect();
        let own = (pages as usize).saturating_sub(shared.len());
        if shared.len() < reuse.len() || free.len() < own || self.of.contains_key(&room) {
            return false;
        }
        let taken: Vec<usize> = free.into_iter().take(own).collect();
        for page in &taken {
            self.owner[*page] = Some(room);
            self.bad.remove(page);
        }
        self.shared.insert(room, shared.len());
        self.of.insert(room, [shared, taken].concat());
        true
    }

    /// How many of a room's pages are pages of the cache.
    pub(crate) fn shared(&self, room: RoomId) -> usize {
        self.shared.get(&room).copied().unwrap_or(0)
    }

    /// Whether a room may read a page of its own, or one of the cache that it reuses.
    pub(crate) fn may_read(&self, room: RoomId, at: usize, page: usize) -> bool {
        if at < self.shared(room) {
            self.cached.values().any(|cached| *cached == page)
        } else {
            self.owner[page] == Some(room)
        }
    }

    /// Gives a room's own pages back, but for those that are kept in the cache. What is wrong with that.
    pub(crate) fn close(&mut self, room: RoomId, keep: &[(u32, BlockHash)]) -> Result<(), String> {
        let Some(pages) = self.of.remove(&room) else {
            return Err(format!("I7: {room} gives back pages and has none"));
        };
        let shared = self.shared.remove(&room).unwrap_or(0);
        pages.iter().skip(shared).for_each(|page| self.owner[*page] = None);
        for (at, name) in keep {
            let page = pages.get(*at as usize).copied().filter(|_| *at as usize >= shared);
            let Some(page) = page else {
                return Err(format!("I7: {room} publishes page {at}, which is not its own"));
            };
            if self.tag[page] != tag_of(*name) {
                return Err(format!("I6: {room} publishes a page whose content is another"));
            }
            if self.cached.insert(*name, page).is_some() {
                return Err(format!("I7: {room} publishes what is in the cache already"));
            }
        }
        Ok(())
    }

    /// A page of the cache goes. What is wrong with that.
    pub(crate) fn evict(&mut self, name: BlockHash) -> Result<(), String> {
        let Some(page) = self.cached.remove(&name) else {
            return Err(format!("I7: {name:?} goes and is not in the cache"));
        };
        let reads = |(room, pages): (&RoomId, &Vec<usize>)| pages.iter().take(self.shared(*room)).any(|at| *at == page);
        if self.of.iter().any(reads) {
            return Err("I6: a page of the cache goes under its reader".to_owned());
        }
        Ok(())
    }
}

/// The names of a prompt's whole pages. All prompts of an even length begin alike, and all of an odd length: two tenants.
pub(crate) fn names(prompt: u32, page_tokens: u32) -> Vec<BlockHash> {
    let tenant = u128::from(prompt % 2 + 1) << 96;
    (0..prompt / page_tokens)
        .map(|at| BlockHash(tenant | u128::from(at)))
        .collect()
}

/// The content of a page of this name; no room's id.
pub(crate) fn tag_of(name: BlockHash) -> u64 {
    let word = |word: u128| u64::try_from(word & u128::from(u32::MAX)).unwrap_or(0);
    1 << 63 | word(name.0 >> 96) << 32 | word(name.0)
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
    /// If it is a process of its own.
    pub(crate) remote: Remote,
}

/// What a worker's executor keeps of a room.
#[derive(Clone, Hash)]
pub(crate) struct WRoom {
    pub(crate) spec: RoomSpec,
    pub(crate) token: u64,
    /// The names of the prompt's whole pages; none in a world without a prefix cache.
    pub(crate) names: Vec<BlockHash>,
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
    /// What D's engine reads by; and whether it was given back.
    pub(crate) ticket: Option<Ticket>,
    pub(crate) ticket_gone: bool,
    /// D: when it first said Ready. P: when its engine had certainly not finished.
    pub(crate) ready_at: Option<u64>,
    pub(crate) unfinished_at: Option<u64>,
    /// D: the slabs that were written and verified.
    pub(crate) covered: Vec<bool>,
    pub(crate) ended: bool,
}

impl WRoom {
    /// What the page at this place in the prompt holds: what its name says, or else what is this room's alone.
    pub(crate) fn tag(&self, at: usize) -> u64 {
        self.names.get(at).map_or(self.spec.room.get(), |name| tag_of(*name))
    }
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
