//! Faults that tests ask a node for. Off by default, not shown by `--help`, and refused with any engine but the mock one:
//! no node that serves anybody can have them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use innkeeper_room::Role;
use innkeeper_room::ledger::router::Side;

use super::{ConfigError, EngineConfig, EngineKind, wrong};

/// One fault, and which nodes it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// As it was written.
    text: String,
    /// A role or a node's name; none is every node.
    who: Option<String>,
    /// What is asked for.
    pub fault: Fault,
}

/// What a test may ask a node for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing yet: faults may be asked for later, over HTTP.
    On,
    /// Control connections ask for no sign of life. At the start only, like all layers.
    NoPings,
    /// Data connections wait for acknowledgements for ever.
    NoUserTimeout,
    /// No progress timer, and so no absolute deadline, ever fires.
    NoProgressTimers,
    /// The end of a room's lease is not seen.
    NoDoors,
    /// The end of a member's lease is not seen.
    NoMembers,
    /// A message of a room's stream is lost, doubled or late. For routers, through which they all go.
    Message(MessageFault),
    /// The engine finishes no chunk or step.
    StallEngine,
    /// It goes on.
    ResumeEngine,
    /// Its next chunk or step fails.
    FailEngine,
    /// The nth write on a data connection fails.
    FailWrite(u64),
    /// Sessions of the data plane that are over keep their permit.
    HoldSessions,
    /// They give it back.
    ReleaseSessions,
    /// Sessions of the data plane hear no order to end: they go on reading or writing.
    DeafSessions,
    /// They hear again.
    HearingSessions,
    /// The data plane accepts connections and answers nothing.
    MuteData,
    /// It answers again.
    SpeakData,
}

/// What happens to one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageFault {
    /// Where it goes.
    pub way: Way,
    /// Its kind, such as `open`, `committed` or `tokens`.
    pub kind: String,
    /// How many of these are let through first.
    pub skip: u32,
    /// What happens to it.
    pub act: MessageAct,
}

/// A direction of a room's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the router to this worker.
    To(Side),
    /// From this worker to the router.
    From(Side),
}

/// What happens to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageAct {
    /// It is lost.
    Drop,
    /// It comes twice.
    Duplicate,
    /// It, and all behind it on its stream, come later.
    Delay(Duration),
}

/// What a fault's text should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no fault: write [ROLE|NAME:] and on, no-pings, no-user-timeout, no-progress-timers, no-doors, no-members, \
     drop=WAY.KIND[#N], duplicate=WAY.KIND[#N], delay=WAY.KIND[#N]@MS (WAY is to-prefill, to-decode, from-prefill or \
     from-decode), stall-engine, resume-engine, fail-engine, fail-write=N, hold-sessions, release-sessions, \
     deaf-sessions, hearing-sessions, mute-data or speak-data"
)]
pub struct NoFault(String);

impl Wish {
    /// Whether it is for this node.
    #[must_use]
    pub fn is_for(&self, role: Role, name: &str) -> bool {
        self.who.as_deref().is_none_or(|who| who == role.name() || who == name)
    }
}

impl FromStr for Wish {
    type Err = NoFault;

    fn from_str(text: &str) -> Result<Self, NoFault> {
        let (who, fault) = match text.split_once(':') {
            Some((who, fault)) => (Some(who.to_owned()), fault),
            None => (None, text),
        };
        Ok(Self {
            text: text.to_owned(),
            who,
            fault: fault_of(fault).ok_or_else(|| NoFault(text.to_owned()))?,
        })
    }
}

