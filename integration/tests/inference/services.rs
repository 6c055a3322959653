//! What else is served at that port, and what is not.

use innkeeper_integration::{Cluster, Options, oracle, until};
use innkeeper_proto::inference::AbortRequest;
use tonic::{Code, Request};
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus};
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};

use crate::{SERVICE, SOON};

#[tokio::test]
async fn reflection_and_health_show_the_public_services_and_no_other() {
    let cluster = Cluster::start(Options::mock()).await;
    let channel = cluster.channel().await;
    let mut reflection = ServerReflectionClient::new(channel.clone());
    let asked = |message| ServerReflectionRequest {
        host: String::new(),
        message_request: Some(message),
    };
    let asks = tokio_stream::iter([
        asked(MessageRequest::ListServices(String::new())),
        asked(MessageRequest::FileContainingSymbol(SERVICE.to_owned())),
        asked(MessageRequest::FileContainingSymbol("innkeeper.v1.Worker".to_owned())),
    ]);
    let mut answers = reflection.server_reflection_info(asks).await.unwrap().into_inner();
    let mut next = async || -> ServerReflectionResponse { answers.message().await.unwrap().unwrap() };
    let Some(MessageResponse::ListServicesResponse(list)) = next().await.message_response else {
        panic!("no list")
    };
    let mut names: Vec<_> = list.service.into_iter().map(|service| service.name).collect();
    names.sort_unstable();
    assert_eq!(
        names,
        ["grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection", SERVICE]
    );
    let Some(MessageResponse::FileDescriptorResponse(file)) = next().await.message_response else {
        panic!("no descriptor")
    };
    assert!(!file.file_descriptor_proto.is_empty());
    match answers.message().await {
        Ok(Some(answer)) => assert!(
            matches!(answer.message_response, Some(MessageResponse::ErrorResponse(_))),
            "the control plane is nobody's business: {answer:?}"
        ),
        Ok(None) => panic!("no answer"),
        Err(status) => assert_eq!(status.code(), Code::NotFound),
    }

    let health = HealthClient::new(channel.clone());
    for service in ["", "readiness", "liveness", SERVICE] {
        // What a node knows of itself is told once per report period.
        until(SOON, &format!("`{service}` serves"), || {
            let (mut health, service) = (health.clone(), service.to_owned());
            async move {
                let answer = health.check(HealthCheckRequest { service }).await.unwrap().into_inner();
                match answer.status() {
                    ServingStatus::Serving => Ok(()),
                    other => Err(other),
                }
            }
        })
        .await;
    }

    let mut client = tonic::client::Grpc::new(channel);
    for path in ["/innkeeper.inference.v1.Inference/Dance", "/innkeeper.v1.Router/Rooms"] {
        client.ready().await.unwrap();
        let codec = tonic_prost::ProstCodec::<AbortRequest, AbortRequest>::default();
        let asked = client
            .unary(Request::new(AbortRequest::default()), path.parse().unwrap(), codec)
            .await;
        assert_eq!(asked.unwrap_err().code(), Code::Unimplemented, "{path}");
    }
    drop((client, answers, health));
    oracle(&cluster).await;
}
