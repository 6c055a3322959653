//! HTTP/1.1 to an engine next door: one connection per request. Closing it is how a request is aborted, and no request ever
//! meets a connection that another has worn out. Every wait has a deadline.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{CONTENT_TYPE, HOST, HeaderName, HeaderValue};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// Longest answer that is read as a whole.
pub const LONGEST_ANSWER: usize = 16 << 20;

/// What went wrong between the worker and its engine.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// No connection.
    #[error("the engine at {at} cannot be reached: {why}; is it running, and is this its address?")]
    Unreachable {
        /// Its address.
        at: Arc<str>,
        /// What the system says.
        why: String,
    },
    /// Nothing came in time.
    #[error("the engine at {at} gave no {what} within {after:?}")]
    Silent {
        /// Its address.
        at: Arc<str>,
        /// What was waited for.
        what: &'static str,
        /// For how long.
        after: Duration,
    },
    /// The connection broke.
    #[error("the connection to the engine at {at} broke: {why}")]
    Broken {
        /// Its address.
        at: Arc<str>,
        /// What the system says.
        why: String,
    },
    /// The answer is longer than any that makes sense.
    #[error("the engine at {at} answered with more than {most} bytes")]
    TooLong {
        /// Its address.
        at: Arc<str>,
        /// The most that is read.
        most: usize,
    },
    /// The request cannot be written.
    #[error("the request to the engine at {at} cannot be made: {why}")]
    Request {
        /// Its address.
        at: Arc<str>,
        /// Why not.
        why: String,
    },
}

/// The text is no address of an engine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{url}` is no address of an engine: write http://host:port (the engine runs next to its worker, without TLS)")]
pub struct TargetError {
    /// The text.
    pub url: String,
}

/// Where an engine listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    host: String,
    port: u16,
    at: Arc<str>,
}

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(url: &str) -> Result<Self, TargetError> {
        let wrong = || TargetError { url: url.to_owned() };
        let rest = url.strip_prefix("http://").ok_or_else(wrong)?;
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = authority.rsplit_once(':').ok_or_else(wrong)?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let plain = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '-' | '_');
        let host = match bare {
            Some(v6) if v6.parse::<std::net::Ipv6Addr>().is_ok() => v6,
            Some(_) => return Err(wrong()),
            None if !host.is_empty() && host.chars().all(plain) => host,
            None => return Err(wrong()),
        };
        let port: u16 = port.parse().ok().filter(|port| *port != 0).ok_or_else(wrong)?;
        Ok(Self {
            host: host.to_owned(),
            port,
            at: authority.into(),
        })
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.at)
    }
}

/// A host as it is written in an address: that of IPv6 in brackets.
pub(crate) fn written(host: &str) -> String {
    match host.parse::<std::net::Ipv6Addr>() {
        Ok(v6) => format!("[{v6}]"),
        Err(_) => host.to_owned(),
    }
}

/// A request.
#[derive(Clone, Debug)]
pub struct Call {
    method: Method,
    path: String,
    headers: Vec<(HeaderName, String)>,
    body: Bytes,
}

impl Call {
    /// A GET.
    #[must_use]
    pub fn get(path: &str) -> Self {
        Self {
            method: Method::GET,
            path: path.to_owned(),
            headers: vec![],
            body: Bytes::new(),
        }
    }

    /// A POST of JSON.
    #[must_use]
    pub fn post(path: &str, json: Vec<u8>) -> Self {
        Self {
            method: Method::POST,
            path: path.to_owned(),
            headers: vec![(CONTENT_TYPE, "application/json".to_owned())],
            body: json.into(),
        }
    }

    /// With a header.
    #[must_use]
    pub fn header(mut self, name: &'static str, value: &str) -> Self {
        self.headers.push((HeaderName::from_static(name), value.to_owned()));
        self
    }
}

/// An answer that was read whole.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The HTTP status.
    pub status: u16,
    /// All of it.
    pub body: Bytes,
}

impl Target {
    /// The host, as it is written in an address: that of IPv6 in brackets.
    #[must_use]
    pub fn host(&self) -> String {
        written(&self.host)
    }

    /// Nothing came in time.
    #[must_use]
    pub fn silent(&self, what: &'static str, after: Duration) -> HttpError {
        HttpError::Silent {
            at: Arc::clone(&self.at),
            what,
            after,
        }
    }

