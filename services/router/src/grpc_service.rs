//! The router's gRPC service: aborts and its rooms, for tools that speak gRPC.

use std::sync::Arc;

use innkeeper_actors::ports::RouterPort;
use innkeeper_actors::router::RouterNode;
use innkeeper_node::convert::rid_to_abort;
use innkeeper_node::metrics::LEDGER_DEADLINE;
use innkeeper_proto::v1;
use innkeeper_proto::v1::router_server::Router;
use innkeeper_room::ledger::router::AbortAnswer;
use tonic::{Request, Response, Status};

/// The service.
pub struct RouterService {
    node: Arc<RouterNode>,
}

impl RouterService {
    /// In front of a router's tree.
    #[must_use]
    pub const fn new(node: Arc<RouterNode>) -> Self {
        Self { node }
    }
}

#[tonic::async_trait]
impl Router for RouterService {
    async fn abort(&self, request: Request<v1::AbortRequest>) -> Result<Response<v1::AbortReply>, Status> {
        let client = request
            .remote_addr()
            .map_or_else(|| "grpc".to_owned(), |addr| addr.ip().to_string());
        let rid = rid_to_abort(request.into_inner())?;
        match self.node.abort(rid, client).await {
            Some(AbortAnswer::Refused) => Err(Status::resource_exhausted(
                "no place for another abort of a request that has not arrived; retry later",
            )),
            Some(answer) => Ok(Response::new(v1::AbortReply {
                answer: word(answer).to_owned(),
            })),
            None => Err(Status::deadline_exceeded("the router's ledger does not answer")),
        }
    }

    async fn rooms(&self, _request: Request<v1::RoomsRequest>) -> Result<Response<v1::RoomsReply>, Status> {
        let rows = self.node.rows(LEDGER_DEADLINE).await;
        let rows = rows.ok_or_else(|| Status::deadline_exceeded("the router's ledger does not answer"))?;
        let texts: Result<Vec<_>, _> = rows.iter().map(serde_json::to_string).collect();
        let rows = texts.map_err(|error| Status::internal(error.to_string()))?;
        Ok(Response::new(v1::RoomsReply { rows }))
    }
}

const fn word(answer: AbortAnswer) -> &'static str {
    match answer {
        AbortAnswer::Aborted => "aborted",
        AbortAnswer::Accepted => "accepted",
        AbortAnswer::AlreadyEnded => "already ended",
        AbortAnswer::Refused => "refused",
    }
}
