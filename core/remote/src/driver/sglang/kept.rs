//! The leg at prefill.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use super::ends::{Ends, Why};
use crate::answer::PREFILL;
use crate::driver::watcher::Watcher;
use crate::failure::RemoteError;
use crate::ids::rid;
use crate::leg::{Finish, Leg};
use crate::sglang::{Sglang, Turn};
use crate::ticket::Bootstrap;

/// Longest deadline that is counted in: one beyond it is none.
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
/// All that a task ever says: one of each.
const WORDS: usize = 3;

/// A prompt that prefill's engine has computed, and whose KV decode takes, or has taken. Dropping it aborts the leg.
#[derive(Debug)]
pub struct Kept {
    wish: watch::Sender<Wish>,
    said: mpsc::Receiver<Said>,
    finish: Option<Finish>,
}

/// What the handle wants of the task. That it is gone is a wish to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    Go,
    Committed,
    Leave,
}

/// What the task says, in this order.
#[derive(Debug)]
enum Said {
    Computed,
    Ended(Result<Finish, RemoteError>),
    /// The leg's own answer has ended: the engine has nothing of it any more.
    Over,
}

impl Kept {
    /// Posts the leg, on a task of its own.
    pub(super) fn post(
        watcher: &Arc<Watcher<Sglang>>,
        ends: &Arc<Ends>,
        leg: &Leg,
        place: &Bootstrap,
        whole: Duration,
    ) -> Self {
        let (wish, wishes) = watch::channel(Wish::Go);
        let (says, said) = mpsc::channel(WORDS);
        let task = Task {
            watcher: Arc::clone(watcher),
            ends: Arc::clone(ends),
            whole: whole.min(YEAR),
            wish: wishes,
            says,
        };
        ends.spawn(&Handle::current(), task.run(leg.clone(), place.clone()));
        Self {
            wish,
            said,
            finish: None,
        }
    }

    /// Waits until it is computed.
    pub(super) async fn computed(mut self) -> Result<Self, RemoteError> {
        match self.said.recv().await {
            Some(Said::Computed) => Ok(self),
            Some(Said::Ended(Ok(finish))) => {
                self.finish = Some(finish);
                Ok(self)
            }
            Some(Said::Ended(Err(error))) => Err(error),
            Some(Said::Over) | None => Err(CUT),
        }
    }

    /// Returns when the leg has ended by itself: decode has the KV. May be given up and asked again.
    ///
    /// # Errors
    /// [`RemoteError`], once; after it [`RemoteError::Cut`], as of a driver that was shut down.
    pub async fn ended(&mut self) -> Result<Finish, RemoteError> {
        loop {
            if let Some(finish) = &self.finish {
                return Ok(finish.clone());
            }
            match self.said.recv().await {
                Some(Said::Computed) => {}
                Some(Said::Ended(ended)) => self.finish = Some(ended?),
                Some(Said::Over) | None => return Err(CUT),
            }
        }
    }

    /// Decode has committed: the leg must end by itself within [`crate::Times::after_commit`], else it is aborted and counted. No
    /// failure of it is of interest to anybody from here on.
    pub fn committed(self) {
        self.wish.send_replace(Wish::Committed);
    }

    /// Aborts the leg, and waits until it has ended. Whether it has, within [`crate::Times::ending`]: then the engine has nothing
    /// of it any more, else nobody knows. Dropping the future changes nothing.
    pub async fn abort(mut self) -> bool {
        self.wish.send_replace(Wish::Leave);
        while let Some(said) = self.said.recv().await {
            if matches!(said, Said::Over) {
                return true;
            }
        }
        false
    }
}

const CUT: RemoteError = RemoteError::Cut { what: PREFILL };

/// Holds the leg from its post to its end, whatever becomes of the handle.
struct Task {
    watcher: Arc<Watcher<Sglang>>,
    ends: Arc<Ends>,
    whole: Duration,
    wish: watch::Receiver<Wish>,
    says: mpsc::Sender<Said>,
}

/// How the wait for a leg ended.
enum Waited {
    Said(Result<Finish, RemoteError>),
    Enough(Why),
}

impl Task {
    async fn run(mut self, leg: Leg, place: Bootstrap) {
        // The engine owes until the leg's own answer has ended.
        let _open = self.watcher.begin();
        let watcher = Arc::clone(&self.watcher);
        let engine = watcher.engine();
        let turn = engine.turn();
        // It is listened to for longer than it is aborted: its own deadline must not look like its end.
        let limit = self.whole.saturating_add(engine.times().ending * 2);
        let mut answer = pin!(engine.prefill(&leg, &place, limit));
        match self.wait(answer.as_mut(), &turn).await {
            Waited::Said(said) => {
                if said.is_ok() {
                    self.watcher.answered();
                }
                self.ended(said);
                self.say(Said::Over);
            }
            Waited::Enough(why) => {
                if why == Why::Late {
                    self.ended(Err(engine.target().silent("end of prefill's leg", self.whole).into()));
                }
                let id = rid(leg.prompt.room);
                match self.ends.end(engine, &id, why, answer).await {
                    Some(_) => self.say(Said::Over),
                    None => turn.lost(),
                }
            }
        }
    }

    async fn wait(
        &mut self,
        mut answer: Pin<&mut impl Future<Output = Result<Finish, RemoteError>>>,
        turn: &Turn,
    ) -> Waited {
        let mut deadline = Instant::now() + self.whole;
        let (mut computed, mut committed) = (false, false);
        loop {
            tokio::select! {
                biased;
                said = &mut answer => return Waited::Said(said),
                () = self.ends.stopped() => return Waited::Enough(Why::Left),
                wish = wished(&mut self.wish), if !committed => {
                    if wish != Wish::Committed {
                        return Waited::Enough(Why::Left);
                    }
                    committed = true;
                    let own = self.watcher.engine().times().after_commit;
                    deadline = deadline.min(Instant::now() + own);
                }
                () = turn.computed(), if !computed => {
                    computed = true;
                    self.say(Said::Computed);
                }
                () = sleep_until(deadline) => {
                    return Waited::Enough(if committed { Why::Overdue } else { Why::Late });
                }
            }
        }
    }

    fn ended(&self, said: Result<Finish, RemoteError>) {
        if let Err(error) = &said {
            tracing::debug!(%error, "prefill's leg ended with an error");
        }
        self.say(Said::Ended(said));
    }

    fn say(&self, said: Said) {
        // There is room for all that is ever said; the handle may have gone.
        drop(self.says.try_send(said));
    }
}

/// The next wish; that its handle is gone is one too.
async fn wished(wish: &mut watch::Receiver<Wish>) -> Wish {
    match wish.changed().await {
        Ok(()) => *wish.borrow_and_update(),
        Err(_) => Wish::Leave,
    }
}
