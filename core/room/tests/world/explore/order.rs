//! The order of what happens in one instant: a canonical one, and deviations from it in which one channel lags behind
//! everything else of that instant.

use innkeeper_room::RoomId;
use innkeeper_room::ledger::{decode, prefill, router};

use crate::control::CtlMsg;
use crate::node::In;
use crate::store::StoreAct;
use crate::world::{Act, ClientAct, Order, World};

/// What keeps its own order: one direction of a stream, a watch, one node's own clockwork. Between two channels there is
/// no order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Channel {
    /// A room's stream, or a node's.
    Stream(usize, bool, Option<RoomId>),
    /// The end of a control connection.
    Break(usize, bool),
    /// One direction of a data connection.
    Data(u64, bool),
    /// The store's watch of a node.
    Watch(usize),
    /// The store and one room.
    Store(Option<RoomId>),
    /// What a node's own actors tell its ledger of a room: in order for each room.
    Own(usize, Option<RoomId>),
    /// The node's engine.
    Engine(usize),
    /// A session's end that lets go.
    LetGo(u64),
    /// The node's clockwork.
    Clock(usize),
    /// A client.
    Client(u64),
    /// What the world itself does: never late.
    World,
}

impl Act {
    /// Its channel.
    pub(crate) fn channel(&self) -> Channel {
        match self {
            Self::In(node, _, what) => of_input(*node, what),
            Self::Ctl { w, to_w, msg, .. } => Channel::Stream(*w, *to_w, of_message(msg)),
            Self::CtlBreak { w, at_r, .. } => Channel::Break(*w, *at_r),
            Self::Data { session, to_d, .. } => Channel::Data(*session, *to_d),
            Self::Store(act) => of_store(act),
            Self::Client(
                ClientAct::Arrive(key) | ClientAct::Abort(key) | ClientAct::Gone(key) | ClientAct::Stalls(key),
            ) => Channel::Client(key.0),
            Self::CtlRetry(_)
            | Self::PingDue { .. }
            | Self::DataTimeout { .. }
            | Self::Fault(_)
            | Self::FaultOver(_)
            | Self::Restart(_)
            | Self::Exit(..)
            | Self::MustBeOver { .. }
            | Self::StreamGrace { .. } => Channel::World,
        }
    }
}

fn of_message(msg: &CtlMsg) -> Option<RoomId> {
    match msg {
        CtlMsg::Open { spec, .. } => Some(spec.room),
        CtlMsg::Say(room, _) | CtlMsg::EndOfStream(room) | CtlMsg::Said(room, _) => Some(*room),
        CtlMsg::Who | CtlMsg::AskEvidence(_) | CtlMsg::Load(..) | CtlMsg::Identity(_) | CtlMsg::Evidence(..) => None,
    }
}

fn of_store(act: &StoreAct) -> Channel {
    match act {
        StoreAct::Grant { spec, .. } => Channel::Store(Some(spec.room)),
        StoreAct::Renew { room, .. } | StoreAct::Revoke { room } => Channel::Store(Some(*room)),
        StoreAct::RoomExpires { .. } | StoreAct::MemberExpires { .. } => Channel::World,
        StoreAct::Relist { node } => Channel::Watch(*node),
    }
}

fn of_input(node: usize, what: &In) -> Channel {
    match what {
        In::Period | In::Due(_) | In::Keeper => Channel::Clock(node),
        In::R(event) => of_router(event),
        In::P(event) => of_prefill(node, event),
        In::D(event) => of_decode(node, event),
        In::Open { spec, .. } => Channel::Stream(node, true, Some(spec.room)),
        In::Evidence { .. } => Channel::Stream(node, true, None),
        In::EngineStep(_) | In::Remote(..) => Channel::Engine(node),
        In::Dial { room, .. } => Channel::Own(node, Some(*room)),
        In::Data { session, .. } => Channel::Data(*session, node != 1),
        In::LetGo { session } => Channel::LetGo(*session),
    }
}

fn of_router(event: &router::Event) -> Channel {
    use router::Event as E;
    match event {
        E::LeaseGranted { room, .. }
        | E::LeaseFailed { room, .. }
        | E::LeaseRenewed { room, .. }
        | E::RenewFailed { room, .. } => Channel::Store(Some(*room)),
        E::DoorGone { .. } | E::DoorAbsent { .. } | E::MemberUp(_) | E::MemberGone { .. } => Channel::Watch(0),
        E::StreamEnded { room, .. } | E::FromWorker { room, .. } | E::Evict { room } | E::ActorDied { room } => {
            Channel::Own(0, Some(*room))
        }
        E::Satisfied { request } | E::ClientGone { request } | E::ClientStalled { request } => {
            Channel::Client(request.0)
        }
        E::Arrive(_)
        | E::Abort { .. }
        | E::NodeUp { .. }
        | E::NodeDown { .. }
        | E::Load { .. }
        | E::WhoAnswered { .. }
        | E::Drain
        | E::DrainOver
        | E::Policies(_)
        | E::Tick => Channel::Own(0, None),
    }
}

