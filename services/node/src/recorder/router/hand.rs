//! What the ledger has in hand: a verdict in the same step follows from it, or from a timer that the step found due.

use innkeeper_room::ledger::router::Event;
use innkeeper_room::{Incarnation, RequestKey, RoomId};

use super::{role, side_of};
use crate::recorder::record::{Cause, Record};

/// The event in hand, as far as a verdict may follow from it.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::recorder) enum Hand {
    /// Nothing that ends a room by itself.
    #[default]
    Time,
    /// Of one room.
    Room(RoomId, Cause),
    /// Of one request.
    Request(RequestKey, Cause),
    /// An abort, under some client's id.
    Abort,
    /// The connection to a node.
    Connection(Incarnation),
    /// A node that is gone or was replaced.
    Member(Incarnation),
    /// All of them.
    Drain,
}

impl Hand {
    pub(super) const fn of(event: &Event) -> Self {
        match event {
            Event::FromWorker { room, side, .. } => Self::Room(*room, Cause::Worker(role(*side))),
            Event::StreamEnded { room, side, .. } => Self::Room(*room, Cause::Connection(role(*side))),
            Event::RenewFailed { room, .. } | Event::DoorGone { room } | Event::DoorAbsent { room } => {
                Self::Room(*room, Cause::Lease)
            }
            Event::Evict { room } => Self::Room(*room, Cause::Operator),
            Event::ActorDied { room } => Self::Room(*room, Cause::Actor),
            Event::ClientGone { request } | Event::ClientStalled { request } => Self::Request(*request, Cause::Client),
            Event::Satisfied { request } => Self::Request(*request, Cause::Satisfied),
            Event::Abort { .. } => Self::Abort,
            Event::NodeDown { incarnation } => Self::Connection(*incarnation),
            Event::MemberGone { incarnation } | Event::WhoAnswered { asked: incarnation, .. } => {
                Self::Member(*incarnation)
            }
            Event::DrainOver => Self::Drain,
            Event::Arrive(_)
            | Event::MemberUp(_)
            | Event::NodeUp { .. }
            | Event::Load { .. }
            | Event::LeaseGranted { .. }
            | Event::LeaseFailed { .. }
            | Event::LeaseRenewed { .. }
            | Event::Policies(_)
            | Event::Drain
            | Event::Tick => Self::Time,
        }
    }

    /// What the verdict of this room follows from.
    pub(super) fn cause(self, record: &Record) -> Cause {
        match self {
            Self::Room(room, cause) if room == record.room => cause,
            Self::Request(of, cause) if format!("{:016x}", of.0) == record.request => cause,
            Self::Abort => Cause::Abort,
            Self::Connection(node) => side_of(record, node).map_or(Cause::Timer, |side| Cause::Connection(role(side))),
            Self::Member(node) => side_of(record, node).map_or(Cause::Timer, |side| Cause::Member(role(side))),
            Self::Drain => Cause::Drain,
            Self::Time | Self::Room(..) | Self::Request(..) => Cause::Timer,
        }
    }
}
