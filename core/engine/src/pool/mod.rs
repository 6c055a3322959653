//! The pool of KV pages. It holds page *ids* and executes; the ledger counts.
//!
//! A page is one slab of memory per layer group, each behind a lock of its own, so that the engine, a sender and a
//! reader touch different slabs without waiting for each other. Every page carries the room that has it: an access
//! through the handle of another room is refused and counted, so that a test can prove that no foreign bytes moved. A page
//! of the prefix cache is nobody's: rooms that reuse it read it, and nobody writes it.

mod cache;
mod handles;
mod room;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};

use innkeeper_room::{BlockHash, Layout, RoomId};

use cache::CachedPage;
pub use handles::{Importer, Source};
pub use room::RoomPages;

use crate::port::EngineError;
use crate::sync::{lock, write};

/// The byte that scrubbed pages are filled with: not zero, so that a slab that never arrived does not look like silence.
const SCRUB: u16 = 0xA5A5;

/// What a page of the prefix cache has for an owner; a room's id has 63 bits.
const SHARED: u64 = u64::MAX;

/// All KV pages of one engine.
pub struct Pool {
    layout: Layout,
    pages: Vec<Page>,
    /// Last returned, first handed out: reuse comes soon, and a late writer would be seen.
    free: Mutex<Vec<u32>>,
    /// The prefix cache: the ledger decides what is in it.
    cached: Mutex<HashMap<BlockHash, Arc<CachedPage>>>,
    scrub: bool,
    violations: AtomicU64,
}

struct Page {
    /// The room that has the page; 0 is nobody, and [`SHARED`] the prefix cache.
    owner: AtomicU64,
    /// One per layer group. Elements are 16 bits wide because KV is f16; on the wire they are little-endian bytes.
    slabs: Vec<RwLock<Vec<u16>>>,
}

impl Pool {
    /// Makes a pool of `total` pages. Memory is touched when a page is first written, not here.
    /// With `scrub`, pages are overwritten when they are handed out: nothing of an earlier room can be read.
    #[must_use]
    pub fn new(layout: Layout, total: u32, scrub: bool) -> Arc<Self> {
        let bytes = layout.page_tokens as usize * layout.group_token_bytes as usize;
        let slab = || RwLock::new(vec![0u16; bytes.div_ceil(2)]);
        let page = || Page {
            owner: AtomicU64::new(0),
            slabs: (0..layout.groups).map(|_| slab()).collect(),
        };
        let pages = (0..total).map(|_| page()).collect();
        let free = Mutex::new((0..total).rev().collect());
        Arc::new(Self {
            layout,
            pages,
            free,
            cached: Mutex::default(),
            scrub,
            violations: AtomicU64::new(0),
        })
    }

    /// The shape of the pages.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// All pages, whoever has them.
    #[must_use]
    pub fn total(&self) -> u32 {
        u32::try_from(self.pages.len()).unwrap_or(u32::MAX)
    }

    /// Pages that no room has.
    #[must_use]
    pub fn free(&self) -> u32 {
        u32::try_from(lock(&self.free).len()).unwrap_or(u32::MAX)
    }

    /// The room that has a page, as a number; 0 if nobody has it or there is no such page, all ones if it is in the prefix cache.
    #[must_use]
    pub fn owner(&self, page: u32) -> u64 {
        self.pages
            .get(page as usize)
            .map_or(0, |page| page.owner.load(Ordering::Acquire))
    }

    /// Accesses that were refused because the page had another owner. Anything but 0 is a bug.
    #[must_use]
    pub fn violations(&self) -> u64 {
        self.violations.load(Ordering::Relaxed)
    }

    /// Takes pages for `tokens` tokens. Those of `reuse` are of the prefix cache and the first ones; the others are the room's
    /// own. At least one is.
    ///
    /// # Errors
    /// [`EngineError::NoPages`] if too few are free, [`EngineError::NotCached`] for a page that is not in the cache, or if none
    /// would be left to be computed; then none is taken.
    pub fn take(
        self: &Arc<Self>,
        room: RoomId,
        tokens: u32,
        reuse: &[BlockHash],
    ) -> Result<Arc<RoomPages>, EngineError> {
        let pages = self.layout.pages(tokens);
        let shared = self.find(reuse)?;
        let reused = u32::try_from(shared.len()).unwrap_or(u32::MAX);
        let Some(wanted) = pages.checked_sub(reused).filter(|own| *own > 0) else {
            self.let_go(shared);
            return Err(EngineError::NotCached);
        };
        let taken = {
            let mut free = lock(&self.free);
            let left = free.len();
            let taken = left.checked_sub(wanted as usize).map(|start| free.split_off(start));
            taken.ok_or_else(|| u32::try_from(left).unwrap_or(u32::MAX))
        };
        let taken = match taken {
            Ok(taken) => taken,
            Err(free) => {
                self.let_go(shared);
                return Err(EngineError::NoPages { wanted, free });
            }
        };
        for &id in &taken {
            self.hand_out(id, room);
        }
        Ok(Arc::new(RoomPages::new(Arc::clone(self), room, shared, &taken)))
    }

    fn hand_out(&self, id: u32, room: RoomId) {
        let Some(page) = self.pages.get(id as usize) else {
            return;
        };
        page.owner.store(room.get(), Ordering::Release);
        if self.scrub {
            for slab in &page.slabs {
                write(slab).fill(SCRUB);
            }
        }
    }

    /// Somebody tried to write what is shared.
    fn violated(&self) {
        self.violations.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes pages back; only [`RoomPages::close`] calls this, after it has locked everybody out.
    fn give_back(&self, ids: &[u32]) {
        for &id in ids {
            if let Some(page) = self.pages.get(id as usize) {
                page.owner.store(0, Ordering::Release);
            }
        }
        lock(&self.free).extend_from_slice(ids);
    }

    /// `owner`: a room, or [`SHARED`].
    fn slab(&self, owner: u64, page: u32, group: u32) -> Option<&RwLock<Vec<u16>>> {
        let page = self.pages.get(page as usize)?;
        if page.owner.load(Ordering::Acquire) != owner {
            self.violated();
            return None;
        }
        page.slabs.get(group as usize)
    }
}
