//! Every bound of the protocol as a setting. One knob, the progress TTL, fits a slow machine: what is not set follows from it.

use serde::{Deserialize, Serialize};

use crate::class::Class;
use crate::time::Millis;

/// The bounds of the protocol. Times are milliseconds. See `ARCHITECTURE.md` for what each one covers.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Settings {
    /// A party that owes a step and makes no progress for this long has failed.
    pub progress_ttl: Millis,
    /// From P's hello to D's Ready or Wait.
    pub handshake_ttl: Millis,
    /// How often reports are sent and the ledger looks at counters.
    pub report_period: Millis,
    /// HTTP/2 ping interval on control connections.
    pub ping_interval: Millis,
    /// A ping that is not answered for this long breaks the connection.
    pub ping_timeout: Millis,
    /// TTL of room and member leases, whole seconds (etcd counts in seconds).
    pub lease_ttl: Millis,
    /// A room that has lived for this long is given its lease: one that is over by then costs the store nothing.
    pub lease_after: Millis,
    /// TCP_USER_TIMEOUT of data connections: sent bytes unacknowledged for this long break the connection.
    pub tcp_user_timeout: Millis,
    /// Connecting, and a worker's answer to Open.
    pub connect_timeout: Millis,
    /// A worker's question about its room (Ask) waits this long for the owner.
    pub ask_timeout: Millis,
    /// R's question to a worker whether it is still the same incarnation.
    pub who_timeout: Millis,
    /// From asking tasks to stop to killing them; how long a half-closed stream is drained.
    pub grace: Millis,
    /// How long R waits for evidence after a verdict.
    pub blame_wait: Millis,
    /// R's own progress timer fires this much after the workers' own.
    pub router_slack: Millis,
    /// How long a request may wait for its turn or for pages, over all attempts.
    pub queue_timeout: Millis,
    /// The same for requests of the high class; 0: as `queue_timeout`.
    pub queue_timeout_high: Millis,
    /// The same for requests of the low class; 0: as `queue_timeout`.
    pub queue_timeout_low: Millis,
    /// The absolute deadline of a request; also the age of a tombstone.
    pub request_timeout: Millis,
    /// A client whose socket takes no byte for this long has stalled.
    pub client_stall: Millis,
    /// Slowest acceptable transfer in bytes per second; sets a room's absolute transfer deadline.
    pub transfer_floor: u64,
    /// Slowest acceptable prefill in tokens per second.
    pub prefill_floor: u64,
    /// Slowest acceptable decode in tokens per second.
    pub decode_floor: u64,
    /// Cap on what a prefill worker sends, bytes per second; 0 is none. Lowers the transfer floor to a tenth of it.
    pub transfer_cap: u64,
    /// Tries to send KV within one room; those spent while Queued do not count.
    pub max_epochs: u32,
    /// Tries at one request.
    pub max_attempts: u8,
    /// Extra attempts that may be saved up.
    pub retry_bucket: u32,
    /// Thousandths of an extra attempt gained with each admission.
    pub retry_gain_milli: u32,
    /// Rooms a prefill worker may have in the handshake at once.
    pub hello_window: u32,
    /// Rooms in a row that a worker or a link is blamed for before it is avoided; 0: never.
    pub breaker_failures: u32,
    /// For how long it is avoided at first, before a probe decides; up to eight times as long if probes fail.
    pub breaker_open: Millis,
    /// A worker that has served no room to its end for this long is sent a canary; 0: none.
    pub canary_period: Millis,
    /// Rooms in a worker's table.
    pub permits: u32,
    /// Largest share of a decode worker's permits that one prefill worker may hold, in percent (all if it is the only one).
    pub peer_share_percent: u32,
    /// Rooms of a router that a worker may be asked to open at once, without its answer: more wait for admission, so that a
    /// burst is a queue and not a worker that answers too late.
    pub open_window: u32,
    /// How much of a prompt a worker must have been sent before to be preferred for it, in percent of what is looked at.
    pub prefix_match_percent: u32,
    /// How many rooms a worker may have for that, in percent of the average.
    pub prefix_load_percent: u32,
    /// Blocks of prompts that R remembers to have sent to workers; 0: none, and no prompt leads anywhere by what was sent.
    pub prefix_blocks: u32,
    /// How much of a worker's KV pages a router books for its rooms, in percent: what does not fit waits at the router. More
    /// than 100 lets some wait at the worker; 0: pages are not looked at, and all wait there.
    pub page_booking_percent: u32,
    /// Prompt tokens that a router books at a prefill worker and that are not computed yet; 0: they are not looked at.
    pub prefill_booking_tokens: u32,
    /// How much of a prefill worker's KV pages may keep what was computed for prompts that are over, in percent: a prompt that
    /// begins alike computes less. They are free as soon as they are needed. 0: nothing is kept.
    pub prefix_cache_percent: u32,
    /// Rooms that prefill computes at once.
    pub prefill_concurrency: u32,
    /// Requests that R holds, live ones and those in the admission queue together.
    pub max_requests: u32,
    /// Of these, those in the admission queue.
    pub max_queued: u32,
    /// 1: a request that would wait beyond its queue deadline, by what waits and how fast that goes down, is refused at once;
    /// 0: it waits.
    pub predict_wait: u32,
    /// What the high class gets of the fleet while others wait too, against the other weights.
    pub weight_high: u32,
    /// The same for the normal class.
    pub weight_normal: u32,
    /// The same for the low class.
    pub weight_low: u32,
    /// Aborts accepted for requests that have not arrived.
    pub max_tombstones: u32,
    /// Of these, those from one client.
    pub tombstones_per_client: u32,
    /// Ended rooms that a node remembers.
    pub remembered_rooms: u32,
    /// Tokens of a request that names no maximum.
    pub default_max_tokens: u32,
    /// Times a parked room may requeue; 0 switches optimistic prefill off.
    pub optimistic_prefill_attempts: u32,
    /// Quarantine above a quarter of the pool, or anything kept longer than this, fences the process.
    pub fence_after: Millis,
}

