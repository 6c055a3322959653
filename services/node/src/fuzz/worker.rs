//! A worker: what routers say on room streams and node streams, and what its own actors report in between.

use std::collections::BTreeMap;

use innkeeper_actors::ports::OpenRoom;
use innkeeper_proto::v1;
use innkeeper_room::ledger::{Gauges, RoomRow};
use innkeeper_room::{FromWorker, HelloReply, Millis, Moment, RoomId, ToWorker};
use innkeeper_transfer::fuzz::Input;
use prost::Message;

use super::ledgers::{START, Worker};
use super::{LONGEST_QUEUE, settings};
use crate::convert::{Asked, RouterSays, Wire};

/// A part ends within its queue time, or within what its floors and TTLs allow.
const LONGEST: u64 = LONGEST_QUEUE + 60_000;

/// A worker, its streams, and the time.
struct Play<W> {
    worker: W,
    now: Moment,
    /// Streams that were opened, and the rooms they are for.
    streams: BTreeMap<u8, RoomId>,
    /// Rooms that were ever begun.
    begun: Vec<RoomId>,
    /// An Open came whose queue time is longer than the rest of the script waits.
    long: bool,
}

/// Plays a script.
pub(super) fn run<W: Worker>(worker: W, mut input: Input<'_>, to_the_end: bool) {
    let mut play = Play {
        worker,
        now: START,
        streams: BTreeMap::new(),
        begun: Vec::new(),
        long: false,
    };
    while !input.is_empty() {
        match input.u8() % 8 {
            0..=2 => {
                let stream = input.u8() % 6;
                play.router_says(stream, input.slice());
            }
            3 => play.asked(input.slice()),
            4 => play.about_any_room(&mut input),
            5 => {
                let room = play.room(&mut input);
                let _ = play.worker.local(room, &mut input, play.now);
            }
            6 => {
                let stream = input.u8() % 6;
                play.close(stream);
            }
            _ => play.pass(u64::from(input.u8())),
        }
        play.check();
    }
    if to_the_end && !play.long {
        play.end();
    }
}

impl<W: Worker> Play<W> {
    /// A room that was begun, or one that never was.
    fn room(&self, input: &mut Input<'_>) -> RoomId {
        let choice = input.u8();
        match self.begun.get(usize::from(choice)) {
            Some(room) => *room,
            None => RoomId::from_random(input.u64()),
        }
    }

    /// The bytes of a message on a stream: the first must be Open, a later one must not; what cannot be understood ends
    /// the stream, and that ends the room.
    fn router_says(&mut self, stream: u8, bytes: &[u8]) {
        let bound = self.streams.get(&stream).copied();
        let message = v1::RouterMessage::decode(bytes).ok();
        match (message.map(RouterSays::from_wire), bound) {
            (Some(Ok(RouterSays::Open(open))), None) => self.open(stream, &open),
            (Some(Ok(RouterSays::Says(message))), Some(room)) => self.say(room, message),
            (_, Some(_)) => self.close(stream),
            (_, None) => {}
        }
    }

    fn open(&mut self, stream: u8, open: &OpenRoom) {
        let texts = [&*open.work.request_id, &open.work.traceparent, &open.decode_addr];
        assert!(
            texts.iter().all(|text| text.len() <= 512),
            "a long text is kept with a room"
        );
        assert!(open.work.stop_ids.len() <= 4096, "a long list is kept with a room");
        assert_eq!(open.spec.prompt_tokens as usize, open.work.prompt.len());
        let room = open.spec.room;
        let led = self.worker.open(open, self.now);
        let answers = |told: &(RoomId, FromWorker)| {
            told.0 == room && matches!(told.1, FromWorker::Admitted { .. } | FromWorker::Refused(_))
        };
        assert_eq!(
            led.told.iter().filter(|told| answers(told)).count(),
            1,
            "an Open has one answer"
        );
        if led.begun.contains(&room) {
            self.streams.insert(stream, room);
            self.begun.push(room);
            self.long |= open.spec.queue_left > Millis(2000);
        }
    }

