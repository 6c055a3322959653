//! The pages of one room, and the gate that closes them.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, RwLock};

use innkeeper_room::{BlockHash, Layout, RoomId, SlabError, SlabId, SlabMeta};

use super::cache::CachedPage;
use super::{Pool, SHARED};
use crate::sync::{lock, read, write};

/// The pages that one room has. Every access goes through a gate: once [`RoomPages::close`] returns no access is in
/// hand, and later ones answer [`SlabError::Closed`].
pub struct RoomPages {
    pool: Arc<Pool>,
    room: RoomId,
    /// All its pages; the first `reused` ones are of the prefix cache.
    ids: Vec<u32>,
    reused: usize,
    /// What keeps those where they are, until the room is closed.
    shared: Mutex<Vec<Arc<CachedPage>>>,
    /// What was said of its own slabs when they were sealed, for the cache.
    metas: Mutex<Vec<SlabMeta>>,
    /// `true` once closed. Accesses hold it for reading while they copy.
    gate: RwLock<bool>,
    /// Slabs sealed so far; they are sealed in ascending order.
    sealed: AtomicU32,
    /// The prompt's length, which the sealed slabs' lengths follow from; 0 before a prefill.
    sealed_tokens: AtomicU32,
}

impl RoomPages {
    pub(super) fn new(pool: Arc<Pool>, room: RoomId, shared: Vec<Arc<CachedPage>>, own: &[u32]) -> Self {
        let (sealed, sealed_tokens) = (AtomicU32::new(0), AtomicU32::new(0));
        Self {
            pool,
            room,
            ids: shared.iter().map(|page| page.id).chain(own.iter().copied()).collect(),
            reused: shared.len(),
            shared: Mutex::new(shared),
            metas: Mutex::default(),
            gate: RwLock::new(false),
            sealed,
            sealed_tokens,
        }
    }

    /// The room.
    #[must_use]
    pub fn room(&self) -> RoomId {
        self.room
    }

