use std::future::Future;
use std::time::{Duration, Instant};

/// Between two looks. Short against every bound that is tested, long against what a look costs.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Whether everything is to be tested, and not only what a default run has the time for: `INNKEEPER_VERIFY=1`.
#[must_use]
pub fn verify_everything() -> bool {
    std::env::var_os("INNKEEPER_VERIFY").is_some_and(|value| value == "1")
}

/// The first so many cases; all of them if everything is to be tested.
#[must_use]
pub fn enough_of<T>(all: &[T], by_default: usize) -> &[T] {
    let count = if verify_everything() {
        all.len()
    } else {
        by_default.min(all.len())
    };
    &all[..count]
}

/// Looks until there is something, at most `limit`; panics with `what` and the last miss if it stays away.
pub async fn until<T, M, F, A>(limit: Duration, what: &str, mut look: F) -> T
where
    M: std::fmt::Debug,
    F: FnMut() -> A,
    A: Future<Output = Result<T, M>>,
{
    let end = Instant::now() + limit;
    loop {
        match look().await {
            Ok(found) => return found,
            Err(miss) if Instant::now() >= end => {
                panic!("{what}: not within {} ms; last seen: {miss:#?}", limit.as_millis())
            }
            Err(_) => tokio::time::sleep(LOOK_AGAIN).await,
        }
    }
}

/// Awaits at most `limit`; panics with `what` if that passes.
pub async fn within<A: Future>(limit: Duration, what: &str, act: A) -> A::Output {
    match tokio::time::timeout(limit, act).await {
        Ok(done) => done,
        Err(_) => panic!("{what}: not within {} ms", limit.as_millis()),
    }
}
