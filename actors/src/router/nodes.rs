//! The router's node streams: one owned pump per worker, which turns what a stream tells into the ledger's events.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use innkeeper_leases::{Member, MemberState};
use innkeeper_room::ledger::EngineKind;
use innkeeper_room::ledger::router::{Event, MemberInfo, Side};
use innkeeper_room::{FromWorker, Incarnation, Role, RoomId};
use tokio::sync::mpsc;

use crate::ports::{Links, NodeEvent, NodeLink, NodeQuestion, Target};
use crate::router::room::{Tell, Told};
use crate::tasks::Tasks;

/// The workers that this router knows.
pub struct Nodes {
    links: Arc<dyn Links>,
    tasks: Tasks,
    tell: Tell,
    nodes: BTreeMap<Incarnation, Node>,
    /// Other routers, for those who ask this one for the cluster's nodes. They are never talked to.
    routers: BTreeMap<Incarnation, Member>,
}

struct Node {
    member: Member,
    ask: mpsc::Sender<NodeQuestion>,
}

impl Nodes {
    /// Nobody is known.
    pub fn new(links: Arc<dyn Links>, tasks: Tasks, tell: Tell) -> Self {
        Self {
            links,
            tasks,
            tell,
            nodes: BTreeMap::new(),
            routers: BTreeMap::new(),
        }
    }

    /// A worker appeared or changed: its node stream is opened once. What the ledger is to be told.
    pub fn up(&mut self, member: Member) -> Option<Event> {
        let side = match member.role {
            Role::Router => {
                self.routers.insert(member.incarnation, member);
                return None;
            }
            Role::Prefill => Side::Prefill,
            Role::Decode => Side::Decode,
        };
        let info = info(&member);
        match self.nodes.get_mut(&member.incarnation) {
            Some(node) => node.member = member,
            None => self.open(member, side),
        }
        Some(Event::MemberUp(info))
    }

    fn open(&mut self, member: Member, side: Side) {
        let target = Target {
            incarnation: member.incarnation,
            control: member.control.clone(),
        };
        let NodeLink { ask, events } = self.links.node(&target);
        let pump = pump(events, member.incarnation, side, Arc::clone(&self.tell));
        if let Err(closed) = self.tasks.spawn("node_stream", pump) {
            tracing::debug!(%closed, "no stream to the worker");
        }
        self.nodes.insert(member.incarnation, Node { member, ask });
    }

    /// Asks a worker; a dead link is an answer that does not come, for which the ledger has a deadline.
    pub fn ask(&self, incarnation: Incarnation, question: NodeQuestion) {
        if let Some(node) = self.nodes.get(&incarnation) {
            let _ = node.ask.try_send(question);
        }
    }

    /// Asks for the evidence of a room.
    pub fn ask_evidence(&self, incarnation: Incarnation, room: RoomId) {
        self.ask(incarnation, NodeQuestion::Evidence(room));
    }

    /// Where a worker is.
    pub fn target(&self, incarnation: Incarnation) -> Option<Target> {
        let control = self.nodes.get(&incarnation)?.member.control.clone();
        Some(Target { incarnation, control })
    }

    /// Forgets a worker.
    pub fn drop_node(&mut self, incarnation: Incarnation) {
        self.nodes.remove(&incarnation);
        self.links.forget(incarnation);
    }

    /// A member's key is gone; whether it was a router, of which the ledger knows nothing.
    pub fn router_gone(&mut self, incarnation: Incarnation) -> bool {
        self.routers.remove(&incarnation).is_some()
    }

    /// The records of all routers, this one included.
    pub fn routers(&self) -> impl Iterator<Item = &Member> {
        self.routers.values()
    }

    /// The records of all workers.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.nodes.values().map(|node| &node.member)
    }
}

fn info(member: &Member) -> MemberInfo {
    let mut hasher = DefaultHasher::new();
    (&member.layout, &member.revision, &member.model).hash(&mut hasher);
    MemberInfo {
        incarnation: member.incarnation,
        role: member.role,
        control: member.control.clone(),
        model: member.model.clone(),
        class: hasher.finish(),
        pages: member.pages,
        page_tokens: member.layout.page_tokens,
        // An engine that moves its KV itself has no slabs to show.
        engine: match member.layout.groups {
            0 => EngineKind::Remote,
            _ => EngineKind::Own,
        },
        context: member.context,
        permits: member.permits,
        serving: member.state == MemberState::Serving,
    }
}

/// Pumps one node stream until it is dropped. The link reconnects by itself.
async fn pump(mut events: mpsc::Receiver<NodeEvent>, meant: Incarnation, side: Side, tell: Tell) {
    let mut up = false;
    // No deadline: what is not heard is missed by the ledger, which expects a Load every report period.
    while let Some(event) = events.recv().await {
        if let NodeEvent::Down { why } = &event {
            tell(Told::NodeBroke(meant, why.clone()));
        }
        for event in translate(event, meant, side, &mut up) {
            if !tell(Told::Event(event)) {
                return;
            }
        }
    }
}

fn translate(event: NodeEvent, meant: Incarnation, side: Side, up: &mut bool) -> Vec<Event> {
    match event {
        NodeEvent::Load { incarnation, load } if incarnation == meant => {
            let first = !std::mem::replace(up, true);
            let came = first.then_some(Event::NodeUp { incarnation });
            came.into_iter().chain([Event::Load { incarnation, load }]).collect()
        }
        // Another life answers at this address: the one that was meant is gone.
        NodeEvent::Load { .. } => {
            *up = false;
            vec![Event::NodeDown { incarnation: meant }]
        }
        NodeEvent::Identity { incarnation } => vec![Event::WhoAnswered {
            asked: meant,
            answered: incarnation,
        }],
        NodeEvent::Evidence { room, evidence } => evidence
            .map(|evidence| Event::FromWorker {
                room,
                side,
                message: FromWorker::Evidence(evidence),
            })
            .into_iter()
            .collect(),
        NodeEvent::Down { why } => {
            *up = false;
            tracing::info!(worker = %meant, why, "the node stream broke");
            vec![Event::NodeDown { incarnation: meant }]
        }
    }
}

#[cfg(test)]
mod tests {
    use innkeeper_room::ledger::router::Load;

    use super::*;

    #[test]
    fn the_first_load_after_a_break_says_that_the_node_is_up() {
        let node = Incarnation::new(7);
        let load = NodeEvent::Load {
            incarnation: node,
            load: Load::default(),
        };
        let mut up = false;
        assert_eq!(translate(load.clone(), node, Side::Decode, &mut up).len(), 2);
        assert_eq!(translate(load.clone(), node, Side::Decode, &mut up).len(), 1);
        translate(NodeEvent::Down { why: String::new() }, node, Side::Decode, &mut up);
        assert_eq!(
            translate(load, node, Side::Decode, &mut up)[0],
            Event::NodeUp { incarnation: node }
        );
    }

    #[test]
    fn another_life_at_the_address_means_that_the_meant_one_is_down() {
        let (meant, other) = (Incarnation::new(7), Incarnation::new(8));
        let load = NodeEvent::Load {
            incarnation: other,
            load: Load::default(),
        };
        let told = translate(load, meant, Side::Prefill, &mut true);
        assert_eq!(told, vec![Event::NodeDown { incarnation: meant }]);
    }
}
