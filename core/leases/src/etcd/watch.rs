//! One watch: lists members and own doors at one revision, watches both from the next one, and starts again after every
//! gap.
//!
//! A gap is: a broken or ended stream, a compaction or cancel, silence (progress is asked for all the time, so silence
//! is a stall), or a revision lower than one seen. The last is an etcd that was wiped: it keeps its cluster id, and a
//! watch from the old revision would stay silent for ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use etcd_client::{Client, Error, GetOptions, Txn, TxnOp, TxnOpResponse, WatchResponse};
use innkeeper_room::{Incarnation, RoomId};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use super::LARGEST_MESSAGE;
use super::config::EtcdConfig;
use super::connection::Connection;
use super::session::{Session, open};
use crate::backoff::Backoff;
use crate::keys::{Key, MEMBERS, doors_of};
use crate::port::{Member, WatchEvent};

/// Between tries: from at once, for people, to once a second, for an etcd that is away for long.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// `mvccpb.Event.EventType.DELETE`; etcd-client's own accessor panics on a type that it does not know.
const DELETE: i32 = 1;

/// Why a session with etcd ended.
enum End {
    /// The reader is gone.
    Closed,
    /// There is a gap.
    Gap(String),
}

impl From<Error> for End {
    fn from(error: Error) -> Self {
        Self::Gap(error.to_string())
    }
}

/// Starts the watch's task. It ends with its reader or its store, whichever goes first.
pub(super) fn start(
    config: Arc<EtcdConfig>,
    connection: Arc<Connection>,
    own: Incarnation,
    malformed: Arc<AtomicU64>,
    cancel: CancellationToken,
) -> mpsc::Receiver<WatchEvent> {
    let (events, reader) = mpsc::channel(config.channel.max(1));
    let task = Task {
        config,
        connection,
        own,
        malformed,
        events,
        told_lost: false,
        listed: false,
    };
    tokio::spawn(async move {
        // Without a deadline: a watch lives as long as its reader and its store.
        cancel.run_until_cancelled(task.run()).await;
    });
    reader
}

struct Task {
    config: Arc<EtcdConfig>,
    connection: Arc<Connection>,
    own: Incarnation,
    malformed: Arc<AtomicU64>,
    events: mpsc::Sender<WatchEvent>,
    /// `Lost` was told and no list followed yet: one outage is told once.
    told_lost: bool,
    /// The current session got as far as its list.
    listed: bool,
}

impl Task {
    async fn run(mut self) {
        let mut backoff = Backoff::new(BACKOFF.0, BACKOFF.1);
        loop {
            self.listed = false;
            let End::Gap(reason) = self.session().await else { return };
            if self.listed {
                backoff.reset();
            } else {
                // It did not even list: another endpoint may.
                self.connection.turn();
            }
            tracing::debug!(%reason, "the watch has a gap");
            if !self.told_lost && self.events.send(WatchEvent::Lost(reason)).await.is_err() {
                return;
            }
            self.told_lost = true;
            tokio::select! {
                () = tokio::time::sleep(backoff.next()) => {}
                () = self.events.closed() => return,
            }
        }
    }

    /// Connects, lists, watches; returns only when that ends.
    async fn session(&mut self) -> End {
        match self.begin().await {
            Ok(session) => match self.follow(session).await {
                Ok(never) => match never {},
                Err(end) => end,
            },
            Err(end) => end,
        }
    }

    async fn begin(&mut self) -> Result<Session, End> {
        let limit = self.config.call_timeout;
        let events = self.events.clone();
        let begin = async {
            let client = within(limit, self.connection.separate()).await?;
            let (list, revision) = within(limit, self.list(client.clone())).await?;
            let session = within(limit, open(client, self.own, revision)).await?;
            Ok::<_, End>((list, session))
        };
        let (list, mut session) = tokio::select! {
            begun = begin => begun?,
            () = events.closed() => return Err(End::Closed),
        };
        self.tell(list).await?;
        (self.listed, self.told_lost) = (true, false);
        session.heard = Instant::now();
        Ok(session)
    }