impl Default for Settings {
    fn default() -> Self {
        Self::from_ttl(Millis::from_secs(5))
    }
}

impl Settings {
    /// Tokens per second of a read of KV that nobody has measured: 4 MB/s at 128 KiB per token, the slowest that a transfer of
    /// slabs may be.
    pub const READ_FLOOR: u64 = 30;

    /// All settings for a progress TTL, everything else at its default.
    #[must_use]
    pub fn from_ttl(ttl: Millis) -> Self {
        let twentieth = ttl.scale(1, 20);
        let quarter = Millis(twentieth.0.max(250));
        Self {
            progress_ttl: ttl,
            handshake_ttl: ttl,
            report_period: twentieth,
            ping_interval: ttl.scale(1, 5),
            ping_timeout: ttl.scale(2, 5),
            lease_ttl: Millis(ttl.scale(4, 3).0.div_ceil(1000).max(2) * 1000),
            lease_after: ttl.scale(1, 50),
            tcp_user_timeout: ttl.scale(3, 5),
            connect_timeout: ttl.scale(2, 5),
            ask_timeout: ttl.scale(2, 5),
            who_timeout: ttl.scale(2, 5),
            grace: quarter,
            blame_wait: quarter,
            router_slack: Millis(twentieth.0.max(500)),
            queue_timeout: Millis::from_secs(30),
            queue_timeout_high: Millis(0),
            queue_timeout_low: Millis(0),
            request_timeout: Millis::from_secs(600),
            client_stall: Millis::from_secs(30),
            transfer_floor: 4_000_000,
            prefill_floor: 20,
            decode_floor: 1,
            transfer_cap: 0,
            max_epochs: 4,
            max_attempts: 2,
            retry_bucket: 20,
            retry_gain_milli: 100,
            hello_window: 8,
            open_window: 64,
            breaker_failures: 3,
            breaker_open: ttl.scale(2, 1),
            canary_period: Millis::from_secs(30),
            permits: 256,
            peer_share_percent: 50,
            prefix_match_percent: 30,
            prefix_load_percent: 125,
            prefix_blocks: 65_536,
            page_booking_percent: 100,
            prefill_booking_tokens: 32_768,
            prefix_cache_percent: 100,
            prefill_concurrency: 4,
            max_requests: 1024,
            max_queued: 1024,
            predict_wait: 1,
            weight_high: 16,
            weight_normal: 4,
            weight_low: 1,
            max_tombstones: 4096,
            tombstones_per_client: 256,
            remembered_rooms: 16_384,
            default_max_tokens: 256,
            optimistic_prefill_attempts: 0,
            fence_after: Millis::from_secs(60),
        }
    }

    /// The slowest acceptable transfer: the floor, lowered to a tenth of a configured cap.
    #[must_use]
    pub fn effective_transfer_floor(&self) -> u64 {
        match self.transfer_cap {
            0 => self.transfer_floor,
            cap => self.transfer_floor.min((cap / 10).max(1)),
        }
    }

    /// Absolute deadline of prefill's computing, from Started.
    #[must_use]
    pub fn prefill_budget(&self, prompt_tokens: u32) -> Millis {
        Millis::at_rate(u64::from(prompt_tokens), self.prefill_floor) + self.two_ttl()
    }

