//! Payloads of control frames.

use innkeeper_room::{Counters, Epoch, Evidence, Incarnation, Millis, Owes, Reason, RoomId};

use super::cursor::Cursor;
use super::{FrameError, HEADER, Header, Kind};
use crate::config::MAX_PAYLOAD;
use crate::coverage::Run;

/// Most runs of complete slabs that Ready carries. What is left out is sent again.
pub const MAX_RUNS: usize = (MAX_PAYLOAD - 8) / 8;

/// A LeaseAge that says nothing.
const NOBODY_KNOWS: u64 = u64::MAX;

/// The payload of a hello; room and epoch are in the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HelloBody {
    /// The room's secret.
    pub token: u64,
    /// Who says it.
    pub prefill: Incarnation,
    /// Who is meant.
    pub decode: Incarnation,
}

/// A frame's meaning, the payloads of Slab and Manifest apart.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the table in the module `frame` says what each is")]
pub enum Body {
    Hello(HelloBody),
    Started,
    Slab,
    Manifest,
    Progress(u64),
    Fail(Reason, Evidence),
    LeaseAge(Option<Millis>),
    Ready { verified: u64, runs: Vec<Run> },
    Wait,
    Verified { verified: u64, taken: u64 },
    Committed,
    Ended(Reason),
    Unknown,
    Stale,
    AlreadyCommitted,
    AskLeaseAge,
}

impl Body {
    /// Reads a payload.
    ///
    /// # Errors
    /// [`FrameError::Payload`] for bytes that are none of this kind.
    pub fn decode(kind: Kind, payload: &[u8]) -> Result<Self, FrameError> {
        let mut cursor = Cursor(payload);
        let body = match kind {
            Kind::Slab => return Ok(Self::Slab),
            Kind::Manifest => return Ok(Self::Manifest),
            Kind::Started => Some(Self::Started),
            Kind::Wait => Some(Self::Wait),
            Kind::Committed => Some(Self::Committed),
            Kind::Unknown => Some(Self::Unknown),
            Kind::Stale => Some(Self::Stale),
            Kind::AlreadyCommitted => Some(Self::AlreadyCommitted),
            Kind::AskLeaseAge => Some(Self::AskLeaseAge),
            Kind::LeaseAge => cursor.u64().map(lease_age),
            Kind::Hello => hello(&mut cursor),
            Kind::Progress => cursor.u64().map(Self::Progress),
            Kind::Fail => fail(&mut cursor),
            Kind::Ready => ready(&mut cursor),
            Kind::Verified => verified(&mut cursor),
            Kind::Ended => reason(&mut cursor).map(Self::Ended),
        };
        match (body, cursor.end()) {
            (Some(body), Some(())) => Ok(body),
            _ => Err(FrameError::Payload(kind)),
        }
    }

    /// The frame's kind.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Hello(_) => Kind::Hello,
            Self::Started => Kind::Started,
            Self::Slab => Kind::Slab,
            Self::Manifest => Kind::Manifest,
            Self::Progress(_) => Kind::Progress,
            Self::Fail(..) => Kind::Fail,
            Self::LeaseAge(_) => Kind::LeaseAge,
            Self::Ready { .. } => Kind::Ready,
            Self::Wait => Kind::Wait,
            Self::Verified { .. } => Kind::Verified,
            Self::Committed => Kind::Committed,
            Self::Ended(_) => Kind::Ended,
            Self::Unknown => Kind::Unknown,
            Self::Stale => Kind::Stale,
            Self::AlreadyCommitted => Kind::AlreadyCommitted,
            Self::AskLeaseAge => Kind::AskLeaseAge,
        }
    }

    /// The whole frame's bytes.
    #[must_use]
    pub fn frame(&self, room: RoomId, epoch: Epoch) -> Vec<u8> {
        let payload = self.payload();
        let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        let header = Header {
            kind: self.kind(),
            room,
            epoch,
            slab: 0,
            offset: 0,
            length,
        };
        let mut bytes = Vec::with_capacity(HEADER + payload.len());
        bytes.extend_from_slice(&header.encode(&payload));
        bytes.extend_from_slice(&payload);
        bytes
    }

    fn payload(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::Hello(hello) => {
                for part in [hello.token, hello.prefill.get(), hello.decode.get()] {
                    out.extend(part.to_le_bytes());
                }
            }
            Self::Progress(engine) => out.extend(engine.to_le_bytes()),
            Self::LeaseAge(age) => out.extend(age.map_or(NOBODY_KNOWS, |age| age.0).to_le_bytes()),
            Self::Fail(reason, evidence) => {
                put_reason(&mut out, *reason);
                put_evidence(&mut out, evidence);
            }
            Self::Ready { verified, runs } => {
                out.extend(verified.to_le_bytes());
                for run in runs.iter().take(MAX_RUNS) {
                    out.extend(run.first.to_le_bytes());
                    out.extend(run.count.to_le_bytes());
                }
            }
            Self::Verified { verified, taken } => {
                out.extend(verified.to_le_bytes());
                out.extend(taken.to_le_bytes());
            }
            Self::Ended(reason) => put_reason(&mut out, *reason),
            Self::Started
            | Self::Slab
            | Self::Manifest
            | Self::Wait
            | Self::Committed
            | Self::Unknown
            | Self::Stale
            | Self::AlreadyCommitted
            | Self::AskLeaseAge => {}
        }
        out
    }
}

