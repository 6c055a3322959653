//! Which pair a request goes to: the least loaded one that fits, without the pairs that failed it and the nodes blamed.

use super::Ledger;
use super::members::Member;
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
    /// There are pairs, but their tables are full, or they have refused it in this round.
    Wait,
    /// No pair can ever take it.
    Never(Reason),
    /// The only pairs are those that it must avoid.
    Exhausted,
}

/// Smaller is better: enough free pages by the last report, few rooms, not picked lately, and the id for a total order.
type Score = (bool, usize, u64, Incarnation);

impl Ledger {
    /// Finds a pair for a request.
    pub(super) fn place(&self, request: &Request) -> Placement {
        if let Some(pair) = request.arrival.pair {
            return self.place_canary(request, pair);
        }
        let model = request.arrival.model.as_ref();
        let of_role = |role: Role| -> Vec<&Member> {
            let fits = |member: &&Member| {
                member.info.role == role && member.usable() && model.is_none_or(|model| *model == member.info.model)
            };
            self.members.values().filter(fits).collect()
        };
        let (prefills, decodes) = (of_role(Role::Prefill), of_role(Role::Decode));
        if prefills.is_empty() {
            return Placement::Never(Reason::NoPrefillWorker);
        }
        if decodes.is_empty() {
            return Placement::Never(Reason::NoDecodeWorker);
        }
        self.choose(request, &prefills, &decodes)
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

    fn choose(&self, request: &Request, prefills: &[&Member], decodes: &[&Member]) -> Placement {
        let mut scan = Scan {
            open_window: self.settings.open_window,
            ..Scan::default()
        };
        let reuse = request.blamed.is_empty();
        for decode in decodes {
            for prefill in prefills
                .iter()
                .filter(|prefill| prefill.info.class == decode.info.class)
            {
                scan.same_class = true;
                if !can_hold(request, prefill, decode) {
                    continue;
                }
                let avoided = self.avoids(prefill.info.incarnation, decode.info.incarnation);
                scan.look(request, prefill, decode, avoided);
            }
        }
        scan.result(reuse)
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

/// What one look over all pairs found.
#[derive(Default)]
struct Scan {
    open_window: u32,
    same_class: bool,
    fits: bool,
    too_large: bool,
    fresh: Slot,
    /// A pair that failed it before.
    failed: Slot,
    /// A pair that breakers avoid.
    avoided: Slot,
}

/// `None`: there is no such pair. `Some(None)`: there is, but it has no place now.
type Slot = Option<Option<(Score, Score)>>;

impl Scan {
    fn look(&mut self, request: &Request, prefill: &Member, decode: &Member, avoided: bool) {
        let (p, d) = (prefill.info.incarnation, decode.info.incarnation);
        self.fits = true;
        let refusal = |node| request.refused.get(&node);
        if refusal(p) == Some(&Refusal::TooLarge) || refusal(d) == Some(&Refusal::TooLarge) {
            self.too_large = true;
            return;
        }
        if request.blamed.contains(&p) || request.blamed.contains(&d) {
            return;
        }
        let slot = if request.failed_pairs.contains(&(p, d)) {
            &mut self.failed
        } else if avoided {
            &mut self.avoided
        } else {
            &mut self.fresh
        };
        let best = slot.get_or_insert(None);
        let open = refusal(p).is_none()
            && refusal(d).is_none()
            && prefill.has_place(self.open_window)
            && decode.has_place(self.open_window);
        if open {
            let found = (
                score(request, decode, Role::Decode),
                score(request, prefill, Role::Prefill),
            );
            if best.is_none_or(|best| found < best) {
                *best = Some(found);
            }
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
            Some(Some((decode, prefill))) => Placement::Pair {
                prefill: prefill.3,
                decode: decode.3,
            },
            Some(None) => Placement::Wait,
            None if !self.same_class => Placement::Never(Reason::NoPrefillWorker),
            None if !self.fits || self.too_large => Placement::Never(Reason::TooLarge),
            None => Placement::Exhausted,
        }
    }
}

/// What D must reserve and P must compute can never fit otherwise.
fn can_hold(request: &Request, prefill: &Member, decode: &Member) -> bool {
    let prompt = request.prompt();
    let all = prompt.saturating_add(request.remaining());
    all <= prefill.info.context.min(decode.info.context)
        && pages(decode, all) <= decode.info.pages
        && pages(prefill, prompt) <= prefill.info.pages
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
