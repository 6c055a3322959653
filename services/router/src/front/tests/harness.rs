//! A router's tree that does what a test says.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, StatusCode};
use axum::response::Response;
use innkeeper_actors::ports::{Answer, NewRequest, RequestControl, RequestEvent, RequestStream, RouterPort};
use innkeeper_engine::text::{ByteTokenizer, Tokenizer};
use innkeeper_node::config::OnFailureRoutes;
use innkeeper_room::ledger::router::{AbortAnswer, Outcome};
use innkeeper_room::{Attempt, Blame, Incarnation, Millis, Reason, RequestKey, RoomId, Settings, Token};
use serde_json::Value;
use tokio::sync::mpsc;
use tower::ServiceExt;

use crate::front::openapi::errors::codes;
use crate::front::{FrontState, Limits, Metrics, Model, RateLimits, RequestEnd, Route, routes};

type Script = Box<dyn Fn(&NewRequest) -> Vec<RequestEvent> + Send + Sync>;

/// What happened to the requests, in order: `satisfied 0`, `stalled 0`, `dropped 0`.
pub(super) type Log = Arc<Mutex<Vec<String>>>;

pub(super) struct FakeRouter {
    pub(super) submitted: Mutex<Vec<NewRequest>>,
    pub(super) aborts: Mutex<Vec<(String, String)>>,
    pub(super) abort_answer: Option<AbortAnswer>,
    pub(super) ends: Mutex<Vec<RequestEnd>>,
    pub(super) log: Log,
    /// The other ends of the streams.
    pub(super) live: Mutex<Vec<mpsc::Sender<RequestEvent>>>,
    pub(super) rates: Arc<RateLimits>,
    script: Script,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct FakeControl {
    at: usize,
    log: Log,
}

impl RequestControl for FakeControl {
    fn satisfied(&self) {
        lock(&self.log).push(format!("satisfied {}", self.at));
    }

    fn stalled(&self) {
        lock(&self.log).push(format!("stalled {}", self.at));
    }
}

impl Drop for FakeControl {
    fn drop(&mut self) {
        lock(&self.log).push(format!("dropped {}", self.at));
    }
}

impl RouterPort for FakeRouter {
    fn submit(&self, request: NewRequest) -> RequestStream {
        let (sender, events) = mpsc::channel(4096);
        for event in (self.script)(&request) {
            sender.try_send(event).expect("the script fits");
        }
        let mut live = lock(&self.live);
        let at = live.len();
        live.push(sender);
        lock(&self.submitted).push(request);
        let control = Box::new(FakeControl {
            at,
            log: Arc::clone(&self.log),
        });
        RequestStream {
            request: RequestKey(at as u64),
            events,
            control,
        }
    }

    fn abort(&self, rid: String, client: String) -> Answer<'_, Option<AbortAnswer>> {
        lock(&self.aborts).push((rid, client));
        Box::pin(async { self.abort_answer })
    }
}

impl Metrics for FakeRouter {
    fn ended(&self, end: &RequestEnd) {
        lock(&self.ends).push(*end);
    }
    fn first_token(&self, _route: Route, _waited: Duration) {}
    fn next_tokens(&self, _route: Route, _gap: Duration, _tokens: usize) {}
}

impl FakeRouter {
    pub(super) fn new(script: impl Fn(&NewRequest) -> Vec<RequestEvent> + Send + Sync + 'static) -> Self {
        Self {
            submitted: Mutex::default(),
            aborts: Mutex::default(),
            abort_answer: Some(AbortAnswer::Accepted),
            ends: Mutex::default(),
            log: Log::default(),
            live: Mutex::default(),
            rates: Arc::new(RateLimits::new(innkeeper_node::config::Limits::default(), 100)),
            script: Box::new(script),
        }
    }

    pub(super) fn log(&self) -> Vec<String> {
        lock(&self.log).clone()
    }

    pub(super) fn outcomes(&self) -> Vec<&'static str> {
        lock(&self.ends).iter().map(|end| end.outcome).collect()
    }

    /// Says something on a stream.
    pub(super) fn say(&self, at: usize, event: RequestEvent) {
        lock(&self.live)[at].try_send(event).expect("the stream is there");
    }
}

pub(super) fn text(text: &str) -> RequestEvent {
    RequestEvent::Tokens(
        ByteTokenizer::new()
            .encode(text, false)
            .expect("encodes")
            .into_iter()
            .map(token)
            .collect(),
    )
}

pub(super) fn token(id: u32) -> Token {
    Token {
        id,
        logprob: -0.5,
        top: vec![(id, -0.5), (u32::from(b'?'), f32::NEG_INFINITY)],
    }
}