    fn say(&mut self, room: RoomId, message: ToWorker) {
        let known = self.lives(room);
        let before = self.state();
        let led = self.worker.says(room, message, self.now);
        if known {
            return;
        }
        assert_eq!(
            self.state(),
            before,
            "{message:?} about a room that does not live changed something"
        );
        // R's own answers are not answered: that would never end.
        let answered = usize::from(!matches!(message, ToWorker::Verdict(_) | ToWorker::Unknown));
        assert_eq!((led.told.len(), led.orders), (answered, answered), "{message:?}");
        for (of, answer) in led.told {
            let remembered = matches!(answer, FromWorker::AlreadyEnded(_)) && self.begun.contains(&room);
            assert!(
                of == room && (remembered || answer == FromWorker::Unknown),
                "{answer:?}"
            );
        }
    }

    /// A message or a frame about any room, as if a stream or a connection were for it.
    fn about_any_room(&mut self, input: &mut Input<'_>) {
        let room = self.room(input);
        if input.u8() & 1 == 0 {
            if let Some(Ok(message)) = v1::RouterMessage::decode(input.slice()).ok().map(ToWorker::from_wire) {
                self.say(room, message);
            }
            return;
        }
        let (known, before) = (self.lives(room), self.state());
        let (led, answered) = self.worker.data(room, input, self.now);
        if !known {
            if !self.begun.contains(&room) {
                assert_eq!(
                    led.orders,
                    usize::from(answered),
                    "a frame about a room that never was led to something"
                );
                assert!(led.replies.iter().all(|reply| *reply == HelloReply::Unknown));
            }
            assert_eq!(
                self.worker.rows(self.now),
                before.0,
                "a frame about a room that does not live made one"
            );
        }
        if answered {
            assert!(led.replies.len() <= 1, "{:?}", led.replies);
        }
    }

    /// A question on the node stream.
    fn asked(&mut self, bytes: &[u8]) {
        let Some(Ok(Asked::Evidence(room))) = v1::NodeQuestion::decode(bytes).ok().map(Asked::from_wire) else {
            return;
        };
        let evidence = self.worker.evidence(room, self.now);
        assert!(
            evidence.is_none() || self.begun.contains(&room),
            "evidence of a room that never was"
        );
    }

    fn close(&mut self, stream: u8) {
        if let Some(room) = self.streams.remove(&stream) {
            let _ = self.worker.stream_ended(room, self.now);
        }
    }

    fn lives(&self, room: RoomId) -> bool {
        self.worker.rows(self.now).iter().any(|row| row.room == room)
    }

    /// All that can be seen of the ledger, what it counts as fenced apart.
    fn state(&self) -> (Vec<RoomRow>, Gauges) {
        let gauges = Gauges {
            fenced: 0,
            ..self.worker.gauges(self.now)
        };
        (self.worker.rows(self.now), gauges)
    }

    fn pass(&mut self, ms: u64) {
        // Now and then longer than a node that runs would let pass.
        let ms = if ms == 255 { 5000 } else { ms % 60 };
        self.now = self.now + Millis(ms);
        let _ = self.worker.tick(self.now);
    }

    fn check(&self) {
        self.worker.check();
        let rows = self.worker.rows(self.now);
        assert!(rows.len() <= settings().permits as usize);
        for row in rows {
            assert!(row.deadline_ms <= Millis(LONGEST), "{row:?} may stay for ever");
        }
    }

    /// With no further word from anybody every part ends.
    fn end(&mut self) {
        for _ in 0..400 {
            if self.worker.rows(self.now).is_empty() {
                return;
            }
            self.pass(49);
        }
        self.check();
        panic!("parts that do not end: {:?}", self.worker.rows(self.now));
    }
}
