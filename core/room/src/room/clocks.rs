//! R's own timers of a room: the backstop behind the workers' own, on the reports that R gets.

use crate::ledger::router::Side;
use crate::phase::Phase;
use crate::reason::Reason;
use crate::settings::Settings;
use crate::time::{Millis, Moment};

/// Which of R's timers of a room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Clock {
    /// A worker's answer to Open.
    Connect(Side),
    /// D's answer to a hello.
    Handshake,
    /// P's next sealed slab.
    Chunk,
    /// D's next verified bytes, or its commit.
    Ack,
    /// D's next token.
    Token,
    /// The phase as a whole.
    Absolute,
}

/// When each of R's timers fires; `None` is off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Clocks {
    /// The worker that was asked to open.
    pub connect: Option<(Side, Moment)>,
    /// Armed in Bootstrapping.
    pub handshake: Option<Moment>,
    /// Armed from Started to the last seal.
    pub chunk: Option<Moment>,
    /// Armed while sealed bytes are not verified, and from the last seal to the commit.
    pub ack: Option<Moment>,
    /// Armed from the commit on.
    pub token: Option<Moment>,
    /// Armed from Started on: the bound of the phase as a whole.
    pub absolute: Option<Moment>,
}

impl Clocks {
    /// The timer that fires first, and when.
    #[must_use]
    pub fn first(&self) -> Option<(Moment, Clock)> {
        [
            self.connect.map(|(side, due)| (due, Clock::Connect(side))),
            self.handshake.map(|due| (due, Clock::Handshake)),
            self.chunk.map(|due| (due, Clock::Chunk)),
            self.ack.map(|due| (due, Clock::Ack)),
            self.token.map(|due| (due, Clock::Token)),
            self.absolute.map(|due| (due, Clock::Absolute)),
        ]
        .into_iter()
        .flatten()
        .min()
    }
}

impl Clock {
    /// How long it runs from its last arming to its end, in a phase that may last so long.
    #[must_use]
    pub fn budget(self, phase: Millis, settings: &Settings) -> Millis {
        match self {
            Self::Connect(_) => settings.connect_timeout,
            Self::Handshake => settings.handshake_ttl + settings.router_slack,
            Self::Chunk | Self::Ack | Self::Token => settings.router_ttl(),
            Self::Absolute => phase,
        }
    }

    /// The reason of a room that this timer ends in this phase: it names the debt.
    #[must_use]
    pub const fn reason(self, phase: Phase) -> Reason {
        match self {
            Self::Connect(Side::Prefill) => Reason::PrefillLost,
            Self::Connect(Side::Decode) => Reason::DecodeLost,
            Self::Handshake => Reason::HandshakeTimeout,
            Self::Chunk => Reason::PrefillStalled,
            Self::Ack => Reason::TransferStalled,
            Self::Token => Reason::DecodeStalled,
            Self::Absolute => match phase {
                Phase::Queued | Phase::Bootstrapping | Phase::WaitingForInput => Reason::PrefillStalled,
                Phase::Transferring => Reason::TransferStalled,
                Phase::Decoding | Phase::Done | Phase::Failed => Reason::DecodeStalled,
            },
        }
    }
}
