//! Pages of the prefix cache: found by their names, read by any number of rooms, written by nobody.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use innkeeper_room::{BlockHash, SlabMeta};

use super::{Pool, SHARED};
use crate::port::EngineError;
use crate::sync::{lock, write};

/// A page of the cache. It is free again when it is out of the cache and the last room that reuses it has let go.
pub(super) struct CachedPage {
    pub(super) id: u32,
    /// What the engine said of its slabs when it sealed them: whoever reuses them says the same, and nothing is made anew. A
    /// page that was damaged since does not fit them, and the room's other end finds that.
    pub(super) slabs: Vec<SlabMeta>,
}

impl Pool {
    /// Pages of the cache by their names, held from now on.
    pub(super) fn find(&self, names: &[BlockHash]) -> Result<Vec<Arc<CachedPage>>, EngineError> {
        let cached = lock(&self.cached);
        let found: Option<Vec<_>> = names.iter().map(|name| cached.get(name).cloned()).collect();
        found.ok_or(EngineError::NotCached)
    }

    /// A room's page becomes one of the cache; whether it did: one of that name may be there.
    pub(super) fn publish(&self, name: BlockHash, id: u32, slabs: Vec<SlabMeta>) -> bool {
        let mut cached = lock(&self.cached);
        let Some(page) = self.pages.get(id as usize).filter(|_| !cached.contains_key(&name)) else {
            return false;
        };
        page.owner.store(SHARED, Ordering::Release);
        cached.insert(name, Arc::new(CachedPage { id, slabs }));
        true
    }

    /// These pages are not found any more; how many were.
    pub fn evict(&self, names: &[BlockHash]) -> u32 {
        let gone: Vec<_> = {
            let mut cached = lock(&self.cached);
            names.iter().filter_map(|name| cached.remove(name)).collect()
        };
        let count = u32::try_from(gone.len()).unwrap_or(u32::MAX);
        self.let_go(gone);
        count
    }

    /// For tests: the memory of a page of the cache is damaged; whether there is one of that name.
    pub(crate) fn damage(&self, name: BlockHash) -> bool {
        let id = lock(&self.cached).get(&name).map(|page| page.id);
        let slab = id.and_then(|id| self.slab(SHARED, id, 0));
        let Some(slab) = slab else { return false };
        write(slab).iter_mut().take(1).for_each(|element| *element ^= 1);
        true
    }

    /// Pages in the cache.
    #[must_use]
    pub fn cached(&self) -> u32 {
        u32::try_from(lock(&self.cached).len()).unwrap_or(u32::MAX)
    }

    /// Whoever was the last to hold a page gives it back.
    pub(super) fn let_go(&self, pages: Vec<Arc<CachedPage>>) {
        let free: Vec<u32> = pages
            .into_iter()
            .filter_map(Arc::into_inner)
            .map(|page| page.id)
            .collect();
        self.give_back(&free);
    }
}
