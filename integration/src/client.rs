use std::time::{Duration, Instant};

use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use serde_json::{Value, json};

use crate::options::Access;

/// No test waits this long for an answer: a hang becomes a failure with a name.
const HANG: Duration = Duration::from_secs(120);

/// A client of a router.
#[derive(Clone, Debug)]
pub struct Client {
    base: String,
    http: reqwest::Client,
    key: Option<String>,
}

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The body.
    pub body: Value,
    /// The headers.
    pub headers: HeaderMap,
}

impl Answer {
    /// The ids of the tokens of the first choice; `return_token_ids` was asked for.
    #[must_use]
    pub fn token_ids(&self) -> Vec<u64> {
        ids(&self.body["choices"][0]["token_ids"]).unwrap_or_else(|| panic!("no token ids: {self:?}"))
    }

    /// `error.code`; empty if there is none.
    #[must_use]
    pub fn code(&self) -> &str {
        self.body["error"]["code"].as_str().unwrap_or_default()
    }
}

/// The body of a greedy completion that says its token ids.
#[must_use]
pub fn completion(model: &str, prompt: impl Into<Value>, max_tokens: u32) -> Value {
    json!({
        "model": model, "prompt": prompt.into(), "max_tokens": max_tokens, "temperature": 0, "ignore_eos": true,
        "return_token_ids": true,
    })
}

impl Client {
    pub(crate) fn new(base: String) -> Self {
        Self::with(base, &Access::default())
    }

    /// A client of the server at `http://address`, that shows nothing.
    #[must_use]
    pub fn of(base: &str) -> Self {
        Self::new(base.to_owned())
    }

    /// The same, that shows this key.
    #[must_use]
    pub fn of_key(base: &str, key: &str) -> Self {
        let key = Some(key.to_owned());
        Self::with(base.to_owned(), &Access { key, ca: None })
    }

    /// The same, that trusts this CA.
    #[must_use]
    pub fn of_ca(base: &str, ca: &std::path::Path) -> Self {
        let ca = Some(ca.to_owned());
        Self::with(base.to_owned(), &Access { key: None, ca })
    }

    /// A client of a router that wants to be shown something, or shows something.
    pub(crate) fn with(base: String, access: &Access) -> Self {
        let mut http = reqwest::Client::builder().no_proxy().tcp_nodelay(true).timeout(HANG);
        if let Some(key) = &access.key {
            let bearer = HeaderValue::from_str(&format!("Bearer {key}"));
            let bearer = bearer.unwrap_or_else(|error| panic!("a key that is none: {error}"));
            http = http.default_headers(HeaderMap::from_iter([(AUTHORIZATION, bearer)]));
        }
        if let Some(ca) = &access.ca {
            let pem = std::fs::read(ca).unwrap_or_else(|error| panic!("{}: {error}", ca.display()));
            let ca = reqwest::Certificate::from_pem(&pem).unwrap_or_else(|error| panic!("no certificate: {error}"));
            http = http.add_root_certificate(ca);
        }
        // A connection of its own per request: closing it is how a client leaves, and an idle one is no leak of a node.
        let http = http.pool_max_idle_per_host(0).build();
        let http = http.unwrap_or_else(|error| panic!("no HTTP client: {error}"));
        Self { base, http, key: None }
    }

    /// The same with an API key, whose tenant it is.
    #[must_use]
    pub fn with_key(&self, key: &str) -> Self {
        Self {
            key: Some(key.to_owned()),
            ..self.clone()
        }
    }

    /// The same, of another address.
    pub(crate) fn at(&self, base: &str) -> Self {
        Self {
            base: base.to_owned(),
            ..self.clone()
        }
    }

    /// `http://address`.
    #[must_use]
    pub fn base(&self) -> &str {
        &self.base
    }

    /// The answer to a GET.
    ///
    /// # Errors
    /// The server did not answer.
    pub async fn get(&self, path: &str) -> reqwest::Result<Answer> {
        read(self.http.get(format!("{}{path}", self.base)).send().await?).await
    }

    /// The answer to a POST of this JSON.
    ///
    /// # Errors
    /// The server did not answer, or its answer broke off.
    pub async fn try_post(&self, path: &str, rid: Option<&str>, body: &Value) -> reqwest::Result<Answer> {
        read(self.request(path, rid, body).send().await?).await
    }

    /// The answer to a POST of plain text.
    ///
    /// # Errors
    /// The server did not answer.
    pub async fn post_text(&self, path: &str, text: &str) -> reqwest::Result<Answer> {
        let request = self.http.post(format!("{}{path}", self.base)).body(text.to_owned());
        read(request.send().await?).await
    }

