//! Who may ask: API keys, certificates, and how many connections there may be.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::store::both;
use super::{ConfigError, flag};

/// Most connections to an HTTP or control address at once, unless it is said otherwise.
const CONNECTIONS: u32 = 4096;
/// For the first bytes of a connection, a TLS handshake, and the head of an HTTP/1 request, unless it is said otherwise.
const HEAD_TIMEOUT_MS: u64 = 30_000;

/// Who may ask, as far as it is set.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Security")]
pub struct SecurityArgs {
    /// A file with the API keys that a router's clients must show, a line for each: `NAME sha256:HEX`, as `innkeeper key new NAME`
    /// prints it. Read again when it changes. [default: none, and without --api-keys everybody may ask]
    #[arg(long, value_name = "FILE")]
    pub api_keys_file: Option<PathBuf>,
    /// A few such lines, with commas between them; as INNKEEPER_API_KEYS. [default: none]
    #[arg(long, value_name = "LINES", value_delimiter = ',', hide_env_values = true)]
    pub api_keys: Vec<String>,
    /// PEM file of the certificate (and those between it and its CA) with which a router serves HTTPS, and gRPC over TLS at the same
    /// port. Read again when it changes. [default: none, no TLS]
    #[arg(long, value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// PEM file of its private key. [default: none]
    #[arg(long, value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
    /// PEM file of this node's certificate on the control plane and the data plane; it must have the DNS name `innkeeper-node`. All
    /// nodes need one, or none. Read again when it changes. [default: none, no TLS between nodes]
    #[arg(long, value_name = "FILE")]
    pub node_cert: Option<PathBuf>,
    /// PEM file of its private key. [default: none]
    #[arg(long, value_name = "FILE")]
    pub node_key: Option<PathBuf>,
    /// PEM file of the CA that signs the certificates of nodes: whoever has none of it is refused at the control plane and the data
    /// plane. [default: none]
    #[arg(long, value_name = "FILE")]
    pub node_ca: Option<PathBuf>,
    /// Most HTTP connections at once; one more is closed at once. [default: 4096]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub http_connections: Option<u32>,
    /// For the first bytes of a connection, a TLS handshake, and the head of an HTTP/1 request, in milliseconds. An HTTP/1 connection
    /// that idles for so long is closed: let proxies in front keep theirs shorter. [default: 30000]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(100..=3_600_000))]
    pub http_head_timeout_ms: Option<u64>,
}

/// Who may ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecurityConfig {
    /// The file with API keys.
    pub api_keys_file: Option<PathBuf>,
    /// Lines as in that file: names and hashes.
    pub api_keys: Vec<String>,
    /// With which a router serves HTTPS.
    pub tls: Option<CertificateFiles>,
    /// With which nodes speak to each other, and the CA of all of them.
    pub node: Option<(CertificateFiles, PathBuf)>,
    /// Most HTTP connections at once.
    pub http_connections: u32,
    /// For a connection's first bytes, a TLS handshake, and the head of an HTTP/1 request.
    pub head_timeout: Duration,
}

/// PEM files of a certificate and of its private key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The certificate, and those between it and its CA.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

impl Default for SecurityConfig {
    fn default() -> Self {
        Self {
            api_keys_file: None,
            api_keys: vec![],
            tls: None,
            node: None,
            http_connections: CONNECTIONS,
            head_timeout: Duration::from_millis(HEAD_TIMEOUT_MS),
        }
    }
}

