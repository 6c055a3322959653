//! What the tests of links stand on: a worker that does nothing by itself, and a proxy that can fall silent.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use innkeeper_actors::ports::{
    Answer, LinkItem, OpenRoom, RoomInlet, RoomLink, RoomOutlet, RoomPort, Target, WorkerPort, WorkerSays,
};
use innkeeper_room::ledger::router::Load;
use innkeeper_room::{
    Attempt, Evidence, FromWorker, Incarnation, Millis, RequestKey, RoomId, RoomSpec, Sampling, Settings, ToWorker,
    Token, Work,
};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

use super::TonicLinks;
use crate::grpc;
use crate::net::{Connections, CountingListener};
use crate::tasks::Tasks;
use crate::worker_service::WorkerService;

/// No step of a healthy test takes longer.
pub(super) const SOON: Duration = Duration::from_secs(5);
pub(super) const WORKER: Incarnation = Incarnation::new(0xbeef);
pub(super) const KNOWN_ROOM: u64 = 77;

pub(super) async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    tokio::time::timeout(SOON, future)
        .await
        .unwrap_or_else(|_| panic!("{what} did not come within {SOON:?}"))
}

#[derive(Debug, PartialEq)]
pub(super) enum Heard {
    Says(ToWorker),
    Ended,
}

/// A room that was opened at the fake worker.
pub(super) struct FakeRoom {
    pub(super) open: OpenRoom,
    pub(super) heard: mpsc::UnboundedReceiver<Heard>,
    /// Dropping it is the end of what the room says.
    pub(super) say: mpsc::UnboundedSender<WorkerSays>,
}

impl FakeRoom {
    pub(super) fn says(&self, message: FromWorker) {
        self.say
            .send(WorkerSays {
                message,
                tokens: Vec::new(),
            })
            .unwrap();
    }

    pub(super) fn token(&self, position: u32) {
        let tokens = vec![Token {
            id: position,
            ..Token::default()
        }];
        self.say
            .send(WorkerSays {
                message: FromWorker::Tokens { position, count: 1 },
                tokens,
            })
            .unwrap();
    }

    pub(super) async fn hears(&mut self) -> Heard {
        soon("a message of R", self.heard.recv()).await.unwrap()
    }
}

pub(super) struct FakeWorker {
    opened: mpsc::UnboundedSender<FakeRoom>,
    pub(super) loads: watch::Sender<Load>,
}

struct Inlet(mpsc::UnboundedSender<Heard>);
struct Outlet(mpsc::UnboundedReceiver<WorkerSays>);

impl RoomInlet for Inlet {
    fn say(&self, message: ToWorker) {
        let _ = self.0.send(Heard::Says(message));
    }
    fn ended(&self) {
        let _ = self.0.send(Heard::Ended);
    }
}

impl RoomOutlet for Outlet {
    fn next(&mut self) -> Answer<'_, Option<WorkerSays>> {
        Box::pin(self.0.recv())
    }
}

impl WorkerPort for FakeWorker {
    fn incarnation(&self) -> Incarnation {
        WORKER
    }

    fn open(&self, open: OpenRoom) -> RoomPort {
        let (hear, heard) = mpsc::unbounded_channel();
        let (say, said) = mpsc::unbounded_channel();
        let _ = self.opened.send(FakeRoom { open, heard, say });
        RoomPort {
            to_room: Box::new(Inlet(hear)),
            from_room: Box::new(Outlet(said)),
        }
    }

    fn loads(&self) -> watch::Receiver<Load> {
        self.loads.subscribe()
    }

    fn evidence(&self, room: RoomId) -> Answer<'_, Option<Evidence>> {
        Box::pin(async move {
            (room.get() == KNOWN_ROOM).then(|| Evidence {
                waited: Millis(5),
                ..Evidence::default()
            })
        })
    }
}

/// A worker that is served over loopback.
pub(super) struct Served {
    pub(super) addr: SocketAddr,
    pub(super) worker: Arc<FakeWorker>,
    pub(super) rooms: mpsc::UnboundedReceiver<FakeRoom>,
    pub(super) tasks: Tasks,
    pub(super) connections: Connections,
}

