//! Server-sent events: bytes in, the data of events out, however the bytes are cut.

/// Longest event that is read, in bytes. SGLang repeats the whole answer in each event.
pub const LONGEST_EVENT: usize = 16 << 20;

/// An event is longer than it may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event of the stream is longer than {0} bytes")]
pub struct TooLong(pub usize);

/// Puts events together.
#[derive(Debug)]
pub struct Events {
    most: usize,
    line: Vec<u8>,
    data: Option<Vec<u8>>,
    /// A line ended with a carriage return: a line feed that follows belongs to it.
    after_return: bool,
}

impl Default for Events {
    fn default() -> Self {
        Self::new(LONGEST_EVENT)
    }
}

impl Events {
    /// Of at most `most` bytes each.
    #[must_use]
    pub const fn new(most: usize) -> Self {
        Self {
            most,
            line: Vec::new(),
            data: None,
            after_return: false,
        }
    }

    /// Takes bytes; the data of events that are complete now goes to `out`.
    ///
    /// # Errors
    /// [`TooLong`]; the stream cannot be read any further.
    pub fn push(&mut self, bytes: &[u8], out: &mut Vec<Vec<u8>>) -> Result<(), TooLong> {
        let mut rest = bytes;
        loop {
            if self.after_return && !rest.is_empty() {
                self.after_return = false;
                rest = rest.strip_prefix(b"\n").unwrap_or(rest);
            }
            let Some(at) = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')) else {
                return self.hold(rest);
            };
            let (line, end) = rest.split_at(at);
            self.hold(line)?;
            self.after_return = end.first() == Some(&b'\r');
            rest = end.get(1..).unwrap_or_default();
            self.line_ended(out)?;
        }
    }

    /// Whether the stream ended in the middle of an event, which counts for nothing then.
    #[must_use]
    pub fn is_partial(&self) -> bool {
        !self.line.is_empty() || self.data.is_some()
    }

    fn hold(&mut self, part: &[u8]) -> Result<(), TooLong> {
        let held = self.line.len() + self.data.as_ref().map_or(0, Vec::len);
        if held.saturating_add(part.len()) > self.most {
            return Err(TooLong(self.most));
        }
        self.line.extend_from_slice(part);
        Ok(())
    }

    fn line_ended(&mut self, out: &mut Vec<Vec<u8>>) -> Result<(), TooLong> {
        let line = std::mem::take(&mut self.line);
        if line.is_empty() {
            out.extend(self.data.take());
            return Ok(());
        }
        let (field, value) = match line.iter().position(|byte| *byte == b':') {
            Some(at) => (&line[..at], &line[at + 1..]),
            None => (&line[..], &[][..]),
        };
        if field == b"data" {
            let value = value.strip_prefix(b" ").unwrap_or(value);
            match &mut self.data {
                Some(data) => {
                    data.push(b'\n');
                    data.extend_from_slice(value);
                    if data.len() > self.most {
                        return Err(TooLong(self.most));
                    }
                }
                None => self.data = Some(value.to_vec()),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(bytes: &[u8], cuts: &[usize]) -> Result<Vec<Vec<u8>>, TooLong> {
        let (mut events, mut out) = (Events::new(1 << 10), Vec::new());
        let mut from = 0;
        for cut in cuts.iter().copied().chain([bytes.len()]) {
            let to = cut.clamp(from, bytes.len());
            events.push(&bytes[from..to], &mut out)?;
            from = to;
        }
        Ok(out)
    }

    #[test]
    fn events_lines_comments_and_all_line_ends() {
        let bytes = b": a comment\ndata: one\n\nevent: x\r\ndata:two\r\ndata: lines\r\n\r\nid: 1\n\ndata\r\rdata: cut";
        let out = all(bytes, &[]).expect("short");
        assert_eq!(out, [b"one".to_vec(), b"two\nlines".to_vec(), b"".to_vec()]);
    }

    #[test]
    fn an_event_without_end_is_not_held_for_ever() {
        let mut events = Events::new(100);
        let mut out = Vec::new();
        assert_eq!(events.push(&[b'x'; 101], &mut out), Err(TooLong(100)));
        let mut events = Events::new(100);
        let lines = b"data: 0123456789\n".repeat(20);
        assert_eq!(events.push(&lines, &mut out), Err(TooLong(100)));
        assert!(out.is_empty());
    }

    proptest! {
        #[test]
        fn cutting_changes_nothing(
            bytes in proptest::collection::vec(prop_oneof![Just(b'\n'), Just(b'\r'), Just(b':'), Just(b' '), Just(b'd'), any::<u8>()], 0..300),
            mut cuts in proptest::collection::vec(0usize..300, 0..8),
        ) {
            cuts.sort_unstable();
            prop_assert_eq!(all(&bytes, &cuts), all(&bytes, &[]));
        }

        #[test]
        fn what_is_written_is_read(data in proptest::collection::vec("[a-z:{} ]{0,20}", 0..8), ends in 0usize..3) {
            let end = ["\n", "\r\n", "\r"][ends];
            let text: String = data.iter().map(|data| format!("data: {data}{end}{end}")).collect();
            let out = all(text.as_bytes(), &[]).expect("short");
            let read: Vec<_> = out.into_iter().map(|data| String::from_utf8(data).expect("text")).collect();
            prop_assert_eq!(read, data);
        }
    }
}
