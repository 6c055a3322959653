//! Either worker's ledger, as scripts drive it.

use innkeeper_actors::ports::OpenRoom;
use innkeeper_room::ledger::{EngineView, Gauges, RoomRow, decode, prefill};
use innkeeper_room::prefix::Blocks;
use innkeeper_room::{
    BlockHash, Counters, Epoch, Evidence, FromWorker, HelloReply, Incarnation, Millis, Moment, Reason, RoomId, ToWorker,
};
use innkeeper_transfer::fuzz::Input;

use super::settings;

/// The lives that scripts speak of.
pub(super) const ROUTER: Incarnation = Incarnation::new(1);
pub(super) const PREFILL: Incarnation = Incarnation::new(2);
pub(super) const DECODE: Incarnation = Incarnation::new(3);
/// The secret of every room here.
const TOKEN: u64 = 77;
/// Tokens of the context, and of a page.
const CONTEXT: u32 = 600;
const PAGE: u32 = 10;
const PAGES: u32 = 70;
/// What a step of a worker's ledger led to.
pub(super) struct Led {
    pub(super) told: Vec<(RoomId, FromWorker)>,
    pub(super) replies: Vec<HelloReply>,
    pub(super) begun: Vec<RoomId>,
    pub(super) orders: usize,
}

/// Either worker's ledger.
pub(super) trait Worker {
    fn open(&mut self, open: &OpenRoom, now: Moment) -> Led;
    fn says(&mut self, room: RoomId, message: ToWorker, now: Moment) -> Led;
    fn stream_ended(&mut self, room: RoomId, now: Moment) -> Led;
    fn tick(&mut self, now: Moment) -> Led;
    /// Something that this node's actors report of a room.
    fn local(&mut self, room: RoomId, input: &mut Input<'_>, now: Moment) -> Led;
    /// Something of the data plane about a room; whether it must be answered if the room is not known.
    fn data(&mut self, room: RoomId, input: &mut Input<'_>, now: Moment) -> (Led, bool);
    fn rows(&self, now: Moment) -> Vec<RoomRow>;
    fn gauges(&self, now: Moment) -> Gauges;
    fn evidence(&self, room: RoomId, now: Moment) -> Option<Evidence>;
    fn check(&self);
}

fn config(incarnation: Incarnation) -> prefill::Config {
    prefill::Config {
        settings: settings(),
        incarnation,
        total_pages: PAGES,
        page_tokens: PAGE,
        context: CONTEXT,
        engine: innkeeper_room::ledger::EngineKind::Own,
    }
}

macro_rules! worker {
    ($name:ident, $module:ident, $me:expr, $reply:expr) => {
        pub(super) struct $name($module::Ledger);

        impl $name {
            pub(super) fn new() -> Self {
                Self($module::Ledger::new(config($me), START))
            }

            fn step(&mut self, event: $module::Event, now: Moment) -> Led {
                let effects = self.0.step(event, now);
                let mut led = Led {
                    told: Vec::new(),
                    replies: Vec::new(),
                    begun: Vec::new(),
                    orders: effects.len(),
                };
                for effect in effects {
                    match effect {
                        $module::Effect::Tell { room, message } => led.told.push((room, message)),
                        $module::Effect::Begin { room } => led.begun.push(room),
                        other => led.replies.extend($reply(&other)),
                    }
                }
                led
            }
        }
    };
}

/// When every script begins.
pub(super) const START: Moment = Moment(1_000_000);

worker!(Prefill, prefill, PREFILL, |_: &prefill::Effect| None::<HelloReply>);
worker!(Decode, decode, DECODE, |effect: &decode::Effect| match effect {
    decode::Effect::Reply { reply, .. } => Some(*reply),
    _ => None,
});

macro_rules! common {
    ($module:ident) => {
        fn says(&mut self, room: RoomId, message: ToWorker, now: Moment) -> Led {
            self.step($module::Event::FromRouter { room, message }, now)
        }

        fn stream_ended(&mut self, room: RoomId, now: Moment) -> Led {
            self.step($module::Event::StreamEnded { room }, now)
        }

        fn tick(&mut self, now: Moment) -> Led {
            self.step($module::Event::Tick, now)
        }

        fn rows(&self, now: Moment) -> Vec<RoomRow> {
            self.0.rows(now)
        }

        fn gauges(&self, now: Moment) -> Gauges {
            self.0.gauges(now)
        }

        fn evidence(&self, room: RoomId, now: Moment) -> Option<Evidence> {
            self.0.evidence(room, now)
        }

        fn check(&self) {
            let violations = self.0.violations();
            assert!(violations.is_empty(), "{violations:?}");
        }
    };
}

fn engine_view(input: &mut Input<'_>) -> EngineView {
    let flags = input.u8();
    EngineView {
        progress: u64::from(input.u8()),
        in_hand: (flags & 1 != 0).then(|| Millis(u64::from(input.u16()))),
        alive: flags & 2 == 0,
    }
}

impl Worker for Prefill {
    common!(prefill);

    fn open(&mut self, open: &OpenRoom, now: Moment) -> Led {
        let event = prefill::Event::Open {
            spec: open.spec.clone(),
            decode_addr: open.decode_addr.clone(),
            token: open.token,
            // All of one tenant, under names that need no key here.
            blocks: Blocks::of(&open.work.prompt, PAGE)
                .hashes()
                .iter()
                .map(|hash| BlockHash((*hash).into()))
                .collect(),
        };
        self.step(event, now)
    }

    fn local(&mut self, room: RoomId, input: &mut Input<'_>, now: Moment) -> Led {
        let counters = Counters {
            tokens_computed: u32::from(input.u8()),
            bytes_sealed: u64::from(input.u8()),
            bytes_sent: u64::from(input.u8()),
            bytes_verified: u64::from(input.u8()),
            tokens_made: 0,
        };
        let event = match input.u8() % 7 {
            0 => prefill::Event::Sample {
                room,
                counters,
                unacked: false,
            },
            1 => prefill::Event::Sealed {
                room,
                bytes: counters.bytes_sealed,
            },
            2 => prefill::Event::EngineFailed { room },
            3 => prefill::Event::EngineStopped { room },
            4 => prefill::Event::DoorGone { room },
            5 => prefill::Event::ActorDied { room },
            _ => prefill::Event::Engine(engine_view(input)),
        };
        self.step(event, now)
    }

    fn data(&mut self, room: RoomId, input: &mut Input<'_>, now: Moment) -> (Led, bool) {
        let epoch = Epoch(u32::from(input.u8() % 6));
        let event = match input.u8() % 9 {
            0 | 1 => prefill::Event::Reply {
                room,
                epoch,
                reply: HelloReply::Ready,
            },
            2 => prefill::Event::Reply {
                room,
                epoch,
                reply: HelloReply::Wait,
            },
            3 => prefill::Event::Reply {
                room,
                epoch,
                reply: [HelloReply::Unknown, HelloReply::Stale, HelloReply::Committed][usize::from(input.u8() % 3)],
            },
            4 => prefill::Event::Committed { room, epoch },
            5 => prefill::Event::PeerFailed {
                room,
                epoch,
                reason: Reason::KvCorrupt,
                evidence: Evidence::default(),
            },
            6 => prefill::Event::Broken {
                room,
                epoch,
                unacked: false,
                refused: input.u8() & 1 != 0,
            },
            _ => prefill::Event::Quiesced { room, epoch },
        };
        (self.step(event, now), false)
    }
}

impl Worker for Decode {
    common!(decode);

    fn open(&mut self, open: &OpenRoom, now: Moment) -> Led {
        let event = decode::Event::Open {
            spec: open.spec.clone(),
            token: TOKEN,
        };
        self.step(event, now)
    }

    fn local(&mut self, room: RoomId, input: &mut Input<'_>, now: Moment) -> Led {
        let event = match input.u8() % 8 {
            0 | 1 => decode::Event::Made {
                room,
                tokens: u32::from(input.u8()),
            },
            2 => decode::Event::EngineFinished { room },
            3 => decode::Event::EngineFailed { room },
            4 => decode::Event::EngineStopped { room },
            5 => decode::Event::DoorGone { room },
            6 => decode::Event::ActorDied { room },
            _ => decode::Event::Engine(engine_view(input)),
        };
        self.step(event, now)
    }

    fn data(&mut self, room: RoomId, input: &mut Input<'_>, now: Moment) -> (Led, bool) {
        let epoch = Epoch(u32::from(input.u8() % 6));
        let bytes = u64::from(input.u8());
        let choice = input.u8() % 11;
        let event = match choice {
            0..=3 => decode::Event::Hello {
                room,
                epoch,
                token: if bytes == 255 { 0 } else { TOKEN },
                prefill: if bytes == 254 { ROUTER } else { PREFILL },
                decode: if bytes == 253 { ROUTER } else { DECODE },
                session: decode::SessionId(bytes),
            },
            4 => decode::Event::Started { room, epoch },
            5 => decode::Event::Verified { room, epoch, bytes },
            6 => decode::Event::PeerProgress {
                room,
                epoch,
                progress: bytes,
            },
            7 => decode::Event::Complete { room, epoch },
            8 => decode::Event::Corrupt { room, epoch },
            9 => decode::Event::Broken { room, epoch },
            _ => decode::Event::Quiesced { room, epoch },
        };
        (self.step(event, now), choice <= 3)
    }
}
