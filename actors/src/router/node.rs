//! A router's tree as a whole: what the services start, ask and stop.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use innkeeper_leases::{Member, MemberState, Store};
use innkeeper_room::ledger::router::{AbortAnswer, Event, Ledger, MemberView, Policies};
use innkeeper_room::ledger::{Gauges, RoomRow};
use innkeeper_room::{RequestKey, RoomId, Settings};
use ractor::{Actor, ActorRef};
use tokio::sync::{mpsc, oneshot, watch};

use crate::clock::Clock;
use crate::hooks::Hooks;
use crate::keeper::KeeperMessage;
use crate::ports::{Answer, Links, NewRequest, RequestControl, RequestStream, RouterPort};
use crate::root::{self, Root, RootMessage};
use crate::router::room::{Shared, Tell};
use crate::router::rooms::{Parts, Rooms, RoomsMessage, Show};
use crate::tasks::Tasks;
use crate::worker::node::{StartError, adopted, keeper_child, watch_child};

/// What a router's tree is made of.
pub struct RouterParts {
    /// The ledger.
    pub ledger: Ledger,
    /// The links to workers.
    pub links: Arc<dyn Links>,
    /// The lease store.
    pub store: Arc<dyn Store>,
    /// The node's record.
    pub member: Member,
    /// The node's clock.
    pub clock: Arc<dyn Clock>,
    /// The protocol's bounds.
    pub settings: Arc<Settings>,
    /// Where tasks live.
    pub tasks: Tasks,
    /// Who hears what ended.
    pub hooks: Arc<dyn Hooks>,
    /// Where request numbers begin: random from the OS, so that those of two lives do not meet.
    pub first_request: u64,
}

/// A running router.
pub struct RouterNode {
    rooms: ActorRef<RoomsMessage>,
    root: ActorRef<RootMessage>,
    keeper: Arc<Mutex<Option<ActorRef<KeeperMessage>>>>,
    settings: Arc<Settings>,
    next_request: Arc<AtomicU64>,
    drained: watch::Receiver<bool>,
    zombies: watch::Receiver<u32>,
    usable: watch::Receiver<(usize, usize)>,
    exit: watch::Receiver<Option<String>>,
    tasks: Tasks,
}

impl RouterNode {
    /// Starts the tree: `rooms` first, then what feeds it.
    ///
    /// # Errors
    /// An actor could not be started.
    pub async fn start(parts: RouterParts) -> Result<Arc<Self>, StartError> {
        let (drained, usable, exit) = (
            watch::Sender::default(),
            watch::Sender::default(),
            watch::Sender::default(),
        );
        // `rooms` needs to be told things by what it is made of: the reference is filled in once it runs.
        let late: Arc<OnceLock<ActorRef<RoomsMessage>>> = Arc::default();
        let tell: Tell = {
            let late = Arc::clone(&late);
            Arc::new(move |told| {
                late.get()
                    .is_some_and(|rooms| rooms.cast(RoomsMessage::from(told)).is_ok())
            })
        };
        let shared = Arc::new(Shared {
            links: parts.links,
            store: Arc::clone(&parts.store),
            clock: Arc::clone(&parts.clock),
            settings: Arc::clone(&parts.settings),
            tasks: parts.tasks.clone(),
            tell,
        });
        let zombies = watch::Sender::default();
        let zombies_rx = zombies.subscribe();
        let (drained_rx, usable_rx, exit_rx) = (drained.subscribe(), usable.subscribe(), exit.subscribe());
        let next_request = Arc::new(AtomicU64::new(parts.first_request));
        let rooms_parts = Parts {
            ledger: parts.ledger,
            shared,
            hooks: parts.hooks,
            drained,
            zombies,
            usable,
            next_request: Arc::clone(&next_request),
        };
        let (rooms, _) = Actor::spawn(None, Rooms, rooms_parts).await?;
        // Set once, here.
        drop(late.set(rooms.clone()));
        let watched = {
            let rooms = rooms.clone();
            move |event| rooms.cast(RoomsMessage::Watch(event)).is_ok()
        };
        let keeper = Arc::default();
        let own = parts.member.incarnation;
        let children = vec![
            adopted("rooms", rooms.get_cell()),
            watch_child(Arc::clone(&parts.store), own, parts.tasks.clone(), Arc::new(watched)),
            keeper_child(
                parts.store,
                parts.member,
                &parts.settings,
                parts.tasks.clone(),
                Arc::clone(&keeper),
            ),
        ];
        let args = root::Args {
            children,
            clock: parts.clock,
            tasks: parts.tasks.clone(),
            exit,
        };
        let (root, _) = Actor::spawn(None, Root, args).await?;
        Ok(Arc::new(Self {
            rooms,
            root,
            keeper,
            settings: parts.settings,
            next_request,
            drained: drained_rx,
            zombies: zombies_rx,
            usable: usable_rx,
            exit: exit_rx,
            tasks: parts.tasks,
        }))
    }

