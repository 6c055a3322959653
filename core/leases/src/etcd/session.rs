//! One watch stream, and what tells that its history has a gap.

use etcd_client::{Client, Error, WatchOptions, WatchResponse, WatchStream};
use innkeeper_room::Incarnation;
use tokio::time::Instant;

use super::LARGEST_MESSAGE;
use crate::keys::{MEMBERS, doors_of};

/// A watch stream with both watches on it.
pub(super) struct Session {
    pub(super) stream: WatchStream,
    revisions: Revisions,
    /// When etcd last said anything.
    pub(super) heard: Instant,
}

impl Session {
    /// A gap, if the message tells of one.
    pub(super) fn check(&mut self, message: &WatchResponse) -> Result<(), String> {
        if message.compact_revision() > 0 {
            return Err(format!(
                "etcd compacted its history up to {}",
                message.compact_revision()
            ));
        }
        if message.canceled() {
            return Err(format!("etcd cancelled the watch: {}", message.cancel_reason()));
        }
        let Some(revision) = message.header().map(etcd_client::ResponseHeader::revision) else {
            return Ok(());
        };
        self.revisions.check(revision, message.events().is_empty())
    }
}

/// The revisions that this session has seen.
#[derive(Debug)]
struct Revisions {
    /// What was listed: nothing older can come.
    listed: i64,
    /// The newest revision that a progress answer named. Events may come after a newer progress answer, so only
    /// progress answers are compared with each other.
    progress: i64,
}

impl Revisions {
    fn check(&mut self, revision: i64, is_progress: bool) -> Result<(), String> {
        let least = if is_progress { self.progress } else { self.listed };
        if revision < least {
            return Err(format!(
                "etcd went back from revision {least} to {revision}: it was wiped"
            ));
        }
        if is_progress {
            self.progress = revision;
        }
        Ok(())
    }
}

/// Watches members and own doors from the revision after the list.
pub(super) async fn open(client: Client, own: Incarnation, listed: i64) -> Result<Session, Error> {
    let options = || Some(WatchOptions::new().with_prefix().with_start_revision(listed + 1));
    let mut watch = client.watch_client().max_decoding_message_size(LARGEST_MESSAGE);
    let mut stream = watch.watch(MEMBERS, options()).await?;
    stream.watch(doors_of(own), options()).await?;
    Ok(Session {
        stream,
        revisions: Revisions {
            listed,
            progress: listed,
        },
        heard: Instant::now(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revision_that_goes_back_is_a_wiped_etcd() {
        let mut seen = Revisions {
            listed: 10,
            progress: 10,
        };
        assert_eq!(seen.check(10, true), Ok(()));
        assert_eq!(seen.check(20, true), Ok(()));
        assert!(seen.check(19, true).is_err());
        assert!(seen.check(3, false).is_err());
    }

    #[test]
    fn an_event_may_come_after_a_newer_progress_answer() {
        let mut seen = Revisions {
            listed: 10,
            progress: 10,
        };
        assert_eq!(seen.check(20, true), Ok(()));
        assert_eq!(seen.check(15, false), Ok(()));
    }
}
