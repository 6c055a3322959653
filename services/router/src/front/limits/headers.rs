//! OpenAI's `x-ratelimit-*` headers.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue};

use super::Left;

/// What a tenant is told of its limits with each answer; of one that it does not have nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) requests: Option<Left>,
    pub(crate) tokens: Option<Left>,
}

const REQUESTS: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit-requests"),
    HeaderName::from_static("x-ratelimit-remaining-requests"),
    HeaderName::from_static("x-ratelimit-reset-requests"),
];
const TOKENS: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit-tokens"),
    HeaderName::from_static("x-ratelimit-remaining-tokens"),
    HeaderName::from_static("x-ratelimit-reset-tokens"),
];

impl Told {
    /// Puts it on an answer.
    pub(crate) fn write(self, headers: &mut HeaderMap) {
        for (left, [limit, remaining, reset]) in [(self.requests, REQUESTS), (self.tokens, TOKENS)] {
            let Some(left) = left else { continue };
            headers.insert(limit, left.limit.into());
            headers.insert(remaining, left.remaining.into());
            if let Ok(text) = HeaderValue::from_str(&shown(left.reset)) {
                headers.insert(reset, text);
            }
        }
    }
}

/// As OpenAI writes times: `120ms`, `1.5s`, `6m0s`.
fn shown(time: Duration) -> String {
    let (ms, seconds) = (time.as_millis(), time.as_secs());
    match seconds {
        0 => format!("{ms}ms"),
        1..=59 if ms % 1000 == 0 => format!("{seconds}s"),
        1..=59 => format!("{seconds}.{:03}s", ms % 1000),
        _ => format!("{}m{}s", seconds / 60, seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_openai_does() {
        let times = [0, 120, 1000, 1500, 59_999, 60_000, 361_000];
        let texts = times.map(|ms| shown(Duration::from_millis(ms)));
        assert_eq!(texts, ["0ms", "120ms", "1s", "1.500s", "59.999s", "1m0s", "6m1s"]);
    }
}
