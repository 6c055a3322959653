//! Orders that are overtaken by the end of their room. Fences are executed at once, past the queue of the room's actor:
//! what they were to end must not begin after them, or nobody would ever end it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use innkeeper_actors::decode::DecodeRoom;
use innkeeper_actors::ports::OpenRoom;
use innkeeper_actors::prefill::{Command, Prefill, PrefillRoom};
use innkeeper_actors::tasks::Tasks;
use innkeeper_actors::worker::craft::Craft;
use innkeeper_engine::{Engine, MockConfig, MockEngine};
use innkeeper_room::ledger::prefill;
use innkeeper_room::{
    Attempt, Epoch, Evidence, HelloReply, Incarnation, Millis, Reason, RequestKey, RoomId, RoomSpec, Settings, Work,
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

/// Nothing is taken, and nothing will be: the engine had time to do what it was told.
fn nothing_runs(engine: &dyn Engine) {
    std::thread::sleep(Duration::from_millis(20));
    let status = engine.status();
    assert_eq!((status.jobs, status.free_pages), (0, 64));
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
    room.close_pages(&engine);
    room.compute(&engine, 100);
    nothing_runs(&*engine);
    assert!(room.idle());
    let stopped = prefill::Event::EngineStopped { room: room.id() };
    assert_eq!(heard.lock().map(|heard| heard.clone()).ok(), Some(vec![stopped]));
}

struct Session(Mutex<bool>);

impl RecvSession for Session {
    fn reply(&self, _reply: HelloReply, _grant: Option<Grant>) {}
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
    let craft = Prefill::new(engine(), backend, Tasks::new());
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