fn of_prefill(node: usize, event: &prefill::Event) -> Channel {
    use prefill::Event as E;
    match event {
        E::DoorGone { .. } | E::MemberGone { .. } => Channel::Watch(node),
        E::Open { spec, .. } => Channel::Own(node, Some(spec.room)),
        E::Sealed { .. }
        | E::Kept { .. }
        | E::EngineEnded { .. }
        | E::EngineFailed { .. }
        | E::EngineStopped { .. } => Channel::Engine(node),
        E::FromRouter { room, .. }
        | E::StreamEnded { room }
        | E::Reply { room, .. }
        | E::Committed { room, .. }
        | E::PeerFailed { room, .. }
        | E::Broken { room, .. }
        | E::Quiesced { room, .. }
        | E::Sample { room, .. }
        | E::ActorDied { room } => Channel::Own(node, Some(*room)),
        E::Engine(_) | E::EngineRestarted | E::Drain | E::DrainOver | E::Tick => Channel::Own(node, None),
    }
}

fn of_decode(node: usize, event: &decode::Event) -> Channel {
    use decode::Event as E;
    match event {
        E::DoorGone { .. } | E::MemberGone { .. } => Channel::Watch(node),
        E::Open { spec, .. } => Channel::Own(node, Some(spec.room)),
        E::Pulled { .. }
        | E::Made { .. }
        | E::EngineFinished { .. }
        | E::EngineEnded { .. }
        | E::EngineFailed { .. }
        | E::EngineStopped { .. } => Channel::Engine(node),
        E::FromRouter { room, .. }
        | E::StreamEnded { room }
        | E::Hello { room, .. }
        | E::Started { room, .. }
        | E::Verified { room, .. }
        | E::PeerProgress { room, .. }
        | E::Complete { room, .. }
        | E::Ticket { room, .. }
        | E::Corrupt { room, .. }
        | E::PeerFailed { room, .. }
        | E::Broken { room, .. }
        | E::Quiesced { room, .. }
        | E::ActorDied { room } => Channel::Own(node, Some(*room)),
        E::Engine(_) | E::EngineRestarted | E::Drain | E::DrainOver | E::Tick => Channel::Own(node, None),
    }
}

impl World {
    /// The keys of what may happen now, in the canonical order.
    fn instant(&self) -> impl Iterator<Item = (&(u64, u64), &Act)> {
        let at = self.queue.first_key_value().map_or(0, |((at, _), _)| *at);
        self.queue.range((at, 0)..=(at, u64::MAX))
    }

    /// What is next.
    fn head(&self) -> Option<(u64, u64)> {
        match self.exact.map_or(Order::Oldest, |exact| exact.order) {
            Order::Oldest => self.instant().next().map(|(key, _)| *key),
            Order::Newest => {
                let (_, last) = self.instant().last()?;
                let channel = last.channel();
                self.instant()
                    .find(|(_, act)| act.channel() == channel)
                    .map(|(key, _)| *key)
            }
        }
    }

    /// Whether the channel of what is next can lag behind something else of this instant.
    pub(crate) fn can_lag(&self) -> bool {
        let mut instant = self.instant().map(|(_, act)| act.channel());
        match instant.next() {
            None | Some(Channel::World) => false,
            Some(head) => instant.any(|other| other != head),
        }
    }

    /// The channel of what is next falls behind everything else of this instant.
    pub(crate) fn lag(&mut self) {
        let Some(head) = self.instant().next().map(|(_, act)| act.channel()) else {
            return;
        };
        let late: Vec<(u64, u64)> = self
            .instant()
            .filter(|(_, act)| act.channel() == head)
            .map(|(key, _)| *key)
            .collect();
        for key in late {
            if let Some(act) = self.queue.remove(&key) {
                self.next += 1;
                self.queue.insert((key.0, self.next), act);
            }
        }
    }

    /// The next thing happens.
    pub(crate) fn step(&mut self) {
        let Some(key) = self.head() else { return };
        if let Some(act) = self.queue.remove(&key) {
            self.now = key.0;
            self.steps += 1;
            self.act(act);
        }
    }
}
