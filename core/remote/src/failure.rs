//! What went wrong with an engine, in kinds that the ledgers tell apart and words that a person can act on.

use innkeeper_room::{Millis, Reason};

use crate::http::HttpError;

/// The kind of a failure: what the room will say of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// It did not answer in time. Whether it is wedged says its canary.
    Silent,
    /// Nobody is there, or the connection broke: the process may be another one by now.
    Gone,
    /// It answered, and not with what was asked for.
    Error,
    /// The KV may have been read after prefill's engine had given its pages away.
    Unproven,
}

impl Failure {
    /// What a room says of it. Silence is said of an engine that answers no canary; whether a leg is silent for too long is the
    /// ledger's to judge.
    #[must_use]
    pub const fn reason(self) -> Reason {
        match self {
            Self::Silent => Reason::EngineWedged,
            Self::Gone | Self::Error => Reason::EngineError,
            Self::Unproven => Reason::KvUnproven,
        }
    }
}

/// An engine did not do what it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// It did not answer, or not in time.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// It refused.
    #[error("the engine answered {status} to {what}: {message}")]
    Status {
        /// What was asked.
        what: &'static str,
        /// The HTTP status.
        status: u16,
        /// What it said, shortened.
        message: String,
    },
    /// It gave an error in the middle of an answer that had begun well.
    #[error("the engine ended its answer with an error: {message}")]
    Said {
        /// What it said, shortened.
        message: String,
    },
    /// Its answer is none.
    #[error("the engine's answer to {what} cannot be read: {why}")]
    Unreadable {
        /// What was asked.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// It computed a prompt and names no place where its KV can be read. Without it decode would quietly compute again.
    #[error("prefill's engine gave no usable ticket: {why}; start it with a KV connector in the producer's role")]
    NoTicket {
        /// What is missing.
        why: String,
    },
    /// It does not play the part that it is used for.
    #[error("the engine at {at} runs in mode `{mode}`: start it with --disaggregation-mode {wanted}")]
    Mode {
        /// Its address.
        at: String,
        /// Its mode.
        mode: String,
        /// The mode that is needed.
        wanted: &'static str,
    },
    /// It ended a request for a reason that nobody asked for.
    #[error("the engine ended {what} with `{reason}`")]
    Ended {
        /// What was asked.
        what: &'static str,
        /// Its finish reason.
        reason: String,
    },
    /// The answer ended without an end.
    #[error("the engine's answer to {what} stopped in the middle")]
    Cut {
        /// What was asked.
        what: &'static str,
    },
    /// The first token came too late to say that the KV was still there.
    #[error("the KV was {age:?} old when it had been read, and prefill's engine keeps it for {lease:?}")]
    Unproven {
        /// An upper bound of the lease's age.
        age: Millis,
        /// The lease.
        lease: Millis,
    },
}

impl RemoteError {
    /// The kind.
    #[must_use]
    pub const fn failure(&self) -> Failure {
        match self {
            Self::Http(HttpError::Silent { .. }) => Failure::Silent,
            Self::Http(HttpError::Unreachable { .. } | HttpError::Broken { .. })
            | Self::Status { status: 503, .. }
            | Self::Cut { .. } => Failure::Gone,
            Self::Http(HttpError::TooLong { .. } | HttpError::Request { .. })
            | Self::Status { .. }
            | Self::Said { .. }
            | Self::Unreadable { .. }
            | Self::NoTicket { .. }
            | Self::Mode { .. }
            | Self::Ended { .. } => Failure::Error,
            Self::Unproven { .. } => Failure::Unproven,
        }
    }
}

/// Longest part of an engine's words that is repeated.
const LONGEST: usize = 300;

/// The error of an answer with another status than it should have; `what` says what was asked.
pub(crate) fn refused(what: &'static str, status: u16, body: &[u8]) -> RemoteError {
    RemoteError::Status {
        what,
        status,
        message: words(body),
    }
}

/// What an engine said, for people: `message` or `detail` of its JSON if there is one, else the text; shortened.
pub(crate) fn words(body: &[u8]) -> String {
    let json: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let said = json.as_ref().and_then(|json| {
        let places = ["/error/message", "/message", "/detail", "/error"];
        places
            .iter()
            .find_map(|place| json.pointer(place).and_then(serde_json::Value::as_str))
    });
    let text = match said {
        Some(said) => said.to_owned(),
        None => String::from_utf8_lossy(body.get(..body.len().min(4 * LONGEST)).unwrap_or_default()).into_owned(),
    };
    let plain: String = text
        .chars()
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .take(LONGEST)
        .collect();
    if plain.trim().is_empty() {
        "(nothing)".to_owned()
    } else {
        plain.trim().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engines_words_are_found_shortened_and_harmless() {
        assert_eq!(
            words(br#"{"error":{"message":"no such model","code":404}}"#),
            "no such model"
        );
        assert_eq!(words(br#"{"object":"error","message":"too long"}"#), "too long");
        assert_eq!(words(br#"{"detail":"Not Found"}"#), "Not Found");
        assert_eq!(words(b"Internal Server Error\n"), "Internal Server Error");
        assert_eq!(words(b""), "(nothing)");
        assert_eq!(words(b"a\x1b[31mb"), "a [31mb");
        assert!(words(&[b'x'; 10_000]).len() <= LONGEST);
        assert!(!words(&[0xff; 10_000]).is_empty());
    }
}
