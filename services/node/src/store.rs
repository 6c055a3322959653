//! The lease store that the configuration names.

use std::sync::Arc;

use innkeeper_leases::{EtcdConfig, EtcdStore, EtcdTls, Store};

use crate::config::{ConfigError, StoreConfig};

/// etcd if endpoints are given, else what `embedded` gives: the in-process store that all nodes of a process share. That
/// etcd is away is no error. Within a tokio runtime.
///
/// # Errors
/// [`ConfigError::Wrong`] if etcd cannot be reached like this by anybody: an endpoint that is none, TLS files that do
/// not fit it.
pub fn open(config: &StoreConfig, embedded: impl FnOnce() -> Arc<dyn Store>) -> Result<Arc<dyn Store>, ConfigError> {
    if config.endpoints.is_empty() {
        return Ok(embedded());
    }
    let etcd = EtcdConfig {
        user: config.user.clone(),
        tls: config.ca.clone().map(|ca| EtcdTls {
            ca,
            client: config.client.clone(),
            domain: None,
        }),
        ..EtcdConfig::new(config.endpoints.iter().cloned())
    };
    let store = EtcdStore::new(etcd).map_err(|error| ConfigError::Wrong {
        name: "etcd".to_owned(),
        value: config.endpoints.join(","),
        right: format!("reachable as configured ({error})"),
    })?;
    Ok(Arc::new(store))
}

#[cfg(test)]
mod tests {
    use innkeeper_leases::{MemoryConfig, MemoryStore};

    use super::*;

    #[tokio::test]
    async fn the_configuration_chooses_the_store() {
        let mut asked = false;
        let embedded = || -> Arc<dyn Store> {
            asked = true;
            Arc::new(MemoryStore::new(MemoryConfig::default()))
        };
        let config = StoreConfig::default();
        assert!(open(&config, embedded).is_ok());
        assert!(asked);
        let never = || -> Arc<dyn Store> { panic!("etcd is named") };
        let etcd = StoreConfig {
            endpoints: vec!["http://127.0.0.1:1".into()],
            ..StoreConfig::default()
        };
        assert!(open(&etcd, never).is_ok(), "a store that is away is no error");
        let wrong = StoreConfig {
            endpoints: vec!["http://nowhere".into()],
            ..StoreConfig::default()
        };
        let Err(error) = open(&wrong, never) else {
            panic!("no port is named")
        };
        assert!(error.to_string().contains("--etcd = http://nowhere"), "{error}");
    }
}
