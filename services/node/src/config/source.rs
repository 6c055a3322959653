//! Flags, environment and file become one clap parse: every flag gets its variable, and the file's values become defaults.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, Command};

use super::{ConfigError, exit_with};

const PREFIX: &str = "INNKEEPER_";
/// Flags that no file can set: those that ask for something, and the file's own name.
const NOT_IN_FILES: [&str; 3] = ["config", "help", "version"];

/// Reads the process's arguments, environment and file. On a wrong value it prints what is wrong and exits with status
/// 64; help and version exit with 0.
#[must_use]
pub fn parse_or_exit<T: clap::Parser>() -> T {
    parse_from(std::env::args_os()).unwrap_or_else(|error| exit_with(&error))
}

/// Like [`parse_or_exit`], from the given arguments (the first one is the program's name), and never exits.
///
/// # Errors
/// [`ConfigError`] names the setting and what would be right; [`ConfigError::Usage`] also carries help and version.
pub fn parse_from<T, I>(args: I) -> Result<T, ConfigError>
where
    T: clap::Parser,
    I: IntoIterator<Item: Into<OsString>>,
{
    let args: Vec<OsString> = args.into_iter().map(Into::into).collect();
    let mut command = with_environment(T::command());
    if let Some(path) = config_path(&args) {
        command = with_file(command, &path)?;
    }
    let mut matches = command.try_get_matches_from_mut(args)?;
    Ok(T::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))?)
}

fn with_environment(command: Command) -> Command {
    command
        .mut_args(|arg| match arg.get_long() {
            Some(long) if arg.get_env().is_none() => {
                let variable = format!("{PREFIX}{}", long.replace('-', "_").to_uppercase());
                arg.env(variable)
            }
            Some(_) | None => arg,
        })
        .mut_subcommands(with_environment)
}

/// The file must be known before clap reads the rest, so its name is looked up by hand.
fn config_path(args: &[OsString]) -> Option<PathBuf> {
    let mut args = args.iter().skip(1).take_while(|arg| *arg != "--");
    while let Some(arg) = args.next() {
        if arg == "--config" {
            return args.next().map(PathBuf::from);
        }
        if let Some(path) = arg.to_str().and_then(|arg| arg.strip_prefix("--config=")) {
            return Some(PathBuf::from(path));
        }
    }
    std::env::var_os("INNKEEPER_CONFIG")
        .filter(|path| !path.is_empty())
        .map(PathBuf::from)
}

fn with_file(mut command: Command, path: &Path) -> Result<Command, ConfigError> {
    let fail = |why: String| ConfigError::File {
        path: path.to_owned(),
        why,
    };
    let text = std::fs::read_to_string(path).map_err(|error| fail(format!("cannot be read: {error}")))?;
    let table: toml::Table = toml::from_str(&text).map_err(|error| fail(format!("is not TOML: {error}")))?;
    let known = known_names(&command);
    for (key, value) in table {
        let name = key.replace('_', "-");
        if !known.contains(&name) {
            return Err(fail(format!("`{key}` is no setting{}", advice(&name, &known))));
        }
        let values = scalars(&value).ok_or_else(|| {
            fail(format!(
                "`{key}` is a {}: it must be a text, a number, true, false, or a list of them",
                value.type_str()
            ))
        })?;
        command = set_default(command, &name, &values);
    }
    Ok(command)
}

fn known_names(command: &Command) -> BTreeSet<String> {
    let own = command.get_arguments().filter_map(Arg::get_long).map(str::to_owned);
    let below = command.get_subcommands().flat_map(known_names);
    own.chain(below)
        .filter(|name| !NOT_IN_FILES.contains(&name.as_str()))
        .collect()
}

fn advice(name: &str, known: &BTreeSet<String>) -> String {
    let shared = |other: &str| name.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count();
    match known.iter().max_by_key(|other| shared(other)) {
        Some(other) if shared(other) >= 4 => format!("; did you mean `{other}`? --help lists all"),
        Some(_) | None => "; --help lists all, a key is a flag's name without the dashes".to_owned(),
    }
}

fn scalars(value: &toml::Value) -> Option<Vec<String>> {
    match value {
        toml::Value::String(text) => Some(vec![text.clone()]),
        toml::Value::Integer(number) => Some(vec![number.to_string()]),
        toml::Value::Float(number) => Some(vec![number.to_string()]),
        toml::Value::Boolean(truth) => Some(vec![truth.to_string()]),
        toml::Value::Array(list) => {
            let each = list.iter().map(|one| if one.is_array() { None } else { scalars(one) });
            each.collect::<Option<Vec<_>>>().map(|lists| lists.concat())
        }
        toml::Value::Datetime(_) | toml::Value::Table(_) => None,
    }
}

/// A flag or a variable goes before a default, which is just what the order asks for.
fn set_default(command: Command, name: &str, values: &[String]) -> Command {
    let of_this_name = |arg: Arg| {
        if arg.get_long() != Some(name) {
            return arg;
        }
        // One value may stand where a list is taken, but a list where one is taken must fail as a value would.
        let values = match arg.get_action() {
            ArgAction::Append => values.to_vec(),
            _ => vec![values.join(",")],
        };
        arg.required(false).default_values(values)
    };
    command
        .mut_args(of_this_name)
        .mut_subcommands(|below| set_default(below, name, values))
}
