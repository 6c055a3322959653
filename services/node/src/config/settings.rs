//! The protocol's bounds as flags. What is not set follows from the progress TTL.

use innkeeper_room::{Millis, Settings};

use super::{ConfigError, flag};

/// How a setting is written as a flag's number, and back.
trait Number: Sized {
    type Flag: std::fmt::Display + Copy;
    fn of(flag: Self::Flag) -> Self;
    fn flag(&self) -> Self::Flag;
}

impl Number for Millis {
    type Flag = u64;
    fn of(flag: u64) -> Self {
        Self(flag)
    }
    fn flag(&self) -> u64 {
        self.0
    }
}

macro_rules! plain_numbers {
    ($($kind:ty),+) => {$(
        impl Number for $kind {
            type Flag = Self;
            fn of(flag: Self) -> Self {
                flag
            }
            fn flag(&self) -> Self {
                *self
            }
        }
    )+};
}
plain_numbers!(u8, u32, u64);

macro_rules! settings {
    ($($(#[doc = $doc:literal])+ $flag:ident : $kind:ty, $unit:literal => $field:ident;)+) => {
        /// The bounds of the protocol, as far as they are set. One knob, `--progress-ttl-ms`, fits a slow machine.
        #[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
        #[command(next_help_heading = "Protocol")]
        pub struct SettingsArgs {
            $(
                $(#[doc = $doc])+
                #[arg(long, value_name = $unit)]
                pub $flag: Option<$kind>,
            )+
        }

        impl SettingsArgs {
            /// The settings, not looked at.
            fn overlay(&self, settings: &mut Settings) {
                $(if let Some(value) = self.$flag {
                    settings.$field = Number::of(value);
                })+
            }

            /// The arguments that give exactly these settings.
            #[must_use]
            pub fn to_args(settings: &Settings) -> Vec<String> {
                vec![$(flag(&stringify!($flag).replace('_', "-"), settings.$field.flag()),)+]
            }
        }

        /// The flag of a setting that the core names.
        fn flag_of(setting: &str) -> String {
            let setting = setting.trim_end_matches("-ms").replace('-', "_");
            match setting.as_str() {
                $(stringify!($field) => stringify!($flag).replace('_', "-"),)+
                other => other.replace('_', "-"),
            }
        }
    };
}

settings! {
    /// Who owes a step and makes no progress for this long has failed, in milliseconds. Most other times follow from it.
    /// [default: 5000]
    progress_ttl_ms: u64, "MS" => progress_ttl;
    /// From prefill's hello to decode's answer, in milliseconds. [default: from --progress-ttl-ms: TTL]
    handshake_ttl_ms: u64, "MS" => handshake_ttl;
    /// How often nodes report, in milliseconds. [default: from --progress-ttl-ms: TTL/20]
    report_period_ms: u64, "MS" => report_period;
    /// HTTP/2 ping interval of control connections, in milliseconds. [default: from --progress-ttl-ms: TTL/5]
    ping_interval_ms: u64, "MS" => ping_interval;
    /// An unanswered ping breaks the connection after this many milliseconds. [default: from --progress-ttl-ms: 2 TTL/5]
    ping_timeout_ms: u64, "MS" => ping_timeout;
    /// TTL of room and member leases, in milliseconds, whole seconds only. [default: from --progress-ttl-ms: 4/3 TTL,
    /// rounded up, at least 2000]
    lease_ttl_ms: u64, "MS" => lease_ttl;
    /// A room that has lived for this many milliseconds is given its lease; one that is over by then costs etcd nothing. 0: all
    /// are. [default: from --progress-ttl-ms: TTL/50]
    lease_after_ms: u64, "MS" => lease_after;
    /// TCP_USER_TIMEOUT of data connections: sent bytes that stay unacknowledged for this many milliseconds break the
    /// connection. [default: from --progress-ttl-ms: 3 TTL/5]
    tcp_user_timeout_ms: u64, "MS" => tcp_user_timeout;
    /// For connecting, and for a worker's answer to Open, in milliseconds. [default: from --progress-ttl-ms: 2 TTL/5]
    connect_timeout_ms: u64, "MS" => connect_timeout;
    /// A worker that asks whether its room lives waits this many milliseconds. [default: from --progress-ttl-ms: 2 TTL/5]
    ask_timeout_ms: u64, "MS" => ask_timeout;
    /// A router that asks a worker who it is waits this many milliseconds. [default: from --progress-ttl-ms: 2 TTL/5]
    who_timeout_ms: u64, "MS" => who_timeout;
    /// From asking to stop to killing, and for draining a half-closed stream, in milliseconds. [default: from
    /// --progress-ttl-ms: TTL/20, at least 250]
    grace_ms: u64, "MS" => grace;
    /// How long a router waits for evidence after a verdict, in milliseconds. [default: from --progress-ttl-ms: TTL/20, at
    /// least 250]
    blame_wait_ms: u64, "MS" => blame_wait;
    /// The router's own progress timer fires this many milliseconds after the workers'. [default: from --progress-ttl-ms:
    /// TTL/20, at least 500]
    router_slack_ms: u64, "MS" => router_slack;
    /// How long a request may wait for a turn or pages, over all attempts, in milliseconds. [default: 30000]
    queue_timeout_ms: u64, "MS" => queue_timeout;
    /// The same for requests of the high class (`service_tier: priority`); 0: as --queue-timeout-ms. [default: 0]
    queue_timeout_high_ms: u64, "MS" => queue_timeout_high;
    /// The same for requests of the low class (`service_tier: flex`); 0: as --queue-timeout-ms. [default: 0]
    queue_timeout_low_ms: u64, "MS" => queue_timeout_low;
    /// The absolute deadline of a request, and the age of an abort that waits for its request, in milliseconds. [default:
    /// 600000]
    request_timeout_ms: u64, "MS" => request_timeout;
    /// A client whose socket takes no byte for this many milliseconds has stalled. [default: 30000]
    client_stall_ms: u64, "MS" => client_stall;
    /// Slowest acceptable transfer, in bytes per second; a cap lowers it to a tenth of the cap. [default: 4000000]
    transfer_floor_bytes_per_second: u64, "BYTES/S" => transfer_floor;
    /// Slowest acceptable prefill, in tokens per second. [default: 20]
    prefill_floor_tokens_per_second: u64, "TOKENS/S" => prefill_floor;
    /// Slowest acceptable decode, in tokens per second. [default: 1]
    decode_floor_tokens_per_second: u64, "TOKENS/S" => decode_floor;
    /// Cap on what a prefill worker sends, in bytes per second; 0 is none. [default: 0]
    transfer_max_bytes_per_second: u64, "BYTES/S" => transfer_cap;
    /// Tries to send KV within one room; those spent in a queue do not count. [default: 4]
    max_epochs: u32, "N" => max_epochs;
    /// Tries at one request, 1 to 255. [default: 2]
    max_attempts: u8, "N" => max_attempts;
    /// Extra attempts that may be saved up. [default: 20]
    retry_bucket: u32, "N" => retry_bucket;
    /// Thousandths of an extra attempt gained with each admitted request. [default: 100]
    retry_gain_milli: u32, "N/1000" => retry_gain_milli;
    /// Rooms that a prefill worker may have in the handshake at once. [default: 8]
    hello_window: u32, "ROOMS" => hello_window;
    /// Rooms that a router asks a worker to open at once, before it has answered. [default: 64]
    open_window: u32, "ROOMS" => open_window;
    /// Rooms in a row that a worker or a link is blamed for before a router avoids it; 0: never. [default: 3]
    breaker_failures: u32, "N" => breaker_failures;
    /// For how long it is avoided at first, before a probe decides, in milliseconds; at most eight times as long when probes
    /// fail. [default: from --progress-ttl-ms: 2 TTL]
    breaker_open_ms: u64, "MS" => breaker_open;
    /// A worker that has served no room for this many milliseconds is sent a canary, a request of one KV page and one token
    /// through the real data plane; 0: none. [default: 30000]
    canary_period_ms: u64, "MS" => canary_period;
    /// Rooms in a worker's table. [default: 256]
    permits: u32, "ROOMS" => permits;
    /// Largest share of a decode worker's table that one prefill worker may hold, in percent; all if it is the only one.
    /// [default: 50]
    peer_share_percent: u32, "PERCENT" => peer_share_percent;
    /// How much of a prompt a worker must have been sent before for `cache_aware` to prefer it, in percent. [default: 30]
    prefix_match_percent: u32, "PERCENT" => prefix_match_percent;
    /// How many rooms a worker may have for `cache_aware` or `prefix_hash` to prefer it for its prompt, in percent of the
    /// average; at least as many as it computes at once. [default: 125]
    prefix_load_percent: u32, "PERCENT" => prefix_load_percent;
    /// Blocks of prompts, of a KV page each, that a router remembers to have sent to workers; 0: none. [default: 65536]
    prefix_blocks: u32, "BLOCKS" => prefix_blocks;
    /// How much of a worker's KV pages a router books for its rooms, in percent; what does not fit waits at the router. More
    /// than 100 lets some rooms wait at the worker; 0: pages are not looked at, and all wait there. [default: 100]
    page_booking_percent: u32, "PERCENT" => page_booking_percent;
    /// Prompt tokens that a router books at a prefill worker and that are not computed yet; 0: they are not looked at.
    /// [default: 32768]
    prefill_booking_tokens: u32, "TOKENS" => prefill_booking_tokens;
    /// How much of a prefill worker's KV pages may keep what was computed for prompts that are over, in percent: a prompt of the
    /// same client that begins alike computes less. Such pages are free as soon as they are needed; 0: nothing is kept.
    /// [default: 100]
    prefix_cache_percent: u32, "PERCENT" => prefix_cache_percent;
    /// Rooms that a prefill worker computes at once. [default: 4]
    prefill_concurrency: u32, "ROOMS" => prefill_concurrency;
    /// Requests that a router holds, waiting ones included. [default: 1024]
    max_requests: u32, "REQUESTS" => max_requests;
    /// Of these, those that wait. [default: 1024]
    max_queued: u32, "REQUESTS" => max_queued;
    /// 1: a request that would wait beyond its queue timeout, by what waits before it and how fast that goes down, is refused
    /// at once; 0: it waits. [default: 1]
    predict_wait: u32, "0|1" => predict_wait;
    /// What requests of the high class get of the fleet while others wait too, against the other weights. [default: 16]
    weight_high: u32, "N" => weight_high;
    /// The same for the normal class. [default: 4]
    weight_normal: u32, "N" => weight_normal;
    /// The same for the low class. [default: 1]
    weight_low: u32, "N" => weight_low;
    /// Aborts that may wait for requests that have not arrived. [default: 4096]
    max_tombstones: u32, "N" => max_tombstones;
    /// Of these, those of one client. [default: 256]
    tombstones_per_client: u32, "N" => tombstones_per_client;
    /// Ended rooms that a node remembers. [default: 16384]
    remembered_rooms: u32, "ROOMS" => remembered_rooms;
    /// Tokens of a request that names no maximum. [default: 256]
    default_max_tokens: u32, "TOKENS" => default_max_tokens;
    /// Times a parked room may requeue; 0 switches optimistic prefill off. [default: 0]
    optimistic_prefill_attempts: u32, "N" => optimistic_prefill_attempts;
    /// A worker whose pages, permits or actors are kept longer than this by rooms that are over ends itself, in
    /// milliseconds. [default: 60000]
    fence_after_ms: u64, "MS" => fence_after;
}

impl SettingsArgs {
    /// The settings: what is not set follows from the progress TTL.
    ///
    /// # Errors
    /// [`ConfigError::Wrong`] for a value under which the protocol's bounds would not hold.
    pub fn resolve(&self) -> Result<Settings, ConfigError> {
        let mut settings = self
            .progress_ttl_ms
            .map_or_else(Settings::default, |ttl| Settings::from_ttl(Millis(ttl)));
        self.overlay(&mut settings);
        if !settings.lease_ttl.0.is_multiple_of(1000) {
            return Err(ConfigError::Wrong {
                name: "lease-ttl-ms".to_owned(),
                value: settings.lease_ttl.0.to_string(),
                right: "whole seconds, a multiple of 1000".to_owned(),
            });
        }
        settings.validate().map_err(|error| ConfigError::Wrong {
            name: flag_of(error.name),
            value: error.value.to_string(),
            right: error.right,
        })?;
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Only {
        #[command(flatten)]
        settings: SettingsArgs,
    }

    /// Every setting has a flag, and `to_args` leaves none out: each is moved off its default and must come back.
    #[test]
    fn arguments_give_back_exactly_the_settings() {
        let mut json = serde_json::to_value(Settings::default()).unwrap();
        for (_, value) in json.as_object_mut().unwrap() {
            *value = (value.as_u64().unwrap() + 1).into();
        }
        let changed: Settings = serde_json::from_value(json).unwrap();
        let args = SettingsArgs::to_args(&changed);
        let parsed = Only::try_parse_from(["program".to_owned()].into_iter().chain(args)).unwrap();
        let mut settings = Settings::default();
        parsed.settings.overlay(&mut settings);
        assert_eq!(settings, changed);
    }

    #[test]
    fn what_is_not_set_follows_from_the_ttl() {
        let args = SettingsArgs {
            progress_ttl_ms: Some(1000),
            permits: Some(7),
            ..SettingsArgs::default()
        };
        let settings = args.resolve().unwrap();
        assert_eq!(
            settings,
            Settings {
                permits: 7,
                ..Settings::from_ttl(Millis(1000))
            }
        );
    }

    #[test]
    fn a_wrong_value_is_refused_by_its_flag() {
        let wrong = [
            (
                SettingsArgs {
                    transfer_floor_bytes_per_second: Some(0),
                    ..SettingsArgs::default()
                },
                "--transfer-floor-bytes-per-second = 0",
            ),
            (
                SettingsArgs {
                    progress_ttl_ms: Some(1),
                    ..SettingsArgs::default()
                },
                "--progress-ttl-ms = 1 ",
            ),
            (
                SettingsArgs {
                    lease_ttl_ms: Some(5500),
                    ..SettingsArgs::default()
                },
                "whole seconds",
            ),
            (
                SettingsArgs {
                    max_attempts: Some(0),
                    ..SettingsArgs::default()
                },
                "--max-attempts = 0",
            ),
        ];
        for (args, expected) in wrong {
            let text = args.resolve().unwrap_err().to_string();
            assert!(text.contains(expected), "{text}");
        }
    }
}
