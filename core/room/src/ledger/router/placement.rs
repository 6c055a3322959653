//! Which pair a request goes to: of those that fit, without the pairs that failed it and the nodes blamed, the first in the
//! order that the policies of both roles say.

use super::Ledger;
use super::members::Member;
use super::policy::{Candidate, Chosen, Ground, Policy, Ranked, Score};
use crate::ids::{Incarnation, Role};
use crate::message::Refusal;
use crate::reason::Reason;
use crate::request::Request;

/// What placement found for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Placement {
    /// Open it there.
    Pair {
        /// The prefill worker.
        prefill: Incarnation,
        /// The decode worker.
        decode: Incarnation,
    },
    /// There are pairs, but their tables are full, or they have refused it in this round, or lack pages.
    Wait {
        /// Some pair has a place for it and lacks pages alone, or time to compute.
        pages: bool,
    },
    /// No pair can ever take it.
    Never(Reason),
    /// The only pairs are those that it must avoid.
    Exhausted,
}

impl Ledger {
    /// Finds a pair for a request.
    pub(super) fn place(&self, request: &Request) -> Placement {
        if let Some(pair) = request.arrival.pair {
            return self.place_canary(request, pair);
        }
        let (prefills, decodes) = (
            self.of_role(request, Role::Prefill),
            self.of_role(request, Role::Decode),
        );
        if prefills.is_empty() {
            return Placement::Never(Reason::NoPrefillWorker);
        }
        if decodes.is_empty() {
            return Placement::Never(Reason::NoDecodeWorker);
        }
        let prefills = self.ranked(request, Role::Prefill, &prefills);
        let decodes = self.ranked(request, Role::Decode, &decodes);
        self.choose(request, &prefills.members, &decodes.members)
    }

    /// How the workers of a request that is placed now were chosen. Asked before anything of the placement is noted.
    pub(super) fn chosen(&self, request: &Request, prefill: Incarnation, decode: Incarnation) -> Chosen {
        let policies = self.chooser.policies();
        let ground = |role: Role, policy: Policy, chosen: Incarnation| match (request.arrival.pair, policy.ground()) {
            (Some(_), _) => Ground::Asked,
            (None, Some(ground)) => ground,
            (None, None) => match self.ranked(request, role, &self.of_role(request, role)).leads_to {
                None => Ground::Load,
                Some(wanted) if wanted == chosen => Ground::Prefix,
                Some(_) => Ground::Bounded,
            },
        };
        let (sent_before, looked_at) = self.chooser.sent_before(&request.arrival.blocks, prefill);
        Chosen {
            policies,
            prefill: ground(Role::Prefill, policies.prefill, prefill),
            decode: ground(Role::Decode, policies.decode, decode),
            looked_at,
            sent_before,
        }
    }

    /// The workers of a role that can be used for this model.
    fn of_role(&self, request: &Request, role: Role) -> Vec<&Member> {
        let model = request.arrival.model.as_ref();
        let fits = |member: &&Member| {
            member.info.role == role && member.usable() && model.is_none_or(|model| *model == member.info.model)
        };
        self.members.values().filter(fits).collect()
    }

    /// The same, the one first that the role's policy would have.
    fn ranked<'a>(&'a self, request: &Request, role: Role, members: &[&'a Member]) -> Ranked<'a> {
        let candidate = |member: &&'a Member| {
            let node = member.info.incarnation;
            Candidate {
                member,
                open: member.has_place(self.settings.open_window)
                    && !request.refused.contains_key(&node)
                    && !request.blamed.contains(&node)
                    && !self.avoids_node(node),
                score: score(request, member, role),
            }
        };
        let candidates = members.iter().map(candidate).collect();
        self.chooser.rank(request, role, candidates, &self.settings)
    }

    /// A canary has no choice, and does not wait.
    fn place_canary(&self, request: &Request, (prefill, decode): (Incarnation, Incarnation)) -> Placement {
        let open = |node| {
            self.members.get(&node).is_some_and(|member| {
                member.usable() && member.has_place(self.settings.open_window) && !request.refused.contains_key(&node)
            })
        };
        if open(prefill) && open(decode) {
            Placement::Pair { prefill, decode }
        } else {
            Placement::Never(Reason::Overloaded)
        }
    }

    /// Looks at pairs in the order of their workers, until one will do: after sorting that is mostly the first one, and at
    /// the most all of them once. What is true of one worker is found out once; of pairs that cannot be taken now only one is
    /// looked at closer.
    fn choose(&self, request: &Request, prefills: &[&Member], decodes: &[&Member]) -> Placement {
        let mut scan = Scan::default();
        let prefill_first = self.chooser.prefill_first(&request.arrival.blocks);
        let (prefills, decodes) = (self.look_at(request, prefills), self.look_at(request, decodes));
        let (outer, inner) = if prefill_first {
            (prefills, decodes)
        } else {
            (decodes, prefills)
        };
        for one in &outer {
            for other in inner
                .iter()
                .filter(|other| other.member.info.class == one.member.info.class)
            {
                let (prefill, decode) = if prefill_first { (one, other) } else { (other, one) };
                scan.look(self, request, prefill, decode);
                if let Some(Some((prefill, decode))) = scan.fresh {
                    return Placement::Pair { prefill, decode };
                }
            }
        }
        scan.result(request.blamed.is_empty())
    }

