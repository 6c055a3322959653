//! vLLM behind the worker's engine port, against the stand-in: pages come back when the engine has them back, tickets that nobody
//! read by are given back, and whoever was told that `stopped` follows hears it.

mod kit;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use innkeeper_engine::{DecodeSink, Engine, EngineError, KeepJob, KeepSink, PrefillSink, PullJob, PullSink, Tickets};
use innkeeper_remote::Times;
use innkeeper_remote::driver::{Care, Clock, Watcher};
use innkeeper_remote::engine::{Shape, VllmEngine};
use innkeeper_remote::fence::Budget;
use innkeeper_remote::hook::Hook;
use innkeeper_remote::lease::Lease;
use innkeeper_remote::look::PoolSize;
use innkeeper_remote::standin::{Config, Fabric, Kind, Standin, VOCABULARY, oracle};
use innkeeper_remote::vllm::Vllm;
use innkeeper_room::{Attempt, Manifest, Millis, Moment, Reason, RoomId, SlabMeta, Ticket, Token, Work};
use kit::{LONG, TTL, until};

#[derive(Clone, Debug, PartialEq)]
enum Heard {
    Kept(Ticket),
    Pulled,
    Token(u32, u32),
    Finished,
    Failed(EngineError),
    Stopped,
}

struct Ear(mpsc::Sender<Heard>);

impl Ear {
    fn hears(&self, heard: Heard) {
        drop(self.0.send(heard));
    }
}

impl PrefillSink for Ear {
    fn sealed(&self, _slab: SlabMeta) {}
    fn computed(&self, _tokens: u32) {}
    fn finished(&self, _manifest: Manifest) {
        self.hears(Heard::Finished);
    }
    fn failed(&self, error: EngineError) {
        self.hears(Heard::Failed(error));
    }
    fn stopped(&self) {
        self.hears(Heard::Stopped);
    }
}

impl KeepSink for Ear {
    fn kept(&self, ticket: Ticket, read_within: Millis) {
        assert!(read_within > Millis(0));
        self.hears(Heard::Kept(ticket));
    }
}

impl DecodeSink for Ear {
    fn token(&self, position: u32, token: Token) {
        self.hears(Heard::Token(position, token.id));
    }
    fn finished(&self) {
        self.hears(Heard::Finished);
    }
    fn failed(&self, error: EngineError) {
        self.hears(Heard::Failed(error));
    }
    fn stopped(&self) {
        self.hears(Heard::Stopped);
    }
}

impl PullSink for Ear {
    fn pulled(&self) {
        self.hears(Heard::Pulled);
    }
}

struct Side {
    standin: Standin,
    engine: Arc<VllmEngine>,
}

impl Side {
    async fn start(config: &Config, fabric: &Fabric) -> Self {
        let standin = Standin::start(config.clone(), fabric.clone()).await.expect("a port");
        let target = standin.url().parse().expect("an address");
        let vllm = Vllm::new(target, "tiny".to_owned(), Times::from_ttl(TTL));
        let began = Instant::now();
        let millis = |time: Duration| Millis(u64::try_from(time.as_millis()).expect("short"));
        let clock: Clock = Arc::new(move || Moment(1 + u64::try_from(began.elapsed().as_millis()).expect("short")));
        let watcher = Watcher::new(vllm, millis(TTL), TTL / 20, clock);
        let pool = PoolSize {
            pages: config.pages,
            page_tokens: config.page_tokens,
        };
        let care = Care {
            hook: Hook::None,
            command: vec![],
            url: standin.url(),
            ttl: millis(TTL),
            budget: Budget::default(),
            limit: TTL,
        };
        let shape = Shape::new("tiny", "vllm-0", pool, 1400, VOCABULARY);
        let engine = VllmEngine::new(watcher, shape, Lease(millis(config.lease)), care, None);
        Self { standin, engine }
    }

    /// Computes a prompt; what came of it, and an ear for what comes.
    fn keep(&self, room: RoomId, work: &Arc<Work>) -> mpsc::Receiver<Heard> {
        let (ear, heard) = mpsc::channel();
        let tokens = u32::try_from(work.prompt.len()).expect("short");
        self.engine.open(room, tokens).expect("pages");
        let job = KeepJob {
            work: Arc::clone(work),
            attempt: Attempt(1),
        };
        self.engine.keep(room, job, Arc::new(Ear(ear))).expect("it takes it");
        heard
    }

