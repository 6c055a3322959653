//! Events → effects, one rule at a time, and random orders of everything.

mod booked_pages;
mod bookings;
mod breakers;
mod leases;
mod members;
mod overload;
mod pauses;
mod placements;
mod policies;
mod random;
mod requests;
mod rooms;

use super::*;
use crate::class::Class;
use crate::evidence::Evidence;
use crate::ids::{Attempt, Epoch, Role};
use crate::message::{Counters, FromWorker, PartState, ToWorker};
use crate::phase::Phase;
use crate::reason::{Blame, PartEnd, Reason};
use crate::spec::RoomSpec;
use crate::time::Millis;

const P1: Incarnation = Incarnation::new(0x11);
const P2: Incarnation = Incarnation::new(0x12);
const D1: Incarnation = Incarnation::new(0x21);
const D2: Incarnation = Incarnation::new(0x22);
const ME: Incarnation = Incarnation::new(0x99);

/// A router with a clock, and what it ordered.
struct Bench {
    ledger: Ledger,
    now: Moment,
    out: Vec<Effect>,
    loads: bool,
}

impl Bench {
    /// Rooms ask for their leases at once here.
    fn with(settings: Settings, prefills: &[Incarnation], decodes: &[Incarnation]) -> Self {
        let settings = Settings {
            lease_after: Millis(0),
            ..settings
        };
        Self::exactly(settings, prefills, decodes)
    }

    fn exactly(settings: Settings, prefills: &[Incarnation], decodes: &[Incarnation]) -> Self {
        let now = Moment(1000);
        let ledger = Ledger::new(
            Config {
                settings,
                incarnation: ME,
                seed: [1, 2],
            },
            now,
        );
        let mut bench = Self {
            ledger,
            now,
            out: Vec::new(),
            loads: true,
        };
        prefills.iter().for_each(|node| bench.join(*node, Role::Prefill));
        decodes.iter().for_each(|node| bench.join(*node, Role::Decode));
        bench
    }

    fn pair() -> Self {
        Self::with(Settings::default(), &[P1], &[D1])
    }

    fn four() -> Self {
        Self::with(Settings::default(), &[P1, P2], &[D1, D2])
    }

    fn join(&mut self, node: Incarnation, role: Role) {
        self.on(Event::MemberUp(member(node, role)));
        self.on(Event::NodeUp { incarnation: node });
        self.on(Event::Load {
            incarnation: node,
            load: load(0),
        });
    }

    /// Applies an event; returns what it led to.
    fn on(&mut self, event: Event) -> Vec<Effect> {
        let effects = self.ledger.step(event, self.now);
        self.out.extend(effects.iter().cloned());
        effects
    }

    /// Lets time pass in report periods, in which the workers say that they are there and nothing else.
    fn pass(&mut self, ms: u64) -> Vec<Effect> {
        let (from, end) = (self.out.len(), self.now + Millis(ms));
        while self.now < end {
            let due = self.ledger.next_deadline().unwrap_or(end).max(self.now + Millis(1));
            self.now = due.min(end);
            let members = if self.loads { self.ledger.members() } else { Vec::new() };
            for node in members.iter().map(|member| member.info.incarnation) {
                self.on(Event::Load {
                    incarnation: node,
                    load: load(0),
                });
            }
            self.on(Event::Tick);
        }
        self.out[from..].to_vec()
    }

    fn arrive(&mut self, key: u64) -> Vec<Effect> {
        self.on(Event::Arrive(arrival(key)))
    }

    fn say(&mut self, room: RoomId, side: Side, message: FromWorker) -> Vec<Effect> {
        self.on(Event::FromWorker { room, side, message })
    }

    fn state(&mut self, room: RoomId, side: Side, phase: Phase, epoch: u32, counters: Counters) -> Vec<Effect> {
        self.say(
            room,
            side,
            FromWorker::State(PartState {
                phase,
                epoch: Epoch(epoch),
                counters,
            }),
        )
    }

    fn admit(&mut self, room: RoomId) {
        self.say(room, Side::Decode, admitted("d:1", 7));
        self.say(room, Side::Prefill, admitted("", 0));
    }

