//! The public gRPC service: the same answers, limits, errors and ends as the HTTP API has, at the same port.

#![allow(clippy::unwrap_used, reason = "the helpers of tests fail as tests do")]

mod answers;
mod ends;
mod errors;
mod services;

use std::time::Duration;

use innkeeper_integration::Cluster;
use innkeeper_integration::rpc::{Told, gather};
use innkeeper_proto::inference::generate_request::Input;
use innkeeper_proto::inference::{Chat, ChatMessage, GenerateRequest};
use tonic::Status;

const SOON: Duration = Duration::from_secs(20);
const SERVICE: &str = "innkeeper.inference.v1.Inference";

fn chat(content: &str) -> Input {
    Input::Chat(Chat {
        messages: vec![ChatMessage {
            role: "user".to_owned(),
            content: content.to_owned(),
        }],
    })
}

async fn ask(cluster: &Cluster, request: GenerateRequest) -> Result<Told, Status> {
    gather(cluster.inference().await.generate(request).await?.into_inner()).await
}
