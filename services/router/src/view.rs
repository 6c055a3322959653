//! A router as its HTTP and metrics endpoints see it.

use std::sync::Arc;

use innkeeper_actors::ports::Answer;
use innkeeper_actors::router::RouterNode;
use innkeeper_node::metrics::LEDGER_DEADLINE;
use innkeeper_node::net::Connections;
use innkeeper_node::view::{NodeSelf, NodeState, NodeView};
use innkeeper_room::ledger::{Gauges, RoomRow};
use tokio_util::sync::CancellationToken;

/// The view.
pub struct RouterView {
    me: NodeSelf,
    node: Arc<RouterNode>,
    counted: Vec<Connections>,
    stopping: CancellationToken,
}

impl RouterView {
    /// Of a running router. `stopping` is cancelled when it drains.
    #[must_use]
    pub const fn new(
        me: NodeSelf,
        node: Arc<RouterNode>,
        counted: Vec<Connections>,
        stopping: CancellationToken,
    ) -> Self {
        Self {
            me,
            node,
            counted,
            stopping,
        }
    }
}

impl NodeView for RouterView {
    fn node(&self) -> NodeSelf {
        let state = if self.node.exit().borrow().is_some() {
            NodeState::Failed
        } else if self.stopping.is_cancelled() {
            NodeState::Draining
        } else {
            NodeState::Serving
        };
        NodeSelf {
            state,
            ..self.me.clone()
        }
    }

    fn rooms(&self) -> Answer<'_, Option<Vec<RoomRow>>> {
        Box::pin(self.node.rows(LEDGER_DEADLINE))
    }

    fn gauges(&self) -> Answer<'_, Option<Gauges>> {
        Box::pin(async { self.node.gauges(LEDGER_DEADLINE).await.map(|(gauges, _)| gauges) })
    }

    fn ready(&self) -> bool {
        let (prefill, decode) = *self.node.usable().borrow();
        prefill > 0 && decode > 0
    }

    fn tasks(&self) -> Vec<(&'static str, u64)> {
        self.node.tasks().counts()
    }

    fn connections(&self) -> Vec<(&'static str, u64)> {
        self.counted.iter().map(Connections::count).collect()
    }

    fn refused_connections(&self) -> Vec<(&'static str, u64)> {
        self.counted.iter().map(Connections::refused).collect()
    }

    fn zombies(&self) -> u64 {
        u64::from(self.node.zombies())
    }
}
