use std::time::Instant;

use innkeeper_proto::v1::worker_server::SERVICE_NAME;
use innkeeper_room::Millis;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use super::*;
use crate::tasks::Tasks;

/// Names the service without one.
struct Named;
impl tonic::server::NamedService for Named {
    const NAME: &'static str = SERVICE_NAME;
}

#[tokio::test]
async fn health_follows_the_node_and_the_server_ends_within_its_limit() {
    let settings = Settings::from_ttl(Millis(1000));
    let served = Connections::new("control", 8);
    let listener = CountingListener::bind(([127, 0, 0, 1], 0).into(), served.clone())
        .await
        .unwrap();
    let addr = listener.addr().unwrap().to_string();
    let (told, service) = health::<Named>().await;
    let (tasks, stop) = (Tasks::new(), CancellationToken::new());
    let (stopped, of_server) = (stop.clone(), settings.clone());
    let limit = Duration::from_millis(200);
    let serving = async move {
        serve(listener, &of_server, Routes::new(service), stopped, limit)
            .await
            .unwrap()
    };
    tasks.spawn_watching("grpc_server", serving).unwrap();

    let called = Connections::new("control_out", 8);
    let mut client = HealthClient::new(channel(&addr, &settings, &called, None).unwrap());
    let mut ask = async |service: &str| {
        let request = HealthCheckRequest {
            service: service.to_owned(),
        };
        client
            .check(request)
            .await
            .map(|answer| answer.into_inner().status())
            .map_err(|status| status.code())
    };
    use tonic_health::pb::health_check_response::ServingStatus::{NotServing, Serving};
    assert_eq!(ask("liveness").await, Ok(Serving));
    for name in ["", "readiness", "innkeeper.v1.Worker"] {
        assert_eq!(ask(name).await, Ok(NotServing), "{name}");
    }
    told.set_ready(true).await;
    assert_eq!(ask("innkeeper.v1.Worker").await, Ok(Serving));
    assert_eq!(ask("other").await, Err(tonic::Code::NotFound));
    assert_eq!((served.count().1, called.count().1), (1, 1));

    // A watch never ends by itself: only the limit ends it.
    let mut watching = HealthClient::new(channel(&addr, &settings, &called, None).unwrap());
    let mut watch = watching
        .watch(HealthCheckRequest { service: String::new() })
        .await
        .unwrap()
        .into_inner();
    assert!(watch.message().await.unwrap().is_some());
    let began = Instant::now();
    stop.cancel();
    assert!(watch.message().await.is_err());
    assert!(
        began.elapsed() >= limit && began.elapsed() < Duration::from_secs(3),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(tasks.shutdown(Duration::from_secs(2)).await, 0);
    drop((client, watching, watch));
}

#[test]
fn an_address_that_is_none_is_refused() {
    let settings = Settings::default();
    let connections = Connections::new("control_out", 1);
    for wrong in ["", "host", "host:port", "a b:1", "host:1/path"] {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let _inside = runtime.enter();
        let error = channel(wrong, &settings, &connections, None).unwrap_err();
        assert!(error.to_string().contains("host:port"), "{error}");
    }
}
