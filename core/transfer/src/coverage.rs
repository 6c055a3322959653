//! Which slabs of a room D has verified. It outlives sessions: the next epoch sends only what it lacks.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use innkeeper_room::SlabId;

/// Gaps within one slab that are remembered; an honest sender goes through a slab in order and makes none.
const MAX_SPANS: usize = 64;

/// A frame lies outside the room's slabs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CoverageError {
    /// There is no such slab or range.
    #[error("slab {slab} has no bytes {offset}..{end}")]
    OutOfRange {
        /// The slab's number.
        slab: u32,
        /// First byte.
        offset: u32,
        /// One past the last byte.
        end: u64,
    },
    /// The slab came in too many scattered pieces.
    #[error("slab {slab} came in more than {MAX_SPANS} scattered pieces; send a slab in order")]
    Scattered {
        /// The slab's number.
        slab: u32,
    },
}

/// A run of complete slabs: `first`, `first + 1`, …, `count` of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first slab.
    pub first: u32,
    /// How many.
    pub count: u32,
}

/// What of a room's slabs is verified, and how many bytes that is, each counted once. Shared by `Arc`.
#[derive(Debug)]
pub struct Coverage {
    lens: Box<[u32]>,
    total: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    complete: Box<[bool]>,
    missing: usize,
    /// Of slabs that are begun and not complete: what is there, ascending, neither touching nor overlapping.
    begun: HashMap<u32, Vec<(u32, u32)>>,
    verified: u64,
}

