//! The node stream: R's questions, and a worker's reports of itself.

use innkeeper_proto::v1;
use innkeeper_proto::v1::node_answer::Answer;
use innkeeper_proto::v1::node_question::Question;
use innkeeper_room::ledger::router::Load;
use innkeeper_room::{Evidence, Incarnation, Millis, RoomId};

use super::open::{incarnation, room_id};
use super::{Wire, WireError, present};

/// What R says on the node stream: Hello first, then questions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// The router's life.
    Hello(Incarnation),
    /// Whether the worker is this life.
    Who(Incarnation),
    /// What the worker sees of a room.
    Evidence(RoomId),
}

/// What a worker says on the node stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeSays {
    /// Its report of itself.
    Load(LoadOf),
    /// Who it is.
    Identity(Identity),
    /// What it sees of a room.
    Evidence(RoomEvidence),
}

/// A load and whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadOf {
    /// Who reports.
    pub incarnation: Incarnation,
    /// What.
    pub load: Load,
}

/// The answer to Who.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Who answers.
    pub incarnation: Incarnation,
    /// Who was meant.
    pub asked: Incarnation,
}

/// The answer to Evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoomEvidence {
    /// Which room.
    pub room: RoomId,
    /// `None`: the worker does not know the room.
    pub evidence: Option<Evidence>,
}

impl Wire for Asked {
    type Message = v1::NodeQuestion;

    fn to_wire(&self) -> v1::NodeQuestion {
        let question = match self {
            Self::Hello(router) => Question::Hello(router.get()),
            Self::Who(asked) => Question::Who(asked.get()),
            Self::Evidence(room) => Question::Evidence(room.get()),
        };
        v1::NodeQuestion {
            question: Some(question),
        }
    }

    fn from_wire(message: v1::NodeQuestion) -> Result<Self, WireError> {
        match present("question", message.question)? {
            Question::Hello(router) => incarnation("hello", router).map(Self::Hello),
            Question::Who(asked) => incarnation("who", asked).map(Self::Who),
            Question::Evidence(room) => room_id("evidence", room).map(Self::Evidence),
        }
    }
}

impl Wire for NodeSays {
    type Message = v1::NodeAnswer;

    fn to_wire(&self) -> v1::NodeAnswer {
        let answer = match self {
            Self::Load(load) => Answer::Load(load.to_wire()),
            Self::Identity(identity) => Answer::Identity(identity.to_wire()),
            Self::Evidence(evidence) => Answer::Evidence(evidence.to_wire()),
        };
        v1::NodeAnswer { answer: Some(answer) }
    }

    fn from_wire(message: v1::NodeAnswer) -> Result<Self, WireError> {
        match present("answer", message.answer)? {
            Answer::Load(load) => LoadOf::from_wire(load).map(Self::Load),
            Answer::Identity(identity) => Identity::from_wire(identity).map(Self::Identity),
            Answer::Evidence(evidence) => RoomEvidence::from_wire(evidence).map(Self::Evidence),
        }
    }
}

impl Wire for LoadOf {
    type Message = v1::Load;

    fn to_wire(&self) -> v1::Load {
        v1::Load {
            incarnation: self.incarnation.get(),
            engine_progress: self.load.engine_progress,
            engine_owes_ms: self.load.engine_owes.0,
            free_pages: self.load.free_pages,
            rooms: self.load.rooms,
            serving: self.load.serving,
        }
    }

    fn from_wire(message: v1::Load) -> Result<Self, WireError> {
        Ok(Self {
            incarnation: incarnation("load.incarnation", message.incarnation)?,
            load: Load {
                engine_progress: message.engine_progress,
                engine_owes: Millis(message.engine_owes_ms),
                free_pages: message.free_pages,
                rooms: message.rooms,
                serving: message.serving,
            },
        })
    }
}

impl Wire for Identity {
    type Message = v1::Identity;

    fn to_wire(&self) -> v1::Identity {
        v1::Identity {
            incarnation: self.incarnation.get(),
            asked: self.asked.get(),
        }
    }

    fn from_wire(message: v1::Identity) -> Result<Self, WireError> {
        Ok(Self {
            incarnation: incarnation("identity.incarnation", message.incarnation)?,
            asked: incarnation("identity.asked", message.asked)?,
        })
    }
}

impl Wire for RoomEvidence {
    type Message = v1::RoomEvidence;

    fn to_wire(&self) -> v1::RoomEvidence {
        v1::RoomEvidence {
            room: self.room.get(),
            known: self.evidence.is_some(),
            evidence: self.evidence.as_ref().map(Wire::to_wire),
        }
    }

    fn from_wire(message: v1::RoomEvidence) -> Result<Self, WireError> {
        let evidence = if message.known {
            Some(Evidence::from_wire(present("evidence.evidence", message.evidence)?)?)
        } else {
            None
        };
        Ok(Self {
            room: room_id("evidence.room", message.room)?,
            evidence,
        })
    }
}