    /// The rooms that it owns; `None` if the ledger did not answer within `limit`.
    pub async fn rows(&self, limit: Duration) -> Option<Vec<RoomRow>> {
        self.ask(limit, Show::Rows).await
    }

    /// The counts and the number of zombies; `None` if the ledger did not answer within `limit`.
    pub async fn gauges(&self, limit: Duration) -> Option<(Gauges, u32)> {
        self.ask(limit, Show::Gauges).await
    }

    /// The workers; `None` if the ledger did not answer within `limit`.
    pub async fn members(&self, limit: Duration) -> Option<Vec<(MemberView, Option<Member>)>> {
        self.ask(limit, Show::Members).await
    }

    /// The records of all routers, this one included; `None` if the ledger did not answer within `limit`.
    pub async fn routers(&self, limit: Duration) -> Option<Vec<Member>> {
        self.ask(limit, Show::Routers).await
    }

    /// Ends a live room as if its lease had been revoked. Whether there was one; `None` if the ledger did not answer within
    /// `limit`, twice.
    pub async fn evict(&self, room: RoomId, limit: Duration) -> Option<bool> {
        let lives = |rows: Vec<RoomRow>| rows.iter().any(|row| row.room == room);
        if !lives(self.rows(limit).await?) {
            return Some(false);
        }
        self.rooms.cast(RoomsMessage::Event(Event::Evict { room })).ok()?;
        // Answered behind it: the room is over by then.
        self.rows(limit).await.map(|_| true)
    }

    /// Workers are chosen by these policies from now on.
    pub fn set_policies(&self, policies: Policies) {
        // A dead `rooms` ends the process.
        drop(self.rooms.cast(RoomsMessage::Event(Event::Policies(policies))));
    }

    /// How many workers of each role it can use now: (prefill, decode).
    #[must_use]
    pub fn usable(&self) -> watch::Receiver<(usize, usize)> {
        self.usable.clone()
    }

    /// Actors that killing did not end, as of the last report period.
    #[must_use]
    pub fn zombies(&self) -> u32 {
        *self.zombies.borrow()
    }

    /// Why the process must exit, when it must.
    #[must_use]
    pub fn exit(&self) -> watch::Receiver<Option<String>> {
        self.exit.clone()
    }

    /// Where its tasks live.
    #[must_use]
    pub fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    /// Stops admitting, finishes what there is within `limit`, ends the rest, and takes the record out last. Whether
    /// everything ended by itself.
    pub async fn drain(&self, limit: Duration) -> bool {
        self.keeper_says(KeeperMessage::State(MemberState::Draining));
        drop(self.rooms.cast(RoomsMessage::Event(Event::Drain)));
        let mut drained = self.drained.clone();
        let in_time = tokio::time::timeout(limit, drained.wait_for(|drained| *drained))
            .await
            .is_ok();
        if !in_time {
            drop(self.rooms.cast(RoomsMessage::Event(Event::DrainOver)));
            // Blame is waited for, then the streams are drained.
            let rest = (self.settings.blame_wait + self.settings.grace + self.settings.grace).duration();
            if tokio::time::timeout(rest, drained.wait_for(|drained| *drained))
                .await
                .is_err()
            {
                tracing::warn!("rooms are left at the end of the drain; their workers see the streams end");
            }
        }
        self.leave().await;
        in_time
    }

