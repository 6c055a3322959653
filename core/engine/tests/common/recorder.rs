//! A sink that remembers what it heard.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use innkeeper_engine::{DecodeSink, EngineError, PrefillSink};
use innkeeper_room::{Manifest, SlabMeta, Token};

#[derive(Clone, Debug, PartialEq)]
pub enum Heard {
    Sealed(SlabMeta),
    Computed(u32),
    Token(u32, Token),
    Manifest(Manifest),
    Finished,
    Failed(EngineError),
    Stopped,
}

impl Heard {
    fn is_end(&self) -> bool {
        matches!(
            self,
            Self::Manifest(_) | Self::Finished | Self::Failed(_) | Self::Stopped
        )
    }
}

#[derive(Default)]
pub struct Recorder {
    log: Mutex<Vec<Heard>>,
    more: Condvar,
}

impl Recorder {
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    fn hear(&self, heard: Heard) {
        self.log.lock().expect("not poisoned").push(heard);
        self.more.notify_all();
    }

    pub fn log(&self) -> Vec<Heard> {
        self.log.lock().expect("not poisoned").clone()
    }

    /// Waits, with a limit that only a broken engine reaches.
    pub fn wait(&self, what: &str, condition: impl Fn(&[Heard]) -> bool) {
        let log = self.log.lock().expect("not poisoned");
        let limit = Duration::from_secs(60);
        let (log, waited) = self
            .more
            .wait_timeout_while(log, limit, |log| !condition(log))
            .expect("not poisoned");
        let timed_out = waited.timed_out();
        assert!(
            !timed_out,
            "waited in vain for {what}; the last it heard: {:?}",
            log.last()
        );
    }

    pub fn wait_over(&self) {
        self.wait("the end", |log| log.iter().any(Heard::is_end));
    }

    pub fn ends(&self) -> Vec<Heard> {
        self.log().into_iter().filter(Heard::is_end).collect()
    }

    pub fn manifest(&self) -> Option<Manifest> {
        self.log().into_iter().find_map(|heard| {
            if let Heard::Manifest(manifest) = heard {
                Some(manifest)
            } else {
                None
            }
        })
    }

    pub fn sealed(&self) -> Vec<SlabMeta> {
        let sealed = |heard| {
            if let Heard::Sealed(meta) = heard {
                Some(meta)
            } else {
                None
            }
        };
        self.log().into_iter().filter_map(sealed).collect()
    }

    pub fn computed(&self) -> u32 {
        let computed = |heard: &Heard| {
            if let Heard::Computed(tokens) = heard {
                Some(*tokens)
            } else {
                None
            }
        };
        self.log().iter().filter_map(computed).max().unwrap_or(0)
    }

    /// The tokens; their positions must be 1, 2, 3 and so on.
    pub fn tokens(&self) -> Vec<Token> {
        let token = |heard| {
            if let Heard::Token(position, token) = heard {
                Some((position, token))
            } else {
                None
            }
        };
        let tokens: Vec<_> = self.log().into_iter().filter_map(token).collect();
        assert!(
            (1..)
                .zip(&tokens)
                .all(|(expected, (position, _))| expected == *position)
        );
        tokens.into_iter().map(|(_, token)| token).collect()
    }
}

impl PrefillSink for Recorder {
    fn sealed(&self, slab: SlabMeta) {
        self.hear(Heard::Sealed(slab));
    }
    fn computed(&self, tokens: u32) {
        self.hear(Heard::Computed(tokens));
    }
    fn finished(&self, manifest: Manifest) {
        self.hear(Heard::Manifest(manifest));
    }
    fn failed(&self, error: EngineError) {
        self.hear(Heard::Failed(error));
    }
    fn stopped(&self) {
        self.hear(Heard::Stopped);
    }
}

impl DecodeSink for Recorder {
    fn token(&self, position: u32, token: Token) {
        self.hear(Heard::Token(position, token));
    }
    fn finished(&self) {
        self.hear(Heard::Finished);
    }
    fn failed(&self, error: EngineError) {
        self.hear(Heard::Failed(error));
    }
    fn stopped(&self) {
        self.hear(Heard::Stopped);
    }
}
