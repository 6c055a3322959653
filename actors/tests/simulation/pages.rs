//! The pages of a simulated engine. Unlike the production pool it takes every touch of a page that its room has not (any
//! more) for a fault of the ledger: permits must have made it impossible.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use innkeeper_engine::{ClosableSink, EngineError};
use innkeeper_room::{BlockHash, RoomId, SlabError, SlabId, SlabMeta, SlabSink, SlabSource};

use crate::answers::{BYTES, Digest, GROUPS, PAGE_TOKENS, layout};
use crate::story::{Story, lock, wrong};

const SLAB: usize = PAGE_TOKENS as usize * BYTES;

/// All pages of one engine.
pub(crate) struct Pool {
    name: String,
    story: Arc<Story>,
    inner: Mutex<Inner>,
}

struct Inner {
    owners: Vec<Option<RoomId>>,
    slabs: Vec<Vec<u8>>,
    /// Last returned, first handed out: a late writer would be seen soon.
    free: Vec<u32>,
    /// The prefix cache.
    cached: BTreeMap<BlockHash, Cached>,
}

/// A page of the prefix cache, what was said of it when it was sealed, and how many rooms read it.
struct Cached {
    id: u32,
    metas: Vec<SlabMeta>,
    readers: u32,
}

impl Pool {
    /// A pool of `total` pages.
    pub(crate) fn new(name: String, story: Arc<Story>, total: u32) -> Arc<Self> {
        let inner = Inner {
            owners: vec![None; total as usize],
            slabs: vec![vec![0; SLAB]; (total * GROUPS) as usize],
            free: (0..total).rev().collect(),
            cached: BTreeMap::new(),
        };
        Arc::new(Self {
            name,
            story,
            inner: Mutex::new(inner),
        })
    }

    /// Pages that no room has.
    pub(crate) fn free(&self) -> u32 {
        let inner = lock(&self.inner);
        let unread = inner.cached.values().filter(|page| page.readers == 0).count();
        u32::try_from(inner.free.len() + unread).unwrap_or(u32::MAX)
    }

    /// Takes pages for `tokens` tokens; those that are not reused are scrubbed.
    pub(crate) fn take(
        self: &Arc<Self>,
        room: RoomId,
        tokens: u32,
        reuse: &[BlockHash],
    ) -> Result<Arc<RoomPages>, EngineError> {
        let wanted = layout().pages(tokens) - u32::try_from(reuse.len()).unwrap_or(0);
        let mut inner = lock(&self.inner);
        if !reuse.iter().all(|name| inner.cached.contains_key(name)) {
            drop(inner);
            wrong!(
                self.story,
                "I7: {} is to reuse for room {room} what is not there",
                self.name
            );
            return Err(EngineError::NotCached);
        }
        let Some(start) = inner.free.len().checked_sub(wanted as usize) else {
            let free = u32::try_from(inner.free.len()).unwrap_or(u32::MAX);
            return Err(EngineError::NoPages { wanted, free });
        };
        let ids = inner.free.split_off(start);
        for id in &ids {
            inner.owners[*id as usize] = Some(room);
            for group in 0..GROUPS {
                inner.slabs[(id * GROUPS + group) as usize].fill(0xA5);
            }
        }
        let mut shared = vec![];
        let mut reused = vec![];
        for name in reuse {
            if let Some(page) = inner.cached.get_mut(name) {
                page.readers += 1;
                shared.push(page.id);
                reused.extend_from_slice(&page.metas);
            }
        }
        drop(inner);
        Ok(Arc::new(RoomPages {
            pool: Arc::clone(self),
            room,
            ids: shared.into_iter().chain(ids).collect(),
            reuse: reuse.to_vec(),
            reused,
            metas: Mutex::default(),
            sealed: AtomicU32::new(0),
            prompt: AtomicU32::new(0),
        }))
    }

    /// These pages of the prefix cache are free.
    pub(crate) fn evict(&self, names: &[BlockHash]) -> u32 {
        let mut count = 0;
        for name in names {
            let mut inner = lock(&self.inner);
            let Some(page) = inner.cached.remove(name) else {
                continue;
            };
            inner.free.push(page.id);
            count += 1;
            if page.readers > 0 {
                drop(inner);
                wrong!(self.story, "I6: {} evicts page {} under its reader", self.name, page.id);
            }
        }
        count
    }

