//! The flight recorder: where ended rooms are kept, and for how long.

use std::path::PathBuf;

use super::flag;

/// Ended rooms are kept in memory only.
const NOWHERE: &str = "none";

/// The flight recorder, as far as it is set.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Flight recorder")]
pub struct RecorderArgs {
    /// Where rooms that ended badly are kept, below a folder per node name; `none`: in memory only. [default:
    /// $XDG_STATE_HOME/innkeeper/recorder, else ~/.local/state/innkeeper/recorder]
    #[arg(long, value_name = "DIR")]
    pub recorder_dir: Option<PathBuf>,
    /// How many rooms that ended badly are kept per node name. [default: 1000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub recorder_rooms: Option<u32>,
    /// For how many days they are kept. [default: 7]
    #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u32).range(1..=3650))]
    pub recorder_days: Option<u32>,
}

/// The flight recorder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecorderConfig {
    /// Where rooms that ended badly are kept; `None`: in memory only.
    pub dir: Option<PathBuf>,
    /// How many of them, per node name.
    pub rooms: u32,
    /// For how many days.
    pub days: u32,
}

impl RecorderArgs {
    /// In memory only.
    #[must_use]
    pub fn nowhere() -> Self {
        Self {
            recorder_dir: Some(NOWHERE.into()),
            ..Self::default()
        }
    }

    /// The flight recorder.
    #[must_use]
    pub fn resolve(&self) -> RecorderConfig {
        let given = self.recorder_dir.clone().filter(|dir| !dir.as_os_str().is_empty());
        RecorderConfig {
            dir: given.or_else(default_dir).filter(|dir| dir.as_os_str() != NOWHERE),
            rooms: self.recorder_rooms.unwrap_or(1000),
            days: self.recorder_days.unwrap_or(7),
        }
    }
}

impl RecorderConfig {
    /// The arguments that give exactly this.
    #[must_use]
    pub fn to_args(&self) -> Vec<String> {
        let dir = self
            .dir
            .as_ref()
            .map_or_else(|| NOWHERE.to_owned(), |dir| dir.display().to_string());
        vec![
            flag("recorder-dir", dir),
            flag("recorder-rooms", self.rooms),
            flag("recorder-days", self.days),
        ]
    }
}

/// The place that the XDG specification has for what is kept and not precious; `None` without a home.
fn default_dir() -> Option<PathBuf> {
    let named = |variable: &str| {
        std::env::var_os(variable)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    named("XDG_STATE_HOME")
        .or_else(|| named("HOME").map(|home| home.join(".local/state")))
        .map(|state| state.join("innkeeper/recorder"))
}
