//! Whom to look at after a room has failed: one pure function of what both workers saw and what R itself knows (I9).
//! It never reopens the verdict, and the accused is only where to look.

use crate::evidence::{Evidence, Owes};
use crate::ids::Incarnation;
use crate::ledger::router::Side;
use crate::phase::Phase;
use crate::planted;
use crate::reason::{Blame, Reason};
use crate::time::Millis;

/// What R knows of a failed room besides what the workers saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Context {
    /// Why it failed.
    pub reason: Reason,
    /// The phase in which it did.
    pub phase: Phase,
    /// Who owed the next step then, by the phase table.
    pub owed: Owes,
    /// The node that a broken control connection, a missed connect deadline or its own word names: rule (1).
    pub named: Option<Side>,
    /// The worker that reported the failure; `None` if R's own timer did.
    pub accuser: Option<Side>,
    /// R was itself stopped while the room lived.
    pub lived_through_stop: bool,
    /// The room's nodes.
    pub router: Incarnation,
    /// The prefill worker.
    pub prefill: Incarnation,
    /// The decode worker.
    pub decode: Incarnation,
    /// A debt younger than this is none: the progress TTL.
    pub limit: Millis,
}

impl Context {
    /// Whether nothing that the workers may say can change the blame: R need not ask.
    #[must_use]
    pub const fn is_settled(&self) -> bool {
        self.lived_through_stop || self.named.is_some() || fixed(self).is_some()
    }

    const fn side(&self, side: Side) -> Blame {
        match side {
            Side::Prefill => Blame::Prefill(self.prefill),
            Side::Decode => Blame::Decode(self.decode),
        }
    }

    const fn link(&self) -> Blame {
        Blame::Link {
            prefill: self.prefill,
            decode: self.decode,
        }
    }

    /// Whom the phase table names: the reason tells the debt, else whoever owed the next step.
    const fn debtor(&self) -> Blame {
        let decode = matches!(
            self.reason,
            Reason::HandshakeTimeout | Reason::DecodeStalled | Reason::DecodeLost
        );
        let prefill = matches!(self.reason, Reason::PrefillStalled | Reason::PrefillLost);
        if decode {
            self.side(Side::Decode)
        } else if prefill {
            self.side(Side::Prefill)
        } else if matches!(self.reason, Reason::TransferLost) {
            self.link()
        } else {
            match self.owed {
                Owes::Nobody => Blame::Nobody,
                Owes::Prefill => self.side(Side::Prefill),
                Owes::Decode => self.side(Side::Decode),
                Owes::Router => Blame::Router(self.router),
            }
        }
    }
}

/// Assigns blame. `None` for a worker's evidence: it was silent, or could not be asked.
#[must_use]
pub fn assign(prefill: Option<&Evidence>, decode: Option<&Evidence>, context: &Context) -> Blame {
    if context.lived_through_stop {
        return Blame::Nobody;
    }
    if let (true, Some(side)) = (planted::blame_the_accuser(), context.accuser) {
        return context.side(side);
    }
    if let Some(blame) = fixed(context) {
        return blame;
    }
    if let Some(side) = context.named {
        return context.side(side);
    }
    if accuser_saw_unacknowledged(prefill, decode, context.accuser) {
        return context.link();
    }
    match (prefill, decode) {
        (None, Some(_)) => context.side(Side::Prefill),
        (Some(_), None) => context.side(Side::Decode),
        (None, None) => context.debtor(),
        (Some(p), Some(d)) => match (p.admits(context.limit) || owns_up(context), d.admits(context.limit)) {
            (true, false) => context.side(Side::Prefill),
            (false, true) => context.side(Side::Decode),
            (true, true) => context.debtor(),
            (false, false) => neither(context),
        },
    }
}

/// P itself says that its computing stalled: it moved, but too slowly, so that no single step of its engine is overdue.
const fn owns_up(context: &Context) -> bool {
    matches!(
        (context.reason, context.accuser),
        (Reason::PrefillStalled, Some(Side::Prefill))
    )
}