    /// Members and own doors, in one transaction: of one revision.
    async fn list(&self, client: Client) -> Result<(WatchEvent, i64), Error> {
        let doors = GetOptions::new().with_prefix().with_keys_only();
        let gets = [
            TxnOp::get(MEMBERS, Some(GetOptions::new().with_prefix())),
            TxnOp::get(doors_of(self.own), Some(doors)),
        ];
        let mut client = client.kv_client().max_decoding_message_size(LARGEST_MESSAGE);
        let answer = client.txn(Txn::new().and_then(gets)).await?;
        let Some(revision) = answer.header().map(etcd_client::ResponseHeader::revision) else {
            return Err(Error::WatchError("etcd answered a list without a revision".to_owned()));
        };
        let (mut members, mut doors): (Vec<Member>, Vec<RoomId>) = (Vec::new(), Vec::new());
        for response in answer.op_responses() {
            let TxnOpResponse::Get(got) = response else { continue };
            for kv in got.kvs() {
                match Key::parse(kv.key()) {
                    Some(Key::Member(node)) => members.extend(self.member(node, kv.value())),
                    Some(Key::Door(_, room)) => doors.push(room),
                    None => self.skip(kv.key(), "it is no key of ours"),
                }
            }
        }
        Ok((WatchEvent::Listed { members, doors }, revision))
    }

    async fn follow(&self, mut session: Session) -> Result<std::convert::Infallible, End> {
        let mut ask = interval(self.config.progress_every);
        ask.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.events.closed() => return Err(End::Closed),
                message = session.stream.message() => {
                    let Some(message) = message? else { return Err(End::Gap("etcd ended the watch".to_owned())) };
                    session.check(&message).map_err(End::Gap)?;
                    for event in self.events_of(&message) {
                        self.tell(event).await?;
                    }
                    // Only now: a slow reader's time is not etcd's silence.
                    session.heard = Instant::now();
                }
                _ = ask.tick() => {
                    if session.heard.elapsed() > self.config.silence {
                        return Err(End::Gap(format!("etcd was silent for {} ms", self.config.silence.as_millis())));
                    }
                    within(self.config.call_timeout, session.stream.request_progress()).await?;
                }
            }
        }
    }

    fn events_of(&self, message: &WatchResponse) -> Vec<WatchEvent> {
        let told = message.events().iter().filter_map(|event| {
            let kv = event.kv()?;
            let deleted = event.0.r#type == DELETE;
            match Key::parse(kv.key()) {
                Some(Key::Member(node)) if deleted => Some(WatchEvent::MemberGone(node)),
                Some(Key::Member(node)) => self
                    .member(node, kv.value())
                    .map(|member| WatchEvent::MemberUp(Box::new(member))),
                Some(Key::Door(_, room)) if deleted => Some(WatchEvent::DoorGone(room)),
                Some(Key::Door(_, room)) => Some(WatchEvent::DoorSeen(room)),
                None => {
                    self.skip(kv.key(), "it is no key of ours");
                    None
                }
            }
        });
        told.collect()
    }

    /// Reads a member's record; an unreadable one is skipped, so that one bad writer blinds nobody.
    fn member(&self, node: Incarnation, value: &[u8]) -> Option<Member> {
        match serde_json::from_slice::<Member>(value) {
            Ok(member) if member.incarnation == node => Some(member),
            Ok(_) => {
                self.skip(node.to_string().as_bytes(), "its record names another incarnation");
                None
            }
            Err(error) => {
                self.skip(node.to_string().as_bytes(), &error.to_string());
                None
            }
        }
    }

    fn skip(&self, key: &[u8], why: &str) {
        self.malformed.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(key = %String::from_utf8_lossy(key), why, "skipped an unreadable key");
    }

    /// Without a deadline: a slow reader delays its own watch, which has a connection of its own.
    async fn tell(&self, event: WatchEvent) -> Result<(), End> {
        self.events.send(event).await.map_err(|_| End::Closed)
    }
}

/// Every step to etcd has the deadline of a call.
async fn within<T>(limit: Duration, step: impl Future<Output = Result<T, Error>>) -> Result<T, End> {
    match timeout(limit, step).await {
        Ok(done) => Ok(done?),
        Err(_) => Err(End::Gap(format!("no answer within {} ms", limit.as_millis()))),
    }
}
