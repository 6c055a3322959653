//! The least that can stand between a client and an engine: it looks at nothing and keeps nothing.

use std::sync::Arc;

use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;

type Engine = Client<HttpConnector, Incoming>;

pub async fn serve(engine: &str) {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client: Arc<Engine> = Arc::new(Client::builder(TokioExecutor::new()).build(connector));
    let engine: Arc<str> = engine.into();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("{}", listener.local_addr().unwrap());
    loop {
        let (socket, _) = listener.accept().await.unwrap();
        socket.set_nodelay(true).unwrap();
        let (client, engine) = (Arc::clone(&client), Arc::clone(&engine));
        let service = service_fn(move |request| forward(Arc::clone(&client), Arc::clone(&engine), request));
        tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(socket), service));
    }
}

async fn forward(
    client: Arc<Engine>,
    engine: Arc<str>,
    mut request: Request<Incoming>,
) -> Result<Response<BoxBody<Bytes, hyper::Error>>, hyper::Error> {
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    *request.uri_mut() = format!("http://{engine}{path}").parse::<Uri>().unwrap();
    match client.request(request).await {
        Ok(response) => Ok(response.map(http_body_util::BodyExt::boxed)),
        Err(error) => {
            let body = Full::new(Bytes::from(error.to_string())).map_err(|never| match never {});
            let mut response = Response::new(body.boxed());
            *response.status_mut() = StatusCode::BAD_GATEWAY;
            Ok(response)
        }
    }
}
