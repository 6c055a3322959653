//! What a node reads again while it runs. One way to notice: files are looked at by their content.
//!
//! ```text
//! files           files that are good together: keys, certificates, tenants' limits
//! configuration   the part of the configuration that may change: its file, and SIGHUP
//! ```

mod configuration;
mod files;

pub use configuration::Reload;
pub use files::{Apply, Files, follow};
