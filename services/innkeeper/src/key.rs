//! `innkeeper key`: API keys for the file that a router reads.

use std::io::Read as _;
use std::process::ExitCode;

use clap::Subcommand;
use innkeeper_node::config::EXIT_USAGE;
use innkeeper_node::security::{KeyError, key_line, new_key};

/// A key has far less.
const MOST_READ: u64 = 64 << 10;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make a key: prints it, once, and the line for the file that --api-keys-file names.
    New(New),
    /// Read a key of yours from standard input, and print the line for the file.
    Hash(Hash),
}

#[derive(Debug, clap::Args)]
pub(crate) struct New {
    /// Whose key it is: letters, digits, dots, dashes and underscores. Shown in logs and records of rooms.
    #[arg(value_name = "NAME")]
    name: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Hash {
    /// Whose key it is.
    #[arg(value_name = "NAME")]
    name: String,
}

pub(crate) fn run(command: &Command) -> ExitCode {
    let made = match command {
        Command::New(args) => new(&args.name),
        Command::Hash(args) => hash(&args.name),
    };
    match made {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            match error.downcast_ref::<KeyError>() {
                Some(KeyError::Name(_) | KeyError::Key) => EXIT_USAGE.into(),
                Some(_) | None => ExitCode::FAILURE,
            }
        }
    }
}

fn new(name: &str) -> anyhow::Result<String> {
    let key = new_key()?;
    let line = key_line(name, &key)?;
    Ok(format!(
        "key, for the client; it is shown only now: {key}\nline, for the router's file: {line}"
    ))
}

fn hash(name: &str) -> anyhow::Result<String> {
    let mut key = String::new();
    std::io::stdin().take(MOST_READ).read_to_string(&mut key)?;
    Ok(key_line(name, key.trim_end_matches(['\n', '\r']))?)
}
