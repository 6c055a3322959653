//! The names of a prompt's pages in the prefix cache.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use innkeeper_room::{BlockHash, Work};

/// Makes names: 128 bits, under keys that this process drew and that never leave it.
///
/// A name is a hash of a page's tokens and of the name before it; before the first page stands the tenant. So equal names mean
/// equal tokens from the beginning on, of the same tenant: two that are equal by chance are not to be expected in 2^64 pages, and
/// nobody can look for them, for nobody knows the keys or ever sees a name. What a router says of a prompt's beginning is not
/// asked.
#[derive(Debug)]
pub struct Names {
    keys: [RandomState; 2],
    page_tokens: usize,
    longest: usize,
}

impl Names {
    /// For pages of so many tokens, under new keys. Prompts that are longer than `longest` tokens get none; with 0, no prompt does.
    pub fn new(page_tokens: u32, longest: u32) -> Self {
        let size = |tokens: u32| usize::try_from(tokens).unwrap_or(usize::MAX);
        Self {
            keys: [RandomState::new(), RandomState::new()],
            page_tokens: size(page_tokens.max(1)),
            longest: size(longest),
        }
    }

    /// Of a prompt's whole pages, the first one first. None if it is nobody's, or too long to be computed here.
    pub fn of(&self, work: &Work) -> Arc<[BlockHash]> {
        if work.tenant == 0 || work.prompt.len() > self.longest {
            return Arc::default();
        }
        let pages = work.prompt.chunks_exact(self.page_tokens);
        let mut name = BlockHash(work.tenant);
        pages
            .map(|page| {
                name = self.after(name, page);
                name
            })
            .collect()
    }

    /// The two keys may be near each other: that they are two is part of what is hashed.
    fn after(&self, before: BlockHash, page: &[u32]) -> BlockHash {
        let half = |half: usize| u128::from(self.keys[half].hash_one((half, before.0, page)));
        BlockHash(half(0) << 64 | half(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(tenant: u128, prompt: Vec<u32>) -> Work {
        Work {
            tenant,
            prompt: prompt.into(),
            ..Work::default()
        }
    }

    #[test]
    fn a_name_is_of_all_tokens_before_it_and_of_one_tenant() {
        let names = Names::new(4, 11);
        let one = names.of(&work(7, (0..11).collect()));
        assert_eq!(one.len(), 2, "the third page is not whole");
        assert_eq!(one, names.of(&work(7, (0..9).collect())));
        let mut other: Vec<u32> = (0..11).collect();
        other[5] = 90;
        assert_eq!(one[..1], names.of(&work(7, other.clone()))[..1]);
        assert_ne!(one[1], names.of(&work(7, other.clone()))[1]);
        other[0] = 90;
        other[5] = 5;
        assert_ne!(
            one[1],
            names.of(&work(7, other))[1],
            "the second page is alike, but not what is before it"
        );
        assert_ne!(one[0], names.of(&work(8, (0..11).collect()))[0]);
        assert!(names.of(&work(0, (0..11).collect())).is_empty(), "nobody's");
        assert_ne!(
            one[0],
            Names::new(4, 11).of(&work(7, (0..11).collect()))[0],
            "another process has other keys"
        );
    }

    #[test]
    fn nothing_is_hashed_for_what_would_not_be_kept() {
        let (off, short) = (Names::new(4, 0), Names::new(4, 11));
        assert!(off.of(&work(7, (0..9).collect())).is_empty());
        assert!(short.of(&work(7, (0..12).collect())).is_empty());
        assert_eq!(short.of(&work(7, (0..11).collect())).len(), 2);
    }
}
