//! What must hold of every single step of a ledger, whatever came before: no silent no-op (I4), aborts that stick (I3), leases
//! renewed by progress alone, and rooms that do not touch each other (I8).

use innkeeper_room::ledger::{RoomRow, decode, prefill, router};
use innkeeper_room::{FromWorker, HelloReply, Phase, RoomId, ToWorker};

use crate::node::Brain;
use crate::world::World;

/// What is compared after a step with what was before it.
pub(crate) struct Before {
    /// The room that the event names, and whether it lived.
    of: Option<(RoomId, bool)>,
    /// The other rooms.
    others: Vec<RoomRow>,
    /// Something was due: time itself may end or change any room.
    due: bool,
}

/// An order to say something about a room.
pub(crate) enum Order<'a> {
    /// To R.
    Told(RoomId, &'a FromWorker),
    /// To a worker.
    Tell(RoomId, &'a ToWorker),
    /// On a data connection.
    Reply(RoomId, HelloReply),
    /// A room got a place, a turn or pages.
    Resource(RoomId),
    /// Anything else.
    Other,
}

impl<'a> From<&'a prefill::Effect> for Order<'a> {
    fn from(effect: &'a prefill::Effect) -> Self {
        match effect {
            prefill::Effect::Tell { room, message } => Self::Told(*room, message),
            prefill::Effect::Connect { room, .. } | prefill::Effect::Compute { room, .. } => Self::Resource(*room),
            _ => Self::Other,
        }
    }
}

impl<'a> From<&'a decode::Effect> for Order<'a> {
    fn from(effect: &'a decode::Effect) -> Self {
        match effect {
            decode::Effect::Tell { room, message } => Self::Told(*room, message),
            decode::Effect::Reply { room, reply, .. } => Self::Reply(*room, *reply),
            decode::Effect::OpenPages { room, .. } => Self::Resource(*room),
            _ => Self::Other,
        }
    }
}

impl<'a> From<&'a router::Effect> for Order<'a> {
    fn from(effect: &'a router::Effect) -> Self {
        match effect {
            router::Effect::Tell { room, message, .. } => Self::Tell(*room, message),
            router::Effect::Open { spec, .. } => Self::Resource(spec.room),
            _ => Self::Other,
        }
    }
}

/// What an event is to the rules.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// R says something to a worker that must be answered if the room does not live there.
    Question,
    /// R aborts or ends the room.
    End,
    /// A worker reports something that must be answered if the room does not live at R.
    Report,
    /// A worker asks R whether the room lives.
    Ask,
    /// P says hello.
    Hello,
    /// Anything else about one room.
    Room,
    /// No room in particular.
    Node,
}

pub(crate) fn of_prefill(event: &prefill::Event) -> (Option<RoomId>, Kind) {
    use prefill::Event as E;
    match event {
        E::FromRouter { room, message } => (Some(*room), of_message(message)),
        E::Open { spec, .. } => (Some(spec.room), Kind::Room),
        E::StreamEnded { room }
        | E::Reply { room, .. }
        | E::Committed { room, .. }
        | E::PeerFailed { room, .. }
        | E::Broken { room, .. }
        | E::Quiesced { room, .. }
        | E::Sample { room, .. }
        | E::Sealed { room, .. }
        | E::Kept { room, .. }
        | E::EngineEnded { room, .. }
        | E::EngineFailed { room }
        | E::EngineStopped { room }
        | E::DoorGone { room }
        | E::ActorDied { room } => (Some(*room), Kind::Room),
        E::Engine(_) | E::EngineRestarted | E::MemberGone { .. } | E::Drain | E::DrainOver | E::Tick => {
            (None, Kind::Node)
        }
    }
}

pub(crate) fn of_decode(event: &decode::Event) -> (Option<RoomId>, Kind) {
    use decode::Event as E;
    match event {
        E::FromRouter { room, message } => (Some(*room), of_message(message)),
        E::Hello { room, .. } => (Some(*room), Kind::Hello),
        E::Open { spec, .. } => (Some(spec.room), Kind::Room),
        E::StreamEnded { room }
        | E::Started { room, .. }
        | E::Verified { room, .. }
        | E::PeerProgress { room, .. }
        | E::Complete { room, .. }
        | E::Ticket { room, .. }
        | E::Pulled { room }
        | E::EngineEnded { room, .. }
        | E::Corrupt { room, .. }
        | E::PeerFailed { room, .. }
        | E::Broken { room, .. }
        | E::Quiesced { room, .. }
        | E::Made { room, .. }
        | E::EngineFinished { room }
        | E::EngineFailed { room }
        | E::EngineStopped { room }
        | E::DoorGone { room }
        | E::ActorDied { room } => (Some(*room), Kind::Room),
        E::Engine(_) | E::EngineRestarted | E::MemberGone { .. } | E::Drain | E::DrainOver | E::Tick => {
            (None, Kind::Node)
        }
    }
}

