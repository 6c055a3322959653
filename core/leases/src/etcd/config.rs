//! How etcd is reached.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use etcd_client::{Certificate, ConnectOptions, Identity, TlsOptions};

/// How etcd is reached, and how long it may take. Needs etcd 3.4 or newer (older ones answer no progress requests).
#[derive(Clone)]
pub struct EtcdConfig {
    /// `http://host:port` or `https://host:port`; one is used at a time, the next one after a failure.
    pub endpoints: Vec<String>,
    /// User and password, if etcd asks for them.
    pub user: Option<(String, String)>,
    /// Needed for `https`.
    pub tls: Option<EtcdTls>,
    /// The deadline of each call, connecting included. 2 s: well above what a healthy etcd needs (under 10 ms, an
    /// election a second), and below the shortest room lease's third, so that a renewal can be tried again in time.
    pub call_timeout: Duration,
    /// How often a watch asks for a sign of life. 1 s: three may be missed within `silence`.
    pub progress_every: Duration,
    /// A watch that heard nothing for this long is lost. 3 s: less than a lease, so that an end is not seen too late to
    /// matter, and more than a short pause of a busy etcd.
    pub silence: Duration,
    /// Events that a watch hands out ahead of its reader.
    pub channel: usize,
}

impl fmt::Debug for EtcdConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the password: this ends up in logs.
        f.debug_struct("EtcdConfig")
            .field("endpoints", &self.endpoints)
            .field("user", &self.user.as_ref().map(|(name, _)| name))
            .field("tls", &self.tls)
            .field("call_timeout", &self.call_timeout)
            .finish_non_exhaustive()
    }
}

/// Files for TLS, read again at each connect, so that renewed certificates need no restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdTls {
    /// The CA that signed etcd's certificate, PEM.
    pub ca: PathBuf,
    /// This node's certificate and its key, PEM, if etcd asks for one.
    pub client: Option<(PathBuf, PathBuf)>,
    /// The name in etcd's certificate, if it is not the endpoint's host.
    pub domain: Option<String>,
}

/// The configuration cannot work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EtcdConfigError {
    /// No endpoint.
    #[error("no etcd endpoint is given; give at least one, as http://host:2379")]
    NoEndpoint,
    /// Not an endpoint.
    #[error("`{0}` is not an etcd endpoint; write http://host:port or https://host:port")]
    Endpoint(String),
    /// https without a CA.
    #[error("`{0}` needs TLS; give the CA that signed etcd's certificate")]
    NoTls(String),
    /// A CA, but plain http.
    #[error("`{0}` is plain http but TLS files are given; write https://, or leave the files out")]
    PlainWithTls(String),
    /// A time that is zero.
    #[error("{0} is zero; give at least a few milliseconds")]
    Zero(&'static str),
    /// A watch would be lost before it asks.
    #[error("silence must be longer than progress-every; about three times as long is good")]
    Silence,
}