    /// A request whose room both workers have admitted.
    fn open(&mut self, key: u64) -> RoomSpec {
        let spec = begun(&self.arrive(key));
        self.admit(spec.room);
        spec
    }

    /// The same, and P computes.
    fn started(&mut self, key: u64) -> RoomSpec {
        let spec = self.open(key);
        self.say(
            spec.room,
            Side::Prefill,
            FromWorker::Started {
                epoch: Epoch(1),
                reused: 0,
            },
        );
        spec
    }

    /// The same, and D has committed.
    fn decoding(&mut self, key: u64) -> RoomSpec {
        let spec = self.started(key);
        self.say(spec.room, Side::Decode, FromWorker::Committed);
        spec
    }

    fn tokens(&mut self, room: RoomId, position: u32, count: u32) -> Vec<Effect> {
        self.say(room, Side::Decode, FromWorker::Tokens { position, count })
    }

    fn fail_part(&mut self, room: RoomId, side: Side, reason: Reason, relayed: bool) -> Vec<Effect> {
        self.say(
            room,
            side,
            FromWorker::Ended {
                end: PartEnd::Failed(reason),
                evidence: Evidence::default(),
                relayed,
            },
        )
    }

    fn evidence(&mut self, room: RoomId, side: Side) -> Vec<Effect> {
        self.say(room, side, FromWorker::Evidence(Evidence::default()))
    }

    fn row(&self, room: RoomId) -> crate::ledger::RoomRow {
        self.ledger.row(room, self.now).expect("the room lives")
    }
}

fn member(node: Incarnation, role: Role) -> MemberInfo {
    MemberInfo {
        incarnation: node,
        role,
        control: format!("host-{node}:1"),
        model: "m".into(),
        class: 1,
        pages: 100,
        page_tokens: 16,
        engine: crate::ledger::EngineKind::Own,
        context: 1000,
        permits: 8,
        serving: true,
    }
}

fn load(rooms: u32) -> Load {
    Load {
        engine_progress: 0,
        engine_owes: Millis(0),
        free_pages: 100,
        rooms,
        serving: true,
    }
}

fn arrival(key: u64) -> Arrival {
    Arrival {
        request: RequestKey(key),
        rid: format!("rid-{key}"),
        client: "client".into(),
        model: Some("m".into()),
        prompt_tokens: 20,
        blocks: crate::prefix::Blocks::default(),
        max_tokens: 5,
        class: Class::Normal,
        on_failure: OnFailure::Migrate,
        pair: None,
    }
}

fn admitted(addr: &str, token: u64) -> FromWorker {
    FromWorker::Admitted {
        data_addr: addr.into(),
        token,
    }
}

/// The room that these effects begin.
fn begun(effects: &[Effect]) -> RoomSpec {
    let mut begun = effects.iter().filter_map(|effect| match effect {
        Effect::Begin { spec, .. } => Some(spec.clone()),
        _ => None,
    });
    let spec = begun.next().unwrap_or_else(|| panic!("no room begins in {effects:?}"));
    assert!(begun.next().is_none(), "one room begins");
    spec
}

fn begins(effects: &[Effect]) -> bool {
    effects.iter().any(|effect| matches!(effect, Effect::Begin { .. }))
}

fn answers(effects: &[Effect]) -> Vec<(RequestKey, Outcome)> {
    effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Answer { request, outcome } => Some((*request, *outcome)),
            _ => None,
        })
        .collect()
}

/// The one error in these effects.
fn error(effects: &[Effect]) -> (Reason, Blame) {
    match answers(effects).as_slice() {
        [(_, Outcome::Failed { reason, blame, .. })] => (*reason, *blame),
        other => panic!("one error expected, not {other:?}"),
    }
}

fn ends(effects: &[Effect]) -> Vec<RoomEnd> {
    effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Ended(end) => Some(**end),
            _ => None,
        })
        .collect()
}

fn tells(effects: &[Effect], side: Side) -> Vec<ToWorker> {
    effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Tell {
                side: told, message, ..
            } if *told == side => Some(*message),
            _ => None,
        })
        .collect()
}

fn has(effects: &[Effect], wanted: &Effect) -> bool {
    effects.contains(wanted)
}
