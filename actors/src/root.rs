//! The root of a node's tree. Permanent children are restarted within a budget; when one spends it, or when `rooms` dies
//! (its quarantine would be gone), the process must exit: that is the last fence.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use ractor::{Actor, ActorCell, ActorId, ActorProcessingErr, ActorRef, SpawnErr, SupervisionEvent};
use tokio::sync::watch;

use crate::budget::RestartBudget;
use crate::clock::Clock;
use crate::tasks::Tasks;

/// Starts a permanent child, linked to the root.
pub type SpawnChild =
    Box<dyn Fn(ActorCell) -> Pin<Box<dyn Future<Output = Result<ActorCell, SpawnErr>> + Send>> + Send + Sync>;

/// A permanent child.
pub struct Permanent {
    /// Its name, for people.
    pub name: &'static str,
    /// How it is started.
    pub spawn: SpawnChild,
    /// How often it may be restarted; `None`: never (its state cannot be rebuilt).
    pub budget: Option<RestartBudget>,
}

/// What the root is made of.
pub struct Args {
    /// The children, in the order in which they are started.
    pub children: Vec<Permanent>,
    /// The node's clock.
    pub clock: Arc<dyn Clock>,
    /// Where tasks live.
    pub tasks: Tasks,
    /// Why the process must exit.
    pub exit: watch::Sender<Option<String>>,
}

/// The root's actor.
#[derive(Default)]
pub struct Root;

/// Its state.
pub struct State {
    args: Args,
    running: BTreeMap<ActorId, usize>,
    closing: bool,
}

/// What the root is told.
pub enum RootMessage {
    /// Start this child again.
    Respawn(usize),
    /// The node shuts down: children that end now are not started again.
    Closing,
}

impl Actor for Root {
    type Msg = RootMessage;
    type State = State;
    type Arguments = Args;

    async fn pre_start(&self, myself: ActorRef<RootMessage>, args: Args) -> Result<State, ActorProcessingErr> {
        let mut running = BTreeMap::new();
        for (index, child) in args.children.iter().enumerate() {
            let cell = (child.spawn)(myself.get_cell()).await?;
            running.insert(cell.get_id(), index);
        }
        Ok(State {
            args,
            running,
            closing: false,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<RootMessage>,
        message: RootMessage,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        let index = match message {
            RootMessage::Respawn(index) => index,
            RootMessage::Closing => {
                state.closing = true;
                return Ok(());
            }
        };
        if state.closing {
            return Ok(());
        }
        let Some(child) = state.args.children.get(index) else {
            return Ok(());
        };
        match (child.spawn)(myself.get_cell()).await {
            Ok(cell) => {
                state.running.insert(cell.get_id(), index);
            }
            Err(error) => state.died(&myself, index, &error.to_string()),
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<RootMessage>,
        event: SupervisionEvent,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            SupervisionEvent::ActorTerminated(child, _, why) => {
                if let Some(index) = state.running.remove(&child.get_id()) {
                    state.died(&myself, index, &why.unwrap_or_else(|| "stopped".to_owned()));
                }
            }
            SupervisionEvent::ActorFailed(child, error) => {
                if let Some(index) = state.running.remove(&child.get_id()) {
                    state.died(&myself, index, &error.to_string());
                }
            }
            SupervisionEvent::ActorStarted(_) | SupervisionEvent::ProcessGroupChanged(_) => {}
        }
        Ok(())
    }
}

impl State {
    fn died(&mut self, myself: &ActorRef<RootMessage>, index: usize, why: &str) {
        if self.closing {
            return;
        }
        let now = self.args.clock.now();
        let Some(child) = self.args.children.get_mut(index) else {
            return;
        };
        let name = child.name;
        let pause = child
            .budget
            .as_mut()
            .and_then(|budget| budget.take(now).then(|| budget.backoff()));
        let Some(pause) = pause else {
            tracing::error!(
                child = name,
                why,
                "a permanent part of this node died and may not be restarted"
            );
            self.args.exit.send_replace(Some(format!("{name} died: {why}")));
            return;
        };
        tracing::warn!(
            child = name,
            why,
            pause_ms = pause.0,
            "a permanent part of this node died and is restarted"
        );
        let myself = myself.clone();
        let respawn = async move {
            tokio::time::sleep(pause.duration()).await;
            // A failed send means that the root itself is gone.
            drop(myself.cast(RootMessage::Respawn(index)));
        };
        if let Err(closed) = self.args.tasks.spawn("respawn", respawn) {
            tracing::debug!(%closed, "not restarted");
        }
    }
}
