//! What P hears from D.

use innkeeper_room::HelloReply;

use super::run::{SendTask, Told};
use crate::coverage::Run;
use crate::frame::{Body, FrameReader, Header, Kind, ReadError};
use crate::link::ReadHalf;
use crate::port::{MOST_ASKS, SendEvent};
use crate::session::{Broken, ReadEnd};

/// Place of the counter in the outbox.
const VERIFIED: usize = 1;

impl SendTask {
    /// Reads until D's last word or the end of the connection.
    pub(super) async fn read(&self, reader: &mut FrameReader<ReadHalf>, told: &Told) -> ReadEnd<SendEvent> {
        let (room, epoch) = (self.dial.room, self.dial.epoch);
        let mut gate = |header: &Header| {
            if (header.room, header.epoch) != (room, epoch) {
                return Err(ReadError::Fenced);
            }
            allowed(header.kind)
        };
        let (mut waited, mut asked) = (false, 0);
        loop {
            let body = match reader.next(&mut gate).await {
                Ok(Some((header, payload))) => Body::decode(header.kind, payload).map_err(ReadError::from),
                Ok(None) => return ReadEnd::Broken(Broken::new("the decode worker closed the data connection")),
                Err(error) => Err(error),
            };
            let event = match body {
                Ok(Body::Verified { verified, taken }) => {
                    told.take(taken);
                    self.shared.signals.wake.notify_one();
                    self.outbox.counter(VERIFIED, SendEvent::Verified(verified));
                    continue;
                }
                Ok(Body::Ready { verified, runs }) => match self.ready(told, verified, runs) {
                    Ok(()) => continue,
                    Err(broken) => return ReadEnd::Broken(broken),
                },
                Ok(Body::Wait) => {
                    if !std::mem::replace(&mut waited, true) {
                        self.outbox.edge(SendEvent::Reply(HelloReply::Wait));
                    }
                    continue;
                }
                Ok(Body::AskLeaseAge) => {
                    asked = u32::saturating_add(asked, 1);
                    if asked <= MOST_ASKS {
                        self.outbox.edge(SendEvent::AsksLeaseAge);
                    }
                    continue;
                }
                Ok(Body::Committed) => SendEvent::Committed,
                Ok(Body::AlreadyCommitted) => SendEvent::Reply(HelloReply::Committed),
                Ok(Body::Ended(reason)) => SendEvent::Reply(HelloReply::Ended(reason)),
                Ok(Body::Unknown) => SendEvent::Reply(HelloReply::Unknown),
                Ok(Body::Stale) => SendEvent::Reply(HelloReply::Stale),
                Ok(Body::Fail(reason, evidence)) => SendEvent::PeerFailed(reason, evidence),
                Ok(
                    Body::Hello(_)
                    | Body::Started
                    | Body::Slab
                    | Body::Manifest
                    | Body::Progress(_)
                    | Body::LeaseAge(_),
                ) => {
                    return ReadEnd::Broken(Broken::new("the decode worker spoke as a prefill worker"));
                }
                Err(error) => return ReadEnd::Broken(error.into()),
            };
            return ReadEnd::LastWord(event);
        }
    }

    fn ready(&self, told: &Told, verified: u64, runs: Vec<Run>) -> Result<(), Broken> {
        if told.ready.set(runs).is_err() {
            return Err(Broken::new("the decode worker said Ready twice"));
        }
        self.outbox.edge(SendEvent::Reply(HelloReply::Ready));
        self.outbox.counter(VERIFIED, SendEvent::Verified(verified));
        self.shared.signals.wake.notify_one();
        Ok(())
    }
}

fn allowed(kind: Kind) -> Result<(), ReadError> {
    match kind {
        Kind::Hello | Kind::Started | Kind::Slab | Kind::Manifest | Kind::Progress | Kind::LeaseAge => {
            Err(ReadError::Refused(format!("a {kind:?} frame from the decode worker")))
        }
        Kind::Fail
        | Kind::Ready
        | Kind::Wait
        | Kind::Verified
        | Kind::Committed
        | Kind::Ended
        | Kind::Unknown
        | Kind::Stale
        | Kind::AlreadyCommitted
        | Kind::AskLeaseAge => Ok(()),
    }
}
