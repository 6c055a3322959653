//! The two legs of a room at SGLang. Both are open at once, under the room's number: decode's is posted first, prefill's
//! waits for it, computes, hands the KV over and ends by itself.
//!
//! A leg that nobody wants any more is aborted by its id again and again until its own answer has ended, because an abort
//! that comes before its request is lost. That is done on a task of the driver, which has a deadline: when it passes the leg's
//! connection is closed, which the engine notices when it can. Until then the engine owes.
//!
//! ```text
//! kept    prefill's leg: computed, committed, ended
//! landed  decode's leg: first token, and all others
//! ends    tasks that end legs, and what they have seen
//! ```

mod ends;
mod kept;
mod landed;

use std::sync::Arc;
use std::time::Duration;

pub use ends::Counts;
use ends::Ends;
use innkeeper_room::RoomId;
pub use kept::Kept;
pub use landed::Landed;

use super::watcher::Watcher;
use crate::failure::RemoteError;
use crate::http::{Target, written};
use crate::leg::Leg;
use crate::sglang::{Identity, Sglang};
use crate::ticket::Bootstrap;

/// Where decode's engines meet one of prefill's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meeting {
    host: String,
    port: u16,
}

impl Meeting {
    /// Of prefill's engine at `engine`, which says of itself that it is `identity`. `host`: the name or address by which
    /// decode's engines reach it; `None`: the one by which its worker does, which is right on one machine only.
    ///
    /// # Errors
    /// [`RemoteError::Mode`]: it is not prefill's.
    pub fn new(engine: &Target, identity: &Identity, host: Option<&str>) -> Result<Self, RemoteError> {
        let Some(port) = identity.bootstrap_port else {
            return Err(RemoteError::Mode {
                at: engine.to_string(),
                mode: identity.mode.clone(),
                wanted: "prefill",
            });
        };
        Ok(Self {
            host: host.map_or_else(|| engine.host(), written),
            port,
        })
    }
}

/// One SGLang, as prefill's or as decode's. Dropping it ends its legs of prefill.
pub struct SglangDriver {
    watcher: Arc<Watcher<Sglang>>,
    meeting: Option<Meeting>,
    ends: Arc<Ends>,
}

impl SglangDriver {
    /// Of the engine that `watcher` watches. `meeting`: where it meets decode's engines, if it is prefill's.
    #[must_use]
    pub fn new(watcher: Arc<Watcher<Sglang>>, meeting: Option<Meeting>) -> Self {
        Self {
            watcher,
            meeting,
            ends: Arc::default(),
        }
    }

    /// The watcher.
    #[must_use]
    pub const fn watcher(&self) -> &Arc<Watcher<Sglang>> {
        &self.watcher
    }

    /// A room's ticket, which prefill's worker can give as soon as it may post its leg; `None` at decode's.
    #[must_use]
    pub fn ticket(&self, room: RoomId) -> Option<Bootstrap> {
        let meeting = self.meeting.as_ref()?;
        Some(Bootstrap {
            host: meeting.host.clone(),
            port: meeting.port,
            room,
        })
    }

    /// The leg at prefill, posted once decode's is. Returns when its prompt is computed, as far as the engine shows it: it then
    /// waits for decode to take the KV, or has been handed over already. `whole` is for all of it, the hand-over
    /// included. Dropping the future aborts the leg.
    ///
    /// # Errors
    /// [`RemoteError`], of another room's ticket too.
    pub async fn prefill(&self, leg: &Leg, place: &Bootstrap, whole: Duration) -> Result<Kept, RemoteError> {
        belongs(leg, place)?;
        Kept::post(&self.watcher, &self.ends, leg, place, whole)
            .computed()
            .await
    }

    /// The leg at decode: takes the KV, and gives the room with its first token, which commits it. `posted` is called when the
    /// engine has taken the request: prefill's leg may be posted then. Until the first token no token leaves
    /// this function, and when it fails, or is dropped, the leg is aborted.
    ///
    /// # Errors
    /// [`RemoteError`], of another room's ticket too. No token within `budget` is [`crate::http::HttpError::Silent`].
    pub async fn pull(
        &self,
        leg: &Leg,
        place: &Bootstrap,
        budget: Duration,
        posted: impl FnOnce(),
    ) -> Result<Landed, RemoteError> {
        belongs(leg, place)?;
        Landed::post(&self.watcher, &self.ends, leg, place, budget, posted).await
    }

    /// What has become of legs that did not end by themselves.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.ends.counts()
    }

    /// Ends prefill's legs, and waits until they and all others that are being aborted have ended, for as long as one may take
    /// at the most ([`crate::Times::ending`]).
    pub async fn shutdown(&self) {
        self.ends.shutdown().await;
    }
}

impl Drop for SglangDriver {
    fn drop(&mut self) {
        self.ends.stop();
    }
}

/// No leg goes into another room than its own: its KV would be another's.
fn belongs(leg: &Leg, place: &Bootstrap) -> Result<(), RemoteError> {
    if place.room == leg.prompt.room {
        return Ok(());
    }
    Err(RemoteError::NoTicket {
        why: format!("it is of room {}, and the leg of room {}", place.room, leg.prompt.room),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(bootstrap_port: Option<u16>) -> Identity {
        Identity {
            model: "tiny".to_owned(),
            root: None,
            mode: if bootstrap_port.is_some() { "prefill" } else { "decode" }.to_owned(),
            bootstrap_port,
            version: "0.5.23".to_owned(),
            page_tokens: 1,
        }
    }

    #[test]
    fn engines_meet_where_decode_can_go() {
        let engine: Target = "http://10.0.0.7:30000".parse().expect("an address");
        let v6: Target = "http://[fd00::7]:30000".parse().expect("an address");
        let at = |engine: &Target, host| Meeting::new(engine, &identity(Some(8998)), host).map(|meeting| meeting.host);
        assert_eq!(at(&engine, None).expect("prefill"), "10.0.0.7");
        assert_eq!(at(&engine, Some("p-0.pods")).expect("prefill"), "p-0.pods");
        // SGLang writes host and port after each other.
        assert_eq!(at(&v6, None).expect("prefill"), "[fd00::7]");
        assert_eq!(at(&engine, Some("fd00::8")).expect("prefill"), "[fd00::8]");
        let error = Meeting::new(&engine, &identity(None), None).expect_err("decode's");
        assert!(error.to_string().contains("--disaggregation-mode prefill"), "{error}");
    }
}