    /// Ends the tree. Called after [`RouterNode::drain`].
    pub fn stop(&self) {
        self.root.kill();
        self.rooms.kill();
    }

    async fn leave(&self) {
        drop(self.root.cast(RootMessage::Closing));
        let (done, answer) = oneshot::channel();
        let limit = self.settings.connect_timeout.duration();
        self.keeper_says(KeeperMessage::Leave { limit, done });
        // One connect timeout more than the keeper itself takes.
        if !matches!(tokio::time::timeout(limit + limit, answer).await, Ok(Ok(true))) {
            tracing::info!("the member record could not be taken out; its TTL does it");
        }
    }

    fn keeper_says(&self, message: KeeperMessage) {
        let keeper = self.keeper.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(keeper) = keeper.as_ref() {
            // A keeper that is being restarted registers with the state of its record.
            drop(keeper.cast(message));
        }
    }

    async fn ask<T: Send + 'static>(
        &self,
        limit: Duration,
        show: impl FnOnce(oneshot::Sender<T>) -> Show,
    ) -> Option<T> {
        let (answer, question) = oneshot::channel();
        self.rooms.cast(RoomsMessage::Show(show(answer))).ok()?;
        tokio::time::timeout(limit, question).await.ok()?.ok()
    }
}

/// What a test does to a ledger from outside.
#[cfg(feature = "testing")]
impl RouterNode {
    /// Hangs the ledger: until what comes back is dropped it takes in nothing, and what it is told waits.
    #[must_use]
    pub fn hang(&self) -> oneshot::Sender<()> {
        let (release, released) = oneshot::channel();
        drop(self.rooms.cast(RoomsMessage::Hang(released)));
        release
    }

    /// The ledger's actor: the root of those of its requests.
    #[must_use]
    pub fn ledger_actor(&self) -> ractor::ActorCell {
        self.rooms.get_cell()
    }
}

/// Events of a request beside its tokens: the answer, and room to spare.
const BESIDE_TOKENS: usize = 8;

impl RouterPort for RouterNode {
    fn submit(&self, request: NewRequest) -> RequestStream {
        let key = RequestKey(self.next_request.fetch_add(1, Ordering::Relaxed));
        let (events_in, events) =
            mpsc::channel((request.max_tokens as usize).saturating_add(BESIDE_TOKENS).min(1 << 20));
        let control = Control {
            rooms: self.rooms.clone(),
            request: key,
            told: AtomicBool::new(false),
        };
        // A dead `rooms` closes the channel, which the front door answers as an internal error.
        drop(self.rooms.cast(RoomsMessage::Submit(key, Box::new(request), events_in)));
        RequestStream {
            request: key,
            events,
            control: Box::new(control),
        }
    }

    fn abort(&self, rid: String, client: String) -> Answer<'_, Option<AbortAnswer>> {
        Box::pin(async move {
            let (answer, question) = oneshot::channel();
            self.rooms.cast(RoomsMessage::Abort(rid, client, answer)).ok()?;
            // The ledger answers at once; a hung one must not hang its asker.
            tokio::time::timeout(self.settings.ask_timeout.duration(), question)
                .await
                .ok()?
                .ok()
        })
    }
}

struct Control {
    rooms: ActorRef<RoomsMessage>,
    request: RequestKey,
    told: AtomicBool,
}

impl Control {
    fn tell(&self, event: Event) {
        if !self.told.swap(true, Ordering::Relaxed) {
            // A dead `rooms` ends the process; there is nobody to tell.
            drop(self.rooms.cast(RoomsMessage::Event(event)));
        }
    }
}

impl RequestControl for Control {
    fn satisfied(&self) {
        self.tell(Event::Satisfied { request: self.request });
    }

    fn stalled(&self) {
        self.tell(Event::ClientStalled { request: self.request });
    }
}

impl Drop for Control {
    /// Also after the answer: a request that is over does not hear it.
    fn drop(&mut self) {
        self.tell(Event::ClientGone { request: self.request });
    }
}
