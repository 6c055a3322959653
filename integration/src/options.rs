use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where a cluster keeps its leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Store {
    /// In the process.
    Embedded,
    /// In an etcd of its own.
    Etcd,
    /// The same, which is not there at the start.
    EtcdLater,
}

/// How a cluster is started. Everything that is not said has the program's own default.
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) engine: &'static str,
    pub(crate) prefill: u32,
    pub(crate) decode: u32,
    pub(crate) store: Store,
    pub(crate) ttl: Duration,
    pub(crate) canary_ms: u64,
    pub(crate) flags: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) access: Access,
}

/// What a test shows to its router.
#[derive(Clone, Debug, Default)]
pub(crate) struct Access {
    /// Where keys are asked for: one that lets it look at rooms and ask for completions.
    pub(crate) key: Option<String>,
    /// The router speaks TLS, with a certificate of this CA.
    pub(crate) ca: Option<PathBuf>,
}

impl Options {
    /// The mock engine, one worker of each role, in one process.
    #[must_use]
    pub fn mock() -> Self {
        Self {
            engine: "mock",
            prefill: 1,
            decode: 1,
            store: Store::Embedded,
            ttl: Duration::from_secs(5),
            canary_ms: 0,
            flags: vec![],
            env: vec![],
            access: Access::default(),
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

    /// A pair of engines next door: where they are (prefill's first, with a comma between them), and their model's folder.
    #[must_use]
    pub fn vllm(urls: &str, folder: &Path) -> Self {
        Self {
            engine: "vllm",
            ..Self::mock()
        }
        .flag("engine-url", urls)
        .flag("model", folder.display())
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
        self.store = Store::Etcd;
        self
    }

    /// The same, but that etcd is started later, by the test.
    #[must_use]
    pub fn etcd_later(mut self) -> Self {
        self.store = Store::EtcdLater;
        self
    }

    /// Faults that nodes are asked for, beside those that the test asks for while they run: `ROLE|NAME:FAULT`, or just the
    /// fault for all nodes.
    #[must_use]
    pub fn fault(self, fault: &str) -> Self {
        self.flag("test-faults", fault)
    }

    /// The progress TTL, from which most other times follow.
    #[must_use]
    pub fn ttl_ms(mut self, ms: u64) -> Self {
        self.ttl = Duration::from_millis(ms);
        self.flag("progress-ttl-ms", ms)
    }

    /// The router sends canaries to idle workers after this time; else none, so that every room is the test's own.
    #[must_use]
    pub fn canaries_ms(mut self, ms: u64) -> Self {
        self.canary_ms = ms;
        self
    }

    /// The router asks for keys: the test shows this one.
    #[must_use]
    pub fn key(mut self, key: &str) -> Self {
        self.access.key = Some(key.to_owned());
        self
    }

    /// The router speaks TLS, with a certificate of this CA.
    #[must_use]
    pub fn ca(mut self, ca: &Path) -> Self {
        self.access.ca = Some(ca.to_owned());
        self
    }

    /// A variable of the program's environment.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// `--name=value`.
    #[must_use]
    pub fn flag(mut self, name: &str, value: impl std::fmt::Display) -> Self {
        self.flags.push(format!("--{name}={value}"));
        self
    }
}
