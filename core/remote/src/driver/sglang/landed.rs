//! The leg at decode.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::ends::{Ends, Why};
use crate::answer::DECODE;
use crate::driver::watcher::{Open, Watcher};
use crate::failure::RemoteError;
use crate::http::HttpError;
use crate::ids::rid;
use crate::leg::{Leg, Piece};
use crate::sglang::{Answer, Sglang};
use crate::ticket::Bootstrap;

/// A room that decode's engine has taken over: its first token is there. Dropping it ends the request.
pub struct Landed {
    /// The first tokens, and maybe the end.
    pub first: Piece,
    reading: Reading,
}

impl Landed {
    pub(super) async fn post(
        watcher: &Arc<Watcher<Sglang>>,
        ends: &Arc<Ends>,
        leg: &Leg,
        place: &Bootstrap,
        budget: Duration,
        posted: impl FnOnce(),
    ) -> Result<Self, RemoteError> {
        let began = Instant::now();
        let mut reading = Reading::post(watcher, ends, leg, place, budget);
        reading.posted(budget).await?;
        posted();
        let first = loop {
            let left = budget.saturating_sub(began.elapsed());
            match reading.next(left).await? {
                // An event may carry nothing new.
                Some(piece) if piece.tokens.is_empty() && piece.finish.is_none() => {}
                Some(piece) if !piece.tokens.is_empty() => break piece,
                Some(_) | None => return Err(CUT),
            }
        };
        Ok(Self { first, reading })
    }

    /// What comes next; `None` after the last. May be given up and asked again. Dropping the room ends the request.
    ///
    /// # Errors
    /// [`RemoteError`]. Only after [`HttpError::Silent`] may anything follow.
    pub async fn next(&mut self, limit: Duration) -> Result<Option<Piece>, RemoteError> {
        self.reading.next(limit).await
    }

    /// Aborts the leg, and waits until it has ended. Whether it has, within [`crate::Times::ending`]: then the engine has nothing
    /// of it any more, else nobody knows. Dropping the future changes nothing.
    pub async fn abort(mut self) -> bool {
        match self.reading.end() {
            Some(ended) => ended.await.unwrap_or(false),
            None => true,
        }
    }
}

const CUT: RemoteError = RemoteError::Cut { what: DECODE };

/// A leg that is being posted: its head is to come.
type Posting = Pin<Box<dyn Future<Output = Result<Answer, RemoteError>> + Send>>;

enum Stage {
    Posting(Posting),
    Streaming(Box<Answer>),
}

/// The leg from its post to its end. Dropped before that, it is aborted on a task of the driver.
struct Reading {
    /// `None`: the leg's own answer has ended.
    stage: Option<Stage>,
    /// All tokens were given.
    whole: bool,
    /// The engine owes until the answer has ended.
    open: Option<Open<Sglang>>,
    rid: String,
    watcher: Arc<Watcher<Sglang>>,
    ends: Arc<Ends>,
    runtime: Handle,
}

impl Reading {
    fn post(watcher: &Arc<Watcher<Sglang>>, ends: &Arc<Ends>, leg: &Leg, place: &Bootstrap, budget: Duration) -> Self {
        let (engine, asked, place) = (watcher.engine().clone(), leg.clone(), place.clone());
        // It is listened to for longer than it is aborted: its own deadline must not look like its end.
        let limit = budget.saturating_add(engine.times().ending * 2);
        let posting = async move { engine.decode(&asked, &place, limit).await };
        Self {
            stage: Some(Stage::Posting(Box::pin(posting))),
            whole: false,
            open: Some(watcher.begin()),
            rid: rid(leg.prompt.room),
            watcher: Arc::clone(watcher),
            ends: Arc::clone(ends),
            runtime: Handle::current(),
        }
    }

    /// Waits until the engine has taken the request. Its head proves no more than that.
    async fn posted(&mut self, limit: Duration) -> Result<(), RemoteError> {
        let Some(Stage::Posting(posting)) = &mut self.stage else {
            return Ok(());
        };
        match tokio::time::timeout(limit, posting).await {
            Ok(Ok(answer)) => {
                self.stage = Some(Stage::Streaming(Box::new(answer)));
                Ok(())
            }
            Ok(Err(error)) => {
                // Refused, or never arrived: there is nothing to abort, and another leg may have its id.
                self.over();
                Err(error)
            }
            Err(_) => Err(self.watcher.engine().target().silent("answer", limit).into()),
        }
    }

    async fn next(&mut self, limit: Duration) -> Result<Option<Piece>, RemoteError> {
        let Some(Stage::Streaming(answer)) = &mut self.stage else {
            return if self.whole { Ok(None) } else { Err(CUT) };
        };
        let next = answer.next(limit).await;
        match &next {
            Ok(Some(piece)) if piece.finish.is_some() => {
                self.watcher.answered();
                self.whole = true;
                self.over();
            }
            Ok(Some(_)) => self.watcher.evidence(),
            Ok(None) => self.over(),
            Err(error) if is_end(error) => self.over(),
            Err(_) => {}
        }
        next
    }

    /// The leg's own answer has ended.
    fn over(&mut self) {
        self.stage = None;
        self.open = None;
    }

    /// Has the leg aborted until it has ended; who wants may wait for it. `None`: it has ended already.
    fn end(&mut self) -> Option<oneshot::Receiver<bool>> {
        let stage = self.stage.take()?;
        let (says, said) = oneshot::channel();
        let open = self.open.take();
        let (watcher, ends, rid) = (Arc::clone(&self.watcher), Arc::clone(&self.ends), self.rid.clone());
        self.ends.spawn(&self.runtime, async move {
            let engine = watcher.engine();
            let leg = run_out(stage, engine.times().ending);
            let ended = ends.end(engine, &rid, Why::Left, leg).await;
            drop(open);
            // Mostly nobody waits.
            let _ = says.send(ended.is_some());
        });
        Some(said)
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.end();
    }
}

/// Whether the leg's own answer has ended with it. Silence ends nothing, nor do bytes that are no answer: the engine goes on.
const fn is_end(error: &RemoteError) -> bool {
    !matches!(
        error,
        RemoteError::Http(HttpError::Silent { .. }) | RemoteError::Unreadable { .. }
    )
}

/// Reads what is left, however long that takes; `pause` only says how often it looks up from it.
async fn run_out(stage: Stage, pause: Duration) {
    let mut answer = match stage {
        Stage::Streaming(answer) => answer,
        Stage::Posting(posting) => match posting.await {
            Ok(answer) => Box::new(answer),
            Err(_) => return,
        },
    };
    loop {
        match answer.next(pause).await {
            Ok(Some(piece)) if piece.finish.is_none() => {}
            Err(error) if !is_end(&error) => {}
            Ok(_) | Err(_) => return,
        }
    }
}
