//! How much each tenant may ask of a router: flags for everybody, and a file that is read again when it changes.
//!
//! ```toml
//! [default]                      # every tenant that is not named; goes before the flags
//! requests-per-minute = 600
//! tokens-per-minute = 200000     # prompt + the most that may be answered
//! [tenants.batch]
//! tokens-per-minute = 50000
//! highest-class = "low"          # what asks for a more urgent class gets this one
//! ```

use std::collections::BTreeMap;
use std::path::PathBuf;

use innkeeper_room::Class;
use serde::Deserialize;

use super::flag;
use crate::reload::Files;

/// Tenants' limits, as far as they are set.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Tenants' limits")]
pub struct LimitsArgs {
    /// A TOML file with tenants' limits; a router reads it again when it changes. [default: none]
    #[arg(long, value_name = "FILE")]
    pub limits_file: Option<PathBuf>,
    /// Requests that a tenant may make of a router in a minute, unless the file says otherwise; 0: any number. [default: 0]
    #[arg(long, value_name = "N")]
    pub tenant_requests_per_minute: Option<u32>,
    /// Tokens that a tenant may ask for in a minute, prompts and the most that may be answered together, unless the file says
    /// otherwise; 0: any number. [default: 0]
    #[arg(long, value_name = "N")]
    pub tenant_tokens_per_minute: Option<u32>,
    /// Tenants with limits that a router remembers; the one that has asked for nothing for longest is forgotten first.
    /// [default: 10000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_tenants: Option<u32>,
}

/// Tenants' limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitsConfig {
    /// The file.
    pub file: Option<PathBuf>,
    /// What holds where the file says nothing.
    pub default: Limit,
    /// Tenants that are remembered.
    pub max_tenants: u32,
}

/// What one tenant may ask for. 0 is any number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Requests in a minute.
    pub requests: u32,
    /// Tokens in a minute.
    pub tokens: u32,
    /// The most urgent class that it gets.
    pub highest: Class,
}

impl Default for Limit {
    fn default() -> Self {
        Self {
            requests: 0,
            tokens: 0,
            highest: Class::High,
        }
    }
}