/// Rule (5), neither admits: the link between the pair; after the commit, when that link has no part in the room any
/// more, whoever owed.
const fn neither(context: &Context) -> Blame {
    match context.phase {
        Phase::Decoding => context.debtor(),
        Phase::Queued
        | Phase::Bootstrapping
        | Phase::WaitingForInput
        | Phase::Transferring
        | Phase::Done
        | Phase::Failed => context.link(),
    }
}

/// The blame that the reason alone decides.
const fn fixed(context: &Context) -> Option<Blame> {
    match context.reason {
        Reason::QueueTimeout
        | Reason::RequestTimeout
        | Reason::LeaseRevoked
        | Reason::Aborted
        | Reason::Draining
        | Reason::UnknownRoom
        | Reason::NoPrefillWorker
        | Reason::NoDecodeWorker
        | Reason::TooLarge
        | Reason::Overloaded
        | Reason::WrongIncarnation
        | Reason::RetryBudgetSpent => Some(Blame::Nobody),
        Reason::ClientStalled => Some(Blame::Client),
        Reason::KvCorrupt => Some(context.side(Side::Prefill)),
        // R assigns the blame, so R is there: a worker that missed it is behind a bad control link.
        Reason::RouterStalled | Reason::LeaseLost => Some(match context.named {
            Some(side) => context.side(side),
            None => Blame::Router(context.router),
        }),
        // Nobody is ill: what moved between the pair was late.
        Reason::KvUnproven => Some(context.link()),
        Reason::EngineFailed
        | Reason::EngineStalled
        | Reason::EngineWedged
        | Reason::EngineRestarted
        | Reason::EngineError
        | Reason::InternalError
        | Reason::SelfPaused => {
            Some(match (context.named, context.accuser) {
                (Some(side), _) | (None, Some(side)) => context.side(side),
                // R's own room actor died.
                (None, None) if matches!(context.reason, Reason::InternalError) => Blame::Router(context.router),
                (None, None) => Blame::Nobody,
            })
        }
        // The lease did its work: whoever owed, unless a broken connection names the node.
        Reason::LeaseExpired => Some(match context.named {
            Some(side) => context.side(side),
            None => context.debtor(),
        }),
        Reason::HandshakeTimeout
        | Reason::PrefillStalled
        | Reason::TransferStalled
        | Reason::DecodeStalled
        | Reason::PrefillLost
        | Reason::DecodeLost
        | Reason::RouterLost
        | Reason::TransferLost
        | Reason::MemberLost
        | Reason::ProtocolError => None,
    }
}

