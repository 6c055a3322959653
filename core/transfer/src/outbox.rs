//! Events of a session on their way to its owner. A slow owner blocks nothing here: edges happen at most once each and
//! have places kept for them, counters are coalesced to the newest.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};

/// Places that only edges may take: more than the kinds of edges of either side, each of which is sent at most once.
const EDGES: usize = 16;
/// Places of the channel.
const PLACES: usize = 64;
/// How many kinds of counters a side has.
const SLOTS: usize = 2;

/// The sending end, used by one task.
#[derive(Debug)]
pub(crate) struct Outbox<E> {
    tx: mpsc::Sender<E>,
    pending: Mutex<[Option<E>; SLOTS]>,
    dirty: Notify,
}

impl<E> Outbox<E> {
    pub(crate) fn new() -> (Arc<Self>, mpsc::Receiver<E>) {
        let (tx, rx) = mpsc::channel(PLACES);
        (
            Arc::new(Self {
                tx,
                pending: Mutex::new([None, None]),
                dirty: Notify::new(),
            }),
            rx,
        )
    }

    /// Sends an event that happens at most once in a session; what was counted before it goes first.
    pub(crate) fn edge(&self, event: E) {
        self.flush();
        // Fails only if the owner is gone: then nobody wants to know.
        let _ = self.tx.try_send(event);
    }

    /// Replaces the counter's newest value; it is sent with the next flush.
    pub(crate) fn counter(&self, slot: usize, event: E) {
        if let Some(place) = self
            .pending
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get_mut(slot)
        {
            *place = Some(event);
        }
        self.dirty.notify_one();
    }

    /// Sends pending counters if the channel has places for them; whether none is left.
    fn flush(&self) -> bool {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        for place in pending.iter_mut() {
            if self.tx.capacity() > EDGES
                && let Some(event) = place.take()
            {
                let _ = self.tx.try_send(event);
            }
        }
        pending.iter().all(Option::is_none)
    }

    /// Sends counters, at most once in `every`; never returns.
    pub(crate) async fn flush_loop(&self, every: Duration) {
        loop {
            self.dirty.notified().await;
            loop {
                tokio::time::sleep(every).await;
                if self.flush() {
                    break;
                }
            }
        }
    }
}

/// Sends the last event when it is dropped: at a return, a cancel, or a panic alike.
#[derive(Debug)]
pub(crate) struct Quiesce<E: Clone> {
    outbox: Arc<Outbox<E>>,
    last: E,
}

impl<E: Clone> Quiesce<E> {
    pub(crate) fn new(outbox: Arc<Outbox<E>>, last: E) -> Self {
        Self { outbox, last }
    }
}

impl<E: Clone> Drop for Quiesce<E> {
    fn drop(&mut self) {
        self.outbox.edge(self.last.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_owner_still_gets_every_edge_and_the_last_event_last() {
        let (outbox, mut rx) = Outbox::<u32>::new();
        let guard = Quiesce::new(Arc::clone(&outbox), 0);
        for value in 1000..2000 {
            outbox.counter(0, value);
            outbox.flush();
        }
        for edge in 1..=10 {
            outbox.edge(edge);
        }
        drop(guard);
        let mut got = Vec::new();
        while let Ok(event) = rx.try_recv() {
            got.push(event);
        }
        assert_eq!(got[got.len() - 11..], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0]);
    }
}
