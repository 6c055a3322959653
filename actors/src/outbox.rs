//! What a worker's room has to say to R, between the ledger and the stream. Bounded by construction: unread State messages
//! are coalesced into the newest, tokens into one message (there are at most max tokens), and all others are few per room.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use innkeeper_room::{FromWorker, Token};
use tokio::sync::Notify;

use crate::ports::{Answer, RoomOutlet, WorkerSays};

/// More messages than a room can ever have to say (states and tokens are coalesced): beyond it the queue is closed, which
/// ends the stream, rather than grow.
const MOST_MESSAGES: usize = 64;

#[derive(Default)]
struct Queue {
    waiting: VecDeque<WorkerSays>,
    closed: bool,
}

/// The queue; one per room.
#[derive(Default)]
pub struct Outbox {
    queue: Mutex<Queue>,
    changed: Notify,
}

impl Outbox {
    /// A queue and its reading end.
    #[must_use]
    pub fn open() -> (Arc<Self>, Box<dyn RoomOutlet>) {
        let outbox = Arc::new(Self::default());
        (Arc::clone(&outbox), Box::new(Outlet(outbox)))
    }

    /// Says something; after the close it is dropped, since nobody listens.
    pub fn say(&self, message: FromWorker, tokens: Vec<Token>) {
        let mut queue = self.lock();
        if queue.closed {
            return;
        }
        if !coalesced(&mut queue.waiting, &message, &tokens) {
            queue.waiting.push_back(WorkerSays { message, tokens });
            queue.closed = queue.waiting.len() >= MOST_MESSAGES;
        }
        drop(queue);
        self.changed.notify_one();
    }

    /// What is waiting is still read; then the stream ends.
    pub fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // A panic while the lock was held cannot leave a queue half-written: each change is one push.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Merges into the last waiting message where that loses nothing: a newer State replaces an older one, tokens that follow
/// without a gap join those that wait.
fn coalesced(waiting: &mut VecDeque<WorkerSays>, message: &FromWorker, tokens: &[Token]) -> bool {
    let Some(last) = waiting.back_mut() else { return false };
    match (&mut last.message, message) {
        (FromWorker::State(old), FromWorker::State(new)) => {
            *old = *new;
            true
        }
        (
            FromWorker::Tokens { position, count },
            FromWorker::Tokens {
                position: next,
                count: more,
            },
        ) if *position + *count == *next => {
            *count += *more;
            last.tokens.extend_from_slice(tokens);
            true
        }
        _ => false,
    }
}

struct Outlet(Arc<Outbox>);

impl RoomOutlet for Outlet {
    fn next(&mut self) -> Answer<'_, Option<WorkerSays>> {
        Box::pin(async move {
            loop {
                {
                    let mut queue = self.0.lock();
                    if let Some(says) = queue.waiting.pop_front() {
                        return Some(says);
                    }
                    if queue.closed {
                        return None;
                    }
                }
                // Bounded by the room's own end, which closes the queue.
                self.0.changed.notified().await;
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use innkeeper_room::PartState;

    use super::*;

    #[tokio::test]
    async fn states_coalesce_and_tokens_join_in_order() {
        let (outbox, mut outlet) = Outbox::open();
        for _ in 0..1000 {
            outbox.say(FromWorker::State(PartState::default()), vec![]);
        }
        for position in 0..100 {
            outbox.say(
                FromWorker::Tokens { position, count: 1 },
                vec![Token {
                    id: position,
                    ..Token::default()
                }],
            );
        }
        outbox.close();
        outbox.say(FromWorker::Ask, vec![]);
        assert!(matches!(outlet.next().await.unwrap().message, FromWorker::State(_)));
        let tokens = outlet.next().await.unwrap();
        assert_eq!(
            tokens.message,
            FromWorker::Tokens {
                position: 0,
                count: 100
            }
        );
        assert_eq!(tokens.tokens.len(), 100);
        assert_eq!(outlet.next().await, None);
    }

    #[tokio::test]
    async fn a_queue_nobody_reads_ends_instead_of_growing() {
        let (outbox, mut outlet) = Outbox::open();
        for _ in 0..10_000 {
            outbox.say(FromWorker::Ask, vec![]);
        }
        let mut read = 0;
        while outlet.next().await.is_some() {
            read += 1;
        }
        assert_eq!(read, MOST_MESSAGES);
    }
}
