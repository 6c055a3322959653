//! What clients write and read. Requests are checked field by field, so that every complaint names its field.

pub(super) mod abort;
pub(super) mod chat;
pub(super) mod common;
pub(super) mod completion;
mod fields;
mod harmless;
mod response;

pub(crate) use abort::AbortRequest;
pub(crate) use chat::ChatRequest;
pub(crate) use common::Common;
pub(crate) use completion::{CompletionRequest, Prompt};
pub(crate) use fields::Fields;
#[cfg(test)]
pub(crate) use fields::looked;
pub(crate) use harmless::Harmless;
pub(crate) use response::*;
