use crate::ids::Incarnation;
use crate::settings::Settings;

/// What a worker's ledger must know of its node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// The bounds of the protocol.
    pub settings: Settings,
    /// This life of this process.
    pub incarnation: Incarnation,
    /// KV pages in the engine's pool.
    pub total_pages: u32,
    /// Tokens in a page; 0 counts as 1.
    pub page_tokens: u32,
    /// Longest prompt and answer together, in tokens.
    pub context: u32,
}

impl Config {
    /// The pages that `tokens` tokens occupy; a room has at least one.
    #[must_use]
    pub fn pages(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.page_tokens.max(1)).max(1)
    }

    /// The pages that the prefix cache may have.
    pub(crate) fn cached_pages(&self) -> u32 {
        let percent = u64::from(self.settings.prefix_cache_percent);
        u32::try_from(u64::from(self.total_pages) * percent / 100).unwrap_or(u32::MAX)
    }

    /// Whether a request of this size can ever fit, given the tokens this node would reserve pages for.
    pub(crate) fn fits(&self, prompt: u32, max_tokens: u32, reserved: u32) -> bool {
        let whole = u64::from(prompt) + u64::from(max_tokens);
        whole <= u64::from(self.context) && self.pages(reserved) <= self.total_pages
    }
}
