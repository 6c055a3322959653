//! A small pool of pages, in which nothing but the code under test keeps a write where it belongs.

use std::sync::{Mutex, MutexGuard, PoisonError};

use innkeeper_room::{SlabError, SlabId, SlabSink};

/// What other rooms' bytes are.
const FOREIGN: u8 = 0xee;
/// Bytes of other rooms between two slabs, and at both ends; what is written farther away is outside of the pool.
const BETWEEN: usize = 1 << 10;

/// The pool, and what may be written to it.
pub(super) struct Pool {
    /// Where each slab begins, and its length.
    slabs: Vec<(usize, u32)>,
    state: Mutex<State>,
}

struct State {
    bytes: Vec<u8>,
    /// Frames of this session that came whole: slab, offset, payload.
    allowed: Vec<(u32, u32, Vec<u8>)>,
    granted: bool,
    judged: bool,
}

impl Pool {
    pub(super) fn new(lens: &[u32]) -> Self {
        let mut bytes = vec![FOREIGN; BETWEEN];
        let mut slabs = Vec::new();
        for len in lens {
            slabs.push((bytes.len(), *len));
            bytes.resize(bytes.len() + *len as usize, 0);
            bytes.resize(bytes.len() + BETWEEN, FOREIGN);
        }
        Self {
            slabs,
            state: Mutex::new(State {
                bytes,
                allowed: Vec::new(),
                granted: false,
                judged: false,
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A whole frame of this session was sent.
    pub(super) fn allow(&self, slab: u32, offset: u32, payload: &[u8]) {
        self.state().allowed.push((slab, offset, payload.to_vec()));
    }

    /// The write permit is given to a session, or taken back.
    pub(super) fn grant(&self, granted: bool) {
        let mut state = self.state();
        state.granted = granted;
        state.judged = false;
    }

    /// D was told that the manifest was looked at: from now on nothing may be written.
    pub(super) fn judged(&self) {
        self.state().judged = true;
    }

    /// Nothing of the session can touch a page any more.
    pub(super) fn ends_session(&self) {
        let mut state = self.state();
        state.granted = false;
        state.allowed.clear();
    }

    /// What is in a slab now.
    pub(super) fn slab(&self, slab: usize) -> Vec<u8> {
        let (from, len) = self.slabs[slab];
        self.state().bytes[from..from + len as usize].to_vec()
    }

    /// No byte of another room has changed.
    pub(super) fn check(&self) {
        let state = self.state();
        let mut from = 0;
        let ends = self.slabs.iter().copied().chain([(state.bytes.len(), 0)]);
        for (begin, len) in ends {
            let foreign = &state.bytes[from..begin];
            assert!(
                foreign.iter().all(|byte| *byte == FOREIGN),
                "a byte outside of the granted pages changed"
            );
            from = begin + len as usize;
        }
    }
}

impl SlabSink for Pool {
    fn slab_len(&self, slab: SlabId) -> Option<u32> {
        self.slabs.get(slab.0 as usize).map(|(_, len)| *len)
    }

    fn write(&self, slab: SlabId, offset: u32, data: &[u8]) -> Result<(), SlabError> {
        let mut state = self.state();
        if !state.granted {
            return Err(SlabError::Closed);
        }
        assert!(!state.judged, "a byte was written after the manifest was looked at");
        let sent = state
            .allowed
            .iter()
            .any(|(id, at, payload)| (*id, *at) == (slab.0, offset) && payload == data);
        assert!(
            sent,
            "{} bytes at {offset} of slab {} were written that no frame brought",
            data.len(),
            slab.0
        );
        let (from, _) = *self
            .slabs
            .get(slab.0 as usize)
            .expect("a slab that was not granted was written to");
        let from = from + offset as usize;
        state.bytes[from..from + data.len()].copy_from_slice(data);
        Ok(())
    }

    fn checksum(&self, slab: SlabId) -> Result<u32, SlabError> {
        if !self.state().granted {
            return Err(SlabError::Closed);
        }
        Ok(crc32fast::hash(&self.slab(slab.0 as usize)))
    }
}
