//! gRPC health, as Kubernetes and `grpc_health_probe` ask for it.

use tonic::server::NamedService;
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::{Health as HealthApi, HealthServer};
use tonic_health::server::HealthReporter;

/// Asked as `liveness`: the process is as it should be.
const LIVENESS: &str = "liveness";
/// Asked as `readiness`: new work may be sent here.
const READINESS: &str = "readiness";

/// Tells what health checks are answered.
#[derive(Clone, Debug)]
pub struct Health {
    reporter: HealthReporter,
    services: Vec<&'static str>,
}

/// The health service of a node whose own service is `S`, and the handle that tells it. Begins alive and not ready.
pub async fn health<S: NamedService>() -> (Health, HealthServer<impl HealthApi>) {
    let (reporter, server) = tonic_health::server::health_reporter();
    let health = Health {
        reporter,
        services: vec![S::NAME],
    };
    health.set_alive(true).await;
    health.set_ready(false).await;
    (health, server)
}

impl Health {
    /// It is asked for another service too.
    #[must_use]
    pub fn also(mut self, service: &'static str) -> Self {
        self.services.push(service);
        self
    }

    /// Whether the process is as it should be; not so if it is fenced or its ledger does not answer.
    pub async fn set_alive(&self, alive: bool) {
        self.reporter.set_service_status(LIVENESS, status(alive)).await;
    }

    /// Whether new work may be sent here; not so while starting or draining. Answers ``, `readiness` and the services'
    /// own names.
    pub async fn set_ready(&self, ready: bool) {
        for name in ["", READINESS].iter().chain(&self.services) {
            self.reporter.set_service_status(*name, status(ready)).await;
        }
    }
}

const fn status(good: bool) -> ServingStatus {
    if good {
        ServingStatus::Serving
    } else {
        ServingStatus::NotServing
    }
}
