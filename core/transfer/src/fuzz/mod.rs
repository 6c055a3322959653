//! The bodies of the fuzz targets: arbitrary bytes are taken for a script of what a peer does, the script is played
//! against the code that serves, and what must hold is asserted. The fuzzer, the test of its corpus and the property
//! tests run the same functions; no build that serves has them.
//!
//! ```text
//! input      bytes → small numbers and slices; never fails, ends in zeroes
//! script     bytes → what a peer writes: good frames, lying ones, damaged ones
//! frame      the decoder: same frames however the bytes are cut, what reads back, what stays refused, how much is held
//! session    D's whole side of a connection: which bytes may change, and when a room may be committed
//! ```

pub mod frame;
mod input;
mod script;
pub mod session;

pub use input::Input;
pub use script::Writer;