    /// Absolute deadline of the transfer, from the last seal.
    #[must_use]
    pub fn transfer_budget(&self, bytes_outstanding: u64) -> Millis {
        Millis::at_rate(bytes_outstanding, self.effective_transfer_floor()) + self.two_ttl()
    }

    /// The longest that a read of a prompt's KV by an engine of others may last for R: what workers that have measured nothing allow,
    /// and their reports of its end.
    #[must_use]
    pub fn read_budget(&self, prompt_tokens: u32) -> Millis {
        let slowest = Millis::at_rate(u64::from(prompt_tokens), Self::READ_FLOOR) + self.two_ttl();
        slowest + self.report_period.scale(4, 1)
    }

    /// Absolute deadline of decoding, from the commit.
    #[must_use]
    pub fn decode_budget(&self, max_tokens: u32) -> Millis {
        Millis::at_rate(u64::from(max_tokens), self.decode_floor) + self.two_ttl()
    }

    /// How long a request of this class may wait, over all attempts.
    #[must_use]
    pub const fn queue_limit(&self, class: Class) -> Millis {
        let own = match class {
            Class::High => self.queue_timeout_high,
            Class::Normal => self.queue_timeout,
            Class::Low => self.queue_timeout_low,
        };
        if own.0 == 0 { self.queue_timeout } else { own }
    }

    /// The classes' weights, in the order of [`Class::ALL`].
    #[must_use]
    pub const fn weights(&self) -> [u32; 3] {
        [self.weight_high, self.weight_normal, self.weight_low]
    }

    /// Two progress TTLs.
    #[must_use]
    pub fn two_ttl(&self) -> Millis {
        self.progress_ttl.scale(2, 1)
    }

    /// R's own progress timer.
    #[must_use]
    pub fn router_ttl(&self) -> Millis {
        self.progress_ttl + self.router_slack
    }

    /// Before each retry of a data connection within a room: at once, then 100 ms, then 400 ms.
    #[must_use]
    pub const fn retry_backoff(failures: u32) -> Millis {
        match failures {
            0 | 1 => Millis(0),
            2 => Millis(100),
            _ => Millis(400),
        }
    }

