//! A worker's tree as a gRPC service: what R's links call.

mod node;
mod room;

use std::pin::Pin;
use std::sync::Arc;

use futures::Stream;
use innkeeper_actors::ports::WorkerPort;
use innkeeper_proto::v1;
use innkeeper_proto::v1::worker_server::{Worker, WorkerServer};
use innkeeper_room::Settings;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::tasks::{Closed, Tasks};

/// Answers ahead of a connection.
const ANSWERS: usize = 64;

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The service of a worker. Each stream is a task of `tasks`: `room_stream` or `node_stream`.
#[derive(Debug)]
pub struct WorkerService<P: ?Sized> {
    port: Arc<P>,
    settings: Settings,
    tasks: Tasks,
}

impl<P: WorkerPort + ?Sized> WorkerService<P> {
    /// The service in front of a worker's tree.
    #[must_use]
    pub const fn new(port: Arc<P>, settings: Settings, tasks: Tasks) -> Self {
        Self { port, settings, tasks }
    }

    /// As tonic serves it.
    #[must_use]
    pub fn into_server(self) -> WorkerServer<Self> {
        WorkerServer::new(self)
    }
}

#[tonic::async_trait]
impl<P: WorkerPort + ?Sized> Worker for WorkerService<P> {
    type RoomStream = Answers<v1::WorkerMessage>;
    type NodeStream = Answers<v1::NodeAnswer>;

    /// Answers at once: the stream's first message is awaited by its task.
    async fn room(&self, request: Request<Streaming<v1::RouterMessage>>) -> Result<Response<Self::RoomStream>, Status> {
        let (says, answers) = tokio::sync::mpsc::channel(ANSWERS);
        let port = Arc::clone(&self.port);
        let stream = room::RoomStream::new(&self.settings, says);
        self.tasks
            .spawn("room_stream", stream.run(port, request.into_inner()))
            .map_err(closed)?;
        Ok(Response::new(Box::pin(ReceiverStream::new(answers))))
    }

    async fn node(&self, request: Request<Streaming<v1::NodeQuestion>>) -> Result<Response<Self::NodeStream>, Status> {
        let (says, answers) = tokio::sync::mpsc::channel(ANSWERS);
        let port = Arc::clone(&self.port);
        let stream = node::NodeStream::new(&self.settings, says);
        self.tasks
            .spawn("node_stream", stream.run(port, request.into_inner()))
            .map_err(closed)?;
        Ok(Response::new(Box::pin(ReceiverStream::new(answers))))
    }
}

fn closed(error: Closed) -> Status {
    Status::unavailable(error.to_string())
}