impl SecurityArgs {
    /// Who may ask. The files are not looked at here.
    ///
    /// # Errors
    /// [`ConfigError::Missing`] for a part of what is only good together.
    pub fn resolve(&self) -> Result<SecurityConfig, ConfigError> {
        both(
            ("tls-cert", self.tls_cert.is_some()),
            ("tls-key", self.tls_key.is_some()),
        )?;
        both(
            ("node-cert", self.node_cert.is_some()),
            ("node-key", self.node_key.is_some()),
        )?;
        both(
            ("node-cert", self.node_cert.is_some()),
            ("node-ca", self.node_ca.is_some()),
        )?;
        let default = SecurityConfig::default();
        let lines = self.api_keys.iter().map(|line| line.trim().to_owned());
        Ok(SecurityConfig {
            api_keys_file: self.api_keys_file.clone(),
            // An empty variable is none.
            api_keys: lines.filter(|line| !line.is_empty()).collect(),
            tls: pair(self.tls_cert.as_deref(), self.tls_key.as_deref()),
            node: pair(self.node_cert.as_deref(), self.node_key.as_deref()).zip(self.node_ca.clone()),
            http_connections: self.http_connections.unwrap_or(default.http_connections),
            head_timeout: self
                .http_head_timeout_ms
                .map_or(default.head_timeout, Duration::from_millis),
        })
    }
}

fn pair(certificate: Option<&Path>, key: Option<&Path>) -> Option<CertificateFiles> {
    let files = certificate.zip(key);
    files.map(|(certificate, key)| CertificateFiles {
        certificate: certificate.to_owned(),
        key: key.to_owned(),
    })
}

impl SecurityConfig {
    /// Whether clients must show a key.
    #[must_use]
    pub const fn wants_keys(&self) -> bool {
        self.api_keys_file.is_some() || !self.api_keys.is_empty()
    }

    /// The arguments that give this, apart from the lines of keys.
    #[must_use]
    pub fn to_args(&self) -> Vec<String> {
        let mut args = vec![
            flag("http-connections", self.http_connections),
            flag("http-head-timeout-ms", self.head_timeout.as_millis()),
        ];
        let mut file = |name: &str, path: Option<&PathBuf>| {
            args.extend(path.map(|path| flag(name, path.display())));
        };
        file("api-keys-file", self.api_keys_file.as_ref());
        let tls = self.tls.as_ref();
        file("tls-cert", tls.map(|files| &files.certificate));
        file("tls-key", tls.map(|files| &files.key));
        let node = self.node.as_ref();
        file("node-cert", node.map(|(files, _)| &files.certificate));
        file("node-key", node.map(|(files, _)| &files.key));
        file("node-ca", node.map(|(_, ca)| ca));
        args
    }

    /// The variable that gives the lines of keys: arguments show in process lists.
    #[must_use]
    pub fn to_env(&self) -> Vec<(&'static str, String)> {
        if self.api_keys.is_empty() {
            return vec![];
        }
        vec![("INNKEEPER_API_KEYS", self.api_keys.join(","))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_what_is_only_good_together_is_refused() {
        let some = |path: &str| Some(PathBuf::from(path));
        let halves = [
            (
                SecurityArgs {
                    tls_cert: some("c"),
                    ..SecurityArgs::default()
                },
                "--tls-key is missing",
            ),
            (
                SecurityArgs {
                    node_key: some("k"),
                    ..SecurityArgs::default()
                },
                "--node-cert is missing",
            ),
            (
                SecurityArgs {
                    node_ca: some("a"),
                    ..SecurityArgs::default()
                },
                "--node-cert is missing",
            ),
            (
                SecurityArgs {
                    node_cert: some("c"),
                    node_key: some("k"),
                    ..SecurityArgs::default()
                },
                "--node-ca is missing",
            ),
        ];
        for (args, expected) in halves {
            let text = args.resolve().unwrap_err().to_string();
            assert!(text.contains(expected), "{text}");
        }
    }

    #[test]
    fn keys_are_lines_and_an_empty_variable_is_none() {
        let args = SecurityArgs {
            api_keys: vec![" a sha256:00 ".to_owned(), String::new()],
            ..SecurityArgs::default()
        };
        let config = args.resolve().unwrap();
        assert_eq!(config.api_keys, ["a sha256:00"]);
        assert!(config.wants_keys());
        assert_eq!(config.to_env(), [("INNKEEPER_API_KEYS", "a sha256:00".to_owned())]);
        assert!(!SecurityConfig::default().wants_keys());
    }
}