    /// The answer to a POST of this JSON; panics without one.
    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        let answer = self.try_post(path, None, body).await;
        answer.unwrap_or_else(|error| panic!("{path}: no answer: {error:?}"))
    }

    /// The same under an id of the client's.
    pub async fn post_as(&self, rid: &str, path: &str, body: &Value) -> Answer {
        let answer = self.try_post(path, Some(rid), body).await;
        answer.unwrap_or_else(|error| panic!("{path} {rid}: no answer: {error:?}"))
    }

    /// The same within a trace of the client's: `traceparent` is the header.
    pub async fn post_traced(&self, traceparent: &str, rid: &str, body: &Value) -> Answer {
        let request = self.request("/v1/completions", Some(rid), body);
        let answer = request.header("traceparent", traceparent).send().await;
        let answer = match answer {
            Ok(answer) => read(answer).await,
            Err(error) => Err(error),
        };
        answer.unwrap_or_else(|error| panic!("{rid}: no answer: {error:?}"))
    }

    /// A completion that must succeed.
    pub async fn complete(&self, body: &Value) -> Answer {
        let answer = self.post("/v1/completions", body).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer
    }

    /// Opens a stream: returns once the status is there, which is with the first token.
    ///
    /// # Errors
    /// The server did not answer.
    pub async fn stream(&self, path: &str, rid: Option<&str>, body: &Value) -> reqwest::Result<Stream> {
        let mut body = body.clone();
        body["stream"] = json!(true);
        let response = self.request(path, rid, &body).send().await?;
        Ok(Stream {
            status: response.status().as_u16(),
            response,
            buffer: vec![],
        })
    }

    /// `POST /abort_request`: what it says of the request.
    pub async fn abort(&self, rid: &str) -> String {
        let answer = self.post("/abort_request", &json!({ "rid": rid })).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.body["rid"], rid);
        answer.body["status"]
            .as_str()
            .unwrap_or_else(|| panic!("no status: {answer:?}"))
            .to_owned()
    }

    fn request(&self, path: &str, rid: Option<&str>, body: &Value) -> reqwest::RequestBuilder {
        let mut request = self.http.post(format!("{}{path}", self.base)).json(body);
        if let Some(key) = &self.key {
            request = request.bearer_auth(key);
        }
        match rid {
            Some(rid) => request.header(
                "x-request-id",
                HeaderValue::from_str(rid).unwrap_or(HeaderValue::from_static("?")),
            ),
            None => request,
        }
    }
}

async fn read(response: reqwest::Response) -> reqwest::Result<Answer> {
    let status = response.status().as_u16();
    let headers = response.headers().clone();
    let text = response.text().await?;
    let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
    Ok(Answer { status, body, headers })
}

/// Server-sent events as they come. Dropping it closes the connection.
#[derive(Debug)]
pub struct Stream {
    /// The HTTP status.
    pub status: u16,
    response: reqwest::Response,
    buffer: Vec<u8>,
}

impl Stream {
    /// The next event's data: `None` at `[DONE]`. An event without token, such as usage, comes as well.
    ///
    /// # Errors
    /// The stream broke off before `[DONE]`: by an error of the connection, or (as `Ok(None)` never is) by its end.
    pub async fn next(&mut self) -> Result<Option<Value>, String> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\n\n") {
                let event: Vec<u8> = self.buffer.drain(..end + 2).collect();
                let event = String::from_utf8_lossy(&event).into_owned();
                let Some(data) = event.lines().find_map(|line| line.strip_prefix("data: ")) else {
                    continue;
                };
                if data == "[DONE]" {
                    return Ok(None);
                }
                return serde_json::from_str(data)
                    .map(Some)
                    .map_err(|error| format!("{data}: {error}"));
            }
            match self.response.chunk().await {
                Ok(Some(bytes)) => self.buffer.extend_from_slice(&bytes),
                Ok(None) => return Err("the stream ended without [DONE]".to_owned()),
                Err(error) => return Err(format!("{error:?}")),
            }
        }
    }

    /// All events to the end, within the limit.
    ///
    /// # Errors
    /// As [`Self::next`]; also when the limit passes.
    pub async fn rest(&mut self) -> Result<Vec<Value>, String> {
        let mut events = vec![];
        let deadline = Instant::now() + HANG;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match tokio::time::timeout(left, self.next()).await {
                Ok(Ok(Some(event))) => events.push(event),
                Ok(Ok(None)) => return Ok(events),
                Ok(Err(error)) => return Err(error),
                Err(_) => return Err("the stream did not end".to_owned()),
            }
        }
    }
}

/// A list of token ids.
fn ids(value: &Value) -> Option<Vec<u64>> {
    value.as_array()?.iter().map(Value::as_u64).collect()
}
