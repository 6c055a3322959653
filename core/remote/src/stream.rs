//! An answer that comes event by event.

use std::collections::VecDeque;
use std::time::Duration;

use crate::failure::{RemoteError, refused};
use crate::http::{LONGEST_ANSWER, Open};
use crate::sse::Events;

/// The last event of both engines' streams.
const DONE: &[u8] = b"[DONE]";

/// The events of an answer. Dropping it closes the connection, which aborts the request.
#[derive(Debug)]
pub(crate) struct Stream {
    what: &'static str,
    open: Open,
    events: Events,
    ready: VecDeque<Vec<u8>>,
}

impl Stream {
    /// Of an answer whose head came. One that is none is read to its end, for `limit` at most.
    pub(crate) async fn new(what: &'static str, open: Open, limit: Duration) -> Result<Self, RemoteError> {
        let status = open.status();
        if status != 200 {
            let body = open.whole(LONGEST_ANSWER, limit).await?;
            return Err(refused(what, status, &body));
        }
        Ok(Self {
            what,
            open,
            events: Events::default(),
            ready: VecDeque::new(),
        })
    }

    /// The next event; `None`: the engine says that it was all. May be given up and asked again.
    pub(crate) async fn next(&mut self, limit: Duration) -> Result<Option<Vec<u8>>, RemoteError> {
        loop {
            match self.ready.pop_front() {
                Some(event) if event == DONE => return Ok(None),
                Some(event) => return Ok(Some(event)),
                None => {}
            }
            let Some(bytes) = self.open.chunk(limit).await? else {
                return Err(RemoteError::Cut { what: self.what });
            };
            let mut events = Vec::new();
            let pushed = self.events.push(&bytes, &mut events);
            self.ready.extend(events);
            pushed.map_err(|error| RemoteError::Unreadable {
                what: self.what,
                why: error.to_string(),
            })?;
        }
    }
}
