//! How a room is called in an engine.

use innkeeper_room::{Attempt, RoomId};

/// The `X-Request-Id` of both legs of a room at vLLM. vLLM's own ids begin with it, so a ticket names its room.
#[must_use]
pub fn request_id(room: RoomId, attempt: Attempt) -> String {
    format!("ik-{room}-{}", attempt.0)
}

/// The `rid` of both legs of a room at SGLang. SGLang aborts by *prefix*: all are of one length, so none begins another.
#[must_use]
pub fn rid(room: RoomId) -> String {
    format!("ik-{room}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_id_begins_another() {
        let ids: Vec<_> = [1, 0x10, 0x100, u64::MAX]
            .into_iter()
            .map(|bits| rid(RoomId::from_random(bits)))
            .collect();
        for (at, id) in ids.iter().enumerate() {
            assert_eq!(id.len(), 19);
            assert!(ids.iter().skip(at + 1).all(|other| !other.starts_with(id)));
        }
        assert_eq!(
            request_id(RoomId::from_random(0xab), Attempt(2)),
            "ik-00000000000000ab-2"
        );
    }
}
