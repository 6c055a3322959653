//! Orders that are overtaken by the end of their room. Fences are executed at once, past the queue of the room's actor:
//! what they were to end must not begin after them, or nobody would ever end it.

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use innkeeper_actors::decode::DecodeRoom;
use innkeeper_actors::ports::OpenRoom;
use innkeeper_actors::prefill::{Command, Prefill, PrefillRoom};
use innkeeper_actors::tasks::Tasks;
use innkeeper_actors::worker::craft::Craft;
use innkeeper_engine::{
    ClosableSink, DecodeJob, DecodeSink, Engine, EngineError, EngineStatus, Limits, MockConfig, MockEngine, PrefillSink,
};
use innkeeper_room::ledger::prefill;
use innkeeper_room::{
    Attempt, BlockHash, Epoch, Evidence, HelloReply, Incarnation, Layout, Manifest, Millis, Reason, RequestKey, RoomId,
    RoomSpec, Settings, SlabMeta, SlabSource, Work,
};
use innkeeper_transfer::mem::MemNetwork;
use innkeeper_transfer::{Backend, Config, Grant, MemBackend, RecvSession};

const EPOCH: Epoch = Epoch(1);

fn engine() -> Arc<dyn Engine> {
    MockEngine::new(MockConfig {
        total_pages: 64,
        ..MockConfig::default()
    })
}

fn open() -> OpenRoom {
    let spec = RoomSpec {
        room: RoomId::from_random(7),
        request: RequestKey(1),
        attempt: Attempt(1),
        router: Incarnation::new(1),
        prefill: Incarnation::new(2),
        decode: Incarnation::new(3),
        prompt_tokens: 100,
        max_tokens: 10,
        queue_left: Millis(1000),
    };
    let work = Work {
        prompt: (0..100).collect(),
        ..Work::default()
    };
    OpenRoom {
        spec,
        work: Arc::new(work),
        decode_addr: "nowhere".into(),
        token: 1,
    }
}

/// Nothing is taken beside what the prefix cache has, and nothing will be: the engine had time to do what it was told.
fn nothing_runs(engine: &dyn Engine) {
    std::thread::sleep(Duration::from_millis(20));
    let status = engine.status();
    assert_eq!((status.jobs, status.free_pages + status.cached_pages), (0, 64));
}

/// The names under which [`warm`] keeps pages.
const NAMES: [BlockHash; 2] = [BlockHash(1), BlockHash(2)];

/// Hears that a prefill is over.
struct Over(Mutex<mpsc::Sender<bool>>);

impl Over {
    fn say(&self, well: bool) {
        drop(self.0.lock().map(|over| over.send(well)));
    }
}

impl PrefillSink for Over {
    fn sealed(&self, _slab: SlabMeta) {}
    fn computed(&self, _tokens: u32) {}
    fn finished(&self, _manifest: Manifest) {
        self.say(true);
    }
    fn failed(&self, _error: EngineError) {
        self.say(false);
    }
    fn stopped(&self) {
        self.say(false);
    }
}

/// An engine that keeps the first two pages of the prompt that all rooms here have.
fn warm() -> Arc<dyn Engine> {
    let engine = engine();
    let (open, before) = (open(), RoomId::from_random(8));
    let (over, is_over) = mpsc::channel();
    let prefill = engine
        .open(before, open.spec.prompt_tokens)
        .and_then(|()| engine.prefill(before, Arc::clone(&open.work), Arc::new(Over(Mutex::new(over)))));
    assert_eq!(prefill, Ok(()));
    assert_eq!(is_over.recv_timeout(Duration::from_secs(20)), Ok(true));
    engine.close_keeping(before, &[(0, NAMES[0]), (1, NAMES[1])]);
    assert_eq!(engine.status().cached_pages, 2);
    engine
}

fn prefill_room() -> (Arc<PrefillRoom>, Arc<Mutex<Vec<prefill::Event>>>) {
    let heard: Arc<Mutex<Vec<prefill::Event>>> = Arc::default();
    let report = Arc::clone(&heard);
    let tell = move |event| {
        report.lock().is_ok_and(|mut heard| {
            heard.push(event);
            true
        })
    };
    (Arc::new(PrefillRoom::new(open(), Arc::new(tell))), heard)
}

