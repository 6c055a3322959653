//! Whether a connection broke, or only a stream ended. It decides whom R accuses.

use std::error::Error;

use tonic::Status;

/// Whether the error is one of the connection (refused, reset, an unanswered ping, closed as a whole) and not just of the
/// stream. A status that the peer sent has no source; a reset of the stream says so; all else broke the connection.
pub(super) fn is_broken(status: &Status) -> bool {
    let mut cause = status.source();
    if cause.is_none() {
        return false;
    }
    while let Some(error) = cause {
        if let Some(h2) = error.downcast_ref::<h2::Error>() {
            return !h2.is_reset();
        }
        cause = error.source();
    }
    true
}

/// The error and what is behind it, for people.
pub(super) fn tell(status: &Status) -> String {
    let mut text = format!("{}: {}", status.code(), status.message());
    let mut cause = status.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.ends_with(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_peer_said_broke_nothing() {
        assert!(!is_broken(&Status::invalid_argument("no")));
        assert!(!is_broken(&Status::unavailable("draining")));
    }

    #[test]
    fn what_broke_below_broke_the_connection() {
        let reset = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        let status = Status::from_error(Box::new(reset));
        assert!(is_broken(&status));
        assert!(tell(&status).contains("reset"), "{}", tell(&status));
    }
}
