//! The two legs of a room at vLLM, each a task of the engine. What ends one is its job's token: the ledgers have a timer for
//! every phase, and cancel.

use std::sync::Arc;
use std::time::Duration;

use innkeeper_engine::{EngineError, KeepJob, KeepSink, PullJob, PullSink};
use innkeeper_room::{Millis, Reason, RoomId, Ticket};
use tokio_util::sync::CancellationToken;

use super::jobs::Over;
use super::vllm::Shared;
use crate::driver::{Kept, Landed};
use crate::failure::RemoteError;
use crate::http::HttpError;
use crate::lease::DecodeSide;
use crate::leg::Leg;
use crate::ticket::{Ticket as Remote, VllmTicket};

/// What decode's leg needs.
pub(super) struct Read {
    pub(super) job: PullJob,
    pub(super) ticket: VllmTicket,
    pub(super) ready: DecodeSide,
}

/// Prefill's leg.
pub(super) async fn keep(
    shared: Arc<Shared>,
    room: RoomId,
    job: KeepJob,
    sink: Arc<dyn KeepSink>,
    cancel: CancellationToken,
) {
    let mut leg = Leg::new(room, job.attempt, &job.work, 1);
    // The engine's own prefix cache, too, is shared within a tenant and by nobody else.
    leg.prompt.salt = Some(match job.work.tenant {
        0 => room.to_string(),
        tenant => format!("{tenant:032x}"),
    });
    let tokens = u32::try_from(leg.prompt.ids.len()).unwrap_or(u32::MAX);
    shared.holds(room, tokens);
    let computed = tokio::select! {
        biased;
        () = cancel.cancelled() => None,
        // The ledger's own deadline for a prompt comes first.
        computed = shared.driver.prefill(&leg.prompt, FOR_EVER) => Some(computed),
    };
    let over = shared.jobs.over(room);
    match (computed, over) {
        (None, _) | (Some(Err(_)), Over::Cancelled) => {
            // It stops at its next chunk.
            shared.settler.settled(room).await;
            stopped(&shared, room, &*sink);
        }
        (Some(Ok(kept)), Over::Cancelled) => {
            back(&shared, room, kept).await;
            stopped(&shared, room, &*sink);
        }
        (Some(Err(error)), Over::Itself) => sink.failed(failed(&error)),
        (Some(Ok(kept)), Over::Itself) => {
            shared.counted.prompt(tokens);
            sink.computed(tokens);
            match said(&kept) {
                Ok(ticket) => {
                    let read_within = shared.budget(tokens, shared.lease());
                    match shared.keep(room, kept) {
                        Ok(()) => sink.kept(ticket, read_within),
                        // The room was closed meanwhile, so nobody listens.
                        Err(kept) => back(&shared, room, *kept).await,
                    }
                }
                Err(error) => sink.failed(failed(&error)),
            }
        }
    }
}

fn stopped(shared: &Shared, room: RoomId, sink: &dyn KeepSink) {
    shared.jobs.settled(room);
    sink.stopped();
}

/// The ticket as it travels.
fn said(kept: &Kept) -> Result<Ticket, RemoteError> {
    let bytes = Remote::Vllm(kept.ticket.clone()).encode()?;
    Ticket::new(bytes).map_err(|error| RemoteError::NoTicket { why: error.to_string() })
}

/// Nobody will read what is kept: `done` once the engine has its pages back.
pub(super) async fn given_back(shared: Arc<Shared>, room: RoomId, kept: Kept, done: Box<dyn FnOnce() + Send>) {
    back(&shared, room, kept).await;
    done();
}

/// Waits until the engine has the pages of a ticket back: by D's engine, or at the lease's end.
async fn back(shared: &Shared, room: RoomId, kept: Kept) {
    // It was at most as long ago as that; what is left, and one TTL for the step in which the engine notices.
    let left = Millis(shared.lease().0 + shared.ttl().0).0;
    // From here on it owes nobody a read.
    drop(kept);
    tokio::select! {
        () = shared.settler.settled(room) => {}
        () = tokio::time::sleep(Millis(left).duration()) => {
            tracing::info!(%room, "a ticket was not given back: its lease has ended");
        }
    }
}

