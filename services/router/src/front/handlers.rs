//! One function per route.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, Path, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router, middleware};
use innkeeper_node::security::{KnownBy, tenant_number};
use innkeeper_room::ledger::router::AbortAnswer;

use super::answer::{Finish, Piece, Renderer};
use super::api::{AbortRequest, Aborted, ChatRequest, Common, CompletionRequest, Fields, ModelCard, ModelList};
use super::auth::{self, Tenant};
use super::bounds;
use super::error::{ApiError, RoomFailure};
use super::feed::Times;
use super::grpc::refuse;
use super::limits::{RateLimited, Told};
use super::openapi;
use super::plan::{Caller, Plan};
use super::request_id::{self, RequestId, traceparent};
use super::session::{Record, Session, Step};
use super::state::{FrontState, Route, ServerSpan};
use super::stream;

/// Bodies above this are encoded on a thread for blocking work: encoding takes about a millisecond per 10 KiB.
const ENCODE_INLINE: usize = 16 << 10;

/// All routes of the front door, with answers of their own for unknown paths and wrong methods. Serve them with
/// `into_make_service_with_connect_info::<SocketAddr>()`, so that clients without an API key are told apart by address.
pub fn routes(state: FrontState) -> Router {
    let state = Arc::new(state);
    let for_clients = Router::new()
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(completions))
        .route("/v1/models", get(models))
        .route("/v1/models/{*id}", get(model))
        .route("/abort_request", post(abort))
        .route_layer(middleware::from_fn_with_state(Arc::clone(&state), auth::client));
    for_clients
        .route("/openapi.json", get(document))
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn(bounds::keep))
        .layer(middleware::from_fn(request_id::attach))
        .with_state(state)
}

/// `GET /ready`, for a node server that has none of its own: 200 while at least one pair serves, else 503.
pub fn ready_routes(state: &FrontState) -> Router {
    let ready = Arc::clone(&state.ready);
    let answer = move || async move {
        let (status, text) = if ready() {
            (StatusCode::OK, "ready")
        } else {
            (StatusCode::SERVICE_UNAVAILABLE, "not_ready")
        };
        (status, Json(serde_json::json!({ "status": text })))
    };
    Router::new().route("/ready", get(answer))
}

async fn chat(State(state): State<Arc<FrontState>>, Extension(id): Extension<RequestId>, request: Request) -> Response {
    answer(state, id, request, Route::Chat, plan_chat).await
}

/// From the fields of a body to what is asked of the router.
pub(super) fn plan_chat(state: &FrontState, caller: &Caller, fields: Fields) -> Result<Plan, ApiError> {
    let request = ChatRequest::check(fields, &state.limits)?;
    known_model(state, &request.common)?;
    Plan::chat(state, caller, request)
}

async fn completions(
    State(state): State<Arc<FrontState>>,
    Extension(id): Extension<RequestId>,
    request: Request,
) -> Response {
    answer(state, id, request, Route::Completions, plan_completions).await
}

/// As [`plan_chat`].
pub(super) fn plan_completions(state: &FrontState, caller: &Caller, fields: Fields) -> Result<Plan, ApiError> {
    let request = CompletionRequest::check(fields, &state.limits)?;
    known_model(state, &request.common)?;
    Plan::completions(state, caller, request)
}

/// From a request to its answer. The connection may drop this future at any time: the client left.
async fn answer<F>(state: Arc<FrontState>, id: RequestId, request: Request, route: Route, plan: F) -> Response
where
    F: FnOnce(&FrontState, &Caller, Fields) -> Result<Plan, ApiError> + Send + 'static,
{
    let mut caller = caller(&request, id);
    let span = begin_span(&state, route, &mut caller);
    let record = Record::new(&state, route, span.clone());
    let tenant = caller.client.clone();
    // The body is taken either way: a client that still writes would not read why it is refused.
    let body = read_body(&state, request.into_body()).await;
    let planned = match body.and_then(|body| one_more(&state, &tenant).map(|()| body)) {
        Ok(body) => {
            let size = body.len();
            let plan = move |state: &FrontState, caller: &Caller| plan(state, caller, Fields::from_body(&body)?);
            make_plan(&state, caller, size, plan).await
        }
        Err(error) => Err(error),
    };
    let planned = planned.and_then(|plan| {
        let told = so_many_tokens(&state, &tenant, &plan)?;
        Ok((plan, told))
    });
    let response = match planned {
        Ok((plan, told)) => {
            let tokens = plan.tokens_of_a_choice();
            let answered = run(&state, plan, record).await;
            give_back(&state, &tenant, tokens, answered.as_ref().err());
            let mut response = answered.unwrap_or_else(ApiError::into_response);
            told.write(response.headers_mut());
            response
        }
        Err(error) => {
            record.refused(&error);
            error.into_response()
        }
    };
    if let Some(span) = span {
        span.status(response.status().as_u16());
    }
    response
}

