//! The bounds of the data plane.

use std::time::Duration;

use innkeeper_room::Settings;

use crate::sabotage::Sabotage;

/// Most bytes of payload in one frame.
pub const MAX_PAYLOAD: usize = 256 * 1024;

/// The bounds of the data plane. Every time is a deadline of exactly one kind of wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Resolving, connecting and the TLS handshake together; after it the connection counts as refused.
    pub connect_timeout: Duration,
    /// D: from accept to a complete hello, a TLS handshake included, and again from the hello to its answer.
    pub hello_timeout: Duration,
    /// TCP_USER_TIMEOUT: sent bytes that the peer's kernel does not acknowledge for this long break the connection.
    pub user_timeout: Duration,
    /// Idle time after which TCP keepalive asks (an idle connection has nothing unacknowledged, so the user timeout is blind).
    pub keepalive_idle: Duration,
    /// Time between two unanswered keepalive probes.
    pub keepalive_interval: Duration,
    /// Unanswered probes that break the connection.
    pub keepalive_probes: u32,
    /// For writing a last word, and again for draining what the peer still sends after it.
    pub grace: Duration,
    /// P: most bytes handed to the connection that D has not taken yet.
    pub window: u64,
    /// P: most bytes per second over all sessions of the backend; `None` is no cap.
    pub rate_cap: Option<u64>,
    /// D: connections that have not said hello, or are still in their TLS handshake; one more evicts the oldest of them.
    pub max_pending_hellos: usize,
    /// D: connections altogether; one more is closed at once.
    pub max_connections: usize,
    /// SO_SNDBUF in bytes; `None` leaves it to the system. A small one makes a slow link visible early.
    pub sndbuf: Option<usize>,
    /// D: Verified is told at the latest after this many bytes ...
    pub ack_bytes: u64,
    /// ... or this much time, whichever comes first. Counters of events are coalesced over the same time.
    pub ack_delay: Duration,
    /// What tests do to the sessions; nothing in production.
    pub sabotage: Sabotage,
}

impl Default for Config {
    fn default() -> Self {
        Self::from(&Settings::default())
    }
}

impl From<&Settings> for Config {
    fn from(settings: &Settings) -> Self {
        let user_timeout = settings.tcp_user_timeout.duration();
        Self {
            connect_timeout: settings.connect_timeout.duration(),
            hello_timeout: settings.handshake_ttl.duration(),
            user_timeout,
            // The kernel counts keepalive in whole seconds: one second is the least.
            keepalive_idle: (user_timeout / 3).max(Duration::from_secs(1)),
            keepalive_interval: (user_timeout / 3).max(Duration::from_secs(1)),
            keepalive_probes: 2,
            grace: settings.grace.duration(),
            window: 16 << 20,
            rate_cap: (settings.transfer_cap > 0).then_some(settings.transfer_cap),
            max_pending_hellos: 256,
            max_connections: 4096,
            sndbuf: None,
            ack_bytes: 1 << 20,
            ack_delay: Duration::from_millis(5),
            sabotage: Sabotage::default(),
        }
    }
}

impl Config {
    /// Payload of one slab frame: a capped link gets frames of a twentieth of a second, so that progress stays visible.
    #[must_use]
    pub fn frame_payload(&self) -> usize {
        let by_rate = self.rate_cap.map_or(MAX_PAYLOAD as u64, |cap| (cap / 20).max(4096));
        usize::try_from(by_rate.min(self.window.max(4096)))
            .unwrap_or(MAX_PAYLOAD)
            .min(MAX_PAYLOAD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capped_link_gets_small_frames() {
        let capped = Config {
            rate_cap: Some(200_000),
            ..Config::default()
        };
        assert_eq!(capped.frame_payload(), 10_000);
        assert_eq!(Config::default().frame_payload(), MAX_PAYLOAD);
        assert_eq!(
            Config {
                rate_cap: Some(1),
                ..Config::default()
            }
            .frame_payload(),
            4096
        );
    }
}
