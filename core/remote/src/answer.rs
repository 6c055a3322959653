//! Answers of an engine, whichever it is: those that come whole, and decode's, which come piece by piece.

use std::time::Duration;

use crate::failure::{RemoteError, refused};
use crate::http::Reply;
use crate::leg::Piece;
use crate::stream::Stream;

/// The name of decode's leg in errors.
pub(crate) const DECODE: &str = "decode's leg";
/// The name of prefill's leg in errors.
pub(crate) const PREFILL: &str = "prefill's leg";

/// An answer that is what was asked for; `what` says what that was.
///
/// # Errors
/// [`RemoteError::Status`] of any other than 200.
pub(crate) fn good(what: &'static str, reply: Reply) -> Result<Reply, RemoteError> {
    if reply.status == 200 {
        return Ok(reply);
    }
    Err(refused(what, reply.status, &reply.body))
}

/// Reads the events of one stream.
pub trait Reads {
    /// Reads the next event.
    ///
    /// # Errors
    /// [`RemoteError`]: it is unreadable, an error, or an end that is no good one.
    fn piece(&mut self, event: &[u8]) -> Result<Piece, RemoteError>;
}

/// Decode's tokens, as they come. Dropping it aborts the request.
#[derive(Debug)]
pub struct Answer<R> {
    stream: Stream,
    reader: R,
    over: bool,
}

impl<R: Reads> Answer<R> {
    /// The answer in `stream`, as `reader` reads it.
    pub(crate) const fn new(stream: Stream, reader: R) -> Self {
        Self {
            stream,
            reader,
            over: false,
        }
    }

    /// What comes next; `None` once the last piece was given. May be given up and asked again.
    ///
    /// # Errors
    /// [`RemoteError`]; nothing follows then, [`crate::http::HttpError::Silent`] apart.
    pub async fn next(&mut self, limit: Duration) -> Result<Option<Piece>, RemoteError> {
        if self.over {
            return Ok(None);
        }
        let Some(event) = self.stream.next(limit).await? else {
            return Err(RemoteError::Cut { what: DECODE });
        };
        let piece = self.reader.piece(&event)?;
        self.over = piece.finish.is_some();
        Ok(Some(piece))
    }
}
