//! Reading frames off a stream.

use std::io;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt};

use super::{FrameError, HEADER, Header, check_payload};
use crate::stats::Stats;
use crate::tls::is_tls;

/// Why no frame came.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    /// The stream broke.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It ended within a frame.
    #[error("the connection ended within a frame")]
    Cut,
    /// The bytes are no frame.
    #[error("{0}")]
    Bad(#[from] FrameError),
    /// The bytes are those of TLS.
    #[error(
        "the peer speaks TLS on the data plane and this node does not: give all nodes --node-cert, --node-key and --node-ca, or none \
         of them"
    )]
    Tls,
    /// A frame of another room or epoch.
    #[error("a frame of another room or epoch")]
    Fenced,
    /// A frame that may not come here and now.
    #[error("{0}")]
    Refused(String),
}

/// Reads frames. Cancel-safe: what was read stays in the buffer.
///
/// It asks the stream for the rest of the frame in hand and one header more, so that in a run of frames there is one read
/// per frame and only a header is ever moved.
pub(crate) struct FrameReader<R> {
    io: R,
    buf: Vec<u8>,
    start: usize,
    end: usize,
    /// Bytes of the frame handed out last: given back at the next call.
    handed: usize,
    stats: Arc<Stats>,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    pub(crate) fn new(io: R, stats: Arc<Stats>) -> Self {
        // Room for a hello and the header after it; a connection that says nothing holds no more.
        Self {
            io,
            buf: vec![0; 4 * HEADER],
            start: 0,
            end: 0,
            handed: 0,
            stats,
        }
    }

    /// The next frame, or `None` at a clean end. `gate` sees the header before any of the payload is waited for.
    pub(crate) async fn next(
        &mut self,
        gate: &mut (dyn FnMut(&Header) -> Result<(), ReadError> + Send),
    ) -> Result<Option<(Header, &[u8])>, ReadError> {
        let result = self.fetch(gate).await;
        if let Err(error) = &result {
            match error {
                ReadError::Bad(_) | ReadError::Tls | ReadError::Refused(_) => Stats::add(&self.stats.bad_frames, 1),
                ReadError::Fenced => Stats::add(&self.stats.fenced_frames, 1),
                ReadError::Io(_) | ReadError::Cut => {}
            }
        }
        let Some(header) = result? else { return Ok(None) };
        let from = self.start + HEADER;
        Ok(Some((
            header,
            self.buf.get(from..from + header.length as usize).unwrap_or(&[]),
        )))
    }

    async fn fetch(
        &mut self,
        gate: &mut (dyn FnMut(&Header) -> Result<(), ReadError> + Send),
    ) -> Result<Option<Header>, ReadError> {
        self.start += std::mem::take(&mut self.handed);
        if !self.fill(HEADER).await? {
            return match self.buf.get(self.start..self.end) {
                None | Some([]) => Ok(None),
                Some(bytes) if is_tls(bytes) => Err(ReadError::Tls),
                Some(_) => Err(ReadError::Cut),
            };
        }
        let head = self.head()?;
        if is_tls(&head) {
            return Err(ReadError::Tls);
        }
        let header = Header::decode(&head)?;
        gate(&header)?;
        let whole = HEADER + header.length as usize;
        if !self.fill(whole).await? {
            return Err(ReadError::Cut);
        }
        let payload = self
            .buf
            .get(self.start + HEADER..self.start + whole)
            .ok_or(FrameError::Short)?;
        check_payload(&head, payload)?;
        self.handed = whole;
        Ok(Some(header))
    }

    fn head(&self) -> Result<[u8; HEADER], FrameError> {
        self.buf
            .get(self.start..)
            .and_then(|bytes| bytes.first_chunk::<HEADER>())
            .copied()
            .ok_or(FrameError::Short)
    }

    /// Reads until `whole` bytes are there; false if the stream ended before.
    async fn fill(&mut self, whole: usize) -> Result<bool, ReadError> {
        if self.end - self.start >= whole {
            return Ok(true);
        }
        self.buf.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        let target = whole + HEADER;
        if self.buf.len() < target {
            // Exactly: what a connection holds is a frame and a header at most, whatever is said to it.
            self.buf.reserve_exact(target - self.buf.len());
            self.buf.resize(target, 0);
        }
        while self.end < whole {
            let space = self.buf.get_mut(self.end..target).unwrap_or(&mut []);
            let got = self.io.read(space).await?;
            if got == 0 {
                return Ok(false);
            }
            Stats::add(&self.stats.bytes_in, got as u64);
            self.end += got;
        }
        Ok(true)
    }

    /// Bytes of memory that it holds.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn held(&self) -> usize {
        self.buf.capacity()
    }

    /// Reads and forgets everything until the stream ends or breaks.
    pub(crate) async fn drain(&mut self) {
        if self.buf.len() < 64 * 1024 {
            self.buf.resize(64 * 1024, 0);
        }
        while let Ok(got) = self.io.read(&mut self.buf).await {
            if got == 0 {
                return;
            }
            Stats::add(&self.stats.bytes_in, got as u64);
        }
    }
}