pub(crate) fn of_router(event: &router::Event) -> (Option<RoomId>, Kind) {
    use router::Event as E;
    match event {
        E::FromWorker { room, message, .. } => (
            Some(*room),
            match message {
                FromWorker::Ask => Kind::Ask,
                FromWorker::Evidence(_) | FromWorker::AlreadyEnded(_) | FromWorker::Unknown => Kind::Room,
                _ => Kind::Report,
            },
        ),
        E::StreamEnded { room, .. }
        | E::LeaseGranted { room, .. }
        | E::LeaseFailed { room, .. }
        | E::LeaseRenewed { room, .. }
        | E::RenewFailed { room, .. }
        | E::DoorGone { room }
        | E::DoorAbsent { room }
        | E::Evict { room }
        | E::ActorDied { room } => (Some(*room), Kind::Room),
        _ => (None, Kind::Node),
    }
}

const fn of_message(message: &ToWorker) -> Kind {
    match message {
        ToWorker::Abort(_) => Kind::End,
        ToWorker::Committed | ToWorker::Taken(_) | ToWorker::Live => Kind::Question,
        ToWorker::Verdict(_) | ToWorker::Unknown => Kind::Room,
    }
}

impl World {
    fn rows_of(&self, node: usize) -> Vec<RoomRow> {
        let now = self.clock(node);
        match &self.nodes[node].brain {
            Brain::R(ledger) => ledger.rows(now),
            Brain::P(ledger) => ledger.rows(now),
            Brain::D(ledger) => ledger.rows(now),
        }
    }

    /// Looks at a node before one of its steps.
    pub(crate) fn before(&self, node: usize, room: Option<RoomId>) -> Before {
        let now = self.clock(node);
        let next = match &self.nodes[node].brain {
            Brain::R(ledger) => ledger.next_deadline(),
            Brain::P(ledger) => ledger.next_deadline(),
            Brain::D(ledger) => ledger.next_deadline(),
        };
        let rows = self.rows_of(node);
        let lived = room.map(|room| (room, rows.iter().any(|row| row.room == room)));
        let others = rows.into_iter().filter(|row| Some(row.room) != room).collect();
        Before {
            of: lived,
            others,
            due: next.is_some_and(|at| at <= now),
        }
    }

    /// Compares after it.
    pub(crate) fn after<'a>(&mut self, node: usize, kind: Kind, before: &Before, orders: &[Order<'a>]) {
        let Some((room, lived)) = before.of else { return };
        let name = self.nodes[node].name();
        if !answered(kind, room, lived, orders) {
            self.wrong(format!("I4: {name} answers nothing to a {kind:?} of {room}"));
        }
        let rows = self.rows_of(node);
        if matches!(kind, Kind::End) && rows.iter().any(|row| row.room == room) {
            self.wrong(format!("I3: {name} was told to end {room}, which lives on"));
        }
        if before.due {
            return;
        }
        for old in &before.others {
            let new = rows.iter().find(|row| row.room == old.room);
            let got = orders
                .iter()
                .any(|order| matches!(order, Order::Resource(of) | Order::Reply(of, _) if *of == old.room));
            if new != Some(old) && !(got && old.phase == Phase::Queued) {
                self.wrong(format!(
                    "I8: a step of {room} at {name} changes {} from {old:?} to {new:?}",
                    old.room
                ));
            }
        }
    }

    /// A lease is renewed because R heard of its room since the last time, and for nothing else.
    pub(crate) fn check_renewal(&mut self, room: RoomId) {
        if !self.moved.remove(&room) {
            self.wrong(format!("the lease of {room} is renewed although nothing was reported"));
        }
    }
}

/// Whether what had to be answered was.
fn answered(kind: Kind, room: RoomId, lived: bool, orders: &[Order<'_>]) -> bool {
    let any = |right: &dyn Fn(&Order<'_>) -> bool| orders.iter().any(right);
    match kind {
        Kind::Question | Kind::End if !lived => any(
            &|order| matches!(order, Order::Told(of, FromWorker::Unknown | FromWorker::AlreadyEnded(_)) if *of == room),
        ),
        Kind::Report if !lived => {
            any(&|order| matches!(order, Order::Tell(of, ToWorker::Unknown | ToWorker::Verdict(_)) if *of == room))
        }
        Kind::Ask => any(
            &|order| matches!(order, Order::Tell(of, ToWorker::Live | ToWorker::Unknown | ToWorker::Verdict(_) | ToWorker::Abort(_)) if *of == room),
        ),
        Kind::Hello if !lived => any(
            &|order| matches!(order, Order::Reply(of, HelloReply::Unknown | HelloReply::Ended(_) | HelloReply::Committed) if *of == room),
        ),
        Kind::Question | Kind::End | Kind::Report | Kind::Hello | Kind::Room | Kind::Node => true,
    }
}

/// Whether a worker's message can be progress of its room.
pub(crate) const fn is_progress(message: &FromWorker) -> bool {
    match message {
        FromWorker::State(_)
        | FromWorker::Started { .. }
        | FromWorker::Committed
        | FromWorker::Tokens { .. }
        | FromWorker::Ended { .. } => true,
        FromWorker::Admitted { .. }
        | FromWorker::Refused(_)
        | FromWorker::AlreadyEnded(_)
        | FromWorker::Ask
        | FromWorker::Evidence(_)
        | FromWorker::Unknown => false,
    }
}
