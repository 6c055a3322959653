//! One way to configure every process: flags, then the environment, then a TOML file, then defaults.
//!
//! Every flag `--some-name` is also the variable `INNKEEPER_SOME_NAME` and the key `some-name` of the file that
//! `--config FILE` or `INNKEEPER_CONFIG` names. That holds for all flags of a [`clap::Parser`] that is read through
//! [`parse_or_exit`], those of its subcommands included. A wrong value is refused with its name and what would be right.
//!
//! ```text
//! source     flags, environment and file become one clap parse
//! settings   the protocol's bounds
//! node       names, addresses, and all of it together
//! store      how the lease store is reached
//! telemetry  logs and spans
//! recorder   where rooms that are over are kept
//! security   API keys, certificates, limits of connections
//! engine     which engine, and how large
//! remote     engines that run next to their workers
//! limits     what each tenant may ask of a router
//! failure    what becomes of a stream whose room is lost
//! faults     what tests ask a node to do wrong
//! ```

mod engine;
mod failure;
mod faults;
mod limits;
mod node;
mod recorder;
mod remote;
mod security;
mod settings;
mod source;
mod store;
mod telemetry;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

pub use engine::{EngineArgs, EngineConfig, EngineKind, MockTiming};
pub use failure::{NoPolicy, OnFailureRoutes};
pub use faults::{Fault, MessageAct, MessageFault, NoFault, Way, Wish, check_faults};
pub use limits::{Limit, Limits, LimitsArgs, LimitsConfig};
pub use node::{IdentityArgs, NodeArgs, NodeConfig, RunArgs, RunConfig};
pub use recorder::{RecorderArgs, RecorderConfig};
pub use remote::RemoteConfig;
pub use security::{CertificateFiles, SecurityArgs, SecurityConfig};
pub use settings::SettingsArgs;
pub use source::{parse_from, parse_or_exit};
pub use store::{Secret, StoreArgs, StoreConfig};
pub use telemetry::{LogFormat, OtlpConfig, OtlpProtocol, TelemetryArgs, TelemetryConfig};

/// The exit status of a process whose configuration is wrong (EX_USAGE of sysexits).
pub const EXIT_USAGE: u8 = 64;

/// The configuration is wrong, or help was asked for.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// What clap says: a wrong flag, a value that cannot be read, or the help that was asked for.
    #[error("{0}")]
    Usage(Box<clap::Error>),
    /// A value that can be read but cannot work.
    #[error("--{name} = {value} is wrong: it must be {right}")]
    Wrong {
        /// The flag's name, without dashes.
        name: String,
        /// Its value.
        value: String,
        /// What would be right.
        right: String,
    },
    /// A value that is needed and not given.
    #[error("--{name} is missing: {why}")]
    Missing {
        /// The flag's name, without dashes.
        name: &'static str,
        /// When and why it is needed.
        why: String,
    },
    /// The file cannot be read.
    #[error("the configuration file {}: {why}", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

impl From<clap::Error> for ConfigError {
    fn from(error: clap::Error) -> Self {
        Self::Usage(Box::new(error))
    }
}

/// The exit status of a process that ends because of this: 64, or 0 if only help or the version was asked for.
#[must_use]
pub fn exit_code(error: &ConfigError) -> u8 {
    match error {
        ConfigError::Usage(usage) if !usage.use_stderr() => 0,
        ConfigError::Usage(_) | ConfigError::Wrong { .. } | ConfigError::Missing { .. } | ConfigError::File { .. } => {
            EXIT_USAGE
        }
    }
}

/// Prints the error, or the help that was asked for, and ends the process with [`exit_code`].
pub fn exit_with(error: &ConfigError) -> ! {
    match error {
        // A closed stdout or stderr is no reason for another status.
        ConfigError::Usage(usage) => drop(usage.print()),
        ConfigError::Wrong { .. } | ConfigError::Missing { .. } | ConfigError::File { .. } => {
            eprintln!("error: {error}");
        }
    }
    std::process::exit(exit_code(error).into())
}

/// `--name=value`, the form that also holds for values that begin with a dash.
fn flag(name: &str, value: impl std::fmt::Display) -> String {
    format!("--{name}={value}")
}

fn wrong(name: &str, value: impl ToString, right: &str) -> ConfigError {
    ConfigError::Wrong {
        name: name.to_owned(),
        value: value.to_string(),
        right: right.to_owned(),
    }
}