pub(super) fn eos() -> RequestEvent {
    RequestEvent::Tokens(vec![token(ByteTokenizer::EOS)])
}

pub(super) fn done() -> RequestEvent {
    RequestEvent::Answered {
        outcome: Outcome::Done,
        room: Some(RoomId::from_random(7)),
        attempts: Attempt(1),
    }
}

pub(super) fn failed(reason: Reason, retry_after: Option<u64>) -> RequestEvent {
    let blame = Blame::Decode(Incarnation::new(0xd));
    let outcome = Outcome::Failed {
        reason,
        blame,
        retry_after: retry_after.map(Millis),
    };
    RequestEvent::Answered {
        outcome,
        room: Some(RoomId::from_random(7)),
        attempts: Attempt(2),
    }
}

/// Refused before there was a room.
pub(super) fn never_had_a_room(reason: Reason) -> RequestEvent {
    RequestEvent::Answered {
        outcome: Outcome::Failed {
            reason,
            blame: Blame::Nobody,
            retry_after: Some(Millis(1000)),
        },
        room: None,
        attempts: Attempt(0),
    }
}

/// A healthy router: every answer is `Hello`.
pub(super) fn healthy() -> Arc<FakeRouter> {
    Arc::new(FakeRouter::new(|_| vec![text("Hel"), text("lo"), eos(), done()]))
}

pub(super) fn state(router: &Arc<FakeRouter>) -> FrontState {
    FrontState {
        port: Arc::clone(router) as Arc<dyn RouterPort>,
        tokenizer: Arc::new(ByteTokenizer::new()),
        model: Model {
            id: "tiny".to_owned(),
            aliases: vec!["org/tiny".to_owned()],
            created: 1,
        },
        limits: Limits {
            max_body_bytes: 4096,
            ..Limits::new(512, 260, 64)
        },
        settings: Settings::default(),
        block_tokens: 16,
        on_failure: OnFailureRoutes::default(),
        rates: Arc::clone(&router.rates),
        keys: None,
        keep_alive: Duration::from_secs(5),
        ready: Arc::new(|| true),
        metrics: Arc::clone(router) as Arc<dyn Metrics>,
    }
}

pub(super) struct Got {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: String,
}

impl Got {
    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// The events of a stream; the last must be `[DONE]`, which is left out.
    pub(super) fn events(&self) -> Vec<Value> {
        let rest = self
            .body
            .strip_suffix("data: [DONE]\n\n")
            .unwrap_or_else(|| panic!("no [DONE]: {}", self.body));
        let blocks = rest
            .split_terminator("\n\n")
            .filter_map(|block| block.strip_prefix("data: "));
        blocks
            .map(|json| serde_json::from_str(json).expect("an event is JSON"))
            .collect()
    }
}

pub(super) async fn send(router: &Arc<FakeRouter>, request: Request<Body>) -> Response {
    routes(state(router)).oneshot(request).await.expect("infallible")
}

pub(super) async fn read(response: Response) -> Got {
    let (parts, body) = response.into_parts();
    let body = axum::body::to_bytes(body, 1 << 20).await.expect("a body");
    let body = String::from_utf8(body.to_vec()).expect("UTF-8");
    documented(parts.status, &body);
    Got {
        status: parts.status,
        headers: parts.headers,
        body,
    }
}

/// Whatever is refused has a code that the OpenAPI document lists under its status.
fn documented(status: StatusCode, body: &str) {
    let error: Value = serde_json::from_str(body).unwrap_or_default();
    if let Some(code) = error["error"]["code"].as_str() {
        let listed = codes(status.as_u16());
        assert!(listed.contains(code), "{code} is not among {listed:?} of {status}");
    }
}

pub(super) fn post(path: &str, body: impl ToString) -> Request<Body> {
    let request = Request::builder()
        .method(Method::POST)
        .uri(path)
        .header("x-request-id", "rid-1");
    request
        .header("content-type", "application/json")
        .body(Body::from(body.to_string()))
        .expect("a request")
}

pub(super) async fn ask(router: &Arc<FakeRouter>, path: &str, body: Value) -> Got {
    read(send(router, post(path, body)).await).await
}

/// A chat request with these fields on top.
pub(super) fn chat(extra: Value) -> Value {
    merge(
        serde_json::json!({"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}),
        extra,
    )
}

/// A completion request with these fields on top.
pub(super) fn completion(extra: Value) -> Value {
    merge(serde_json::json!({"model": "tiny", "prompt": "Hi"}), extra)
}

fn merge(mut base: Value, extra: Value) -> Value {
    let (Value::Object(base_map), Value::Object(extra)) = (&mut base, extra) else {
        panic!("objects")
    };
    base_map.extend(extra);
    base
}
