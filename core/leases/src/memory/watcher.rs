//! One watch: a task with its own cursor over the shared history, so that a slow reader delays only its own watch.

use std::pin::{Pin, pin};
use std::sync::Arc;

use innkeeper_room::Incarnation;
use tokio::sync::futures::Notified;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Shared;
use crate::port::WatchEvent;

/// Changes taken from the history at a time, so that the lock is held shortly.
const BATCH: usize = 64;

/// The reader or the store is gone.
struct Closed;

/// Starts the watch's task. It ends with its reader or its store, whichever goes first.
pub(super) fn start(shared: Arc<Shared>, own: Incarnation, cancel: CancellationToken) -> mpsc::Receiver<WatchEvent> {
    let (events, reader) = mpsc::channel(shared.config.channel.max(1));
    let watcher = Watcher {
        shared,
        own,
        events,
        cursor: 0,
        generation: 0,
    };
    tokio::spawn(async move {
        // Without a deadline: a watch lives as long as its reader and its store.
        let _ = cancel.run_until_cancelled(watcher.run()).await;
    });
    reader
}

struct Watcher {
    shared: Arc<Shared>,
    own: Incarnation,
    events: mpsc::Sender<WatchEvent>,
    cursor: u64,
    generation: u64,
}

impl Watcher {
    async fn run(mut self) -> Result<(), Closed> {
        if !self.answers_in_time().await? {
            self.tell(WatchEvent::Lost("the in-process store is paused".to_owned()))
                .await?;
            self.wait_for_answers().await?;
        }
        loop {
            let listed = self.list();
            self.tell(listed).await?;
            let reason = self.follow().await?;
            self.tell(WatchEvent::Lost(reason)).await?;
            self.wait_for_answers().await?;
        }
    }

    fn list(&mut self) -> WatchEvent {
        let own = self.own;
        let (listed, cursor, generation) = self.shared.with(|state, _| {
            let listed = WatchEvent::Listed {
                members: state.members(),
                doors: state.doors(own),
            };
            (listed, state.changes, state.generation)
        });
        (self.cursor, self.generation) = (cursor, generation);
        listed
    }

    /// Tells every change until there is a gap; answers why.
    async fn follow(&mut self) -> Result<String, Closed> {
        let shared = Arc::clone(&self.shared);
        loop {
            let mut look = pin!(shared.look.notified());
            // Before the look, so that no change is missed after it.
            look.as_mut().enable();
            if !self.answers_in_time().await? {
                return Ok("the in-process store is paused".to_owned());
            }
            let (generation, next_end, batch) = self
                .shared
                .with(|state, _| (state.generation, state.next_end(), state.after(self.cursor, BATCH)));
            if generation != self.generation {
                return Ok("the store came back empty".to_owned());
            }
            let Some(batch) = batch else {
                return Ok("the history that was not read yet was compacted".to_owned());
            };
            self.cursor += batch.len() as u64;
            if batch.is_empty() {
                self.wait_for_a_change(look, next_end).await?;
            }
            for event in batch.iter().filter_map(|change| change.event_for(self.own)) {
                self.tell(event).await?;
            }
        }
    }

    /// Sleeps until something changed or the next lease ends. Without a deadline: silence is normal.
    async fn wait_for_a_change(&self, look: Pin<&mut Notified<'_>>, next_end: Option<Instant>) -> Result<(), Closed> {
        let end = async {
            match next_end {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.events.closed() => Err(Closed),
            () = look => Ok(()),
            () = end => Ok(()),
        }
    }

    /// While the store is paused, waits for it, at most as long as a watch may be silent.
    async fn answers_in_time(&self) -> Result<bool, Closed> {
        let silence = self.shared.config.silence;
        match tokio::time::timeout(silence, self.wait_for_answers()).await {
            Ok(answers) => answers.map(|()| true),
            Err(_) => Ok(false),
        }
    }

    /// Without a deadline: the reader has been told `Lost`, and waits for the store as it would for a new list.
    async fn wait_for_answers(&self) -> Result<(), Closed> {
        tokio::select! {
            biased;
            () = self.events.closed() => Err(Closed),
            () = self.shared.resumed() => Ok(()),
        }
    }

    /// Without a deadline: a slow reader delays its own watch, and only that.
    async fn tell(&self, event: WatchEvent) -> Result<(), Closed> {
        self.events.send(event).await.map_err(|_| Closed)
    }
}