    /// The pages' ids, in the order of the tokens they hold.
    #[must_use]
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Tokens that fit.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        u32::try_from(self.ids.len())
            .unwrap_or(u32::MAX)
            .saturating_mul(self.layout().page_tokens)
    }

    /// The shape of the pages.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        self.pool.layout()
    }

    /// Whether the pages were given back.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        *read(&self.gate)
    }

    /// Tokens whose KV was there before: those of the pages of the prefix cache.
    #[must_use]
    pub fn reused_tokens(&self) -> u32 {
        u32::try_from(self.reused)
            .unwrap_or(u32::MAX)
            .saturating_mul(self.layout().page_tokens)
    }

    /// Waits until no access is in hand, locks everybody out and gives the room's own pages back, but for those that are
    /// `keep`t in the prefix cache, by their place in the prompt; how many (0 the second time). Only what is whole and sealed is
    /// kept.
    pub fn close(&self, keep: &[(u32, BlockHash)]) -> u32 {
        let mut closed = write(&self.gate);
        if std::mem::replace(&mut *closed, true) {
            return 0;
        }
        let kept: HashSet<u32> = keep.iter().filter_map(|(at, name)| self.publish(*at, *name)).collect();
        let own = self.ids.iter().skip(self.reused).copied();
        let back: Vec<u32> = own.filter(|id| !kept.contains(id)).collect();
        self.pool.give_back(&back);
        self.pool.let_go(std::mem::take(&mut *lock(&self.shared)));
        u32::try_from(back.len()).unwrap_or(u32::MAX)
    }

    /// Publishes one of the room's own pages; its id, if that was done.
    fn publish(&self, at: u32, name: BlockHash) -> Option<u32> {
        let layout = self.layout();
        let (groups, whole) = (
            layout.groups,
            layout.page_tokens.saturating_mul(layout.group_token_bytes),
        );
        let own = (at as usize).checked_sub(self.reused)?;
        let id = self.ids.get(at as usize).copied()?;
        // They were sealed in ascending order, from the first page of the room's own.
        let (start, first) = (own * groups as usize, at.saturating_mul(groups));
        let slabs = lock(&self.metas)
            .get(start..start + groups as usize)
            .map(<[SlabMeta]>::to_vec)
            .unwrap_or_default();
        let sealed = slabs.len() == groups as usize
            && slabs
                .iter()
                .zip(first..)
                .all(|(slab, place)| slab.id.0 == place && slab.len == whole);
        let published = sealed && self.pool.publish(name, id, slabs);
        if !published {
            tracing::error!(room = %self.room, at, "a page cannot be kept, though the ledger says so");
        }
        published.then_some(id)
    }

    /// Looks at one layer group of the room's `page`-th page. `look` must not touch the room's pages again.
    ///
    /// # Errors
    /// [`SlabError::Closed`] and [`SlabError::OutOfRange`].
    pub fn with_slab<T>(&self, page: u32, group: u32, look: impl FnOnce(&[u16]) -> T) -> Result<T, SlabError> {
        let closed = read(&self.gate);
        let slab = self.locate(*closed, page, group)?;
        let held = read(slab);
        Ok(look(&held))
    }

    /// Changes one layer group of the room's `page`-th page. `change` must not touch the room's pages again.
    ///
    /// # Errors
    /// [`SlabError::Closed`] and [`SlabError::OutOfRange`].
    pub fn with_slab_mut<T>(
        &self,
        page: u32,
        group: u32,
        change: impl FnOnce(&mut [u16]) -> T,
    ) -> Result<T, SlabError> {
        let closed = read(&self.gate);
        let slab = self.locate(*closed, page, group)?;
        if (page as usize) < self.reused {
            self.pool.violated();
            return Err(SlabError::Closed);
        }
        let mut held = write(slab);
        Ok(change(&mut held))
    }

    fn locate(&self, closed: bool, page: u32, group: u32) -> Result<&RwLock<Vec<u16>>, SlabError> {
        if closed {
            return Err(SlabError::Closed);
        }
        let slab = page.saturating_mul(self.layout().groups).saturating_add(group);
        let missing = SlabError::OutOfRange {
            slab,
            offset: 0,
            end: 0,
        };
        let id = self.ids.get(page as usize).copied().ok_or(missing)?;
        let owner = if (page as usize) < self.reused {
            SHARED
        } else {
            self.room.get()
        };
        self.pool.slab(owner, id, group).ok_or(SlabError::Closed)
    }

    /// The length of a slab of a prompt of `tokens` tokens; `None` if the prompt has no such slab here.
    pub(super) fn slab_len(&self, slab: SlabId, tokens: u32) -> Option<u32> {
        let (page, _) = self.layout().place(slab);
        let exists = slab.0 < self.layout().slabs(tokens) && (page as usize) < self.ids.len();
        exists.then(|| self.layout().slab_len(slab, tokens))
    }

    /// Checks that bytes exist and says where the slab is.
    pub(super) fn range(&self, slab: SlabId, offset: u32, len: usize, tokens: u32) -> Result<(u32, u32), SlabError> {
        let end = u64::from(offset) + len as u64;
        match self.slab_len(slab, tokens) {
            Some(held) if end <= u64::from(held) => Ok(self.layout().place(slab)),
            _ => Err(SlabError::OutOfRange {
                slab: slab.0,
                offset,
                end,
            }),
        }
    }

    pub(super) fn sealed_tokens(&self, slab: SlabId) -> u32 {
        if slab.0 < self.sealed.load(Ordering::Acquire) {
            self.sealed_tokens.load(Ordering::Acquire)
        } else {
            0
        }
    }

    /// A prefill of `tokens` tokens begins: only what is reused is sealed. Returns what was said of that when it was.
    pub(crate) fn unseal(&self, tokens: u32) -> Vec<SlabMeta> {
        let reused: Vec<SlabMeta> = lock(&self.shared)
            .iter()
            .flat_map(|page| page.slabs.iter().copied())
            .collect();
        self.sealed_tokens.store(tokens, Ordering::Release);
        self.sealed
            .store(u32::try_from(reused.len()).unwrap_or(u32::MAX), Ordering::Release);
        lock(&self.metas).clear();
        reused
    }

    /// Seals what is final once `computed` tokens are: every slab of each page that will not change any more, or all
    /// of them after the prompt's last token. The checksums are made here.
    ///
    /// # Errors
    /// [`SlabError::Closed`].
    pub(crate) fn seal(&self, computed: u32) -> Result<Vec<SlabMeta>, SlabError> {
        let layout = self.layout();
        let tokens = self.sealed_tokens.load(Ordering::Acquire);
        let full = if computed >= tokens {
            layout.pages(tokens)
        } else {
            computed / layout.page_tokens.max(1)
        };
        let mut metas = Vec::new();
        for id in self.sealed.load(Ordering::Acquire)..full.saturating_mul(layout.groups) {
            let len = layout.slab_len(SlabId(id), tokens);
            let checksum = self.checksum(SlabId(id), tokens)?;
            self.sealed.store(id + 1, Ordering::Release);
            metas.push(SlabMeta {
                id: SlabId(id),
                len,
                checksum,
            });
        }
        lock(&self.metas).extend_from_slice(&metas);
        Ok(metas)
    }

    pub(super) fn checksum(&self, slab: SlabId, tokens: u32) -> Result<u32, SlabError> {
        let (page, group) = self.range(slab, 0, 0, tokens)?;
        let len = self.layout().slab_len(slab, tokens) as usize;
        self.with_slab(page, group, |held| crc32fast::hash(&bytemuck::cast_slice(held)[..len]))
    }
}