    /// What is true of each worker, whoever the other is.
    fn look_at<'a>(&self, request: &Request, members: &[&'a Member]) -> Vec<Worker<'a>> {
        let look = |member: &&'a Member| {
            let refusal = request.refused.get(&member.info.incarnation);
            Worker {
                member,
                holds: can_hold(request, member),
                too_large: refusal == Some(&Refusal::TooLarge),
                blamed: request.blamed.contains(&member.info.incarnation),
                has_place: refusal.is_none() && member.has_place(self.settings.open_window),
                has_pages: self.can_book(request, member),
            }
        };
        members.iter().map(look).collect()
    }

    /// Whether some pair of this model may have a place for a room more.
    pub(super) fn any_place(&self, model: Option<&String>) -> bool {
        let free = |role: Role| {
            self.members.values().any(|member| {
                member.info.role == role
                    && member.usable()
                    && member.has_place(self.settings.open_window)
                    && model.is_none_or(|model| *model == member.info.model)
            })
        };
        free(Role::Prefill) && free(Role::Decode)
    }
}

/// A worker that may take a request.
struct Worker<'a> {
    member: &'a Member,
    /// It can hold it at all.
    holds: bool,
    /// It has said itself that it cannot.
    too_large: bool,
    /// It was blamed for a room of this request.
    blamed: bool,
    /// It has a place now, and has not refused it in this round.
    has_place: bool,
    /// It has the pages, and if it is P the time.
    has_pages: bool,
}

/// What one look over pairs found.
#[derive(Default)]
struct Scan {
    same_class: bool,
    fits: bool,
    too_large: bool,
    /// Some pair has a place and lacks pages alone.
    pages: bool,
    fresh: Slot,
    /// A pair that failed it before.
    failed: Slot,
    /// A pair that breakers avoid.
    avoided: Slot,
}

/// `None`: there is no such pair. `Some(None)`: there is, but it has no place now. Else the first one that has: (prefill,
/// decode).
type Slot = Option<Option<(Incarnation, Incarnation)>>;

impl Scan {
    fn look(&mut self, ledger: &Ledger, request: &Request, prefill: &Worker<'_>, decode: &Worker<'_>) {
        self.same_class = true;
        if !prefill.holds || !decode.holds {
            return;
        }
        self.fits = true;
        if prefill.too_large || decode.too_large {
            self.too_large = true;
            return;
        }
        if prefill.blamed || decode.blamed {
            return;
        }
        let has_place = prefill.has_place && decode.has_place;
        let open = has_place && prefill.has_pages && decode.has_pages;
        self.pages |= has_place && !open;
        if !open && self.fresh.is_some() {
            // That there is such a pair is known, and this one changes nothing.
            return;
        }
        let pair = (prefill.member.info.incarnation, decode.member.info.incarnation);
        let slot = if request.failed_pairs.contains(&pair) {
            &mut self.failed
        } else if ledger.avoids(pair.0, pair.1) {
            &mut self.avoided
        } else {
            &mut self.fresh
        };
        let best = slot.get_or_insert(None);
        if open && best.is_none() {
            *best = Some(pair);
        }
    }

    /// What is avoided is used only where nothing else exists, and a pair that failed this request again only where then
    /// there is still none and no node is blamed.
    fn result(self, reuse: bool) -> Placement {
        let usable = match self.fresh.or(self.avoided) {
            None if reuse => self.failed,
            other => other,
        };
        match usable {
            Some(Some((prefill, decode))) => Placement::Pair { prefill, decode },
            Some(None) => Placement::Wait { pages: self.pages },
            None if !self.same_class => Placement::Never(Reason::NoPrefillWorker),
            None if !self.fits || self.too_large => Placement::Never(Reason::TooLarge),
            None => Placement::Exhausted,
        }
    }
}

/// What D must reserve and P must compute can never fit otherwise.
fn can_hold(request: &Request, member: &Member) -> bool {
    let prompt = request.prompt();
    let all = prompt.saturating_add(request.remaining());
    let reserved = match member.info.role {
        Role::Decode => all,
        Role::Prefill | Role::Router => prompt,
    };
    all <= member.info.context && pages(member, reserved) <= member.info.pages
}

fn pages(member: &Member, tokens: u32) -> u32 {
    tokens.div_ceil(member.info.page_tokens.max(1))
}

fn score(request: &Request, member: &Member, role: Role) -> Score {
    let tokens = match role {
        Role::Decode => request.prompt().saturating_add(request.remaining()),
        Role::Prefill | Role::Router => request.prompt(),
    };
    let lacks = member.load.is_some_and(|load| load.free_pages < pages(member, tokens));
    (lacks, member.booked(), member.picked, member.info.incarnation)
}
