//! A node for the tests of its endpoints.

use std::sync::{Arc, Mutex};

use innkeeper_actors::ports::Answer;
use innkeeper_engine::Seen;
use innkeeper_room::ledger::{Gauges, RoomRow};
use innkeeper_room::{Attempt, Epoch, Incarnation, Millis, Owes, Phase, RequestKey, Role, RoomId};

use super::{EngineCounts, NodeSelf, NodeState, NodeView, PageSize};

pub(crate) struct FakeNode {
    /// `None`: its ledger hangs.
    gauges: Option<Gauges>,
    pub(crate) state: Arc<Mutex<NodeState>>,
    pub(crate) next_door: Arc<Mutex<Option<Seen>>>,
}

impl FakeNode {
    pub(crate) fn answering(gauges: Gauges) -> Self {
        Self {
            gauges: Some(gauges),
            state: Arc::new(Mutex::new(NodeState::Serving)),
            next_door: Arc::default(),
        }
    }

    pub(crate) fn hung() -> Self {
        Self {
            gauges: None,
            state: Arc::new(Mutex::new(NodeState::Serving)),
            next_door: Arc::default(),
        }
    }
}

fn answer<T: Send + 'static>(value: Option<T>) -> Answer<'static, Option<T>> {
    match value {
        Some(value) => Box::pin(std::future::ready(Some(value))),
        None => Box::pin(std::future::pending()),
    }
}

impl NodeView for FakeNode {
    fn node(&self) -> NodeSelf {
        NodeSelf {
            role: Role::Decode,
            name: "d \"0\"".into(),
            pid: 7,
            incarnation: Incarnation::new(0xd0),
            state: *self.state.lock().unwrap(),
            http: "127.0.0.1:1".into(),
            control: "127.0.0.1:2".into(),
            data: "127.0.0.1:3".into(),
            revision: "7".into(),
        }
    }

    fn rooms(&self) -> Answer<'_, Option<Vec<RoomRow>>> {
        let row = RoomRow {
            room: RoomId::from_random(0xfeed),
            request: RequestKey(3),
            attempt: Attempt(1),
            phase: Phase::WaitingForInput,
            epoch: Epoch(2),
            age_ms: Millis(10),
            phase_age_ms: Millis(5),
            deadline_ms: Millis(100),
            budget_ms: Millis(200),
            prefill: Incarnation::new(1),
            decode: Incarnation::new(0xd0),
            owner: Incarnation::new(3),
            owes: Owes::Prefill,
            leased: false,
        };
        answer(self.gauges.as_ref().map(|_| vec![row]))
    }

    fn gauges(&self) -> Answer<'_, Option<Gauges>> {
        answer(self.gauges.clone())
    }

    fn tasks(&self) -> Vec<(&'static str, u64)> {
        vec![("room", 3)]
    }

    fn connections(&self) -> Vec<(&'static str, u64)> {
        vec![("http", 1)]
    }

    fn page(&self) -> Option<PageSize> {
        Some(PageSize {
            tokens: 16,
            bytes: 1024,
        })
    }

    fn next_door(&self) -> Option<Seen> {
        *self.next_door.lock().unwrap()
    }

    fn engine(&self) -> Option<EngineCounts> {
        Some(EngineCounts {
            steps: 4,
            ..EngineCounts::default()
        })
    }
}
