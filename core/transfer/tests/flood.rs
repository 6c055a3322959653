//! Hellos for rooms that nobody has opened: each is answered, none leaves anything behind.

#![allow(
    clippy::unwrap_used,
    reason = "a test; clippy exempts only what is inside of the test functions"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use innkeeper_room::ledger::decode::{Config as LedgerConfig, Effect, Event, Ledger, SessionId};
use innkeeper_room::{Epoch, HelloReply, Incarnation, Moment, RoomId, Settings, SlabError, SlabId, SlabSource};
use innkeeper_transfer::frame::{Body, HEADER, Header, HelloBody, Kind};
use innkeeper_transfer::mem::MemNetwork;
use innkeeper_transfer::{
    Acceptor, Backend, Config, Dial, Hello, MemBackend, RecvEvent, RecvSession, SendEvent, Stats, TcpBackend,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

/// Counts the bytes that live in memory which this thread allocated: the runtimes here have one thread.
struct Counting;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: usize, sign: isize) {
    let bytes = isize::try_from(bytes).unwrap_or(isize::MAX);
    LIVE.with(|live| live.set(live.get() + sign * bytes));
}

#[allow(
    unsafe_code,
    reason = "the trait is unsafe; everything is handed on to the system's allocator"
)]
// SAFETY: as the system's allocator, which does all the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 1);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(layout.size(), -1);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const HELLOS: u64 = 1_000_000;
/// What has to grow to its bound has grown after these.
const FIRST: u64 = 10_000;
/// At once.
const TOGETHER: u64 = 32;
/// What the rest may add: buffers that happen to be larger at the end than at the beginning.
const SLACK: isize = 256 * 1024;

const DECODE: Incarnation = Incarnation::new(2);

/// D's owner of connections: the ledger's answers.
struct Host {
    ledger: Mutex<Ledger>,
}

impl Host {
    fn new() -> Arc<Self> {
        let config = LedgerConfig {
            settings: Settings::default(),
            incarnation: DECODE,
            total_pages: 100,
            page_tokens: 16,
            context: 512,
            engine: innkeeper_room::ledger::EngineKind::Own,
        };
        Arc::new(Self {
            ledger: Mutex::new(Ledger::new(config, Moment(1000))),
        })
    }

    /// Hellos that were refused as of no room.
    fn fenced(&self) -> u64 {
        self.ledger.lock().unwrap().gauges(Moment(1000)).fenced
    }
}

impl Acceptor for Host {
    fn hello(&self, hello: Hello, session: Arc<dyn RecvSession>, _: mpsc::Receiver<RecvEvent>) {
        let event = Event::Hello {
            room: hello.room,
            epoch: hello.epoch,
            token: hello.token,
            prefill: hello.prefill,
            decode: hello.decode,
            session: SessionId(1),
        };
        for effect in self.ledger.lock().unwrap().step(event, Moment(1000)) {
            match effect {
                Effect::Reply { reply, .. } => session.reply(reply, None),
                other => panic!("a hello for no room led to {other:?}"),
            }
        }
    }
}

/// P has nothing.
struct Nothing;

impl SlabSource for Nothing {
    fn read(&self, _: SlabId, _: u32, _: &mut [u8]) -> Result<(), SlabError> {
        Err(SlabError::Closed)
    }
}

fn room(number: u64) -> RoomId {
    RoomId::from_random(number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

#[tokio::test]
async fn a_million_hellos_for_rooms_that_never_come_are_answered_and_leave_nothing() {
    let network = MemNetwork::default();
    let p = MemBackend::new(Config::default(), network.clone());
    let d = MemBackend::new(Config::default(), network);
    let host = Host::new();
    let listener = d.listen("d:1", Arc::<Host>::clone(&host)).await.unwrap();
    let source: Arc<dyn SlabSource> = Arc::new(Nothing);
    let mut before = 0;
    for first in (0..HELLOS).step_by(usize::try_from(TOGETHER).unwrap()) {
        if first >= FIRST && before == 0 {
            before = LIVE.get();
        }
        let dial = |number: u64| Dial {
            addr: "d:1".to_owned(),
            room: room(number),
            epoch: Epoch(1),
            token: number,
            prefill: Incarnation::new(number | 1),
            decode: DECODE,
        };
        let sessions: Vec<_> = (first..first + TOGETHER)
            .map(|number| p.dial(dial(number), Arc::clone(&source)))
            .collect();
        for (_, mut events) in sessions {
            let said = tokio::time::timeout(Duration::from_secs(20), events.recv())
                .await
                .unwrap();
            assert_eq!(said, Some(SendEvent::Reply(HelloReply::Unknown)));
            while events.recv().await.is_some() {}
        }
    }
    assert_eq!(host.fenced(), HELLOS, "every one is counted");
    let grown = LIVE.get() - before;
    assert!(grown < SLACK, "{grown} bytes stay behind {} hellos", HELLOS - FIRST);
    assert_eq!(host.ledger.lock().unwrap().rows(Moment(1000)), []);
    drop(listener);
}

#[tokio::test]
async fn hellos_for_no_room_over_tcp_are_answered_and_closed() {
    const HELLOS: u64 = 2000;
    let d = TcpBackend::new(Config::default());
    let host = Host::new();
    let listener = d.listen("127.0.0.1:0", Arc::<Host>::clone(&host)).await.unwrap();
    for number in 0..HELLOS {
        let mut stream = TcpStream::connect(listener.local_addr()).await.unwrap();
        let body = HelloBody {
            token: number,
            prefill: Incarnation::new(1),
            decode: DECODE,
        };
        stream
            .write_all(&Body::Hello(body).frame(room(number), Epoch(1)))
            .await
            .unwrap();
        let mut said = Vec::new();
        let read = stream.read_to_end(&mut said);
        tokio::time::timeout(Duration::from_secs(20), read)
            .await
            .unwrap()
            .unwrap();
        let head: [u8; HEADER] = said.try_into().unwrap();
        assert_eq!(Header::decode(&head).unwrap().kind, Kind::Unknown);
    }
    assert_eq!(host.fenced(), HELLOS);
    let stats = d.stats();
    tokio::time::timeout(Duration::from_secs(20), async {
        while Stats::get(&stats.connections_in) > 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await
    .unwrap();
}
