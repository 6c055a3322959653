//! The wire's types ↔ the core's. Total in both directions: what the core can say can be sent, and what arrives is either
//! understood or refused with the field's name; nothing that arrives can panic.
//!
//! ```text
//! open       Open: the spec, the work, the sampling
//! room       the room stream: what R and a worker say to each other
//! evidence   evidence, counters, phases, reasons
//! node       the node stream: loads, identities
//! abort      a call of Abort
//! ```

mod abort;
mod evidence;
mod node;
mod open;
mod room;
#[cfg(test)]
mod tests;

pub use abort::rid_to_abort;
pub use node::{Asked, Identity, LoadOf, NodeSays, RoomEvidence};
pub use room::RouterSays;

/// A type of the core with a form on the wire.
pub trait Wire: Sized {
    /// Its form on the wire.
    type Message;

    /// What is sent.
    fn to_wire(&self) -> Self::Message;

    /// What arrived.
    ///
    /// # Errors
    /// [`WireError`] names the field.
    fn from_wire(message: Self::Message) -> Result<Self, WireError>;
}

/// What arrived cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// A field that must be there is not.
    #[error("`{0}` is missing; check that all nodes run the same version")]
    Missing(&'static str),
    /// A field holds a value that none of its kind can have.
    #[error("`{field}` = `{value}` is wrong: it must be {right}")]
    Wrong {
        /// The field.
        field: &'static str,
        /// What it holds.
        value: String,
        /// What would be right.
        right: &'static str,
    },
}

impl From<WireError> for tonic::Status {
    fn from(error: WireError) -> Self {
        Self::invalid_argument(error.to_string())
    }
}

fn wrong(field: &'static str, value: impl ToString, right: &'static str) -> WireError {
    // A value off the wire may be long; its beginning is enough to find it.
    WireError::Wrong {
        field,
        value: value.to_string().chars().take(64).collect(),
        right,
    }
}

/// Longest text that is kept with a room: an address, a trace context.
const LONGEST_TEXT: usize = 512;

/// A text that is kept for as long as a room lives.
fn short(field: &'static str, text: String) -> Result<String, WireError> {
    if text.len() > LONGEST_TEXT {
        return Err(wrong(field, text, "at most 512 bytes long"));
    }
    Ok(text)
}

fn present<T>(field: &'static str, value: Option<T>) -> Result<T, WireError> {
    value.ok_or(WireError::Missing(field))
}