impl Served {
    pub(super) async fn start(settings: &Settings, addr: SocketAddr) -> Self {
        let connections = Connections::new("control", 64);
        let listener = CountingListener::bind(addr, connections.clone()).await.unwrap();
        let addr = listener.addr().unwrap();
        let (opened, rooms) = mpsc::unbounded_channel();
        let worker = Arc::new(FakeWorker {
            opened,
            loads: watch::channel(Load::default()).0,
        });
        let tasks = Tasks::new();
        let service = WorkerService::new(Arc::clone(&worker), settings.clone(), tasks.clone()).into_server();
        let (of_server, stop) = (settings.clone(), tasks.token().clone());
        let limit = Duration::from_millis(100);
        let serving = async move {
            grpc::serve(listener, &of_server, Routes::new(service), stop, limit)
                .await
                .unwrap()
        };
        tasks.spawn_watching("grpc_server", serving).unwrap();
        Self {
            addr,
            worker,
            rooms,
            tasks,
            connections,
        }
    }

    pub(super) async fn room(&mut self) -> FakeRoom {
        soon("an Open", self.rooms.recv()).await.unwrap()
    }
}

pub(super) fn any_port() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

pub(super) fn links(settings: &Settings) -> (TonicLinks, Tasks) {
    let tasks = Tasks::new();
    (
        TonicLinks::new(Incarnation::new(1), settings.clone(), tasks.clone()),
        tasks,
    )
}

pub(super) fn target(addr: SocketAddr) -> Target {
    Target {
        incarnation: WORKER,
        control: addr.to_string(),
    }
}

pub(super) fn an_open(room: u64) -> OpenRoom {
    OpenRoom {
        spec: RoomSpec {
            room: RoomId::from_random(room),
            request: RequestKey(room),
            attempt: Attempt(1),
            router: Incarnation::new(1),
            prefill: Incarnation::new(2),
            decode: WORKER,
            prompt_tokens: 2,
            max_tokens: 1000,
            queue_left: Millis(1000),
        },
        work: Arc::new(Work {
            prompt: vec![1, 2].into(),
            sampling: Sampling::default(),
            ..Work::default()
        }),
        decode_addr: String::new(),
        token: 0,
    }
}

pub(super) async fn says(link: &mut RoomLink) -> LinkItem {
    soon("an item of the link", link.from.recv()).await.unwrap()
}

/// The end, after whatever was said before it; nothing may follow.
pub(super) async fn ended(link: &mut RoomLink) -> (bool, String) {
    loop {
        if let LinkItem::Ended { broken, why } = says(link).await {
            assert_eq!(
                soon("the end of the channel", link.from.recv()).await,
                None,
                "nothing follows the end"
            );
            return (broken, why);
        }
    }
}

/// Waits until something holds.
pub(super) async fn until(what: &str, holds: impl Fn() -> bool) {
    let wait = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon(what, wait).await;
}

/// A TCP proxy that forwards until it is told to fall silent: connections stay, nothing moves. So looks a stopped peer.
pub(super) struct Proxy {
    pub(super) addr: SocketAddr,
    pub(super) silent: CancellationToken,
    tasks: Tasks,
}

impl Proxy {
    pub(super) async fn start(upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind(any_port()).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (silent, tasks) = (CancellationToken::new(), Tasks::new());
        let (quiet, of_pumps) = (silent.clone(), tasks.clone());
        let accept = async move {
            while let Ok((near, _)) = listener.accept().await {
                let far = TcpStream::connect(upstream).await.unwrap();
                let quiet = quiet.clone();
                let _ = of_pumps.spawn("pump", pump(near, far, quiet));
            }
        };
        tasks.spawn("accept", accept).unwrap();
        Self { addr, silent, tasks }
    }

    /// Cuts all connections at once.
    pub(super) async fn cut(&self) {
        assert_eq!(self.tasks.shutdown(SOON).await, 0);
    }
}

async fn pump(mut near: TcpStream, mut far: TcpStream, quiet: CancellationToken) {
    let forwarded = tokio::select! {
        biased;
        () = quiet.cancelled() => false,
        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => true,
    };
    if !forwarded {
        // The connections stay open, and nobody reads them.
        std::future::pending::<()>().await;
    }
}
