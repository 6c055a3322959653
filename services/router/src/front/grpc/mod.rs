//! The same front door over gRPC, for a GRPCRoute or whoever likes types: `innkeeper.inference.v1.Inference`, at the port of
//! the HTTP API.
//!
//! ```text
//! request   a message → the fields of the HTTP API → the same plan
//! reply     the steps of the same session → messages
//! status    errors as statuses with details
//! strict    fields that are not in the contract
//! ```

mod reply;
mod request;
mod status;
mod strict;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request as HttpRequest, State};
use axum::middleware::Next;
use axum::response::Response as HttpResponse;
use axum::{Extension, Router, middleware};
use innkeeper_proto::inference::inference_server::{Inference, InferenceServer};
use innkeeper_proto::inference::{AbortReply, AbortRequest, DESCRIPTORS, GenerateRequest};
use serde_json::{Map, Value};
use tonic::server::NamedService;
use tonic::{Request, Response, Status};

pub use reply::Replies;
pub(crate) use status::refuse;
use status::status;

use super::api::{self, Fields};
use super::auth;
use super::bounds;
use super::error::{ApiError, RoomFailure};
use super::feed::Times;
use super::handlers::{
    abort_request, begin_span, caller, give_back, make_plan, one_more, read_body, so_many_tokens, submit,
};
use super::plan::Caller;
use super::request_id::{self, RequestId};
use super::session::{Record, Step};
use super::state::{FrontState, Route};

/// The name under which the service is routed and asked for its health.
pub const SERVICE: &str = InferenceServer::<Service>::NAME;

/// The service, and reflection that shows it.
///
/// # Errors
/// If the contract's own descriptors cannot be read.
pub fn routes(state: FrontState) -> Result<Router, tonic_reflection::server::Error> {
    let state = Arc::new(state);
    let service = InferenceServer::new(Service {
        state: Arc::clone(&state),
    });
    let service = service.max_decoding_message_size(state.limits.max_body_bytes);
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let inference = Router::new()
        .route_service(&path::<InferenceServer<Service>>(), service)
        .layer(middleware::from_fn_with_state(Arc::clone(&state), prepare))
        // Before anything of the message is read.
        .layer(middleware::from_fn_with_state(state, auth::client));
    Ok(inference
        .merge(route(reflection().build_v1()?))
        // What tools of today still ask for.
        .merge(route(reflection().build_v1alpha()?))
        .layer(middleware::from_fn(bounds::keep))
        .layer(middleware::from_fn(request_id::attach)))
}

/// A gRPC service as a route of its own.
pub fn route<S>(service: S) -> Router
where
    S: tower::Service<HttpRequest, Error = std::convert::Infallible, Response: axum::response::IntoResponse>
        + NamedService
        + Clone
        + Send
        + Sync
        + 'static,
    S::Future: Send + 'static,
{
    Router::new().route_service(&path::<S>(), service)
}

fn path<S: NamedService>() -> String {
    format!("/{}/{{*method}}", S::NAME)
}

/// Takes the one message of a call within its size and time, and looks for fields that nobody would look at.
async fn prepare(
    State(state): State<Arc<FrontState>>,
    Extension(id): Extension<RequestId>,
    mut request: HttpRequest,
    next: Next,
) -> HttpResponse {
    let caller = caller(&request, id);
    request.extensions_mut().insert(caller);
    let (head, body) = request.into_parts();
    // Aborts are no requests that are counted.
    let counted = head.uri.path().ends_with("/Generate");
    let record = counted.then(|| Record::new(&state, Route::Completions, None));
    let taken = read_body(&state, body).await;
    let taken = taken.and_then(|body| strict::check(head.uri.path(), &body).map(|()| body));
    match taken {
        Ok(body) => {
            if let Some(record) = record {
                record.dismiss();
            }
            next.run(HttpRequest::from_parts(head, Body::from(body))).await
        }
        Err(error) => {
            if let Some(record) = record {
                record.refused(&error);
            }
            refuse(error, &head.headers)
        }
    }
}

/// The service.
pub struct Service {
    state: Arc<FrontState>,
}

#[tonic::async_trait]
impl Inference for Service {
    type GenerateStream = Replies;

    async fn generate(&self, request: Request<GenerateRequest>) -> Result<Response<Replies>, Status> {
        let mut caller = who(&request).map_err(|error| status(&error))?;
        let request = request.into_inner();
        let route = request::route(&request);
        let span = begin_span(&self.state, route, &mut caller);
        let record = Record::new(&self.state, route, span.clone());
        let generated = self.start(caller, request, record).await;
        if let Some(span) = span {
            // As over HTTP, whose codes say the same.
            span.status(generated.as_ref().map_or_else(|error| error.status().as_u16(), |_| 200));
        }
        generated.map(Response::new).map_err(|error| status(&error))
    }

    async fn abort(&self, request: Request<AbortRequest>) -> Result<Response<AbortReply>, Status> {
        let aborted = async {
            let client = who(&request)?.client;
            let mut map = Map::new();
            let rid = request.into_inner().rid;
            map.insert("rid".to_owned(), if rid.is_empty() { Value::Null } else { rid.into() });
            let api::AbortRequest { rid } = api::AbortRequest::check(Fields::new(map))?;
            let status = abort_request(&self.state, &rid, client).await?.to_owned();
            Ok(Response::new(AbortReply { status, rid }))
        };
        aborted.await.map_err(|error: ApiError| status(&error))
    }
}

impl Service {
    /// As over HTTP: the call may be dropped at any time, and nothing is said before the first token.
    async fn start(&self, caller: Caller, request: GenerateRequest, record: Record) -> Result<Replies, ApiError> {
        let (tenant, size) = (caller.client.clone(), request::size(&request));
        let plan = move |state: &FrontState, caller: &Caller| request::plan(state, caller, request);
        let planned = match one_more(&self.state, &tenant) {
            Ok(()) => make_plan(&self.state, caller, size, plan).await,
            Err(error) => Err(error),
        };
        let planned = planned.and_then(|plan| so_many_tokens(&self.state, &tenant, &plan).map(|_told| plan));
        let plan = match planned {
            Ok(plan) => plan,
            Err(error) => {
                record.refused(&error);
                return Err(error);
            }
        };
        let tokens = plan.tokens_of_a_choice();
        let (mut session, renderer) = submit(&self.state, plan, record);
        match session.next().await {
            Step::Failed(failure) => {
                let error = failure.into();
                give_back(&self.state, &tenant, tokens, Some(&error));
                Err(error)
            }
            first => Ok(Replies::start(session, renderer, first, Times::of(&self.state))),
        }
    }
}

/// Who asks, as [`prepare`] found.
fn who<T>(request: &Request<T>) -> Result<Caller, ApiError> {
    let caller = request.extensions().get::<Caller>().cloned();
    caller.ok_or_else(|| RoomFailure::internal().into())
}
