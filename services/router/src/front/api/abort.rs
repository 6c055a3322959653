//! `POST /abort_request`.

use serde_json::Value;

use super::fields::{Fields, wrong_type};
use super::harmless::{Harmless, Pass};
use crate::front::error::ApiError;

/// A checked abort.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AbortRequest {
    /// The client's id of the request: its `x-request-id`.
    pub(crate) rid: String,
}

/// Known, not supported, and harmless with these values.
pub(crate) const HARMLESS: &[Harmless] = &[("abort_all", Pass::False), ("abort_message", Pass::Text)];

impl AbortRequest {
    /// Checks an abort.
    ///
    /// # Errors
    /// If `rid` is missing, empty or no string, or something else was said.
    pub(crate) fn check(mut fields: Fields) -> Result<Self, ApiError> {
        let rid = match fields.require("rid")? {
            Value::String(rid) if rid.is_empty() || rid.len() > 256 => {
                return Err(fields.complain("rid", "invalid_value", "must be 1 to 256 characters long"));
            }
            Value::String(rid) => rid,
            other => return Err(wrong_type("rid", "a string", &other)),
        };
        fields.harmless(HARMLESS)?;
        fields.finish()?;
        Ok(Self { rid })
    }
}