fn lease_age(age: u64) -> Body {
    Body::LeaseAge((age != NOBODY_KNOWS).then_some(Millis(age)))
}

fn hello(cursor: &mut Cursor<'_>) -> Option<Body> {
    Some(Body::Hello(HelloBody {
        token: cursor.u64()?,
        prefill: Incarnation::new(cursor.u64()?),
        decode: Incarnation::new(cursor.u64()?),
    }))
}

fn verified(cursor: &mut Cursor<'_>) -> Option<Body> {
    Some(Body::Verified {
        verified: cursor.u64()?,
        taken: cursor.u64()?,
    })
}

/// Runs must ascend without overlap, so that P can search them.
fn ready(cursor: &mut Cursor<'_>) -> Option<Body> {
    let verified = cursor.u64()?;
    let mut runs = Vec::with_capacity(cursor.0.len() / 8);
    let mut free = 0;
    while cursor.end().is_none() {
        let run = Run {
            first: cursor.u32()?,
            count: cursor.u32()?,
        };
        let end = run.first.checked_add(run.count)?;
        if run.count == 0 || run.first < free {
            return None;
        }
        free = end;
        runs.push(run);
    }
    Some(Body::Ready { verified, runs })
}

fn fail(cursor: &mut Cursor<'_>) -> Option<Body> {
    Some(Body::Fail(reason(cursor)?, evidence(cursor)?))
}

fn reason(cursor: &mut Cursor<'_>) -> Option<Reason> {
    let len = cursor.u8()?;
    let code = std::str::from_utf8(cursor.bytes(usize::from(len))?).ok()?;
    Reason::from_code(code)
}

fn put_reason(out: &mut Vec<u8>, reason: Reason) {
    let code = reason.code();
    out.push(u8::try_from(code.len()).unwrap_or(u8::MAX));
    out.extend(code.bytes().take(usize::from(u8::MAX)));
}

fn evidence(cursor: &mut Cursor<'_>) -> Option<Evidence> {
    let waited_for = match cursor.u8()? {
        0 => Owes::Nobody,
        1 => Owes::Prefill,
        2 => Owes::Decode,
        3 => Owes::Router,
        _ => return None,
    };
    let waited = Millis(cursor.u64()?);
    let counters = Counters {
        tokens_computed: cursor.u32()?,
        bytes_sealed: cursor.u64()?,
        bytes_sent: cursor.u64()?,
        bytes_verified: cursor.u64()?,
        tokens_made: cursor.u32()?,
    };
    let flags = cursor.u8()?;
    if flags > 7 {
        return None;
    }
    Some(Evidence {
        waited_for,
        waited,
        counters,
        unacked: flags & 1 != 0,
        data_link_broken: flags & 2 != 0,
        was_stopped: flags & 4 != 0,
        engine_owes: Millis(cursor.u64()?),
    })
}

fn put_evidence(out: &mut Vec<u8>, evidence: &Evidence) {
    out.push(match evidence.waited_for {
        Owes::Nobody => 0,
        Owes::Prefill => 1,
        Owes::Decode => 2,
        Owes::Router => 3,
    });
    out.extend(evidence.waited.0.to_le_bytes());
    let counters = &evidence.counters;
    out.extend(counters.tokens_computed.to_le_bytes());
    out.extend(counters.bytes_sealed.to_le_bytes());
    out.extend(counters.bytes_sent.to_le_bytes());
    out.extend(counters.bytes_verified.to_le_bytes());
    out.extend(counters.tokens_made.to_le_bytes());
    let flags =
        u8::from(evidence.unacked) | u8::from(evidence.data_link_broken) << 1 | u8::from(evidence.was_stopped) << 2;
    out.push(flags);
    out.extend(evidence.engine_owes.0.to_le_bytes());
}
