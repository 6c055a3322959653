//! Waiting longer after each failure.

use std::time::Duration;

/// Doubles from `first` to `most`.
#[derive(Debug)]
pub(crate) struct Backoff {
    first: Duration,
    most: Duration,
    next: Duration,
}

impl Backoff {
    pub(crate) fn new(first: Duration, most: Duration) -> Self {
        Self {
            first,
            most,
            next: first,
        }
    }

    /// How long to wait before the next try.
    pub(crate) fn next(&mut self) -> Duration {
        let wait = self.next.min(self.most);
        self.next = (wait * 2).min(self.most);
        wait
    }

    /// After a success.
    pub(crate) fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_doubles_up_to_its_cap_and_starts_again() {
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_millis(150));
        let waits: Vec<_> = (0..4).map(|_| backoff.next().as_millis()).collect();
        assert_eq!(waits, [50, 100, 150, 150]);
        backoff.reset();
        assert_eq!(backoff.next().as_millis(), 50);
    }
}
