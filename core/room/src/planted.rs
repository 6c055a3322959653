//! Planted bugs: each a cargo feature `bug-…`, off by default and never in a build that serves. They put back what other
//! systems of this kind shipped, or what this protocol forbids, so that the checker and the tests can be shown to catch it
//! (`core/room/planted.sh`). The feature `bugs-by-name` compiles all of them in, and `PLANTED=bug-…` chooses one: one build
//! for the whole table.

macro_rules! planted {
    ($($(#[doc = $doc:literal])+ $name:ident = $feature:tt;)+) => {
        $($(#[doc = $doc])+
        #[inline]
        pub(crate) fn $name() -> bool {
            cfg!(feature = $feature) || named($feature)
        })+
    };
}

#[cfg(feature = "bugs-by-name")]
fn named(bug: &str) -> bool {
    static CHOSEN: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    CHOSEN.get_or_init(|| std::env::var("PLANTED").unwrap_or_default()) == bug
}

#[cfg(not(feature = "bugs-by-name"))]
const fn named(_bug: &str) -> bool {
    false
}

planted! {
    /// The progress polling of a room that computes or sends does not look at the abort: SGLang's prefill in-flight queue.
    poll_ignores_abort = "bug-poll-ignores-abort";
    /// A status update of a room that is over does nothing, and nobody is told.
    update_after_clear_is_noop = "bug-update-after-clear-is-noop";
    /// Nobody times the handshake.
    no_handshake_deadline = "bug-no-handshake-deadline";
    /// An abort of a request that has not arrived is accepted and forgotten.
    early_abort_lost = "bug-early-abort-lost";
    /// Only a failed handshake is tried again.
    retry_covers_handshake_only = "bug-retry-covers-handshake-only";
    /// A room that is not known is reported as waiting.
    unknown_room_waits = "bug-unknown-room-waits";
    /// Pages go back to the pool with the end of the room, while a writer, a reader or the engine may remain.
    pages_reused_early = "bug-pages-reused-early";
    /// A lease is renewed because the worker is alive.
    lease_renewed_by_liveness = "bug-lease-renewed-by-liveness";
    /// Tokens of an attempt that is over still pass the gate.
    two_speakers = "bug-two-speakers";
    /// A new epoch starts the timers of the transfer anew.
    restart_is_progress = "bug-restart-is-progress";
    /// A door that is absent after etcd was away counts as a lease that expired.
    outage_evicts = "bug-outage-evicts";
    /// R does not answer a worker that asks whether its room lives.
    ask_unanswered = "bug-ask-unanswered";
    /// Only the time before the transfer is bounded, as in a receiver that times WaitingForInput alone.
    no_transfer_deadline = "bug-no-transfer-deadline";
    /// P and D take what a connection of an earlier epoch says.
    stale_epoch_counts = "bug-stale-epoch-counts";
    /// A node does not notice that it was itself stopped, and judges the others by its own late clock.
    pause_unnoticed = "bug-pause-unnoticed";
    /// Whoever reports a failure is to blame.
    blame_the_accuser = "bug-blame-the-accuser";
    /// D's Wait does not stop the handshake timer.
    queue_charged_to_handshake = "bug-queue-charged-to-handshake";
    /// A part that ends keeps its engine permit.
    turn_not_released = "bug-turn-not-released";
    /// A lease that is granted after the end of its room is not revoked.
    late_grant_kept = "bug-late-grant-kept";
    /// D answers a hello for a room that it committed as if it knew nothing of it.
    commit_not_sticky = "bug-commit-not-sticky";
    /// What the prefix cache gives up may have a reader.
    evict_under_reader = "bug-evict-under-reader";
    /// A prompt that is in the cache as a whole is reused as a whole: its last token is computed into a shared page.
    shared_page_written = "bug-shared-page-written";
    /// A page that is in the cache already is published once more.
    publish_twice = "bug-publish-twice";
    /// The pages of a room that failed are published.
    failed_room_published = "bug-failed-room-published";
    /// The pages of a room whose KV was corrupt at D stay in the cache.
    corrupt_page_kept = "bug-corrupt-page-kept";
    /// What an engine held is not given back when its process is another one.
    restart_keeps_permits = "bug-restart-keeps-permits";
}