/// Rule (2). R's own timer has no accuser: either worker's word counts.
fn accuser_saw_unacknowledged(prefill: Option<&Evidence>, decode: Option<&Evidence>, accuser: Option<Side>) -> bool {
    let saw = |evidence: Option<&Evidence>| evidence.is_some_and(|evidence| evidence.unacked);
    match accuser {
        Some(Side::Prefill) => saw(prefill),
        Some(Side::Decode) => saw(decode),
        None => saw(prefill) || saw(decode),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: Blame = Blame::Prefill(Incarnation::new(1));
    const D: Blame = Blame::Decode(Incarnation::new(2));
    const LINK: Blame = Blame::Link {
        prefill: Incarnation::new(1),
        decode: Incarnation::new(2),
    };

    fn context(reason: Reason, phase: Phase, owed: Owes) -> Context {
        Context {
            reason,
            phase,
            owed,
            named: None,
            accuser: None,
            lived_through_stop: false,
            router: Incarnation::new(3),
            prefill: Incarnation::new(1),
            decode: Incarnation::new(2),
            limit: Millis(100),
        }
    }

    fn stalled() -> Context {
        context(Reason::TransferStalled, Phase::Transferring, Owes::Decode)
    }

    fn clean() -> Evidence {
        Evidence::default()
    }

    fn debt() -> Evidence {
        Evidence {
            engine_owes: Millis(101),
            ..Evidence::default()
        }
    }

    #[test]
    fn the_rules_in_their_order() {
        let unacked = Evidence {
            unacked: true,
            ..debt()
        };
        let named = Context {
            named: Some(Side::Prefill),
            ..stalled()
        };
        assert_eq!(assign(Some(&clean()), Some(&unacked), &named), P, "(1) before (2)");
        assert_eq!(assign(Some(&unacked), None, &stalled()), LINK, "(2) before (3)");
        assert_eq!(assign(Some(&debt()), None, &stalled()), D, "(3) before (4)");
        assert_eq!(assign(None, Some(&debt()), &stalled()), P, "(3)");
        assert_eq!(assign(Some(&debt()), Some(&clean()), &stalled()), P, "(4)");
        assert_eq!(assign(Some(&clean()), Some(&debt()), &stalled()), D, "(4)");
        assert_eq!(assign(Some(&clean()), Some(&clean()), &stalled()), LINK, "(5) neither");
        assert_eq!(
            assign(Some(&debt()), Some(&debt()), &stalled()),
            D,
            "(5) both: the table"
        );
        assert_eq!(assign(None, None, &stalled()), D, "(5) both silent: the table");
    }

    #[test]
    fn only_the_accusers_kernel_counts() {
        let unacked = Evidence {
            unacked: true,
            ..clean()
        };
        let by_decode = Context {
            accuser: Some(Side::Decode),
            ..stalled()
        };
        assert_eq!(assign(Some(&unacked), Some(&debt()), &by_decode), D);
        let by_prefill = Context {
            accuser: Some(Side::Prefill),
            ..stalled()
        };
        assert_eq!(assign(Some(&unacked), Some(&debt()), &by_prefill), LINK);
    }

    #[test]
    fn a_prefill_worker_that_says_it_is_too_slow_is_the_one() {
        let slow = |accuser| Context {
            accuser,
            ..context(Reason::PrefillStalled, Phase::WaitingForInput, Owes::Prefill)
        };
        assert_eq!(assign(Some(&clean()), Some(&clean()), &slow(Some(Side::Prefill))), P);
        assert_eq!(assign(Some(&clean()), Some(&clean()), &slow(Some(Side::Decode))), LINK);
        assert_eq!(assign(Some(&clean()), Some(&clean()), &slow(None)), LINK);
    }

    #[test]
    fn a_stop_of_the_router_accuses_nobody() {
        let stopped = Context {
            lived_through_stop: true,
            named: Some(Side::Decode),
            ..stalled()
        };
        assert_eq!(assign(None, None, &stopped), Blame::Nobody);
    }

    #[test]
    fn an_admitted_stop_counts_as_a_debt() {
        let stopped = Evidence {
            was_stopped: true,
            ..clean()
        };
        let decoding = context(Reason::DecodeStalled, Phase::Decoding, Owes::Decode);
        assert_eq!(assign(Some(&clean()), Some(&stopped), &decoding), D);
        assert_eq!(
            assign(Some(&clean()), Some(&clean()), &decoding),
            D,
            "no link takes part in decoding"
        );
    }

    #[test]
    fn every_reason_has_a_blame_and_overload_accuses_nobody() {
        for reason in Reason::ALL {
            let _ = assign(None, None, &context(*reason, Phase::Queued, Owes::Nobody));
        }
        assert_eq!(
            assign(None, None, &context(Reason::QueueTimeout, Phase::Queued, Owes::Nobody)),
            Blame::Nobody
        );
        let late = context(Reason::KvUnproven, Phase::WaitingForInput, Owes::Prefill);
        assert_eq!(
            assign(Some(&clean()), Some(&debt()), &late),
            LINK,
            "a read that was late is nobody's illness"
        );
        for reason in [Reason::EngineWedged, Reason::EngineRestarted, Reason::EngineError] {
            let said = Context {
                accuser: Some(Side::Decode),
                ..context(reason, Phase::WaitingForInput, Owes::Prefill)
            };
            assert_eq!(assign(Some(&debt()), None, &said), D, "{reason} is said of oneself");
        }
        let corrupt = context(Reason::KvCorrupt, Phase::Transferring, Owes::Decode);
        assert_eq!(assign(Some(&clean()), Some(&clean()), &corrupt), P);
    }
}
