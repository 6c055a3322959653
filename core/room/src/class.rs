//! How urgent a request is. Classes share what there is by weights, so that none of them starves.

/// A request's class. The order is that of urgency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Somebody waits for it and pays for that (`service_tier: priority`).
    High,
    /// What says nothing else (`auto`, `default`).
    #[default]
    Normal,
    /// Has time (`flex`).
    Low,
}

impl Class {
    /// All, the most urgent first.
    pub const ALL: [Self; 3] = [Self::High, Self::Normal, Self::Low];

    /// The label of metrics and files.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::High => "high",
            Self::Normal => "normal",
            Self::Low => "low",
        }
    }

    /// Its place in [`Class::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        match self {
            Self::High => 0,
            Self::Normal => 1,
            Self::Low => 2,
        }
    }

    /// Reads a label back.
    #[must_use]
    pub fn from_label(label: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.label() == label)
    }
}