    /// Asks, and reads the whole answer.
    ///
    /// # Errors
    /// [`HttpError`]; the connection is closed then.
    pub async fn call(&self, call: Call, connect: Duration, whole: Duration) -> Result<Reply, HttpError> {
        let asking = async {
            let open = self.open(call, connect, whole).await?;
            let status = open.status();
            let body = open.whole(LONGEST_ANSWER, whole).await?;
            Ok(Reply { status, body })
        };
        self.within(whole, "answer", asking).await?
    }

    /// Asks, and waits for the head of the answer.
    ///
    /// # Errors
    /// [`HttpError`]; the connection is closed then.
    pub async fn open(&self, call: Call, connect: Duration, head: Duration) -> Result<Open, HttpError> {
        let request = self.request(call)?;
        let connecting = TcpStream::connect((self.host.as_str(), self.port));
        let stream = self
            .within(connect, "connection", connecting)
            .await?
            .and_then(|stream| stream.set_nodelay(true).map(|()| stream))
            .map_err(|error| HttpError::Unreachable {
                at: Arc::clone(&self.at),
                why: error.to_string(),
            })?;
        let handshake = http1::handshake(TokioIo::new(stream));
        let (mut sender, connection) = handshake.await.map_err(|error| self.broken(&error))?;
        // The connection's own work; it ends with its owner.
        let owned = Owned(tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to the engine ended");
            }
        }));
        let answering = sender.send_request(request);
        let response = self
            .within(head, "answer", answering)
            .await?
            .map_err(|error| self.broken(&error))?;
        let status = response.status().as_u16();
        Ok(Open {
            status,
            body: response.into_body(),
            target: self.clone(),
            _connection: owned,
        })
    }

    fn request(&self, call: Call) -> Result<Request<Full<Bytes>>, HttpError> {
        let wrong = |why: String| HttpError::Request {
            at: Arc::clone(&self.at),
            why,
        };
        let mut request = Request::builder()
            .method(call.method)
            .uri(call.path)
            .header(HOST, &*self.at);
        for (name, value) in call.headers {
            let value = HeaderValue::from_str(&value).map_err(|error| wrong(error.to_string()))?;
            request = request.header(name, value);
        }
        request
            .body(Full::new(call.body))
            .map_err(|error| wrong(error.to_string()))
    }

    async fn within<T>(
        &self,
        limit: Duration,
        what: &'static str,
        doing: impl Future<Output = T>,
    ) -> Result<T, HttpError> {
        tokio::time::timeout(limit, doing)
            .await
            .map_err(|_| self.silent(what, limit))
    }

    fn broken(&self, error: &hyper::Error) -> HttpError {
        let mut why = error.to_string();
        if let Some(source) = std::error::Error::source(error) {
            why = format!("{why}: {source}");
        }
        HttpError::Broken {
            at: Arc::clone(&self.at),
            why,
        }
    }
}

/// Ends the connection's task, and so the connection, when its owner goes.
struct Owned(JoinHandle<()>);

impl Drop for Owned {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// An answer whose body is still to come. Dropping it closes the connection.
pub struct Open {
    status: u16,
    body: Incoming,
    target: Target,
    _connection: Owned,
}

impl std::fmt::Debug for Open {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Open")
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}

impl Open {
    /// The HTTP status.
    #[must_use]
    pub const fn status(&self) -> u16 {
        self.status
    }

    /// The next bytes; `None` is the end. May be given up and asked again.
    ///
    /// # Errors
    /// [`HttpError`].
    pub async fn chunk(&mut self, limit: Duration) -> Result<Option<Bytes>, HttpError> {
        let target = self.target.clone();
        let next = async {
            loop {
                match self.body.frame().await {
                    None => return Ok(None),
                    Some(Err(error)) => return Err(target.broken(&error)),
                    Some(Ok(frame)) => {
                        // Trailers say nothing to us.
                        if let Ok(data) = frame.into_data() {
                            return Ok(Some(data));
                        }
                    }
                }
            }
        };
        target.within(limit, "part of its answer", next).await?
    }

