//! Pages with content.

/// A pool. What was freed last is handed out first: reuse comes soon.
#[derive(Debug)]
pub(super) struct Pages {
    content: Vec<Vec<u32>>,
    free: Vec<u32>,
    page_tokens: usize,
}

impl Pages {
    pub(super) fn new(pages: u32, page_tokens: u32) -> Self {
        Self {
            content: vec![vec![]; pages as usize],
            free: (0..pages).rev().collect(),
            page_tokens: page_tokens.max(1) as usize,
        }
    }

    pub(super) fn total(&self) -> usize {
        self.content.len()
    }

    pub(super) fn held(&self) -> usize {
        self.content.len() - self.free.len()
    }

    /// Pages for this many tokens, or none.
    pub(super) fn take(&mut self, tokens: usize) -> Option<Vec<u32>> {
        let wanted = tokens.div_ceil(self.page_tokens);
        let start = self.free.len().checked_sub(wanted)?;
        let mut taken = self.free.split_off(start);
        taken.reverse();
        Some(taken)
    }

    /// What was in them stays until they are written again.
    pub(super) fn give_back(&mut self, pages: &[u32]) {
        self.free.extend(pages);
    }

    /// Computes a prompt's KV.
    pub(super) fn fill(&mut self, pages: &[u32], tokens: &[u32]) {
        for (page, part) in pages.iter().zip(tokens.chunks(self.page_tokens)) {
            self.put(*page, part.to_vec());
        }
    }

    pub(super) fn put(&mut self, page: u32, content: Vec<u32>) {
        if let Some(slot) = self.content.get_mut(page as usize) {
            *slot = content;
        }
    }

    pub(super) fn content(&self, page: u32) -> Vec<u32> {
        self.content.get(page as usize).cloned().unwrap_or_default()
    }

    /// The tokens whose KV the pages have.
    pub(super) fn tokens<'a>(&'a self, pages: &'a [u32]) -> impl Iterator<Item = u32> + 'a {
        pages
            .iter()
            .filter_map(|page| self.content.get(*page as usize))
            .flatten()
            .copied()
    }

    pub(super) fn page_tokens(&self) -> usize {
        self.page_tokens
    }
}
