//! What clients write and read. Requests are checked field by field, so that every complaint names its field.

mod abort;
mod chat;
mod common;
mod completion;
mod fields;
mod response;

pub(crate) use abort::AbortRequest;
pub(crate) use chat::ChatRequest;
pub(crate) use common::Common;
pub(crate) use completion::{CompletionRequest, Prompt};
pub(crate) use fields::Fields;
pub(crate) use response::*;
