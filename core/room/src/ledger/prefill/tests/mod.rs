//! One test per rule of P's ledger: events → effects.

mod cache;
mod faults;
mod fences;
mod reads;
mod rules;
mod timers;

use std::sync::Arc;

use super::{Config, Effect, Event, Ledger};
use crate::cache::BlockHash;
use crate::evidence::{Evidence, Owes};
use crate::ids::{Attempt, Epoch, Incarnation, RequestKey, RoomId};
use crate::ledger::{EngineKind, EngineView};
use crate::message::{Counters, FromWorker, HelloReply, Refusal, ToWorker};
use crate::pages::PageCounts;
use crate::phase::Phase;
use crate::reason::{PartEnd, Reason, Verdict};
use crate::settings::Settings;
use crate::spec::RoomSpec;
use crate::time::{Millis, Moment};

const ROUTER: Incarnation = Incarnation::new(1);
const PREFILL: Incarnation = Incarnation::new(2);
const DECODE: Incarnation = Incarnation::new(3);
const E1: Epoch = Epoch(1);
const E2: Epoch = Epoch(2);

fn room(number: u64) -> RoomId {
    RoomId::from_random(number)
}

fn spec(number: u64) -> RoomSpec {
    RoomSpec {
        room: room(number),
        request: RequestKey(number),
        attempt: Attempt(1),
        router: ROUTER,
        prefill: PREFILL,
        decode: DECODE,
        prompt_tokens: 100,
        max_tokens: 20,
        queue_left: Millis(30_000),
    }
}

struct Bench {
    ledger: Ledger,
    now: Moment,
    /// Chunks and steps finished.
    progress: u64,
}

impl Bench {
    fn new() -> Self {
        Self::with(Settings::default(), 70)
    }

    fn with(settings: Settings, total_pages: u32) -> Self {
        Self::with_engine(EngineKind::Own, settings, total_pages)
    }

    fn with_engine(engine: EngineKind, settings: Settings, total_pages: u32) -> Self {
        let now = Moment(1_000_000);
        let config = Config {
            settings,
            incarnation: PREFILL,
            total_pages,
            page_tokens: 10,
            context: 600,
            engine,
        };
        Self {
            ledger: Ledger::new(config, now),
            now,
            progress: 0,
        }
    }

    fn go(&mut self, event: Event) -> Vec<Effect> {
        self.ledger.step(event, self.now)
    }

    fn open(&mut self, number: u64) -> Vec<Effect> {
        self.go(Event::Open {
            spec: spec(number),
            decode_addr: "d:1".into(),
            token: 7,
            blocks: Arc::default(),
        })
    }

    fn reply(&mut self, number: u64, epoch: Epoch, reply: HelloReply) -> Vec<Effect> {
        self.go(Event::Reply {
            room: room(number),
            epoch,
            reply,
        })
    }

    fn say(&mut self, number: u64, message: ToWorker) -> Vec<Effect> {
        self.go(Event::FromRouter {
            room: room(number),
            message,
        })
    }

    fn broken(&mut self, number: u64, epoch: Epoch) -> Vec<Effect> {
        self.go(Event::Broken {
            room: room(number),
            epoch,
            unacked: false,
            refused: false,
        })
    }

    fn sample(&mut self, number: u64, sealed: u64, sent: u64, verified: u64) -> Vec<Effect> {
        let counters = Counters {
            bytes_sealed: sealed,
            bytes_sent: sent,
            bytes_verified: verified,
            ..Counters::default()
        };
        self.go(Event::Sample {
            room: room(number),
            counters,
            unacked: false,
        })
    }

    fn engine(&mut self, in_hand: Option<u64>) -> Vec<Effect> {
        let view = EngineView {
            progress: self.progress,
            in_hand: in_hand.map(Millis),
            alive: true,
        };
        self.go(Event::Engine(view))
    }

    /// Lets time pass, in looks of a report period.
    fn wait(&mut self, millis: u64) -> Vec<Effect> {
        self.wait_doing(millis, |_| Event::Tick)
    }

    fn wait_doing(&mut self, millis: u64, mut event: impl FnMut(&mut Self) -> Event) -> Vec<Effect> {
        let end = self.now + Millis(millis);
        let mut out = Vec::new();
        while self.now < end {
            self.now = (self.now + Millis(250)).min(end);
            let event = event(self);
            out.extend(self.go(event));
        }
        out
    }

    /// The node is stopped.
    fn stop(&mut self, millis: u64) {
        self.now = self.now + Millis(millis);
    }

    fn phase(&self, number: u64) -> Option<Phase> {
        self.ledger.row(room(number), self.now).map(|row| row.phase)
    }

    /// Brings a room to a stage.
    fn at(&mut self, stage: &str, number: u64) {
        let _ = self.open(number);
        match stage {
            "hello" => {}
            "pages" => drop(self.reply(number, E1, HelloReply::Wait)),
            "computing" => drop(self.reply(number, E1, HelloReply::Ready)),
            "sending" => {
                let _ = self.reply(number, E1, HelloReply::Ready);
                let _ = self.go(Event::Sealed {
                    room: room(number),
                    bytes: 1000,
                });
            }
            other => panic!("no stage {other}"),
        }
    }

    /// A bench with room 1 at a stage; `turn` and `window` need others in front of it.
    fn staged(stage: &str) -> Self {
        let settings = match stage {
            "window" => Settings {
                hello_window: 1,
                ..Settings::default()
            },
            "turn" => Settings {
                prefill_concurrency: 1,
                ..Settings::default()
            },
            _ => Settings::default(),
        };
        let mut bench = Self::with(settings, 70);
        match stage {
            "window" => {
                bench.at("hello", 9);
                bench.at("hello", 1);
            }
            "turn" => {
                bench.at("computing", 9);
                bench.at("computing", 1);
            }
            other => bench.at(other, 1),
        }
        bench
    }
}

const STAGES: [(&str, Phase); 6] = [
    ("window", Phase::Queued),
    ("hello", Phase::Bootstrapping),
    ("pages", Phase::Queued),
    ("turn", Phase::Queued),
    ("computing", Phase::WaitingForInput),
    ("sending", Phase::Transferring),
];

fn ended(effects: &[Effect], number: u64) -> Option<(PartEnd, Evidence, bool)> {
    let mut ends = effects.iter().filter_map(|effect| match effect {
        Effect::Tell {
            room: of,
            message: FromWorker::Ended { end, evidence, relayed },
        } if *of == room(number) => Some((*end, *evidence, *relayed)),
        _ => None,
    });
    let first = ends.next();
    assert!(ends.next().is_none(), "ended twice: {effects:?}");
    first
}

fn failed(effects: &[Effect], number: u64) -> Option<(Reason, Owes)> {
    match ended(effects, number) {
        Some((PartEnd::Failed(reason), evidence, _)) => Some((reason, evidence.waited_for)),
        _ => None,
    }
}

fn connects(effects: &[Effect]) -> Vec<(Epoch, u64)> {
    let connect = |effect: &Effect| match effect {
        Effect::Connect { epoch, after, .. } => Some((*epoch, after.0)),
        _ => None,
    };
    effects.iter().filter_map(connect).collect()
}

fn told(effects: &[Effect], number: u64, message: &FromWorker) -> bool {
    effects.contains(&Effect::Tell {
        room: room(number),
        message: message.clone(),
    })
}