impl Coverage {
    /// Nothing is verified of a room with slabs of these lengths in bytes, by slab number.
    #[must_use]
    pub fn new(lens: Vec<u32>) -> Self {
        let complete: Box<[bool]> = lens.iter().map(|len| *len == 0).collect();
        let missing = complete.iter().filter(|done| !**done).count();
        Self {
            total: lens.iter().map(|len| u64::from(*len)).sum(),
            lens: lens.into_boxed_slice(),
            state: Mutex::new(State {
                complete,
                missing,
                begun: HashMap::new(),
                verified: 0,
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic while it was held left at most an uncounted range: that is sent again.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many slabs the room has.
    #[must_use]
    pub fn slabs(&self) -> usize {
        self.lens.len()
    }

    /// The expected length of a slab in bytes; `None`: no such slab.
    #[must_use]
    pub fn len_of(&self, slab: SlabId) -> Option<u32> {
        usize::try_from(slab.0).ok().and_then(|at| self.lens.get(at)).copied()
    }

    /// Bytes of all slabs.
    #[must_use]
    pub const fn total_bytes(&self) -> u64 {
        self.total
    }

    /// Bytes verified so far, over all sessions, each counted once.
    #[must_use]
    pub fn verified_bytes(&self) -> u64 {
        self.state().verified
    }

    /// Whether every slab is complete.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.state().missing == 0
    }

    /// Whether this slab is complete.
    #[must_use]
    pub fn has(&self, slab: SlabId) -> bool {
        usize::try_from(slab.0)
            .ok()
            .and_then(|at| self.state().complete.get(at).copied())
            .unwrap_or(false)
    }

    /// Whether a frame may lie here.
    ///
    /// # Errors
    /// [`CoverageError::OutOfRange`].
    pub fn check(&self, slab: SlabId, offset: u32, len: u32) -> Result<(), CoverageError> {
        let end = u64::from(offset) + u64::from(len);
        match self.len_of(slab) {
            Some(whole) if end <= u64::from(whole) => Ok(()),
            Some(_) | None => Err(CoverageError::OutOfRange {
                slab: slab.0,
                offset,
                end,
            }),
        }
    }

    /// Notes that these bytes are verified and in the page; the bytes verified so far.
    ///
    /// # Errors
    /// As [`Coverage::check`]; [`CoverageError::Scattered`] if the slab came in too many pieces. Nothing is noted then.
    pub fn mark(&self, slab: SlabId, offset: u32, len: u32) -> Result<u64, CoverageError> {
        self.check(slab, offset, len)?;
        let whole = self.len_of(slab).unwrap_or(0);
        let mut state = self.state();
        let at = slab.0 as usize;
        if len == 0 || state.complete.get(at).copied().unwrap_or(true) {
            return Ok(state.verified);
        }
        let spans = state.begun.entry(slab.0).or_default();
        let before = held(spans);
        if !insert(spans, offset, offset + len) {
            return Err(CoverageError::Scattered { slab: slab.0 });
        }
        let after = held(spans);
        if after == u64::from(whole) {
            state.begun.remove(&slab.0);
            state.missing -= 1;
            if let Some(done) = state.complete.get_mut(at) {
                *done = true;
            }
        }
        state.verified += after - before;
        Ok(state.verified)
    }

    /// The wire form: runs of complete slabs, ascending, at most `most` of them. What is left out is only sent again.
    #[must_use]
    pub fn runs(&self, most: usize) -> Vec<Run> {
        let state = self.state();
        let mut runs: Vec<Run> = Vec::new();
        for (at, _) in state.complete.iter().enumerate().filter(|(_, done)| **done) {
            let Ok(slab) = u32::try_from(at) else { break };
            let room = runs.len() < most;
            match runs.last_mut() {
                Some(run) if run.first + run.count == slab => run.count += 1,
                Some(_) | None if room => runs.push(Run { first: slab, count: 1 }),
                Some(_) | None => break,
            }
        }
        runs
    }
}

fn held(spans: &[(u32, u32)]) -> u64 {
    spans.iter().map(|(start, end)| u64::from(end - start)).sum()
}

/// Adds a span, merging those that it touches; false, and nothing added, if that would make one too many.
fn insert(spans: &mut Vec<(u32, u32)>, start: u32, end: u32) -> bool {
    let first = spans.partition_point(|span| span.1 < start);
    let past = spans.partition_point(|span| span.0 <= end);
    if first >= past && spans.len() >= MAX_SPANS {
        return false;
    }
    let merged = spans
        .get(first..past)
        .unwrap_or(&[])
        .iter()
        .fold((start, end), |whole, span| (whole.0.min(span.0), whole.1.max(span.1)));
    spans.splice(first..past.max(first), [merged]);
    true
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bytes_count_once_and_a_slab_completes() {
        let coverage = Coverage::new(vec![10, 0, 20]);
        assert_eq!(coverage.mark(SlabId(0), 0, 6), Ok(6));
        assert_eq!(coverage.mark(SlabId(0), 4, 4), Ok(8));
        assert!(!coverage.has(SlabId(0)));
        assert_eq!(coverage.mark(SlabId(0), 0, 10), Ok(10));
        assert_eq!(coverage.mark(SlabId(0), 0, 10), Ok(10));
        assert_eq!(coverage.runs(8), [Run { first: 0, count: 2 }]);
        assert!(!coverage.is_complete());
        assert_eq!(coverage.mark(SlabId(2), 0, 20), Ok(30));
        assert!(coverage.is_complete());
    }

    #[test]
    fn what_does_not_exist_is_refused() {
        let coverage = Coverage::new(vec![10]);
        assert!(coverage.mark(SlabId(1), 0, 1).is_err());
        assert!(coverage.mark(SlabId(0), 9, 2).is_err());
        assert!(coverage.mark(SlabId(0), u32::MAX, u32::MAX).is_err());
        assert_eq!(coverage.verified_bytes(), 0);
    }

    #[test]
    fn too_many_runs_are_cut_short() {
        let coverage = Coverage::new(vec![1; 10]);
        for slab in [0, 2, 4, 6] {
            coverage.mark(SlabId(slab), 0, 1).unwrap();
        }
        assert_eq!(
            coverage.runs(2),
            [Run { first: 0, count: 1 }, Run { first: 2, count: 1 }]
        );
    }

    proptest! {
        #[test]
        fn agrees_with_a_set_of_bytes(marks in prop::collection::vec((0u32..40, 0u32..40), 0..40)) {
            let coverage = Coverage::new(vec![64]);
            let mut bytes = [false; 64];
            for (offset, len) in marks {
                let fits = offset + len <= 64;
                let got = coverage.mark(SlabId(0), offset, len);
                if fits {
                    bytes[offset as usize..(offset + len) as usize].fill(true);
                    let there = bytes.iter().filter(|byte| **byte).count() as u64;
                    prop_assert_eq!(got, Ok(there));
                    prop_assert_eq!(coverage.is_complete(), there == 64);
                } else {
                    prop_assert!(got.is_err());
                }
            }
        }
    }
}