impl EtcdConfig {
    /// The defaults, for these endpoints.
    #[must_use]
    pub fn new(endpoints: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            endpoints: endpoints.into_iter().map(Into::into).collect(),
            user: None,
            tls: None,
            call_timeout: Duration::from_secs(2),
            progress_every: Duration::from_secs(1),
            silence: Duration::from_secs(3),
            channel: 256,
        }
    }

    pub(super) fn validate(&self) -> Result<(), EtcdConfigError> {
        if self.endpoints.is_empty() {
            return Err(EtcdConfigError::NoEndpoint);
        }
        for endpoint in &self.endpoints {
            self.validate_endpoint(endpoint)?;
        }
        let times = [
            ("etcd call timeout", self.call_timeout),
            ("progress-every", self.progress_every),
            ("silence", self.silence),
        ];
        if let Some((name, _)) = times.iter().find(|(_, time)| time.is_zero()) {
            return Err(EtcdConfigError::Zero(name));
        }
        if self.silence <= self.progress_every {
            return Err(EtcdConfigError::Silence);
        }
        Ok(())
    }

    fn validate_endpoint(&self, endpoint: &str) -> Result<(), EtcdConfigError> {
        let (host, secure) = match (endpoint.strip_prefix("http://"), endpoint.strip_prefix("https://")) {
            (Some(host), _) => (host, false),
            (None, Some(host)) => (host, true),
            (None, None) => return Err(EtcdConfigError::Endpoint(endpoint.to_owned())),
        };
        let port = host
            .trim_end_matches('/')
            .rsplit_once(':')
            .and_then(|(_, port)| port.parse::<u16>().ok());
        if port.is_none() || host.contains(char::is_whitespace) {
            return Err(EtcdConfigError::Endpoint(endpoint.to_owned()));
        }
        match (secure, &self.tls) {
            (true, None) => Err(EtcdConfigError::NoTls(endpoint.to_owned())),
            (false, Some(_)) => Err(EtcdConfigError::PlainWithTls(endpoint.to_owned())),
            (true, Some(_)) | (false, None) => Ok(()),
        }
    }

    /// What etcd-client needs to connect.
    pub(super) async fn connect_options(&self) -> Result<ConnectOptions, etcd_client::Error> {
        let options = ConnectOptions::new()
            .with_connect_timeout(self.call_timeout)
            // etcd closes connections that ping more often than every 5 s, or without a stream. Stalls are found sooner
            // by the calls' deadlines and the watch's progress requests; this only ends dead connections.
            .with_keep_alive(Duration::from_secs(10), Duration::from_secs(5))
            .with_keep_alive_while_idle(false)
            .with_tcp_keepalive(Duration::from_secs(10))
            // A member that lost its leader answers an error instead of falling silent.
            .with_require_leader(true)
            .with_auto_token_refresh(true);
        let options = match &self.user {
            Some((name, password)) => options.with_user(name, password),
            None => options,
        };
        self.with_tls(options).await
    }

    async fn with_tls(&self, options: ConnectOptions) -> Result<ConnectOptions, etcd_client::Error> {
        let Some(files) = &self.tls else { return Ok(options) };
        let mut tls = TlsOptions::new().ca_certificate(Certificate::from_pem(read(&files.ca).await?));
        if let Some((certificate, key)) = &files.client {
            tls = tls.identity(Identity::from_pem(read(certificate).await?, read(key).await?));
        }
        if let Some(domain) = &files.domain {
            tls = tls.domain_name(domain.clone());
        }
        Ok(options.with_tls(tls))
    }
}

async fn read(path: &std::path::Path) -> Result<Vec<u8>, etcd_client::Error> {
    let file = tokio::fs::read(path).await;
    file.map_err(|error| etcd_client::Error::InvalidArgs(format!("cannot read {}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_printed() {
        let user = Some(("name".to_owned(), "secret".to_owned()));
        let printed = format!(
            "{:?}",
            EtcdConfig {
                user,
                ..EtcdConfig::new(["http://h:1"])
            }
        );
        assert!(printed.contains("name") && !printed.contains("secret"), "{printed}");
    }

    #[test]
    fn what_cannot_work_is_refused_with_advice() {
        let of = |endpoint: &str| EtcdConfig::new([endpoint]).validate();
        assert_eq!(of("http://127.0.0.1:2379"), Ok(()));
        assert_eq!(of("http://[::1]:2379/"), Ok(()));
        for wrong in [
            "127.0.0.1:2379",
            "http://host",
            "ftp://host:1",
            "http://a b:1",
            "http://host:99999",
        ] {
            assert_eq!(of(wrong), Err(EtcdConfigError::Endpoint(wrong.to_owned())));
        }
        assert_eq!(of("https://h:1"), Err(EtcdConfigError::NoTls("https://h:1".to_owned())));
        assert_eq!(
            EtcdConfig::new(Vec::<String>::new()).validate(),
            Err(EtcdConfigError::NoEndpoint)
        );
        let silent = EtcdConfig {
            silence: Duration::from_secs(1),
            ..EtcdConfig::new(["http://h:1"])
        };
        assert_eq!(silent.validate(), Err(EtcdConfigError::Silence));
        let zero = EtcdConfig {
            call_timeout: Duration::ZERO,
            ..EtcdConfig::new(["http://h:1"])
        };
        assert!(zero.validate().unwrap_err().to_string().contains("call timeout"));
    }
}
