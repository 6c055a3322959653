//! Random numbers from the OS: what makes ids that are never reused.

use innkeeper_room::{Incarnation, RoomId};

/// The OS gave no random numbers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the OS gives no random numbers ({0}); no id can be made without them")]
pub struct RandomError(String);

/// 64 random bits.
///
/// # Errors
/// [`RandomError`]; on Linux only if the system call is forbidden.
pub fn bits() -> Result<u64, RandomError> {
    getrandom::u64().map_err(|error| RandomError(error.to_string()))
}

/// A new room's id.
///
/// # Errors
/// As [`bits`].
pub fn room_id() -> Result<RoomId, RandomError> {
    bits().map(RoomId::from_random)
}

/// The id of this life of this process; never zero, which stands for "nobody".
///
/// # Errors
/// As [`bits`].
pub fn incarnation() -> Result<Incarnation, RandomError> {
    bits().map(|bits| Incarnation::new(bits.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_differ() {
        assert_ne!(room_id().unwrap(), room_id().unwrap());
        assert_ne!(incarnation().unwrap(), incarnation().unwrap());
    }
}