    fn pull(
        &self,
        room: RoomId,
        work: &Arc<Work>,
        most: u32,
        ticket: Ticket,
        age: Option<Millis>,
    ) -> mpsc::Receiver<Heard> {
        let (ear, heard) = mpsc::channel();
        let job = PullJob {
            work: Arc::clone(work),
            attempt: Attempt(1),
            max_tokens: most,
            ticket,
            ask: Box::new(move || Box::pin(async move { age })),
        };
        self.engine.pull(room, job, Arc::new(Ear(ear))).expect("it takes it");
        heard
    }

    /// What a decode worker does before it is asked to read.
    fn ready(&self, room: RoomId, tokens: u32) {
        self.engine.open(room, tokens).expect("pages");
        self.engine.ready(room);
    }
}

async fn pair(change: impl Fn(&mut Config)) -> (Side, Side) {
    let fabric = Fabric::default();
    let mut config = Config::new(Kind::Vllm);
    change(&mut config);
    (Side::start(&config, &fabric).await, Side::start(&config, &fabric).await)
}

fn work(tokens: u32) -> Arc<Work> {
    Arc::new(Work {
        prompt: (0..tokens).map(|at| at * 7 % VOCABULARY).collect(),
        ..Work::default()
    })
}

/// The next thing that is heard.
async fn next(heard: mpsc::Receiver<Heard>) -> (Heard, mpsc::Receiver<Heard>) {
    tokio::task::spawn_blocking(move || {
        let next = heard.recv_timeout(LONG).expect("something is heard");
        (next, heard)
    })
    .await
    .expect("it was heard")
}

async fn ticket(heard: mpsc::Receiver<Heard>) -> Ticket {
    match next(heard).await.0 {
        Heard::Kept(ticket) => ticket,
        other => panic!("{other:?}"),
    }
}