    /// `write`: a page of the prefix cache is nobody's to write.
    fn slab<T>(
        &self,
        pages: &RoomPages,
        slab: SlabId,
        write: bool,
        touch: impl FnOnce(&mut [u8]) -> T,
    ) -> Result<T, SlabError> {
        let (page, group) = layout().place(slab);
        let Some(id) = pages.ids.get(page as usize) else {
            return Err(SlabError::OutOfRange {
                slab: slab.0,
                offset: 0,
                end: 0,
            });
        };
        let mut inner = lock(&self.inner);
        let shared = pages.reuse.get(page as usize);
        let may = shared.map_or(inner.owners[*id as usize] == Some(pages.room), |name| {
            !write && inner.cached.get(name).is_some_and(|page| page.id == *id)
        });
        if !may {
            drop(inner);
            wrong!(
                self.story,
                "I6: {} touches page {id} of room {}, which gave it back",
                self.name,
                pages.room
            );
            return Err(SlabError::Closed);
        }
        Ok(touch(&mut inner.slabs[(id * GROUPS + group) as usize]))
    }
}

/// The pages that one room has.
pub(crate) struct RoomPages {
    pool: Arc<Pool>,
    room: RoomId,
    ids: Vec<u32>,
    /// The names of its first pages, which are of the prefix cache, and what was said of their slabs.
    reuse: Vec<BlockHash>,
    reused: Vec<SlabMeta>,
    /// What was said of its own.
    metas: Mutex<Vec<SlabMeta>>,
    sealed: AtomicU32,
    prompt: AtomicU32,
}

impl RoomPages {
    /// Gives its own pages back, but for those that are kept in the prefix cache; how many.
    pub(crate) fn close(&self, keep: &[(u32, BlockHash)]) -> u32 {
        let mut inner = lock(&self.pool.inner);
        for name in &self.reuse {
            if let Some(page) = inner.cached.get_mut(name) {
                page.readers -= 1;
            }
        }
        let mut back = vec![];
        for (at, id) in (0..).zip(&self.ids).skip(self.reuse.len()) {
            inner.owners[*id as usize] = None;
            let metas: Vec<SlabMeta> = lock(&self.metas)
                .iter()
                .filter(|meta| meta.id.0 / GROUPS == at)
                .copied()
                .collect();
            let id = *id;
            match keep.iter().find(|(kept, _)| *kept == at) {
                Some((_, name)) if metas.len() == GROUPS as usize && !inner.cached.contains_key(name) => {
                    let readers = 0;
                    inner.cached.insert(*name, Cached { id, metas, readers });
                }
                Some(_) => wrong!(self.pool.story, "I7: room {} may not publish its page {at}", self.room),
                None => back.push(id),
            }
        }
        inner.free.extend_from_slice(&back);
        u32::try_from(back.len()).unwrap_or(u32::MAX)
    }

    /// What is reused: tokens, and what was said of their slabs.
    pub(crate) fn reused(&self) -> (u32, &[SlabMeta]) {
        let pages = u32::try_from(self.reuse.len()).unwrap_or(u32::MAX);
        (pages * PAGE_TOKENS, &self.reused)
    }

    /// Writes a token's KV in a group.
    pub(crate) fn write(&self, token: u32, group: u32, kv: &[u8]) -> Result<(), SlabError> {
        let (slab, start) = place(token, group);
        self.pool.slab(self, slab, true, |bytes| {
            bytes[start..start + BYTES].copy_from_slice(kv)
        })
    }

    /// Extends a digest to `tokens` tokens.
    pub(crate) fn digest(&self, digest: &mut Digest, tokens: u32) -> Result<(), SlabError> {
        while digest.tokens < tokens {
            for group in 0..GROUPS {
                let (slab, start) = place(digest.tokens, group);
                self.pool
                    .slab(self, slab, false, |bytes| digest.group(&bytes[start..start + BYTES]))?;
            }
            digest.tokens += 1;
        }
        Ok(())
    }

