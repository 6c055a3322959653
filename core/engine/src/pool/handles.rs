//! What is handed to senders and readers: a way to read sealed slabs, and a write permit that can be taken back.

use std::sync::{Arc, RwLock};

use innkeeper_room::{SlabError, SlabId, SlabSink, SlabSource};

use super::RoomPages;
use crate::port::ClosableSink;
use crate::sync::{read, write};

/// Reads a room's sealed slabs. A slab that is not sealed yet has no bytes.
pub struct Source {
    pages: Arc<RoomPages>,
}

impl Source {
    /// Read access to what `pages` has sealed.
    #[must_use]
    pub fn new(pages: Arc<RoomPages>) -> Self {
        Self { pages }
    }
}

impl SlabSource for Source {
    fn read(&self, slab: SlabId, offset: u32, out: &mut [u8]) -> Result<(), SlabError> {
        if self.pages.is_closed() {
            return Err(SlabError::Closed);
        }
        let tokens = self.pages.sealed_tokens(slab);
        let (page, group) = self.pages.range(slab, offset, out.len(), tokens)?;
        let start = offset as usize;
        self.pages.with_slab(page, group, |held| {
            out.copy_from_slice(&bytemuck::cast_slice(held)[start..start + out.len()]);
        })
    }
}

/// Writes imported KV into a room's pages, under a permit of its own.
pub struct Importer {
    pages: Arc<RoomPages>,
    tokens: u32,
    /// `true` once the permit was taken back. Accesses hold it for reading while they copy.
    gate: RwLock<bool>,
}

impl Importer {
    /// Write access for the KV of a prompt of `tokens` tokens.
    #[must_use]
    pub fn new(pages: Arc<RoomPages>, tokens: u32) -> Self {
        Self {
            pages,
            tokens,
            gate: RwLock::new(false),
        }
    }
}

impl SlabSink for Importer {
    fn slab_len(&self, slab: SlabId) -> Option<u32> {
        self.pages.slab_len(slab, self.tokens)
    }

    fn write(&self, slab: SlabId, offset: u32, data: &[u8]) -> Result<(), SlabError> {
        let closed = read(&self.gate);
        if *closed {
            return Err(SlabError::Closed);
        }
        let (page, group) = self.pages.range(slab, offset, data.len(), self.tokens)?;
        let start = offset as usize;
        self.pages.with_slab_mut(page, group, |held| {
            bytemuck::cast_slice_mut(held)[start..start + data.len()].copy_from_slice(data);
        })
    }

    fn checksum(&self, slab: SlabId) -> Result<u32, SlabError> {
        let closed = read(&self.gate);
        if *closed {
            return Err(SlabError::Closed);
        }
        self.pages.checksum(slab, self.tokens)
    }
}

impl ClosableSink for Importer {
    fn close(&self) {
        *write(&self.gate) = true;
    }
}
