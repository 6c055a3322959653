//! The names of keys. Tools and stores build and read them only here.

use std::fmt;

use innkeeper_room::{Incarnation, RoomId};

/// Everything of Innkeeper is under this.
pub const PREFIX: &str = "/innkeeper/v1/";
/// Members, one key per incarnation.
pub const MEMBERS: &str = "/innkeeper/v1/members/";
/// Doors, one key per node and room.
pub const DOORS: &str = "/innkeeper/v1/doors/";

/// A key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// A member's record.
    Member(Incarnation),
    /// A node's door of a room.
    Door(Incarnation, RoomId),
}

impl Key {
    /// Reads a key back; `None` if it is not one of ours.
    #[must_use]
    pub fn parse(key: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(key).ok()?;
        if let Some(incarnation) = text.strip_prefix(MEMBERS) {
            return incarnation.parse().ok().map(Self::Member);
        }
        let (incarnation, room) = text.strip_prefix(DOORS)?.split_once('/')?;
        Some(Self::Door(incarnation.parse().ok()?, room.parse().ok()?))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Member(incarnation) => write!(f, "{MEMBERS}{incarnation}"),
            Self::Door(incarnation, room) => write!(f, "{DOORS}{incarnation}/{room}"),
        }
    }
}

/// The prefix of all doors of one node.
#[must_use]
pub fn doors_of(incarnation: Incarnation) -> String {
    format!("{DOORS}{incarnation}/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_read_back_what_they_print() {
        let node = Incarnation::new(0xabc);
        for key in [Key::Member(node), Key::Door(node, RoomId::from_random(7))] {
            assert_eq!(Key::parse(key.to_string().as_bytes()), Some(key));
        }
        assert!(
            Key::Door(node, RoomId::from_random(7))
                .to_string()
                .starts_with(&doors_of(node))
        );
    }

    #[test]
    fn foreign_keys_are_none() {
        for foreign in [
            "",
            "/other",
            "/innkeeper/v1/members/xyz",
            "/innkeeper/v1/doors/1",
            "/innkeeper/v1/doors/1/0",
        ] {
            assert_eq!(Key::parse(foreign.as_bytes()), None, "{foreign}");
        }
        assert_eq!(Key::parse(&[0xff, 0xfe]), None);
    }
}