    /// A prefill of `tokens` tokens begins.
    pub(crate) fn unseal(&self, tokens: u32) {
        let reused = u32::try_from(self.reused.len()).unwrap_or(u32::MAX);
        self.sealed.store(reused, Ordering::Relaxed);
        self.prompt.store(tokens, Ordering::Relaxed);
    }

    /// Seals what is final once `computed` tokens are.
    pub(crate) fn seal(&self, computed: u32) -> Result<Vec<SlabMeta>, SlabError> {
        let tokens = self.prompt.load(Ordering::Relaxed);
        let full = if computed >= tokens {
            layout().pages(tokens)
        } else {
            computed / PAGE_TOKENS
        };
        let mut metas = vec![];
        for id in self.sealed.load(Ordering::Relaxed)..full * GROUPS {
            let len = layout().slab_len(SlabId(id), tokens);
            metas.push(SlabMeta {
                id: SlabId(id),
                len,
                checksum: self.checksum(SlabId(id), len)?,
            });
            self.sealed.store(id + 1, Ordering::Relaxed);
        }
        lock(&self.metas).extend_from_slice(&metas);
        Ok(metas)
    }

    fn checksum(&self, slab: SlabId, len: u32) -> Result<u32, SlabError> {
        self.pool
            .slab(self, slab, false, |bytes| crc32fast::hash(&bytes[..len as usize]))
    }

    fn len(slab: SlabId, tokens: u32) -> Option<u32> {
        (slab.0 < layout().slabs(tokens)).then(|| layout().slab_len(slab, tokens))
    }
}

fn place(token: u32, group: u32) -> (SlabId, usize) {
    let slab = SlabId(token / PAGE_TOKENS * GROUPS + group);
    (slab, (token % PAGE_TOKENS) as usize * BYTES)
}

fn range(slab: SlabId, offset: u32, len: usize, held: Option<u32>) -> Result<std::ops::Range<usize>, SlabError> {
    let end = u64::from(offset) + len as u64;
    match held {
        Some(held) if end <= u64::from(held) => Ok(offset as usize..offset as usize + len),
        _ => Err(SlabError::OutOfRange {
            slab: slab.0,
            offset,
            end,
        }),
    }
}

/// Reads a room's sealed slabs.
pub(crate) struct Source(pub(crate) Arc<RoomPages>);

impl SlabSource for Source {
    fn read(&self, slab: SlabId, offset: u32, out: &mut [u8]) -> Result<(), SlabError> {
        let sealed = slab.0 < self.0.sealed.load(Ordering::Relaxed);
        let tokens = self.0.prompt.load(Ordering::Relaxed);
        let held = RoomPages::len(slab, tokens).filter(|_| sealed);
        let range = range(slab, offset, out.len(), held)?;
        self.0
            .pool
            .slab(&self.0, slab, false, |bytes| out.copy_from_slice(&bytes[range]))
    }
}

/// Writes imported KV under a permit of its own.
pub(crate) struct Importer {
    pages: Arc<RoomPages>,
    tokens: u32,
    closed: AtomicBool,
}

impl Importer {
    /// For the KV of a prompt of `tokens` tokens.
    pub(crate) fn new(pages: Arc<RoomPages>, tokens: u32) -> Self {
        Self {
            pages,
            tokens,
            closed: AtomicBool::new(false),
        }
    }

    fn open(&self) -> Result<(), SlabError> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(SlabError::Closed);
        }
        Ok(())
    }
}

impl SlabSink for Importer {
    fn slab_len(&self, slab: SlabId) -> Option<u32> {
        RoomPages::len(slab, self.tokens)
    }

    fn write(&self, slab: SlabId, offset: u32, data: &[u8]) -> Result<(), SlabError> {
        self.open()?;
        let range = range(slab, offset, data.len(), self.slab_len(slab))?;
        let pool = &self.pages.pool;
        pool.slab(&self.pages, slab, true, |bytes| bytes[range].copy_from_slice(data))
    }

    fn checksum(&self, slab: SlabId) -> Result<u32, SlabError> {
        self.open()?;
        let range = range(slab, 0, 0, self.slab_len(slab)).map(|_| self.slab_len(slab).unwrap_or(0))?;
        self.pages.checksum(slab, range)
    }
}

impl ClosableSink for Importer {
    fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }
}
