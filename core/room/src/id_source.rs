//! Where room ids come from: a deterministic generator (xoroshiro128++) that the executor seeds from the OS, so that the
//! core stays without I/O and a test can replay a run.

use crate::ids::RoomId;

/// A generator of room ids. Ids are not secrets: what must not be guessed is D's token, which comes from the OS.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct IdSource {
    state: [u64; 2],
}

impl IdSource {
    /// A generator with 128 bits from the OS as its seed.
    #[must_use]
    pub const fn new(seed: [u64; 2]) -> Self {
        // The all-zero state is the one that never leaves itself.
        Self {
            state: if seed[0] == 0 && seed[1] == 0 {
                [0x9e37_79b9_7f4a_7c15, 1]
            } else {
                seed
            },
        }
    }

    /// The next id.
    #[must_use]
    pub fn next_room(&mut self) -> RoomId {
        RoomId::from_random(self.next_bits())
    }

    fn next_bits(&mut self) -> u64 {
        let [first, mut second] = self.state;
        let bits = first.wrapping_add(second).rotate_left(17).wrapping_add(first);
        second ^= first;
        self.state = [first.rotate_left(49) ^ second ^ (second << 21), second.rotate_left(28)];
        bits
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_ids_and_none_twice() {
        let (mut one, mut two) = (IdSource::new([1, 2]), IdSource::new([1, 2]));
        let mut seen = BTreeSet::new();
        for _ in 0..10_000 {
            let room = one.next_room();
            assert_eq!(room, two.next_room());
            assert!(seen.insert(room));
        }
        assert_ne!(IdSource::new([0, 0]).next_room(), IdSource::new([1, 2]).next_room());
    }
}