fn the_room() -> RoomId {
    RoomId::from_random(7)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prompt_is_kept_read_and_answered() {
    let (p, d) = pair(|_| {}).await;
    let work = work(100);
    d.ready(the_room(), 110);
    let ticket = ticket(p.keep(the_room(), &work)).await;
    assert!(p.engine.lease_age(the_room()).is_some_and(|age| age < Millis(10_000)));
    let mut heard = d.pull(the_room(), &work, 5, ticket, None);
    let mut said = vec![];
    while said.last() != Some(&Heard::Finished) {
        let (next, rest) = next(heard).await;
        said.push(next);
        heard = rest;
    }
    let tokens = (0..)
        .zip(oracle(&work.prompt, 5, &[]))
        .map(|(at, id)| Heard::Token(at, id));
    let right: Vec<_> = [Heard::Pulled]
        .into_iter()
        .chain(tokens)
        .chain([Heard::Finished])
        .collect();
    assert_eq!(said, right);
    assert_eq!((p.engine.close(the_room()), d.engine.close(the_room())), (7, 7));
    assert_eq!(p.engine.lease_age(the_room()), None);
    until("all pages are back", async || p.standin.held() + d.standin.held() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_cancels_hears_stopped_once_the_engine_has_its_pages_back() {
    let (p, _d) = pair(|config| config.chunk_time = Duration::from_millis(100)).await;
    let heard = p.keep(the_room(), &work(1000));
    until("it computes", async || p.standin.held() > 0).await;
    assert!(p.engine.cancel(the_room()));
    let (last, heard) = next(heard).await;
    assert_eq!((last, p.standin.held()), (Heard::Stopped, 0), "not before");
    assert!(!p.engine.cancel(the_room()), "there is no job any more");
    assert!(heard.try_recv().is_err(), "and no other word");
}

/// Its reader never came. What decode's engine gives back is back at once, and prefill's side sees it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ticket_that_nobody_reads_by_is_given_back_long_before_its_lease() {
    let (p, d) = pair(|config| config.lease = Duration::from_secs(60)).await;
    let work = work(100);
    d.ready(the_room(), 110);
    let ticket = ticket(p.keep(the_room(), &work)).await;
    let back = Arc::new(AtomicU32::new(0));
    for _ in 0..3 {
        let back = Arc::clone(&back);
        p.engine.give_back(
            the_room(),
            Box::new(move || {
                back.fetch_add(1, Ordering::SeqCst);
            }),
        );
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(back.load(Ordering::SeqCst), 0, "the engine has them");
    assert_eq!(p.standin.kept(), 1);
    d.engine.release(the_room(), &ticket);
    until("it is told", async || back.load(Ordering::SeqCst) > 0).await;
    assert_eq!((p.standin.kept(), p.standin.held()), (0, 0));
    assert_eq!(back.load(Ordering::SeqCst), 1, "once, however often it is asked");
    assert_eq!(d.engine.seen().orphan_tickets, 1);
    // Nothing is kept any more: answered at once.
    let again = Arc::clone(&back);
    p.engine.close(the_room());
    p.engine.give_back(
        the_room(),
        Box::new(move || {
            again.fetch_add(1, Ordering::SeqCst);
        }),
    );
    assert_eq!(back.load(Ordering::SeqCst), 2);
}

/// And where decode's worker is gone too, the lease is what is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_reader_the_lease_gives_the_pages_back() {
    let (p, _d) = pair(|config| {
        config.lease = Duration::from_secs(1);
        config.bugs.metrics_stale = true;
    })
    .await;
    drop(ticket(p.keep(the_room(), &work(100))).await);
    let back = Arc::new(AtomicU32::new(0));
    let told = Arc::clone(&back);
    p.engine.give_back(
        the_room(),
        Box::new(move || {
            told.fetch_add(1, Ordering::SeqCst);
        }),
    );
    until("it is told", async || back.load(Ordering::SeqCst) == 1).await;
    assert_eq!(p.standin.held(), 0);
}

/// Most of the lease was gone when the first token came, and prefill's worker cannot say that it was younger.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unproven_read_fails_with_its_reason_and_gives_no_token() {
    let (p, d) = pair(|config| {
        config.lease = Duration::from_secs(2);
        config.pull_time = Duration::from_millis(1700);
    })
    .await;
    let work = work(100);
    for (age, proven) in [(None, false), (Some(Millis(1900)), false), (Some(Millis(1000)), true)] {
        d.ready(the_room(), 110);
        let heard = d.pull(the_room(), &work, 5, ticket(p.keep(the_room(), &work)).await, age);
        match next(heard).await.0 {
            Heard::Pulled => assert!(proven, "{age:?}"),
            Heard::Failed(EngineError::Remote { reason, .. }) => {
                assert!(!proven && reason == Reason::KvUnproven, "{age:?}: {reason}");
            }
            other => panic!("{other:?}"),
        }
        if d.engine.cancel(the_room()) {
            until("it stops", async || !d.engine.cancel(the_room())).await;
        }
        p.engine.close(the_room());
        d.engine.close(the_room());
    }
    assert_eq!(d.engine.seen().unproven, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_is_refused_with_words() {
    let (p, d) = pair(|_| {}).await;
    let sink = || {
        let (ear, _heard) = mpsc::channel();
        Arc::new(Ear(ear))
    };
    let keep = |work: Arc<Work>| {
        let job = KeepJob {
            work,
            attempt: Attempt(1),
        };
        p.engine.keep(the_room(), job, sink())
    };
    assert_eq!(keep(work(5)), Err(EngineError::Unknown(the_room())), "it has no pages");
    p.engine.open(the_room(), 1400).expect("pages");
    for wrong in [
        work(0),
        work(1400),
        Arc::new(Work {
            prompt: [VOCABULARY].into(),
            ..Work::default()
        }),
    ] {
        assert!(matches!(keep(wrong), Err(EngineError::Input(_))));
    }
    d.ready(the_room(), 110);
    for bytes in [
        &b"x"[..],
        b"v{}",
        b"s{\"host\":\"a\",\"port\":1,\"room\":\"0000000000000007\"}",
    ] {
        let job = PullJob {
            work: work(5),
            attempt: Attempt(1),
            max_tokens: 3,
            ticket: Ticket::new(bytes.to_vec()).expect("short"),
            ask: Box::new(|| Box::pin(async { None })),
        };
        assert!(matches!(
            d.engine.pull(the_room(), job, sink()),
            Err(EngineError::Input(_))
        ));
    }
    assert_eq!(d.engine.status().jobs, 0);
}

/// What asks whether pages are back is no room: it must not make a silent engine look as if it had just been asked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_hangs_is_seen_to_also_while_rooms_settle() {
    let (p, _d) = pair(|config| config.chunk_time = Duration::from_millis(100)).await;
    let heard = p.keep(the_room(), &work(1000));
    until("it computes", async || p.standin.held() > 0).await;
    p.standin.freeze(true);
    assert!(p.engine.cancel(the_room()));
    until("it is silent for a TTL", async || {
        p.engine.status().in_hand.is_some_and(|silent| silent >= TTL)
    })
    .await;
    assert!(heard.try_recv().is_err(), "its pages are not back");
    p.standin.freeze(false);
    assert_eq!(next(heard).await.0, Heard::Stopped);
    until("it owes nothing", async || p.engine.status().in_hand.is_none()).await;
}
