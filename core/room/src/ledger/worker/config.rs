use crate::ids::Incarnation;
use crate::reason::Reason;
use crate::settings::Settings;

/// Whose process the engine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum EngineKind {
    /// A thread of the worker: its KV moves slab by slab, and it ends with the worker's process.
    #[default]
    Own,
    /// A process of its own that other people wrote: engines read KV from each other by tickets, and only the end of *its*
    /// process gets back the pages that it does not let go of.
    Remote,
}

impl EngineKind {
    /// What a room ends with that waits for an engine which owes and shows nothing.
    pub(crate) const fn stalled(self) -> Reason {
        match self {
            Self::Own => Reason::EngineStalled,
            Self::Remote => Reason::EngineWedged,
        }
    }
}

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
    /// Whose process the engine is.
    pub engine: EngineKind,
}

impl Config {
    /// The pages that `tokens` tokens occupy; a room has at least one.
    #[must_use]
    pub fn pages(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.page_tokens.max(1)).max(1)
    }

    /// The pages that the prefix cache may have. None, if the pages are another process's: it caches on its own account.
    pub(crate) fn cached_pages(&self) -> u32 {
        if self.engine == EngineKind::Remote {
            return 0;
        }
        let percent = u64::from(self.settings.prefix_cache_percent);
        u32::try_from(u64::from(self.total_pages) * percent / 100).unwrap_or(u32::MAX)
    }

    /// Whether a request of this size can ever fit, given the tokens this node would reserve pages for.
    pub(crate) fn fits(&self, prompt: u32, max_tokens: u32, reserved: u32) -> bool {
        let whole = u64::from(prompt) + u64::from(max_tokens);
        whole <= u64::from(self.context) && self.pages(reserved) <= self.total_pages
    }
}
