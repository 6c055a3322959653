use std::time::Duration;

/// How a cluster is started. Everything that is not said has the program's own default.
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) engine: &'static str,
    pub(crate) prefill: u32,
    pub(crate) decode: u32,
    pub(crate) etcd: bool,
    pub(crate) ttl: Duration,
    pub(crate) flags: Vec<String>,
}

impl Options {
    /// The mock engine, one worker of each role, in one process.
    #[must_use]
    pub fn mock() -> Self {
        Self {
            engine: "mock",
            prefill: 1,
            decode: 1,
            etcd: false,
            ttl: Duration::from_secs(5),
            flags: vec![],
        }
    }

    /// The real engine with the default model, one worker of each role, in one process.
    #[must_use]
    pub fn embedded() -> Self {
        Self {
            engine: "embedded",
            ..Self::mock()
        }
    }

    /// So many workers of each role.
    #[must_use]
    pub fn workers(mut self, prefill: u32, decode: u32) -> Self {
        (self.prefill, self.decode) = (prefill, decode);
        self
    }

    /// Every node is a process of its own, with all state in an etcd of this cluster's own.
    #[must_use]
    pub fn etcd(mut self) -> Self {
        self.etcd = true;
        self
    }

    /// The progress TTL, from which most other times follow.
    #[must_use]
    pub fn ttl_ms(mut self, ms: u64) -> Self {
        self.ttl = Duration::from_millis(ms);
        self.flag("progress-ttl-ms", ms)
    }

    /// `--name=value`.
    #[must_use]
    pub fn flag(mut self, name: &str, value: impl std::fmt::Display) -> Self {
        self.flags.push(format!("--{name}={value}"));
        self
    }
}
