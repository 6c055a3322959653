//! The router: what workers say on room streams and node streams, aborts, and what its own actors report in between.

use std::collections::BTreeSet;

use innkeeper_actors::ports::WorkerSays;
use innkeeper_proto::v1;
use innkeeper_room::ledger::router::{Arrival, Config, Effect, Event, Ledger, Load, MemberInfo, OnFailure, Side};
use innkeeper_room::ledger::{Gauges, RoomRow};
use innkeeper_room::prefix::Blocks;
use innkeeper_room::{Class, FromWorker, Incarnation, Millis, Moment, RequestKey, Role, RoomId, ToWorker};
use innkeeper_transfer::fuzz::Input;
use prost::Message;

use super::ledgers::{DECODE, PREFILL, ROUTER};
use super::settings;
use crate::convert::{NodeSays, Wire, rid_to_abort};

/// Two workers of each kind.
const WORKERS: [(Incarnation, Role); 4] = [
    (PREFILL, Role::Prefill),
    (DECODE, Role::Decode),
    (Incarnation::new(4), Role::Prefill),
    (Incarnation::new(5), Role::Decode),
];

struct Play {
    ledger: Ledger,
    now: Moment,
    /// Rooms that were ever begun.
    begun: Vec<RoomId>,
    requests: u64,
    answered: BTreeSet<RequestKey>,
    /// Tokens of the message in hand.
    in_hand: u32,
}

/// Plays a script.
pub(super) fn run(mut input: Input<'_>, to_the_end: bool) {
    let mut play = Play::new();
    while !input.is_empty() {
        match input.u8() % 10 {
            0..=3 => play.worker_says(&mut input),
            4 => play.node_says(&mut input),
            5 => play.abort(&mut input),
            6 => play.pass(u64::from(input.u8())),
            7 => play.arrive(&mut input),
            8 => play.stream_ended(&mut input),
            _ => play.local(&mut input),
        }
        play.check();
    }
    if to_the_end {
        play.end();
    }
}

impl Play {
    fn new() -> Self {
        let now = Moment(1000);
        let config = Config {
            settings: settings(),
            incarnation: ROUTER,
            seed: [1, 2],
        };
        let mut play = Self {
            ledger: Ledger::new(config, now),
            now,
            begun: Vec::new(),
            requests: 0,
            answered: BTreeSet::new(),
            in_hand: 0,
        };
        for (incarnation, role) in WORKERS {
            play.step(Event::MemberUp(member(incarnation, role)));
            play.step(Event::NodeUp { incarnation });
            play.step(Event::Load {
                incarnation,
                load: load(),
            });
        }
        play
    }

    /// A step, and what must hold of what it led to.
    fn step(&mut self, event: Event) -> Vec<Effect> {
        let effects = self.ledger.step(event, self.now);
        for effect in &effects {
            match effect {
                Effect::Begin { spec, .. } => self.begun.push(spec.room),
                Effect::Answer { request, .. } => {
                    assert!(self.answered.insert(*request), "a request was answered twice");
                }
                Effect::Pass { skip, count, .. } => {
                    let end = skip.checked_add(*count);
                    assert!(
                        end.is_some_and(|end| end <= self.in_hand),
                        "tokens pass that did not come"
                    );
                }
                _ => {}
            }
        }
        effects
    }

    fn room(&self, input: &mut Input<'_>) -> RoomId {
        let choice = input.u8();
        match self.begun.get(usize::from(choice)) {
            Some(room) => *room,
            None => RoomId::from_random(input.u64()),
        }
    }

    /// All that can be seen of the ledger, what it counts as fenced apart.
    fn state(&self) -> (Vec<RoomRow>, Gauges) {
        let gauges = Gauges {
            fenced: 0,
            ..self.ledger.gauges(self.now)
        };
        (self.ledger.rows(self.now), gauges)
    }

    /// The bytes of a message on a room's stream; what cannot be understood ends the stream.
    fn worker_says(&mut self, input: &mut Input<'_>) {
        let (room, side) = (self.room(input), side(input.u8()));
        let says = v1::WorkerMessage::decode(input.slice()).ok().map(WorkerSays::from_wire);
        let Some(Ok(WorkerSays { message, tokens })) = says else {
            self.step(Event::StreamEnded {
                room,
                side,
                broken: false,
            });
            return;
        };
        if let FromWorker::Tokens { count, .. } = message {
            assert_eq!(count as usize, tokens.len());
        }
        if let FromWorker::Admitted { data_addr, .. } = &message {
            assert!(data_addr.len() <= 512, "a long text is kept with a room");
        }
        assert!(
            tokens.iter().all(|token| token.top.len() <= 20),
            "more alternatives than can be asked for"
        );
        self.in_hand = u32::try_from(tokens.len()).expect("a message is bounded");
        let known = self.begun.contains(&room);
        let before = self.state();
        let effects = self.step(Event::FromWorker {
            room,
            side,
            message: message.clone(),
        });
        self.in_hand = 0;
        if known {
            return;
        }
        assert_eq!(
            self.state(),
            before,
            "{message:?} about a room that never was changed something"
        );
        let answer = Effect::Tell {
            room,
            side,
            message: ToWorker::Unknown,
        };
        match message {
            // Answers are not answered again: that would never end.
            FromWorker::Evidence(_) | FromWorker::AlreadyEnded(_) | FromWorker::Unknown => assert_eq!(effects, []),
            _ => assert_eq!(effects, [answer]),
        }
    }

