//! Waiting until what there is has finished, within a limit.

use std::future::Future;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

/// How often a drain looks again. Draining is rare and its end is not urgent.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// How a drain ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// Nothing is left.
    Empty,
    /// The limit passed.
    LimitPassed,
    /// Somebody asked to stop at once.
    Forced,
}

/// Waits until `is_empty` answers true, at most `limit`, or until `force` is cancelled. An answer that does not come in
/// time counts as "no"; the limit holds even while one is awaited.
pub async fn drain<F, A>(limit: Duration, force: &CancellationToken, mut is_empty: F) -> Drained
where
    F: FnMut() -> A,
    A: Future<Output = bool>,
{
    let wait = async {
        while !is_empty().await {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    };
    tokio::select! {
        biased;
        () = force.cancelled() => Drained::Forced,
        () = wait => Drained::Empty,
        () = tokio::time::sleep(limit) => Drained::LimitPassed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_ends_when_nothing_is_left() {
        let mut left = 3;
        let never = CancellationToken::new();
        let outcome = drain(Duration::from_secs(10), &never, || {
            left -= 1;
            std::future::ready(left == 0)
        });
        assert_eq!(outcome.await, Drained::Empty);
    }

    #[tokio::test(start_paused = true)]
    async fn the_limit_holds_even_while_an_answer_is_awaited() {
        let never = CancellationToken::new();
        assert_eq!(
            drain(Duration::from_secs(10), &never, std::future::pending).await,
            Drained::LimitPassed
        );
    }

    #[tokio::test(start_paused = true)]
    async fn force_ends_it() {
        let force = CancellationToken::new();
        force.cancel();
        assert_eq!(
            drain(Duration::from_secs(10), &force, std::future::pending).await,
            Drained::Forced
        );
    }
}
