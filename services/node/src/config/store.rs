//! How the lease store is reached.

use std::convert::Infallible;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use super::{ConfigError, flag, wrong};

/// The lease store, as far as it is set.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Lease store")]
pub struct StoreArgs {
    /// etcd endpoints, as http(s)://host:port, several with commas. [default: none, the embedded store]
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    pub etcd: Vec<String>,
    /// User of etcd. [default: none]
    #[arg(long, value_name = "NAME")]
    pub etcd_user: Option<String>,
    /// Password of etcd; better given as INNKEEPER_ETCD_PASSWORD, which no process list shows. [default: none]
    #[arg(long, value_name = "PASSWORD", hide_env_values = true)]
    pub etcd_password: Option<Secret>,
    /// PEM file of the CA that signed etcd's certificate; needed for https. [default: none]
    #[arg(long, value_name = "FILE")]
    pub etcd_ca: Option<PathBuf>,
    /// PEM file of the client certificate for etcd. [default: none]
    #[arg(long, value_name = "FILE")]
    pub etcd_cert: Option<PathBuf>,
    /// PEM file of the client certificate's key. [default: none]
    #[arg(long, value_name = "FILE")]
    pub etcd_key: Option<PathBuf>,
}

/// A text that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl FromStr for Secret {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.to_owned()))
    }
}

impl Secret {
    /// The text itself, for whoever compares it or hands it on.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Whether somebody knows it. Takes the same time for every guess of its length.
    #[must_use]
    pub fn is(&self, guess: &str) -> bool {
        let (own, guess) = (self.0.as_bytes(), guess.as_bytes());
        let differs = own.iter().zip(guess).fold(0, |differs, (a, b)| differs | (a ^ b));
        std::hint::black_box(differs) == 0 && own.len() == guess.len()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// The lease store.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct StoreConfig {
    /// etcd endpoints; none is the embedded store.
    pub endpoints: Vec<String>,
    /// User and password.
    pub user: Option<(String, String)>,
    /// PEM file of the CA.
    pub ca: Option<PathBuf>,
    /// PEM files of the client certificate and its key.
    pub client: Option<(PathBuf, PathBuf)>,
}

impl StoreArgs {
    /// The lease store.
    ///
    /// # Errors
    /// [`ConfigError::Wrong`] for an endpoint that is none, [`ConfigError::Missing`] for half of a pair.
    pub fn resolve(&self) -> Result<StoreConfig, ConfigError> {
        let is_url = |url: &str| url.starts_with("http://") || url.starts_with("https://");
        if let Some(endpoint) = self.etcd.iter().find(|endpoint| !is_url(endpoint)) {
            return Err(wrong(
                "etcd",
                endpoint,
                "http://host:port or https://host:port, several with commas",
            ));
        }
        // Not left to clap: it takes a value of the file for none.
        both(
            ("etcd-user", self.etcd_user.is_some()),
            ("etcd-password", self.etcd_password.is_some()),
        )?;
        both(
            ("etcd-cert", self.etcd_cert.is_some()),
            ("etcd-key", self.etcd_key.is_some()),
        )?;
        let password = self.etcd_password.as_ref().map(|secret| secret.0.clone());
        Ok(StoreConfig {
            endpoints: self.etcd.clone(),
            user: self.etcd_user.clone().zip(password),
            ca: self.etcd_ca.clone(),
            client: self.etcd_cert.clone().zip(self.etcd_key.clone()),
        })
    }
}

impl StoreConfig {
    /// The arguments that give this, apart from user and password.
    #[must_use]
    pub fn to_args(&self) -> Vec<String> {
        let mut args: Vec<String> = self.endpoints.iter().map(|endpoint| flag("etcd", endpoint)).collect();
        args.extend(self.ca.iter().map(|ca| flag("etcd-ca", ca.display())));
        if let Some((certificate, key)) = &self.client {
            args.push(flag("etcd-cert", certificate.display()));
            args.push(flag("etcd-key", key.display()));
        }
        args
    }

    /// The variables that give user and password: arguments show in process lists.
    #[must_use]
    pub fn to_env(&self) -> Vec<(&'static str, String)> {
        self.user
            .iter()
            .flat_map(|(user, password)| {
                [
                    ("INNKEEPER_ETCD_USER", user.clone()),
                    ("INNKEEPER_ETCD_PASSWORD", password.clone()),
                ]
            })
            .collect()
    }
}

impl fmt::Debug for StoreConfig {
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreConfig")
            .field("endpoints", &self.endpoints)
            .field("user", &self.user.as_ref().map(|(user, _)| user))
            .field("ca", &self.ca)
            .field("client", &self.client)
            .finish()
    }
}

pub(super) fn both(one: (&'static str, bool), other: (&'static str, bool)) -> Result<(), ConfigError> {
    let (given, name) = match (one, other) {
        ((given, true), (name, false)) | ((name, false), (given, true)) => (given, name),
        ((_, true), (_, true)) | ((_, false), (_, false)) => return Ok(()),
    };
    Err(ConfigError::Missing {
        name,
        why: format!("--{given} is given, and one is nothing without the other"),
    })
}
