//! Telling two states of the world apart: one 64-bit number over everything that decides what happens next, and over all
//! that the oracle looks at later.

use std::hash::{Hash, Hasher};

use crate::world::World;

/// A folded-multiply hash: fast over many small words, and every bit counts.
struct Folded(u64);

impl Folded {
    fn word(&mut self, word: u64) {
        let wide = u128::from(self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        let folded = wide ^ (wide >> 64);
        self.0 = u64::try_from(folded & u128::from(u64::MAX))
            .unwrap_or(0)
            .rotate_left(23);
    }
}

impl Hasher for Folded {
    fn finish(&self) -> u64 {
        let mut last = Self(self.0);
        last.word(0x2545_f491_4f6c_dd1d);
        last.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            for (to, from) in word.iter_mut().zip(part) {
                *to = *from;
            }
            self.word(u64::from_le_bytes(word));
        }
        self.word(bytes.len() as u64);
    }

    fn write_u8(&mut self, word: u8) {
        self.word(u64::from(word));
    }

    fn write_u32(&mut self, word: u32) {
        self.word(u64::from(word));
    }

    fn write_u64(&mut self, word: u64) {
        self.word(word);
    }

    fn write_usize(&mut self, word: usize) {
        self.word(word as u64);
    }
}

impl World {
    /// The state as a number. What is left out is named here, with the reason.
    pub(crate) fn fingerprint(&self, salt: u64) -> u64 {
        let Self {
            now,
            next: _, // only the order of the queue counts
            queue,
            rng: _,      // there is no chance in an exact world
            settings: _, // one set per exploration
            shape: _,    // the same
            nodes,
            ctl,
            router,
            links,
            sessions,
            next_session,
            store,
            clients,
            ends,
            part_ends,
            loud: _,
            lines: _,
            story_rooms: _,
            errors: _, // a state with an error is not gone on from
            touched_nodes,
            touched_links,
            router_paused,
            router_runs_since,
            heard,
            engines_heard,
            moved,
            pauses,
            steps: _,
            deaf,
            faults,
            open_faults,
            exact: _,    // one per exploration
            cached: _,   // the same
            policies: _, // those of the default in an exact world
        } = self;
        let mut hash = Folded(salt.wrapping_mul(0xd6e8_feb8_6659_fd93) ^ 0x1357_9bdf_0246_8ace);
        now.hash(&mut hash);
        for ((at, _), act) in queue {
            at.hash(&mut hash);
            act.hash(&mut hash);
        }
        (nodes, ctl, router, links, sessions, next_session).hash(&mut hash);
        (store, clients, part_ends).hash(&mut hash);
        for end in ends.values() {
            (end.room, end.attempt, end.verdict, end.blame).hash(&mut hash);
        }
        (touched_nodes, touched_links, heard, engines_heard, moved).hash(&mut hash);
        (router_paused, router_runs_since, pauses, deaf, faults, open_faults).hash(&mut hash);
        hash.finish()
    }
}
