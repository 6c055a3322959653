//! The slabs of an engine that has none to show.

use innkeeper_engine::ClosableSink;
use innkeeper_room::{SlabError, SlabId, SlabSink, SlabSource};

/// Refuses every byte.
#[derive(Clone, Copy, Debug)]
pub(super) struct NoSlabs;

impl SlabSource for NoSlabs {
    fn read(&self, _slab: SlabId, _offset: u32, _out: &mut [u8]) -> Result<(), SlabError> {
        Err(SlabError::Closed)
    }
}

impl SlabSink for NoSlabs {
    fn slab_len(&self, _slab: SlabId) -> Option<u32> {
        None
    }

    fn checksum(&self, _slab: SlabId) -> Result<u32, SlabError> {
        Err(SlabError::Closed)
    }

    fn write(&self, _slab: SlabId, _offset: u32, _bytes: &[u8]) -> Result<(), SlabError> {
        Err(SlabError::Closed)
    }
}

impl ClosableSink for NoSlabs {
    fn close(&self) {}
}