/// One more request of this tenant: before its body is parsed.
pub(super) fn one_more(state: &FrontState, tenant: &str) -> Result<(), ApiError> {
    state
        .rates
        .request(tenant)
        .map_err(|limited| limited_by(state, limited))
}

/// So many more tokens of this tenant; what it is told of its limits.
pub(super) fn so_many_tokens(state: &FrontState, tenant: &str, plan: &Plan) -> Result<Told, ApiError> {
    let taken = state.rates.tokens(tenant, plan.tokens());
    taken.map_err(|limited| limited_by(state, limited))
}

fn limited_by(state: &FrontState, limited: RateLimited) -> ApiError {
    let tenants = state.rates.tenants();
    state.metrics.rate_limited(limited.which.label(), tenants);
    ApiError::RateLimited(limited)
}

/// A choice that was refused for want of a worker never cost one anything, and is not counted. What its siblings, which are given
/// up with it, have cost until then nobody knows here: they are.
pub(super) fn give_back(state: &FrontState, tenant: &str, choice: u64, error: Option<&ApiError>) {
    if let Some(ApiError::Room(failure)) = error
        && failure.room.is_none()
    {
        state.rates.give_back(tenant, choice);
    }
}

/// The span of a request that reached its route: what follows of it has this one as its parent.
pub(super) fn begin_span(state: &FrontState, route: Route, caller: &mut Caller) -> Option<Arc<dyn ServerSpan>> {
    let from = caller.traceparent.as_deref();
    let span = state.metrics.span(route, &caller.rid, &state.model.id, from);
    if let Some(span) = &span {
        caller.traceparent = Some(span.traceparent());
    }
    span
}

/// Plans a request of so many bytes.
pub(super) async fn make_plan<F>(
    state: &Arc<FrontState>,
    caller: Caller,
    size: usize,
    plan: F,
) -> Result<Plan, ApiError>
where
    F: FnOnce(&FrontState, &Caller) -> Result<Plan, ApiError> + Send + 'static,
{
    if size <= ENCODE_INLINE {
        return plan(state, &caller);
    }
    let state = Arc::clone(state);
    // Bounded by the size of a body; if the client leaves meanwhile the result is dropped.
    let task = tokio::task::spawn_blocking(move || plan(&state, &caller));
    task.await.unwrap_or_else(|error| {
        tracing::error!(%error, "planning a request died");
        Err(RoomFailure::internal().into())
    })
}

/// Submits the choices of a plan.
pub(super) fn submit(state: &FrontState, plan: Plan, record: Record) -> (Session, Renderer) {
    let prompt_tokens = plan.renderer.prompts.iter().map(|ids| ids.len() as u64).sum();
    let session = Session::submit(state, plan.choices, prompt_tokens, record);
    (session, plan.renderer)
}

/// Submits the choices and waits for the first token, or for all of them.
async fn run(state: &FrontState, plan: Plan, record: Record) -> Result<Response, ApiError> {
    let (count, stream) = (plan.choices.len(), plan.stream);
    let (mut session, renderer) = submit(state, plan, record);
    if stream {
        // The status is held back until there is something to say.
        return match session.next().await {
            Step::Failed(failure) => Err(failure.into()),
            first => Ok(stream::respond(session, renderer, first, Times::of(state))),
        };
    }
    let mut answers: Vec<(Piece, Option<Finish>)> = vec![(Piece::default(), None); count];
    loop {
        match session.next().await {
            Step::Piece { choice, piece } => answers[choice].0.append(piece),
            Step::Finished { choice, finish } => answers[choice].1 = Some(finish),
            Step::Failed(failure) => return Err(failure.into()),
            Step::Done => break,
        }
    }
    let answers = answers
        .into_iter()
        .filter_map(|(piece, finish)| Some((piece, finish?)))
        .collect();
    let body = renderer.whole(answers, session.counted()).map_err(|error| {
        tracing::error!(%error, "an answer could not be written as JSON");
        RoomFailure::internal()
    })?;
    Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response())
}