impl fmt::Display for Wish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn fault_of(text: &str) -> Option<Fault> {
    Some(match text.split_once('=') {
        None => match text {
            "on" => Fault::On,
            "no-pings" => Fault::NoPings,
            "no-user-timeout" => Fault::NoUserTimeout,
            "no-progress-timers" => Fault::NoProgressTimers,
            "no-doors" => Fault::NoDoors,
            "no-members" => Fault::NoMembers,
            "stall-engine" => Fault::StallEngine,
            "resume-engine" => Fault::ResumeEngine,
            "fail-engine" => Fault::FailEngine,
            "hold-sessions" => Fault::HoldSessions,
            "release-sessions" => Fault::ReleaseSessions,
            "deaf-sessions" => Fault::DeafSessions,
            "hearing-sessions" => Fault::HearingSessions,
            "mute-data" => Fault::MuteData,
            "speak-data" => Fault::SpeakData,
            _ => return None,
        },
        Some(("fail-write", nth)) => Fault::FailWrite(nth.parse().ok().filter(|nth| *nth > 0)?),
        Some(("drop", message)) => Fault::Message(message_of(message, MessageAct::Drop)?),
        Some(("duplicate", message)) => Fault::Message(message_of(message, MessageAct::Duplicate)?),
        Some(("delay", message)) => {
            let (message, ms) = message.split_once('@')?;
            let late = Duration::from_millis(ms.parse().ok()?);
            Fault::Message(message_of(message, MessageAct::Delay(late))?)
        }
        Some(_) => return None,
    })
}

/// `WAY.KIND` or `WAY.KIND#N`, the nth of its kind from now on.
fn message_of(text: &str, act: MessageAct) -> Option<MessageFault> {
    let (message, nth) = match text.split_once('#') {
        Some((message, nth)) => (message, nth.parse::<u32>().ok()?),
        None => (text, 1),
    };
    let (way, kind) = message.split_once('.')?;
    let way = match way {
        "to-prefill" => Way::To(Side::Prefill),
        "to-decode" => Way::To(Side::Decode),
        "from-prefill" => Way::From(Side::Prefill),
        "from-decode" => Way::From(Side::Decode),
        _ => return None,
    };
    Some(MessageFault {
        way,
        kind: kind.to_owned(),
        skip: nth.checked_sub(1)?,
        act,
    })
}

/// Refuses faults where a real engine runs.
///
/// # Errors
/// [`ConfigError::Wrong`] if there are any.
pub fn check_faults(faults: &[Wish], engine: &EngineConfig) -> Result<(), ConfigError> {
    match faults.first() {
        Some(first) if engine.kind != EngineKind::Mock => Err(wrong(
            "test-faults",
            first,
            "left out: it is for tests with the mock engine alone",
        )),
        Some(_) | None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::EngineArgs;

    #[test]
    fn faults_are_read_and_written() {
        let wish: Wish = "decode-1:delay=from-decode.tokens#3@1500".parse().unwrap();
        let expected = MessageFault {
            way: Way::From(Side::Decode),
            kind: "tokens".to_owned(),
            skip: 2,
            act: MessageAct::Delay(Duration::from_millis(1500)),
        };
        assert_eq!(wish.fault, Fault::Message(expected));
        assert_eq!(wish.to_string().parse(), Ok(wish.clone()));
        assert!(wish.is_for(Role::Decode, "decode-1") && !wish.is_for(Role::Decode, "decode-0"));
        let all: Wish = "decode:no-pings".parse().unwrap();
        assert!(all.is_for(Role::Decode, "decode-0") && !all.is_for(Role::Router, "router"));
        for wrong in [
            "",
            "off",
            "drop=committed",
            "drop=to-router.x",
            "delay=to-decode.open",
            "fail-write=0",
            "drop=to-decode.open#0",
        ] {
            assert!(wrong.parse::<Wish>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_real_engine_refuses_them() {
        let engine = |kind| {
            let args = EngineArgs {
                engine: Some(kind),
                ..EngineArgs::default()
            };
            args.resolve().unwrap()
        };
        let faults = ["on".parse().unwrap()];
        assert!(check_faults(&faults, &engine(EngineKind::Mock)).is_ok());
        assert!(check_faults(&[], &engine(EngineKind::Embedded)).is_ok());
        let refused = check_faults(&faults, &engine(EngineKind::Embedded)).unwrap_err();
        assert!(refused.to_string().contains("--test-faults = on"), "{refused}");
    }
}