/// An engine that is asked for pages while somebody else gives them back.
struct Slow {
    engine: Arc<dyn Engine>,
    /// Pages are asked for.
    asked: Mutex<Option<mpsc::Sender<()>>>,
    /// They were given back, or nobody could.
    go: Mutex<mpsc::Receiver<()>>,
    calls: Mutex<Vec<&'static str>>,
}

impl Slow {
    fn note(&self, call: &'static str) {
        if let Ok(mut calls) = self.calls.lock() {
            calls.push(call);
        }
    }
}

impl Engine for Slow {
    fn layout(&self) -> &Layout {
        self.engine.layout()
    }
    fn limits(&self) -> Limits {
        self.engine.limits()
    }
    fn open_reusing(&self, room: RoomId, tokens: u32, reuse: &[BlockHash]) -> Result<(), EngineError> {
        drop(self.asked.lock().map(|mut asked| asked.take()));
        drop(self.go.lock().map(|go| go.recv_timeout(Duration::from_millis(300))));
        self.note("open");
        self.engine.open_reusing(room, tokens, reuse)
    }
    fn prefill(&self, room: RoomId, work: Arc<Work>, sink: Arc<dyn PrefillSink>) -> Result<(), EngineError> {
        self.engine.prefill(room, work, sink)
    }
    fn decode(&self, room: RoomId, job: DecodeJob, sink: Arc<dyn DecodeSink>) -> Result<(), EngineError> {
        self.engine.decode(room, job, sink)
    }
    fn cancel(&self, room: RoomId) -> bool {
        self.engine.cancel(room)
    }
    fn close_keeping(&self, room: RoomId, keep: &[(u32, BlockHash)]) -> u32 {
        self.note("close");
        self.engine.close_keeping(room, keep)
    }
    fn evict(&self, names: &[BlockHash]) -> u32 {
        self.engine.evict(names)
    }
    fn source(&self, room: RoomId) -> Option<Arc<dyn SlabSource>> {
        self.engine.source(room)
    }
    fn importer(&self, room: RoomId, tokens: u32) -> Option<Arc<dyn ClosableSink>> {
        self.engine.importer(room, tokens)
    }
    fn status(&self) -> EngineStatus {
        self.engine.status()
    }
    fn shutdown(&self, limit: Duration) -> bool {
        self.engine.shutdown(limit)
    }
}

/// The ledger gives the pages to another room as soon as they are back: if this one took them after that, for however short
/// a time, the other one would find none.
#[test]
fn pages_are_never_taken_behind_the_back_of_who_gives_them_back() {
    type Act = Box<dyn Fn(&Arc<dyn Engine>) + Send + Sync>;
    let ((prefill, _heard), (reusing, _heard_too)) = (prefill_room(), prefill_room());
    let decode = Arc::new(DecodeRoom::new(open(), Arc::new(|_| true)));
    let (p, r, d) = (Arc::clone(&prefill), Arc::clone(&reusing), Arc::clone(&decode));
    let acts: [(Act, Act); 3] = [
        (
            Box::new(move |engine| p.compute(engine, 100, &[])),
            Box::new(move |engine| prefill.close_pages(engine, &[])),
        ),
        (
            Box::new(move |engine| r.compute(engine, 100, &NAMES)),
            Box::new(move |engine| reusing.close_pages(engine, &[])),
        ),
        (
            Box::new(move |engine| d.open_pages(engine, 110)),
            Box::new(move |engine| decode.close_pages(engine)),
        ),
    ];
    for (take, give_back) in acts {
        let ((asked, is_asked), (go, may_go)) = (mpsc::channel::<()>(), mpsc::channel());
        let slow = Arc::new(Slow {
            engine: warm(),
            asked: Mutex::new(Some(asked)),
            go: Mutex::new(may_go),
            calls: Mutex::default(),
        });
        let engine = Arc::clone(&slow) as Arc<dyn Engine>;
        std::thread::scope(|scope| {
            scope.spawn(|| take(&engine));
            // Ends when pages are asked for: the sender is dropped then.
            assert!(is_asked.recv().is_err());
            give_back(&engine);
            assert!(go.send(()).is_ok());
        });
        let calls = slow.calls.lock().map(|calls| calls.clone()).unwrap_or_default();
        assert_eq!(calls.first(), Some(&"open"), "{calls:?}");
        nothing_runs(&*slow.engine);
        assert_eq!(
            slow.engine.status().cached_pages,
            2,
            "what is kept is nobody's to give back"
        );
        // And nobody reads it any more: it is free as soon as it is not to be kept.
        assert_eq!(slow.engine.evict(&NAMES), 2);
        assert_eq!(slow.engine.status().free_pages, 64);
    }
}

