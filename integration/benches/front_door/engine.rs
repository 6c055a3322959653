//! An engine that takes no time: the same bytes for every request, as one JSON body or as a stream of 64 tokens.

use std::convert::Infallible;

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http_body_util::{BodyExt as _, Either, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use crate::load::TOKENS;

pub async fn serve() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("{}", listener.local_addr().unwrap());
    loop {
        let (socket, _) = listener.accept().await.unwrap();
        socket.set_nodelay(true).unwrap();
        let serve =
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(socket), service_fn(answer));
        tokio::spawn(serve);
    }
}

type Body = Either<Full<Bytes>, StreamBody<stream::BoxStream<'static, Result<Frame<Bytes>, Infallible>>>>;

async fn answer(request: Request<Incoming>) -> Result<Response<Body>, hyper::Error> {
    let asked = request.into_body().collect().await?.to_bytes();
    let streams = asked.windows(13).any(|part| part == b"\"stream\":true");
    let (kind, body) = if streams {
        let token = Bytes::from_static(
            b"data: {\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":1,\"model\":\"mock\",\"choices\":[{\"index\":0,\"text\":\"e\",\"logprobs\":null,\"finish_reason\":null}]}\n\n",
        );
        let tokens = std::iter::repeat_n(token, TOKENS).chain([Bytes::from_static(b"data: [DONE]\n\n")]);
        // One write for each token, as an engine has them.
        let frames = stream::iter(tokens).then(|token| async {
            tokio::task::yield_now().await;
            Ok(Frame::data(token))
        });
        ("text/event-stream", Either::Right(StreamBody::new(frames.boxed())))
    } else {
        let body = Bytes::from_static(
            b"{\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":1,\"model\":\"mock\",\"choices\":[{\"index\":0,\"text\":\"etaoin shrdlu eta\",\"logprobs\":null,\"finish_reason\":\"length\"}],\"usage\":{\"prompt_tokens\":32,\"completion_tokens\":16,\"total_tokens\":48}}",
        );
        ("application/json", Either::Left(Full::new(body)))
    };
    Ok(Response::builder().header("content-type", kind).body(body).unwrap())
}
