//! A router's tree alone, between workers that are scripts: an end token is the end, whatever happens right behind it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends here")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use innkeeper_actors::clock::{Clock, TokioClock};
use innkeeper_actors::hooks::NoHooks;
use innkeeper_actors::ports::{
    LinkItem, Links, NewRequest, NodeEvent, NodeLink, OpenRoom, RequestEvent, RoomLink, RouterPort, Target, WorkerSays,
};
use innkeeper_actors::router::{RouterNode, RouterParts};
use innkeeper_actors::tasks::Tasks;
use innkeeper_leases::{Member, MemberState, MemoryStore, Store};
use innkeeper_room::ledger::router::{Config, Ledger, Load, OnFailure, Outcome};
use innkeeper_room::{FromWorker, Incarnation, Layout, Millis, Role, Settings, Token, Work};
use tokio::sync::mpsc;

const ROUTER: Incarnation = Incarnation::new(1);
const DECODE: Incarnation = Incarnation::new(3);
const END: u32 = 99;

/// Workers that admit every room. D says the end token, and its connection breaks.
struct Scripts {
    opened: Arc<AtomicU32>,
}

impl Links for Scripts {
    fn open(&self, target: &Target, _open: OpenRoom) -> RoomLink {
        let (to, mut said) = mpsc::channel(64);
        let (says, from) = mpsc::channel(64);
        let message = |message, tokens| LinkItem::Says(WorkerSays { message, tokens });
        let (data_addr, token) = ("d:1".to_owned(), 7);
        says.try_send(message(FromWorker::Admitted { data_addr, token }, vec![]))
            .unwrap();
        if target.incarnation == DECODE {
            self.opened.fetch_add(1, Ordering::Relaxed);
            let end = Token {
                id: END,
                ..Token::default()
            };
            let tokens = FromWorker::Tokens { position: 0, count: 1 };
            says.try_send(message(FromWorker::Committed, vec![])).unwrap();
            says.try_send(message(tokens, vec![end])).unwrap();
            let why = "killed".to_owned();
            says.try_send(LinkItem::Ended { broken: true, why }).unwrap();
        }
        // P's stream stays open for as long as the router wants it.
        tokio::spawn(async move {
            while said.recv().await.is_some() {}
            drop(says);
        });
        RoomLink { to, from }
    }

    fn node(&self, target: &Target) -> NodeLink {
        let (ask, asked) = mpsc::channel(16);
        let (tell, events) = mpsc::channel(16);
        let incarnation = target.incarnation;
        tokio::spawn(async move {
            let load = Load {
                free_pages: 100,
                serving: true,
                ..Load::default()
            };
            while tell.send(NodeEvent::Load { incarnation, load }).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            drop(asked);
        });
        NodeLink { ask, events }
    }

    fn forget(&self, _incarnation: Incarnation) {}
}

fn member(incarnation: u64, role: Role) -> Member {
    Member {
        incarnation: Incarnation::new(incarnation),
        role,
        name: role.to_string(),
        pid: 1,
        http: String::new(),
        control: format!("node-{incarnation}:1"),
        data: String::new(),
        model: "m".into(),
        layout: Layout {
            model: "m".into(),
            page_tokens: 16,
            groups: 1,
            group_token_bytes: 8,
        },
        revision: "1".into(),
        pages: 100,
        context: 1000,
        permits: 16,
        state: MemberState::Serving,
    }
}

#[tokio::test(start_paused = true)]
async fn a_break_right_behind_the_end_token_opens_no_other_room() {
    let settings = Arc::new(Settings::from_ttl(Millis(1000)));
    let store = Arc::new(MemoryStore::default());
    // Two of each, so that there would be another pair to try.
    let workers = [
        member(2, Role::Prefill),
        member(DECODE.get(), Role::Decode),
        member(4, Role::Prefill),
        member(5, Role::Decode),
    ];
    for worker in &workers {
        store.register(worker, Duration::from_secs(600)).await.unwrap();
    }
    let clock = TokioClock::start();
    let config = Config {
        settings: (*settings).clone(),
        incarnation: ROUTER,
        seed: [1, 2],
    };
    let opened = Arc::new(AtomicU32::new(0));
    let parts = RouterParts {
        ledger: Ledger::new(config, clock.now()),
        links: Arc::new(Scripts {
            opened: Arc::clone(&opened),
        }),
        store: Arc::clone(&store) as Arc<dyn Store>,
        member: member(ROUTER.get(), Role::Router),
        clock: Arc::new(clock),
        settings,
        tasks: Tasks::new(),
        hooks: Arc::new(NoHooks),
        first_request: 1,
    };
    let router = RouterNode::start(parts).await.unwrap();
    router.usable().wait_for(|usable| *usable == (2, 2)).await.unwrap();
    // The pair is chosen by load and turn: until D, whose stream says more than its admission, is the chosen one.
    for round in 0..4 {
        let mut stream = router.submit(NewRequest {
            rid: format!("request {round}"),
            client: "test".into(),
            model: None,
            work: Work {
                prompt: (0..10).collect(),
                stop_ids: Arc::new([END]),
                ..Work::default()
            },
            blocks: innkeeper_room::prefix::Blocks::default(),
            max_tokens: 5,
            class: innkeeper_room::Class::Normal,
            on_failure: OnFailure::Migrate,
        });
        tokio::time::sleep(Duration::from_millis(10)).await;
        if opened.load(Ordering::Relaxed) == 0 {
            continue;
        }
        assert!(matches!(stream.events.recv().await, Some(RequestEvent::Tokens(tokens)) if tokens[0].id == END));
        let Some(RequestEvent::Answered { outcome, attempts, .. }) = stream.events.recv().await else {
            panic!("more comes behind the end token")
        };
        assert_eq!((outcome, attempts.0), (Outcome::Done, 1));
        return;
    }
    panic!("the decode worker that speaks was never chosen");
}