/// Decode's leg: reads, commits, speaks.
pub(super) async fn pull(
    shared: Arc<Shared>,
    room: RoomId,
    read: Read,
    sink: Arc<dyn PullSink>,
    cancel: CancellationToken,
) {
    let result = tokio::select! {
        biased;
        () = cancel.cancelled() => None,
        result = speak(&shared, room, read, &*sink) => Some(result),
    };
    let over = shared.jobs.over(room);
    match (result, over) {
        (None, _) | (Some(Err(_)), Over::Cancelled) => {
            shared.settler.settled(room).await;
            stop_heard(&shared, room, &*sink);
        }
        // Whoever asked it to stop hears that it is over.
        (Some(Ok(())), Over::Cancelled) => stop_heard(&shared, room, &*sink),
        (Some(Ok(())), Over::Itself) => sink.finished(),
        (Some(Err((error, reason))), Over::Itself) => sink.failed(EngineError::Remote {
            reason,
            why: error.to_string(),
        }),
    }
}

/// An engine that could not read says so in mid-answer: it is well, and what it was to read from is not. So the room says that the
/// transfer was lost, and not that this engine failed.
const fn unread(error: &RemoteError) -> Reason {
    match error {
        RemoteError::Said { .. } | RemoteError::Ended { .. } | RemoteError::Status { status: 500, .. } => {
            Reason::TransferLost
        }
        _ => error.failure().reason(),
    }
}

fn stop_heard(shared: &Shared, room: RoomId, sink: &dyn PullSink) {
    shared.jobs.settled(room);
    sink.stopped();
}

/// What went wrong with an engine, and what the room says of it.
type Lost = (RemoteError, Reason);

async fn speak(shared: &Arc<Shared>, room: RoomId, read: Read, sink: &dyn PullSink) -> Result<(), Lost> {
    let Read { job, ticket, ready } = read;
    let mut leg = Leg::new(room, job.attempt, &job.work, job.max_tokens);
    // All of the prompt is read: what this engine has of others is not looked for.
    leg.prompt.salt = Some(room.to_string());
    let tokens = u32::try_from(leg.prompt.ids.len()).unwrap_or(u32::MAX);
    shared.holds(room, tokens);
    let began = tokio::time::Instant::now();
    let ask = job.ask;
    // The ledger's deadline for the read comes first: it is the one that judges.
    let landed = shared.driver.pull(&leg, &ticket, &ready, FOR_EVER, ask).await;
    let landed = match landed {
        Ok(landed) => landed,
        Err(error) => {
            if matches!(error, RemoteError::Unproven { .. }) {
                shared.counted.unproven();
                // Maybe it was not even posted: then P's engine still keeps it.
                shared.tasks.spawn(release(Arc::clone(shared), room, ticket));
            }
            let reason = unread(&error);
            return Err((error, reason));
        }
    };
    shared.measured(tokens, began.elapsed());
    shared.counted.read();
    sink.pulled();
    tell(shared, room, tokens, landed, sink).await.map_err(|error| {
        let reason = error.failure().reason();
        (error, reason)
    })
}

/// Tokens as they come. How long one may take is the ledger's to judge.
async fn tell(
    shared: &Shared,
    room: RoomId,
    prompt: u32,
    mut landed: Landed,
    sink: &dyn PullSink,
) -> Result<(), RemoteError> {
    let mut position = 0;
    let mut piece = std::mem::take(&mut landed.first);
    loop {
        for token in piece.tokens {
            sink.token(position, token);
            position += 1;
            shared.counted.output(1);
        }
        shared.holds(room, prompt.saturating_add(position));
        if piece.finish.is_some() {
            return Ok(());
        }
        piece = loop {
            match landed.next(shared.ttl().duration()).await {
                Ok(Some(piece)) => break piece,
                Ok(None) => return Ok(()),
                Err(RemoteError::Http(HttpError::Silent { .. })) => {}
                Err(error) => return Err(error),
            }
        };
    }
}

/// Gives a ticket back that nobody has read by.
pub(super) async fn release(shared: Arc<Shared>, room: RoomId, ticket: VllmTicket) {
    shared.counted.orphan();
    let given = tokio::select! {
        () = shared.stop.cancelled() => return,
        given = shared.driver.release(&ticket) => given,
    };
    match given {
        Ok(()) => tracing::debug!(%room, "a ticket that nobody read by was given back"),
        Err(error) => tracing::warn!(%room, %error, "a ticket could not be given back: its lease is what is left"),
    }
}

fn failed(error: &RemoteError) -> EngineError {
    EngineError::Remote {
        reason: error.failure().reason(),
        why: error.to_string(),
    }
}

/// A leg's own limit, where the ledger's comes first.
const FOR_EVER: Duration = Duration::from_secs(24 * 3600);