/// Who may ask for how much.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    default: Limit,
    tenants: BTreeMap<String, Limit>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct File {
    default: Entry,
    tenants: BTreeMap<String, Entry>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct Entry {
    requests_per_minute: Option<u32>,
    tokens_per_minute: Option<u32>,
    highest_class: Option<String>,
}

impl LimitsArgs {
    /// Tenants' limits.
    #[must_use]
    pub fn resolve(&self) -> LimitsConfig {
        LimitsConfig {
            // An empty variable is none.
            file: self.limits_file.clone().filter(|file| !file.as_os_str().is_empty()),
            default: Limit {
                requests: self.tenant_requests_per_minute.unwrap_or(0),
                tokens: self.tenant_tokens_per_minute.unwrap_or(0),
                ..Limit::default()
            },
            max_tenants: self.max_tenants.unwrap_or(10_000),
        }
    }
}

impl LimitsConfig {
    /// The arguments that give exactly this.
    #[must_use]
    pub fn to_args(&self) -> Vec<String> {
        let file = self.file.iter().map(|file| flag("limits-file", file.display()));
        let numbers = [
            flag("tenant-requests-per-minute", self.default.requests),
            flag("tenant-tokens-per-minute", self.default.tokens),
            flag("max-tenants", self.max_tenants),
        ];
        file.chain(numbers).collect()
    }

    /// What the flags and the file say now; also the file, to follow it.
    ///
    /// # Errors
    /// Names the file and what is wrong with it.
    pub fn open(&self) -> Result<(Limits, Option<Files>), String> {
        let Some(path) = &self.file else {
            return Ok((Limits::of(self.default), None));
        };
        let (file, contents) = Files::open("limits", std::iter::once(path))?;
        let limits = self.read(&contents);
        let limits = limits.map_err(|why| format!("{}: {why}", path.display()))?;
        Ok((limits, Some(file)))
    }

    /// What the flags say, and the file with this content.
    ///
    /// # Errors
    /// What is wrong, for people.
    pub fn read(&self, contents: &[Vec<u8>]) -> Result<Limits, String> {
        let content = contents.first().map_or(&[][..], Vec::as_slice);
        let text = std::str::from_utf8(content).map_err(|_| "it is not UTF-8".to_owned())?;
        Limits::parse(text, self.default)
    }
}

impl Limits {
    /// The same for everybody.
    #[must_use]
    pub const fn of(default: Limit) -> Self {
        Self {
            default,
            tenants: BTreeMap::new(),
        }
    }

    /// Of a file's text; `default` is what holds where it says nothing.
    ///
    /// # Errors
    /// What is wrong, for people.
    pub fn parse(text: &str, default: Limit) -> Result<Self, String> {
        let file: File = toml::from_str(text).map_err(|error| format!("it is not as it must be: {error}"))?;
        let default = file.default.over("default", default)?;
        let tenants = file.tenants.into_iter().map(|(name, entry)| {
            let limit = entry.over(&format!("tenants.{name}"), default)?;
            Ok::<_, String>((name, limit))
        });
        Ok(Self {
            default,
            tenants: tenants.collect::<Result<_, _>>()?,
        })
    }

    /// What a tenant may ask for.
    #[must_use]
    pub fn of_tenant(&self, name: &str) -> Limit {
        self.tenants.get(name).copied().unwrap_or(self.default)
    }

    /// How many tenants are named.
    #[must_use]
    pub fn named(&self) -> usize {
        self.tenants.len()
    }
}

impl Entry {
    fn over(self, at: &str, base: Limit) -> Result<Limit, String> {
        let highest = match self.highest_class {
            None => base.highest,
            Some(label) => Class::from_label(&label)
                .ok_or_else(|| format!("`{at}.highest-class` is `{label}`, and must be `high`, `normal` or `low`"))?,
        };
        Ok(Limit {
            requests: self.requests_per_minute.unwrap_or(base.requests),
            tokens: self.tokens_per_minute.unwrap_or(base.tokens),
            highest,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLAGS: Limit = Limit {
        requests: 7,
        tokens: 70,
        highest: Class::High,
    };

    #[test]
    fn a_tenant_goes_before_the_default_and_that_before_the_flags() {
        let text = "[default]\ntokens-per-minute = 500\nhighest-class = 'normal'\n\
                    [tenants.batch]\nrequests-per-minute = 0\nhighest-class = 'low'\n[tenants.'a b']\ntokens-per-minute = 9\n";
        let limits = Limits::parse(text, FLAGS).unwrap();
        let limit = |requests, tokens, class| Limit {
            requests,
            tokens,
            highest: class,
        };
        assert_eq!(limits.of_tenant("anybody"), limit(7, 500, Class::Normal));
        assert_eq!(limits.of_tenant("batch"), limit(0, 500, Class::Low));
        assert_eq!(limits.of_tenant("a b"), limit(7, 9, Class::Normal));
        assert_eq!(limits.named(), 2);
        assert_eq!(Limits::parse("", FLAGS).unwrap().of_tenant("x"), FLAGS);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, expected) in [
            ("[default]\nrequests-per-hour = 5\n", "requests-per-hour"),
            ("[tenants.a]\nrequests-per-minute = -1\n", "requests-per-minute"),
            ("[tenants.a]\nhighest-class = 'vip'\n", "tenants.a.highest-class"),
            ("[default\n", "not as it must be"),
        ] {
            let error = Limits::parse(text, FLAGS).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        let missing = LimitsConfig {
            file: Some("/does/not/exist".into()),
            default: FLAGS,
            max_tenants: 1,
        };
        assert!(missing.open().unwrap_err().contains("/does/not/exist"));
    }
}
