//! Tokens → text, and text → JSON or server-sent events. Nothing here waits or knows HTTP.

mod assembler;
mod renderer;
mod stops;

pub(crate) use assembler::{Assembler, Finish, Piece, Shown, Wanted};
pub(crate) use renderer::{DONE, Renderer, Shape, event};
