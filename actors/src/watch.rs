//! The permanent actor behind the lease store's watch. It remembers what it has seen, so that absence after a gap can be
//! told from what never was, and casts what it learns to `rooms`. The store's own watch reconnects by itself.

use std::collections::BTreeSet;
use std::sync::Arc;

use innkeeper_leases::{Member, Store};
use innkeeper_room::{Incarnation, RoomId};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio_util::sync::CancellationToken;

use crate::tasks::Tasks;

/// What `rooms` learns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchEvent {
    /// A member appeared or changed.
    MemberUp(Box<Member>),
    /// A member's key went, on an unbroken history.
    MemberGone(Incarnation),
    /// This node's door of a room went, on an unbroken history.
    DoorGone(RoomId),
    /// After a gap: what had been seen before is not there. Only what was seen can be gone.
    Absent {
        /// Doors of this node.
        doors: Vec<RoomId>,
        /// Members.
        members: Vec<Incarnation>,
    },
    /// Whether the store is away.
    Degraded(bool),
}

/// What the watch has seen.
#[derive(Debug, Default)]
pub struct Seen {
    doors: BTreeSet<RoomId>,
    members: BTreeSet<Incarnation>,
}

impl Seen {
    /// Takes in what the store tells; what `rooms` is to be told.
    pub fn learn(&mut self, event: innkeeper_leases::WatchEvent) -> Vec<WatchEvent> {
        use innkeeper_leases::WatchEvent as Told;
        match event {
            Told::Listed { members, doors } => self.listed(members, doors),
            Told::MemberUp(member) => {
                self.members.insert(member.incarnation);
                vec![WatchEvent::MemberUp(member)]
            }
            Told::MemberGone(incarnation) => {
                self.members.remove(&incarnation);
                vec![WatchEvent::MemberGone(incarnation)]
            }
            Told::DoorSeen(room) => {
                self.doors.insert(room);
                vec![]
            }
            Told::DoorGone(room) => {
                self.doors.remove(&room);
                vec![WatchEvent::DoorGone(room)]
            }
            Told::Lost(why) => {
                tracing::warn!(why, "the lease store is away: rooms go on, new ones run unleased");
                vec![WatchEvent::Degraded(true)]
            }
        }
    }

    fn listed(&mut self, members: Vec<Member>, doors: Vec<RoomId>) -> Vec<WatchEvent> {
        let new_doors: BTreeSet<_> = doors.into_iter().collect();
        let new_members: BTreeSet<_> = members.iter().map(|member| member.incarnation).collect();
        let absent = WatchEvent::Absent {
            doors: self.doors.difference(&new_doors).copied().collect(),
            members: self.members.difference(&new_members).copied().collect(),
        };
        self.doors = new_doors;
        self.members = new_members;
        let ups = members.into_iter().map(|member| WatchEvent::MemberUp(Box::new(member)));
        [WatchEvent::Degraded(false), absent].into_iter().chain(ups).collect()
    }
}

/// What the actor is made of.
pub struct Args {
    /// The store.
    pub store: Arc<dyn Store>,
    /// This node's life.
    pub own: Incarnation,
    /// Where tasks live.
    pub tasks: Tasks,
    /// Who is told; whether it still listens.
    pub tell: Arc<dyn Fn(WatchEvent) -> bool + Send + Sync>,
}

/// The actor. Its pump is an owned task, so that no handler waits for the store.
#[derive(Default)]
pub struct Watch;

/// The pump's end.
pub struct PumpEnded;

impl Actor for Watch {
    type Msg = PumpEnded;
    type State = CancellationToken;
    type Arguments = Args;

    async fn pre_start(&self, myself: ActorRef<PumpEnded>, args: Args) -> Result<Self::State, ActorProcessingErr> {
        let cancel = CancellationToken::new();
        let pump = pump(args.store, args.own, args.tell, myself, cancel.clone());
        args.tasks.spawn("watch", pump)?;
        Ok(cancel)
    }

    async fn handle(
        &self,
        _myself: ActorRef<PumpEnded>,
        _ended: PumpEnded,
        _cancel: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        Err("the lease store's watch ended, which it must not".into())
    }

    async fn post_stop(
        &self,
        _myself: ActorRef<PumpEnded>,
        cancel: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        cancel.cancel();
        Ok(())
    }
}

async fn pump(
    store: Arc<dyn Store>,
    own: Incarnation,
    tell: Arc<dyn Fn(WatchEvent) -> bool + Send + Sync>,
    actor: ActorRef<PumpEnded>,
    cancel: CancellationToken,
) {
    let mut events = store.watch(own);
    let mut seen = Seen::default();
    loop {
        // No deadline: a watch of which nothing is heard is found by the store itself, which asks for progress.
        let event = tokio::select! {
            biased;
            () = cancel.cancelled() => return,
            event = events.recv() => event,
        };
        let Some(event) = event else {
            // A failed send means that the actor is gone already.
            drop(actor.cast(PumpEnded));
            return;
        };
        if !seen.learn(event).into_iter().all(|event| tell(event)) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use innkeeper_leases::WatchEvent as Told;

    use super::*;

    #[test]
    fn only_a_door_that_was_seen_can_be_absent() {
        let mut seen = Seen::default();
        let (one, two) = (RoomId::from_random(1), RoomId::from_random(2));
        seen.learn(Told::DoorSeen(one));
        let told = seen.learn(Told::Listed {
            members: vec![],
            doors: vec![two],
        });
        assert!(told.contains(&WatchEvent::Absent {
            doors: vec![one],
            members: vec![]
        }));
        let told = seen.learn(Told::Listed {
            members: vec![],
            doors: vec![two],
        });
        assert!(told.contains(&WatchEvent::Absent {
            doors: vec![],
            members: vec![]
        }));
    }
}