    /// Refuses values under which the protocol's bounds do not hold.
    ///
    /// # Errors
    /// Names the setting, its value and what would be right.
    pub fn validate(&self) -> Result<(), SettingsError> {
        let ttl = self.progress_ttl.0;
        let at_least = |name, value: u64, least: u64| {
            if value < least {
                Err(SettingsError {
                    name,
                    value,
                    right: format!("at least {least}"),
                })
            } else {
                Ok(())
            }
        };
        let at_most = |name, value: u64, most: u64| {
            if value > most {
                Err(SettingsError {
                    name,
                    value,
                    right: format!("at most {most}"),
                })
            } else {
                Ok(())
            }
        };
        at_least("progress-ttl-ms", ttl, 200)?;
        at_most("progress-ttl-ms", ttl, 3_600_000)?;
        at_least("report-period-ms", self.report_period.0, 5)?;
        at_most("report-period-ms", self.report_period.0, ttl / 4)?;
        at_least("ping-interval-ms", self.ping_interval.0, 10)?;
        at_least("ping-timeout-ms", self.ping_timeout.0, 10)?;
        at_most("ping-timeout-ms", self.ping_interval.0 + self.ping_timeout.0, ttl)?;
        at_least("lease-ttl-ms", self.lease_ttl.0, 2000)?;
        at_least("lease-ttl-ms", self.lease_ttl.0, ttl)?;
        at_most("lease-after-ms", self.lease_after.0, ttl / 4)?;
        at_least("tcp-user-timeout-ms", self.tcp_user_timeout.0, 10)?;
        at_most("tcp-user-timeout-ms", self.tcp_user_timeout.0, ttl)?;
        // A node takes a gap of up to a report period and a quarter of the TTL for a late clock, not for a stop: no timer
        // may be so short that it can fire within that gap, or a node that was itself late would accuse another.
        let late = self.report_period.0 + self.progress_ttl.scale(1, 4).0 + 1;
        at_least("connect-timeout-ms", self.connect_timeout.0, late)?;
        at_most("connect-timeout-ms", self.connect_timeout.0, ttl)?;
        at_least("handshake-ttl-ms", self.handshake_ttl.0, late)?;
        at_least("ask-timeout-ms", self.ask_timeout.0, late)?;
        at_least("who-timeout-ms", self.who_timeout.0, late)?;
        at_least("queue-timeout-ms", self.queue_timeout.0, 1)?;
        for class in Class::ALL {
            at_least("request-timeout-ms", self.request_timeout.0, self.queue_limit(class).0)?;
        }
        at_least("transfer-floor", self.transfer_floor, 1)?;
        at_least("prefill-floor", self.prefill_floor, 1)?;
        at_least("decode-floor", self.decode_floor, 1)?;
        at_least("max-epochs", u64::from(self.max_epochs), 1)?;
        at_least("max-attempts", u64::from(self.max_attempts), 1)?;
        at_least("hello-window", u64::from(self.hello_window), 1)?;
        at_least("open-window", u64::from(self.open_window), 1)?;
        // A breaker that closes before the room that opened it could fail again would flap.
        at_least("breaker-open-ms", self.breaker_open.0, ttl)?;
        if self.canary_period > Millis(0) {
            at_least("canary-period-ms", self.canary_period.0, self.report_period.0)?;
        }
        at_least("prefix-match-percent", u64::from(self.prefix_match_percent), 1)?;
        at_most("prefix-match-percent", u64::from(self.prefix_match_percent), 100)?;
        // Below the average the bound would keep everybody from taking anything.
        at_least("prefix-load-percent", u64::from(self.prefix_load_percent), 100)?;
        if self.prefix_blocks > 0 {
            // One prompt must find a place.
            at_least(
                "prefix-blocks",
                u64::from(self.prefix_blocks),
                crate::prefix::MOST_BLOCKS as u64,
            )?;
        }
        at_most("prefix-blocks", u64::from(self.prefix_blocks), 1 << 24)?;
        at_least("permits", u64::from(self.permits), 1)?;
        at_least("peer-share-percent", u64::from(self.peer_share_percent), 1)?;
        at_most("peer-share-percent", u64::from(self.peer_share_percent), 100)?;
        if self.page_booking_percent > 0 {
            // With less, a room that needs nearly all pages of a worker would wait for ever.
            at_least("page-booking-percent", u64::from(self.page_booking_percent), 100)?;
        }
        at_most("prefix-cache-percent", u64::from(self.prefix_cache_percent), 100)?;
        at_least("prefill-concurrency", u64::from(self.prefill_concurrency), 1)?;
        at_least("max-requests", u64::from(self.max_requests), 1)?;
        at_least("max-queued", u64::from(self.max_queued), 1)?;
        at_most("predict-wait", u64::from(self.predict_wait), 1)?;
        for (name, weight) in [
            ("weight-high", self.weight_high),
            ("weight-normal", self.weight_normal),
            ("weight-low", self.weight_low),
        ] {
            at_least(name, u64::from(weight), 1)?;
            at_most(name, u64::from(weight), 1000)?;
        }
        // The flag is there; what it switches on is not.
        at_most(
            "optimistic-prefill-attempts",
            u64::from(self.optimistic_prefill_attempts),
            0,
        )?;
        at_least("default-max-tokens", u64::from(self.default_max_tokens), 1)
    }
}

/// A setting under which the protocol's bounds would not hold.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{name} = {value} is wrong: it must be {right}")]
pub struct SettingsError {
    /// The setting's name, as a flag has it.
    pub name: &'static str,
    /// Its value.
    pub value: u64,
    /// What would be right.
    pub right: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_hold_for_every_usable_ttl() {
        for ttl in [200, 300, 1000, 5000, 60_000] {
            assert_eq!(Settings::from_ttl(Millis(ttl)).validate(), Ok(()), "ttl {ttl}");
        }
        assert_eq!(Settings::default().lease_ttl, Millis(7000));
        assert_eq!(Settings::default().report_period, Millis(250));
    }

    #[test]
    fn a_wrong_value_is_refused_by_name() {
        let wrong = Settings {
            max_epochs: 0,
            ..Settings::default()
        };
        assert!(wrong.validate().unwrap_err().to_string().contains("max-epochs = 0"));
    }

    #[test]
    fn no_timer_may_be_shorter_than_what_a_late_clock_may_be() {
        let late = Settings {
            connect_timeout: Millis(1500),
            ..Settings::default()
        };
        // A report period of 250 ms and a quarter of the TTL, 1250 ms, pass for a late clock.
        assert!(late.validate().unwrap_err().to_string().contains("connect-timeout-ms"));
        let enough = Settings {
            connect_timeout: Millis(1501),
            ..Settings::default()
        };
        assert_eq!(enough.validate(), Ok(()));
    }

    #[test]
    fn a_cap_lowers_the_floor() {
        let capped = Settings {
            transfer_cap: 1_000_000,
            ..Settings::default()
        };
        assert_eq!(capped.effective_transfer_floor(), 100_000);
        assert_eq!(Settings::default().effective_transfer_floor(), 4_000_000);
    }
}
