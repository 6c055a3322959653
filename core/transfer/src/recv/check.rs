//! The exact match of the manifest with the pages.

use std::collections::HashMap;

use innkeeper_room::{Manifest, SlabError, SlabId};

use crate::port::Grant;

/// Bytes that are summed before the other tasks of the thread have their turn (a kill of this session among them): under a
/// millisecond.
const BYTES_PER_TURN: u64 = 4 << 20;

/// Sums over slabs as they are in the pages, taken when this session completed them: they are still in the CPU's cache then,
/// and the commit does not wait for a walk over the whole room. A complete slab is never written again, so its sum stays.
#[derive(Default)]
pub(super) struct PageSums(HashMap<u32, u32>);

impl PageSums {
    /// Takes the sum of a slab, if it is complete now.
    ///
    /// # Errors
    /// The write permit was taken back.
    pub(super) fn completed(&mut self, slab: SlabId, grant: &Grant) -> Result<(), SlabError> {
        if grant.coverage.has(slab) && !self.0.contains_key(&slab.0) {
            self.0.insert(slab.0, grant.sink.checksum(slab)?);
        }
        Ok(())
    }

    /// The sum of a slab in the page; one that an earlier session completed is walked over now, and counted in `walked`.
    fn get(&self, slab: SlabId, grant: &Grant, walked: &mut u64) -> Result<u32, SlabError> {
        if let Some(sum) = self.0.get(&slab.0) {
            return Ok(*sum);
        }
        *walked += u64::from(grant.coverage.len_of(slab).unwrap_or(0));
        grant.sink.checksum(slab)
    }
}

/// Whether the manifest names exactly the room's slabs, and the bytes that are in the pages now are those that were sealed.
/// The inner error says what contradicts.
///
/// # Errors
/// The write permit was taken back.
pub(super) async fn check_manifest(
    manifest: &Manifest,
    grant: &Grant,
    sums: &PageSums,
) -> Result<Result<(), String>, SlabError> {
    let expected = grant.coverage.slabs();
    if manifest.slabs.len() != expected {
        return Ok(Err(format!(
            "the manifest has {} slabs, the room {expected}",
            manifest.slabs.len()
        )));
    }
    let mut walked = 0;
    for (at, slab) in manifest.slabs.iter().enumerate() {
        let id = u32::try_from(at).map(SlabId).unwrap_or(slab.id);
        if slab.id != id {
            return Ok(Err(format!(
                "the manifest has slab {} in the place of slab {}",
                slab.id.0, id.0
            )));
        }
        if grant.coverage.len_of(id) != Some(slab.len) {
            return Ok(Err(format!(
                "slab {} has another length than the manifest says ({})",
                id.0, slab.len
            )));
        }
        let there = sums.get(id, grant, &mut walked)?;
        if there != slab.checksum {
            return Ok(Err(format!(
                "slab {} was sealed with {:08x} and has {there:08x}",
                id.0, slab.checksum
            )));
        }
        if walked >= BYTES_PER_TURN {
            walked = 0;
            tokio::task::yield_now().await;
        }
    }
    Ok(Ok(()))
}
