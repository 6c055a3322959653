//! One test per rule of D's ledger: events → effects.

mod faults;
mod fences;
mod reads;
mod rules;
mod sessions;

use super::{Config, Effect, Event, Ledger, SessionId};
use crate::evidence::{Evidence, Owes};
use crate::ids::{Attempt, Epoch, Incarnation, RequestKey, RoomId};
use crate::ledger::{EngineKind, EngineView};
use crate::message::{FromWorker, HelloReply, Refusal, ToWorker};
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
const TOKEN: u64 = 77;

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
        prompt_tokens: 80,
        max_tokens: 20,
        queue_left: Millis(30_000),
    }
}

struct Bench {
    ledger: Ledger,
    now: Moment,
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
            incarnation: DECODE,
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
            token: TOKEN,
        })
    }

    /// The session's number is the epoch's.
    fn hello(&mut self, number: u64, epoch: Epoch) -> Vec<Effect> {
        self.go(hello_event(number, epoch))
    }

    fn say(&mut self, number: u64, message: ToWorker) -> Vec<Effect> {
        self.go(Event::FromRouter {
            room: room(number),
            message,
        })
    }

    fn engine(&mut self, in_hand: Option<u64>) -> Event {
        Event::Engine(EngineView {
            progress: self.progress,
            in_hand: in_hand.map(Millis),
            alive: true,
        })
    }

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

    fn stop(&mut self, millis: u64) {
        self.now = self.now + Millis(millis);
    }

    fn phase(&self, number: u64) -> Option<Phase> {
        self.ledger.row(room(number), self.now).map(|row| row.phase)
    }

    fn at(stage: &str) -> Self {
        let mut bench = Self::new();
        bench.bring(stage, 1);
        bench
    }

    fn bring(&mut self, stage: &str, number: u64) {
        let depth = STAGES
            .iter()
            .position(|(name, _)| *name == stage)
            .unwrap_or_else(|| panic!("no stage {stage}"));
        let _ = self.open(number);
        if stage == "quiescing" {
            let _ = self.hello(number, E1);
            let _ = self.hello(number, E2);
            return;
        }
        if depth >= 2 {
            let _ = self.hello(number, E1);
        }
        if depth >= 3 {
            let _ = self.go(Event::Started {
                room: room(number),
                epoch: E1,
            });
        }
        if depth >= 4 {
            let _ = self.go(Event::Verified {
                room: room(number),
                epoch: E1,
                bytes: 100,
            });
            let _ = self.go(Event::Complete {
                room: room(number),
                epoch: E1,
            });
        }
    }
}

const STAGES: [(&str, Phase); 5] = [
    ("opened", Phase::Queued),
    ("quiescing", Phase::Bootstrapping),
    ("ready", Phase::Queued),
    ("input", Phase::WaitingForInput),
    ("decoding", Phase::Decoding),
];

fn hello_event(number: u64, epoch: Epoch) -> Event {
    Event::Hello {
        room: room(number),
        epoch,
        token: TOKEN,
        prefill: PREFILL,
        decode: DECODE,
        session: SessionId(u64::from(epoch.0)),
    }
}

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

fn replies(effects: &[Effect]) -> Vec<(RoomId, Epoch, HelloReply)> {
    let reply = |effect: &Effect| match effect {
        Effect::Reply { room, epoch, reply, .. } => Some((*room, *epoch, *reply)),
        _ => None,
    };
    effects.iter().filter_map(reply).collect()
}

fn told(effects: &[Effect], number: u64, message: &FromWorker) -> bool {
    effects.contains(&Effect::Tell {
        room: room(number),
        message: message.clone(),
    })
}
