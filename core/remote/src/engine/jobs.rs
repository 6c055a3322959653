//! The legs that are out: one per room.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use innkeeper_engine::EngineError;
use innkeeper_room::RoomId;
use tokio_util::sync::CancellationToken;

/// How a leg ended, seen by whoever asked it to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    /// By itself.
    Itself,
    /// It was asked to stop, and who asked was told that `stopped` follows.
    Cancelled,
}

/// The jobs.
#[derive(Debug, Default)]
pub(super) struct Jobs(Mutex<BTreeMap<RoomId, CancellationToken>>);

impl Jobs {
    /// A leg begins; what ends it.
    pub(super) fn begin(&self, room: RoomId, stop: &CancellationToken) -> Result<CancellationToken, EngineError> {
        let mut jobs = self.jobs();
        if jobs.contains_key(&room) {
            return Err(EngineError::Exists(room));
        }
        let token = stop.child_token();
        jobs.insert(room, token.clone());
        Ok(token)
    }

    /// Asks a leg to stop; whether there is one.
    pub(super) fn cancel(&self, room: RoomId) -> bool {
        let jobs = self.jobs();
        let job = jobs.get(&room);
        if let Some(token) = job {
            token.cancel();
        }
        job.is_some()
    }

    /// Asks all legs to stop.
    pub(super) fn cancel_all(&self) {
        self.jobs().values().for_each(CancellationToken::cancel);
    }

    /// A leg has ended. By itself: from now on nobody is told that `stopped` follows. Asked to stop: it stays until
    /// [`Self::settled`], so that whoever asks again hears the one answer that follows.
    pub(super) fn over(&self, room: RoomId) -> Over {
        let mut jobs = self.jobs();
        if jobs.get(&room).is_none_or(CancellationToken::is_cancelled) {
            return Over::Cancelled;
        }
        jobs.remove(&room);
        Over::Itself
    }

    /// Of a leg that was asked to stop the engine has everything back.
    pub(super) fn settled(&self, room: RoomId) {
        self.jobs().remove(&room);
    }

    /// How many are out.
    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.jobs().len()).unwrap_or(u32::MAX)
    }

    fn jobs(&self) -> MutexGuard<'_, BTreeMap<RoomId, CancellationToken>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_told_that_stopped_follows_hears_it() {
        let (jobs, stop) = (Jobs::default(), CancellationToken::new());
        let room = RoomId::from_random(1);
        assert!(!jobs.cancel(room), "there is none yet");
        let token = jobs.begin(room, &stop).expect("the first");
        assert_eq!(jobs.begin(room, &stop).err(), Some(EngineError::Exists(room)));
        assert!(jobs.cancel(room) && token.is_cancelled());
        assert_eq!(jobs.over(room), Over::Cancelled);
        assert!(
            jobs.cancel(room),
            "asked again before it has settled: one answer follows"
        );
        jobs.settled(room);
        assert!(!jobs.cancel(room));
        let token = jobs.begin(room, &stop).expect("it is over");
        assert_eq!((jobs.count(), jobs.over(room), jobs.count()), (1, Over::Itself, 0));
        stop.cancel();
        assert!(token.is_cancelled());
    }
}
