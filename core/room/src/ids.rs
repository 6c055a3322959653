//! Identities. Every id that can arrive late is a newtype, so that two kinds cannot be mixed up.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The id of a room and, as the same number, of its etcd lease: non-zero, 63 bits, random from the OS, never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RoomId(NonZeroU64);

impl RoomId {
    /// Makes a room id of 64 random bits: the top bit is cleared (etcd's lease ids are positive `i64`), zero becomes one.
    #[must_use]
    pub fn from_random(bits: u64) -> Self {
        let value = bits & (u64::MAX >> 1);
        Self(NonZeroU64::new(value).unwrap_or(NonZeroU64::MIN))
    }

    /// Reads a room id off the wire; zero and 64-bit numbers are none.
    #[must_use]
    pub fn from_wire(value: u64) -> Option<Self> {
        if value > u64::MAX >> 1 {
            None
        } else {
            NonZeroU64::new(value).map(Self)
        }
    }

    /// The number itself.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0.get()
    }

    /// The id of the room's lease in etcd, which is the same number.
    #[must_use]
    pub fn lease_id(self) -> i64 {
        i64::try_from(self.0.get()).unwrap_or(i64::MAX)
    }
}

/// The random id of one life of one process; a replaced process at the same address is a different incarnation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Incarnation(u64);

impl Incarnation {
    /// Makes an incarnation of a number (random from the OS in production). Zero stands for "nobody".
    #[must_use]
    pub const fn new(value: u64) -> Self {
        Self(value)
    }

    /// The number itself.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// The text is not an id: what it should have been is in the message.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
#[error("`{text}` is not {what}: write 1 to 16 hexadecimal digits")]
pub struct IdError {
    /// The kind of id that was expected.
    pub what: &'static str,
    /// The offending text.
    pub text: String,
}

macro_rules! hex_id {
    ($name:ident, $what:literal, $from:expr, $to:expr) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:016x}", $to(*self))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                u64::from_str_radix(text, 16)
                    .ok()
                    .and_then($from)
                    .ok_or_else(|| IdError {
                        what: $what,
                        text: text.to_owned(),
                    })
            }
        }

        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

hex_id!(RoomId, "a room id", RoomId::from_wire, RoomId::get);
hex_id!(
    Incarnation,
    "an incarnation",
    |value| Some(Incarnation::new(value)),
    Incarnation::get
);

/// The router's own number for one arrival of a request. The client's `x-request-id` may repeat; this never does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RequestKey(pub u64);

/// The number of prefill's current try to send KV within a room: its hellos, counted from 1. 0 is "none yet".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Epoch(pub u32);

impl Epoch {
    /// Not a try of P's: under this number the engine of D has the right to read what P's engine keeps for it.
    pub const TICKET: Self = Self(0);

    /// The next try.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

/// The number of a try at a request: 1 is the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Attempt(pub u8);

/// What a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Owns rooms and decides verdicts.
    Router,
    /// Computes the prompt's KV and sends it.
    Prefill,
    /// Receives the KV and produces the tokens.
    Decode,
}

impl Role {
    /// The lower-case name used in metrics, keys and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Router => "router",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_room_id_is_never_zero_and_never_negative_as_a_lease() {
        assert_eq!(RoomId::from_random(0).get(), 1);
        assert!(RoomId::from_random(u64::MAX).lease_id() > 0);
        assert_eq!(RoomId::from_wire(0), None);
        assert_eq!(RoomId::from_wire(u64::MAX), None);
    }

    #[test]
    fn ids_read_back_what_they_print() {
        let room = RoomId::from_random(0xfeed_beef);
        assert_eq!(room.to_string().parse::<RoomId>(), Ok(room));
        assert!("zz".parse::<RoomId>().is_err());
        assert!("0".parse::<RoomId>().is_err());
    }
}