/// The same when the pages that were to be reused went first, and another room has them.
#[test]
fn a_cancelled_room_reads_nothing_of_the_prefix_cache_after_that() {
    let engine = warm();
    let (room, heard) = prefill_room();
    room.cancel(&engine);
    room.close_pages(&engine, &[]);
    assert_eq!(engine.evict(&NAMES), 2);
    let other = RoomId::from_random(9);
    assert_eq!(engine.open(other, 64 * engine.layout().page_tokens), Ok(()));
    room.compute(&engine, 100, &NAMES);
    assert_eq!(engine.status().free_pages, 0);
    assert_eq!(engine.close(other), 64);
    nothing_runs(&*engine);
    assert!(room.idle());
    let stopped = prefill::Event::EngineStopped { room: room.id() };
    assert_eq!(heard.lock().map(|heard| heard.clone()).ok(), Some(vec![stopped]));
}

#[test]
fn pages_that_were_given_back_are_not_taken_after_that() {
    let engine = engine();
    let room = DecodeRoom::new(open(), Arc::new(|_| true));
    room.close_pages(&engine);
    room.open_pages(&engine, 110);
    nothing_runs(&*engine);
    assert!(room.idle());
}

#[test]
fn a_job_that_was_cancelled_is_not_submitted_after_that() {
    let engine = engine();
    let (room, heard) = prefill_room();
    room.cancel(&engine);
    room.close_pages(&engine, &[]);
    room.compute(&engine, 100, &[]);
    nothing_runs(&*engine);
    assert!(room.idle());
    let stopped = prefill::Event::EngineStopped { room: room.id() };
    assert_eq!(heard.lock().map(|heard| heard.clone()).ok(), Some(vec![stopped]));
}

struct Session(Mutex<bool>);

impl RecvSession for Session {
    fn reply(&self, _reply: HelloReply, _grant: Option<Grant>) {}
    fn ask_lease_age(&self) {}
    fn committed(&self) {}
    fn fail(&self, _reason: Reason, _evidence: Evidence) {}
    fn kill(&self) {
        if let Ok(mut killed) = self.0.lock() {
            *killed = true;
        }
    }
}

#[test]
fn a_session_whose_epoch_was_fenced_is_not_kept_after_that() {
    let room = DecodeRoom::new(open(), Arc::new(|_| true));
    assert!(!room.kill(EPOCH), "there is none yet");
    let session = Arc::new(Session(Mutex::new(false)));
    assert!(!room.keep(EPOCH, Arc::clone(&session) as Arc<dyn RecvSession>));
    assert!(session.0.lock().is_ok_and(|killed| *killed));
    assert!(room.idle());
}

/// The order to connect may also be lost, with the room's actor: the permit must come back all the same.
#[tokio::test]
async fn a_connection_that_was_never_begun_is_answered_as_over() {
    let settings = Settings::default();
    let backend: Arc<dyn Backend> = Arc::new(MemBackend::new(Config::from(&settings), MemNetwork::default()));
    let craft = Prefill::new(engine(), backend, &settings, Tasks::new());
    let (room, heard) = prefill_room();
    craft.execute(Some(&room), Command::Kill(EPOCH), None).await;
    let over = prefill::Event::Quiesced {
        room: room.id(),
        epoch: EPOCH,
    };
    assert_eq!(heard.lock().map(|heard| heard.clone()).ok(), Some(vec![over.clone()]));
    craft
        .execute(Some(&room), Command::Connect(EPOCH, Millis(0)), None)
        .await;
    assert_eq!(heard.lock().map(|heard| heard.clone()).ok(), Some(vec![over]));
    assert!(room.idle());
}
