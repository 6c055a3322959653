//! The permanent actor that keeps this node's member record. Errors of the store are states of the keeper inside, never
//! failures: they spend no restart budget and fence nothing.

use std::sync::Arc;
use std::time::Duration;

use innkeeper_leases::{Member, MemberKeeper, MemberState, Store};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::sync::oneshot;

use crate::tasks::Tasks;

/// What the keeper is told.
pub enum KeeperMessage {
    /// Whether the node takes new rooms.
    State(MemberState),
    /// Somebody saw the record go although the node lives.
    Again,
    /// Take the record out, within the limit; then the actor ends.
    Leave {
        /// How long to try.
        limit: Duration,
        /// Answered when it is done or given up.
        done: oneshot::Sender<bool>,
    },
}

/// What the keeper is made of.
pub struct Args {
    /// The store.
    pub store: Arc<dyn Store>,
    /// The record.
    pub member: Member,
    /// The lease's TTL.
    pub ttl: Duration,
    /// Where tasks live.
    pub tasks: Tasks,
}

/// The actor.
#[derive(Default)]
pub struct Keeper;

/// Its state.
pub struct State {
    keeper: Option<MemberKeeper>,
    tasks: Tasks,
}

impl Actor for Keeper {
    type Msg = KeeperMessage;
    type State = State;
    type Arguments = Args;

    async fn pre_start(&self, _myself: ActorRef<KeeperMessage>, args: Args) -> Result<State, ActorProcessingErr> {
        let keeper = MemberKeeper::start(args.store, args.member, args.ttl, args.tasks.token());
        Ok(State {
            keeper: Some(keeper),
            tasks: args.tasks,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<KeeperMessage>,
        message: KeeperMessage,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match (message, state.keeper.as_ref()) {
            (KeeperMessage::State(wanted), Some(keeper)) => keeper.set_state(wanted),
            (KeeperMessage::Again, Some(keeper)) => keeper.reregister(),
            (KeeperMessage::State(_) | KeeperMessage::Again, None) => {}
            (KeeperMessage::Leave { limit, done }, _) => {
                let leaving = leave(state.keeper.take(), limit, done, myself);
                state.tasks.spawn_watching("deregister", leaving)?;
            }
        }
        Ok(())
    }
}

async fn leave(
    keeper: Option<MemberKeeper>,
    limit: Duration,
    done: oneshot::Sender<bool>,
    actor: ActorRef<KeeperMessage>,
) {
    let left = match keeper {
        Some(keeper) => keeper.stop(limit).await,
        None => false,
    };
    // Whoever asked may have given up.
    let _ = done.send(left);
    actor.stop(None);
}
