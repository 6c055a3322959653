//! D's end of a session: the handle, and the task behind it.

mod check;
mod read;
mod run;
mod write;

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use innkeeper_room::{Evidence, HelloReply, Reason};
use tokio_util::sync::CancellationToken;

pub(crate) use run::RecvTask;

use crate::port::{Grant, MOST_ASKS, RecvSession};
use crate::sabotage::Sabotage;
use crate::session::Signals;

/// What the handle and the task share.
pub(crate) struct RecvShared {
    pub(crate) signals: Signals,
    orders: Mutex<Orders>,
    sabotage: Sabotage,
}

/// What the owner asked for and the task has not done yet.
#[derive(Default)]
struct Orders {
    /// At most one Wait and one other reply.
    replies: VecDeque<(HelloReply, Option<Grant>)>,
    waited: bool,
    answered: bool,
    asks: Asks,
    last: Option<LastWord>,
    /// The task is over: nothing is kept any more.
    closed: bool,
}

/// D's questions for the age of the KV's lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Asks {
    /// Those that were begun.
    begun: u32,
    /// One is to be asked.
    wanted: bool,
    /// One is to be answered.
    open: bool,
}

/// D's last words.
#[derive(Clone, Copy, Debug)]
enum LastWord {
    Committed,
    Fail(Reason, Evidence),
}

impl RecvShared {
    pub(crate) fn new(kill: CancellationToken, sabotage: Sabotage) -> Self {
        Self {
            signals: Signals::new(kill),
            orders: Mutex::new(Orders::default()),
            sabotage,
        }
    }

    fn orders(&self) -> MutexGuard<'_, Orders> {
        // Held for assignments only, which do not panic.
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn say(&self, word: LastWord) {
        self.orders().last.get_or_insert(word);
        self.signals.last.cancel();
        self.signals.wake.notify_one();
    }

    /// Lets go of a grant that came too late to be used, and takes no other.
    fn close(&self) {
        let left = {
            let mut orders = self.orders();
            orders.closed = true;
            std::mem::take(&mut orders.replies)
        };
        drop(left);
    }
}

impl RecvSession for RecvShared {
    fn reply(&self, reply: HelloReply, grant: Option<Grant>) {
        {
            let mut orders = self.orders();
            let again = if reply == HelloReply::Wait {
                orders.waited
            } else {
                false
            };
            if orders.closed || orders.answered || again {
                return;
            }
            orders.waited |= reply == HelloReply::Wait;
            orders.answered |= reply != HelloReply::Wait;
            orders.replies.push_back((reply, grant));
        }
        if !matches!(reply, HelloReply::Wait | HelloReply::Ready) {
            self.signals.last.cancel();
        }
        self.signals.wake.notify_one();
    }

    fn ask_lease_age(&self) {
        {
            let asks = &mut self.orders().asks;
            if asks.begun < MOST_ASKS && !asks.wanted && !asks.open {
                asks.begun += 1;
                asks.wanted = true;
            }
        }
        self.signals.wake.notify_one();
    }

    fn committed(&self) {
        self.say(LastWord::Committed);
    }

    fn fail(&self, reason: Reason, evidence: Evidence) {
        if !self.sabotage.is_deaf() {
            self.say(LastWord::Fail(reason, evidence));
        }
    }

    fn kill(&self) {
        if !self.sabotage.is_deaf() {
            self.signals.kill.cancel();
        }
    }
}
