//! How large the next chunk should be.

use std::time::Duration;

/// Sizes chunks by the measured rate, so that one takes about the target. A starved engine then is slow, not wedged.
#[derive(Debug)]
pub(crate) struct ChunkSizer {
    target: Duration,
    page: u32,
    largest: u32,
    /// Halved by a chunk that took far too long, doubled again by chunks in time.
    cap: u32,
    /// Tokens per second, smoothed; `None` before the first chunk.
    rate: Option<f64>,
}

/// A chunk of more than this many targets is halved: the target is a tenth of the progress TTL, the limit a third.
const TOO_LONG: f64 = 10.0 / 3.0;

impl ChunkSizer {
    pub(crate) fn new(target: Duration, page: u32, largest: u32) -> Self {
        let largest = largest.max(1);
        Self {
            target,
            page: page.max(1),
            largest,
            cap: largest,
            rate: None,
        }
    }

    /// The size of the chunk that begins at token `from` when `left` tokens are left.
    pub(crate) fn next(&self, from: u32, left: u32) -> u32 {
        // Before anything is known: small enough for a slow machine, and two pages tell the rate.
        let wanted = self
            .rate
            .map_or(f64::from(self.page * 2), |rate| rate * self.target.as_secs_f64());
        let wanted = (wanted as u32).clamp(1, self.cap);
        if wanted >= left {
            return left;
        }
        let overhang = (from + wanted) % self.page;
        // Ends on a page boundary, so that the page can be sealed; less than a page is for the very slow.
        if overhang < wanted { wanted - overhang } else { wanted }
    }

    /// A chunk of `tokens` took this long.
    pub(crate) fn done(&mut self, tokens: u32, took: Duration) {
        let seconds = took.as_secs_f64().max(1e-6);
        let rate = f64::from(tokens) / seconds;
        // A few tokens behind a reused prefix cost what a step costs, and say nothing of how many fit into one.
        if self.rate.is_none() || tokens >= self.page * 2 || took > self.target {
            self.rate = Some(self.rate.map_or(rate, |known| (known + rate) / 2.0));
        }
        let targets = seconds / self.target.as_secs_f64().max(1e-6);
        if targets > TOO_LONG {
            self.cap = (tokens / 2).max(1);
        } else if targets < 1.0 {
            self.cap = self.cap.saturating_mul(2).min(self.largest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: Duration = Duration::from_millis(100);

    #[test]
    fn chunks_follow_the_rate_and_end_on_pages() {
        let mut sizer = ChunkSizer::new(TARGET, 16, 512);
        assert_eq!(sizer.next(0, 1000), 32);
        sizer.done(32, Duration::from_millis(32));
        assert_eq!(sizer.next(32, 968), 96, "100 tokens in 100 ms, rounded down to a page");
        assert_eq!(sizer.next(32, 50), 50, "the rest is one chunk");
        assert_eq!(
            sizer.next(40, 968),
            88,
            "an odd start is brought back to a page boundary"
        );
    }

    #[test]
    fn a_chunk_over_the_limit_is_halved_and_recovers() {
        let mut sizer = ChunkSizer::new(TARGET, 16, 512);
        sizer.done(512, Duration::from_millis(50));
        assert_eq!(sizer.next(0, 4096), 512);
        sizer.done(512, Duration::from_millis(400));
        assert!(sizer.next(0, 4096) <= 256);
        for _ in 0..8 {
            sizer.done(256, Duration::from_millis(20));
        }
        assert_eq!(sizer.next(0, 4096), 512);
    }

    #[test]
    fn a_crawling_engine_gets_single_tokens_never_none() {
        let mut sizer = ChunkSizer::new(TARGET, 16, 512);
        sizer.done(32, Duration::from_secs(100));
        assert_eq!(sizer.next(0, 100), 1);
        assert_eq!(sizer.next(1, 1), 1);
    }
}