async fn document(State(state): State<Arc<FrontState>>) -> Json<serde_json::Value> {
    Json(openapi::document(&state))
}

async fn models(State(state): State<Arc<FrontState>>) -> Json<ModelList> {
    Json(ModelList {
        object: "list",
        data: vec![model_card(&state, &state.model.id)],
    })
}

async fn model(State(state): State<Arc<FrontState>>, Path(id): Path<String>) -> Result<Json<ModelCard>, ApiError> {
    if state.model.answers_to(&id) {
        Ok(Json(model_card(&state, &id)))
    } else {
        Err(model_not_found(&state, &id))
    }
}

async fn abort(
    State(state): State<Arc<FrontState>>,
    Extension(id): Extension<RequestId>,
    request: Request,
) -> Result<Json<Aborted>, ApiError> {
    let client = caller(&request, id).client;
    let body = read_body(&state, request.into_body()).await?;
    let AbortRequest { rid } = AbortRequest::check(Fields::from_body(&body)?)?;
    let status = abort_request(&state, &rid, client).await?;
    Ok(Json(Aborted { status, rid }))
}

/// Aborts what lives under a client's id, or will arrive under it: what became of that, in a word.
pub(super) async fn abort_request(state: &FrontState, rid: &str, client: String) -> Result<&'static str, ApiError> {
    // The port answers within its own limit.
    match state.port.abort(rid.to_owned(), client).await {
        Some(AbortAnswer::Accepted) => Ok("accepted"),
        Some(AbortAnswer::Aborted) => Ok("aborted"),
        Some(AbortAnswer::AlreadyEnded) => Ok("already ended"),
        Some(AbortAnswer::Refused) => Err(ApiError::AbortRefused),
        None => Err(ApiError::AbortUnconfirmed),
    }
}

async fn unknown_path(request: Request) -> Response {
    let unknown = ApiError::UnknownPath {
        method: request.method().to_string(),
        path: request.uri().path().to_owned(),
    };
    refuse(unknown, request.headers())
}

async fn wrong_method(request: Request) -> ApiError {
    ApiError::WrongMethod {
        method: request.method().to_string(),
        path: request.uri().path().to_owned(),
    }
}

fn known_model(state: &FrontState, common: &Common) -> Result<(), ApiError> {
    if state.model.answers_to(&common.model) {
        Ok(())
    } else {
        Err(model_not_found(state, &common.model))
    }
}

fn model_not_found(state: &FrontState, asked: &str) -> ApiError {
    ApiError::ModelNotFound {
        asked: asked.chars().take(256).collect(),
        served: state.model.id.clone(),
    }
}

fn model_card(state: &FrontState, id: &str) -> ModelCard {
    ModelCard {
        id: id.to_owned(),
        object: "model",
        created: state.model.created,
        owned_by: "innkeeper",
        root: state.model.id.clone(),
        parent: None,
        max_model_len: state.limits.context,
    }
}

/// The whole body, within its size and time. The time is that of a stalled client: it owes the bytes.
pub(super) async fn read_body(state: &FrontState, body: Body) -> Result<Bytes, ApiError> {
    let limit = state.settings.client_stall;
    let body = bounds::body(body, state.limits.max_body_bytes);
    tokio::time::timeout(limit.duration(), body)
        .await
        .map_err(|_| ApiError::BodyTimeout { limit })?
}

/// Who sent a request: the name of its key, where keys are asked for, else its address. A key that nobody checks says nothing: with
/// another one in each request a client would be as many tenants as it likes.
pub(super) fn caller(request: &Request, id: RequestId) -> Caller {
    let known = request.extensions();
    let key = known.get::<Tenant>().map(|tenant| (KnownBy::Key, tenant.0.to_string()));
    let address = || {
        known
            .get::<ConnectInfo<SocketAddr>>()
            .map(|info| (KnownBy::Address, info.0.ip().to_string()))
    };
    let who = key.or_else(address);
    Caller {
        rid: id.0,
        tenant: who.as_ref().map_or(0, |(by, name)| tenant_number(*by, name)),
        client: who.map_or_else(|| "unknown".to_owned(), |(_, name)| name),
        traceparent: traceparent(request.headers()),
    }
}