    /// All that is left, at most `most` bytes, in all within `limit`.
    ///
    /// # Errors
    /// [`HttpError`].
    pub async fn whole(mut self, most: usize, limit: Duration) -> Result<Bytes, HttpError> {
        let target = self.target.clone();
        let reading = async {
            let mut all = Vec::new();
            while let Some(bytes) = self.chunk(limit).await? {
                if all.len() + bytes.len() > most {
                    return Err(HttpError::TooLong {
                        at: Arc::clone(&self.target.at),
                        most,
                    });
                }
                all.extend_from_slice(&bytes);
            }
            Ok(all.into())
        };
        target.within(limit, "end of its answer", reading).await?
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    const SHORT: Duration = Duration::from_millis(200);
    const LONG: Duration = Duration::from_secs(10);

    #[test]
    fn addresses_of_engines() {
        for good in [
            "http://127.0.0.1:8100",
            "http://engine-0.pods:8100/",
            "http://[::1]:8100",
        ] {
            assert!(good.parse::<Target>().is_ok(), "{good}");
        }
        for bad in [
            "127.0.0.1:8100",
            "https://a:1",
            "http://a",
            "http://:1",
            "http://a:0",
            "http://a:99999",
            "http://a:1/v1",
            "http://user@a:1",
            "http://[a]:1",
            "http://a b:1",
            "",
        ] {
            let error = bad.parse::<Target>().expect_err(bad);
            assert!(error.to_string().contains("http://host:port"));
        }
    }

    /// A server of one connection that says `says` once it has been asked, and then whether the client has gone.
    async fn server(says: &'static [u8], hangs: bool) -> (Target, JoinHandle<bool>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let target = format!("http://{}", listener.local_addr().expect("bound"));
        let gone = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a client");
            let mut asked = [0; 4096];
            let _ = stream.read(&mut asked).await;
            let _ = stream.write_all(says).await;
            if !hangs {
                return true;
            }
            // End of file or a reset: the client has closed.
            matches!(stream.read(&mut asked).await, Ok(0) | Err(_))
        });
        (target.parse().expect("an address"), gone)
    }

    #[tokio::test]
    async fn an_answer_is_read_whole() {
        let (target, _) = server(b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\nno", false).await;
        let reply = target.call(Call::get("/x"), LONG, LONG).await.expect("an answer");
        assert_eq!((reply.status, &reply.body[..]), (404, &b"no"[..]));
    }

    #[tokio::test]
    async fn silence_has_a_deadline_and_closes_the_connection() {
        for says in [&b""[..], b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf"] {
            let (target, gone) = server(says, true).await;
            let error = target.call(Call::get("/x"), LONG, SHORT).await.expect_err("silence");
            assert!(matches!(error, HttpError::Silent { .. }), "{error}");
            let gone = tokio::time::timeout(LONG, gone)
                .await
                .expect("in time")
                .expect("no panic");
            assert!(gone);
        }
    }

    #[tokio::test]
    async fn dropping_an_open_answer_closes_its_connection() {
        let (target, gone) = server(
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n",
            true,
        )
        .await;
        let mut open = target
            .open(Call::post("/x", b"{}".to_vec()), LONG, LONG)
            .await
            .expect("a head");
        let first = open.chunk(LONG).await.expect("bytes").expect("no end");
        assert_eq!(&first[..], b"ab");
        let error = open.chunk(SHORT).await.expect_err("nothing more");
        assert!(matches!(error, HttpError::Silent { .. }));
        drop(open);
        assert!(
            tokio::time::timeout(LONG, gone)
                .await
                .expect("in time")
                .expect("no panic")
        );
    }

    #[tokio::test]
    async fn a_cut_answer_and_a_refused_connection_are_told_apart() {
        let (target, _) = server(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf", false).await;
        let error = target.call(Call::get("/x"), LONG, LONG).await.expect_err("cut");
        assert!(matches!(error, HttpError::Broken { .. }), "{error}");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let target: Target = format!("http://{}", listener.local_addr().expect("bound"))
            .parse()
            .expect("an address");
        drop(listener);
        let error = target.call(Call::get("/x"), LONG, LONG).await.expect_err("refused");
        assert!(matches!(error, HttpError::Unreachable { .. }), "{error}");
    }

    #[tokio::test]
    async fn an_endless_answer_is_not_read() {
        let (target, _) = server(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nninebytes", true).await;
        let open = target.open(Call::get("/x"), LONG, LONG).await.expect("a head");
        let error = open.whole(5, LONG).await.expect_err("too long");
        assert!(matches!(error, HttpError::TooLong { .. }), "{error}");
    }

    #[tokio::test]
    async fn a_header_that_cannot_be_written_is_said_so() {
        let target: Target = "http://127.0.0.1:9".parse().expect("an address");
        let call = Call::get("/x").header("x-request-id", "a\r\nb");
        let error = target.call(call, LONG, LONG).await.expect_err("no header");
        assert!(matches!(error, HttpError::Request { .. }), "{error}");
    }
}