    /// The bytes of a message on a node stream.
    fn node_says(&mut self, input: &mut Input<'_>) {
        let (meant, role) = WORKERS[usize::from(input.u8()) % WORKERS.len()];
        let side = if role == Role::Prefill {
            Side::Prefill
        } else {
            Side::Decode
        };
        let event = match v1::NodeAnswer::decode(input.slice()).ok().map(NodeSays::from_wire) {
            Some(Ok(NodeSays::Load(of))) if of.incarnation == meant => Event::Load {
                incarnation: meant,
                load: of.load,
            },
            Some(Ok(NodeSays::Identity(identity))) => Event::WhoAnswered {
                asked: meant,
                answered: identity.incarnation,
            },
            Some(Ok(NodeSays::Evidence(of))) => match of.evidence {
                Some(evidence) => Event::FromWorker {
                    room: of.room,
                    side,
                    message: FromWorker::Evidence(evidence),
                },
                None => return,
            },
            Some(Ok(NodeSays::Load(_)) | Err(_)) | None => Event::NodeDown { incarnation: meant },
        };
        self.step(event);
    }

    /// The bytes of a call of Abort: one answer, and a bounded memory.
    fn abort(&mut self, input: &mut Input<'_>) {
        let client = format!("client-{}", input.u8() % 8);
        let Some(Ok(rid)) = v1::AbortRequest::decode(input.slice()).ok().map(rid_to_abort) else {
            return;
        };
        assert!((1..=256).contains(&rid.len()), "an id of {} bytes is kept", rid.len());
        let effects = self.step(Event::Abort { rid, client, ticket: 9 });
        let answers = effects
            .iter()
            .filter(|effect| matches!(effect, Effect::AnswerAbort { ticket: 9, .. }));
        assert_eq!(answers.count(), 1, "an abort has one answer");
        assert!(self.ledger.gauges(self.now).tombstones <= settings().max_tombstones);
    }

    fn arrive(&mut self, input: &mut Input<'_>) {
        self.requests += 1;
        let choice = input.u8();
        self.step(Event::Arrive(Arrival {
            request: RequestKey(self.requests),
            rid: format!("rid-{}", choice % 4),
            client: format!("client-{}", choice >> 6),
            model: (choice & 4 == 0).then(|| "m".to_owned()),
            prompt_tokens: u32::from(input.u8()) + 1,
            blocks: Blocks::default(),
            max_tokens: u32::from(input.u8()) + 1,
            class: Class::ALL[usize::from(choice >> 4) % 3],
            on_failure: OnFailure::Migrate,
            pair: None,
        }));
    }

    fn stream_ended(&mut self, input: &mut Input<'_>) {
        let (room, choice) = (self.room(input), input.u8());
        self.step(Event::StreamEnded {
            room,
            side: side(choice),
            broken: choice & 2 != 0,
        });
    }

    fn local(&mut self, input: &mut Input<'_>) {
        let room = self.room(input);
        let request = RequestKey(u64::from(input.u8()));
        let (incarnation, role) = WORKERS[usize::from(input.u8()) % WORKERS.len()];
        let event = match input.u8() % 12 {
            0 => Event::LeaseGranted { room, sent: self.now },
            1 => Event::LeaseFailed { room, exists: true },
            2 => Event::LeaseRenewed { room, sent: self.now },
            3 => Event::RenewFailed { room, not_found: true },
            4 => Event::DoorGone { room },
            5 => Event::DoorAbsent { room },
            6 => Event::ClientGone { request },
            7 => Event::Satisfied { request },
            8 => Event::MemberGone { incarnation },
            9 => Event::MemberUp(member(incarnation, role)),
            10 => Event::NodeUp { incarnation },
            _ => Event::ActorDied { room },
        };
        self.step(event);
    }

    fn pass(&mut self, ms: u64) {
        // Now and then longer than a node that runs would let pass.
        let ms = if ms == 255 { 5000 } else { ms % 60 };
        self.now = self.now + Millis(ms);
        self.step(Event::Tick);
    }

    fn check(&self) {
        let violations = self.ledger.violations();
        assert!(violations.is_empty(), "{violations:?}");
        let bounds = settings();
        for row in self.ledger.rows(self.now) {
            let longest = bounds.request_timeout + bounds.two_ttl();
            assert!(row.deadline_ms <= longest, "{row:?} may stay for ever");
        }
    }

    /// With no further word from anybody every request is answered.
    fn end(&mut self) {
        for _ in 0..400 {
            if self.ledger.rows(self.now).is_empty() && self.answered.len() as u64 == self.requests {
                return;
            }
            self.pass(49);
        }
        self.check();
        panic!("{} of {} requests were answered", self.answered.len(), self.requests);
    }
}

const fn side(choice: u8) -> Side {
    if choice & 1 == 0 { Side::Prefill } else { Side::Decode }
}

fn load() -> Load {
    Load {
        engine_progress: 0,
        engine_owes: Millis(0),
        free_pages: 100,
        rooms: 0,
        serving: true,
    }
}

fn member(incarnation: Incarnation, role: Role) -> MemberInfo {
    MemberInfo {
        incarnation,
        role,
        control: format!("host-{incarnation}:1"),
        model: "m".to_owned(),
        class: 1,
        pages: 100,
        page_tokens: 16,
        engine: innkeeper_room::ledger::EngineKind::Own,
        context: 1000,
        permits: 8,
        serving: true,
    }
}
