//! What happened, in one sentence.

use super::evidence::Debt;
use super::{Facts, words};

impl Facts<'_> {
    /// What happened, in one sentence.
    pub(super) fn headline(&self, debt: &Debt) -> String {
        let phase = words::phase(self.phase());
        let lasted = words::time(self.any.lasted(self.case.now_ms));
        if self.is_live() {
            let since = debt.since_ms.map(|since| self.case.now_ms.saturating_sub(since));
            let owes = match since {
                Some(since) => format!(
                    "{} owes the next step ({}) for {}",
                    self.party(debt.who),
                    debt.what,
                    words::time(since)
                ),
                None => debt.what.to_owned(),
            };
            return format!("The room lives, for {lasted}, and is {}: {owes}.", self.phase().name());
        }
        let verdict = self.verdict().unwrap_or_default();
        let Some(reason) = self.reason() else {
            return match verdict.as_str() {
                "done" => format!("The request had all that it asked for after {lasted}."),
                "handed_over" => format!("The KV was handed over after {lasted}; what followed is not known here."),
                _ => format!("The room ended as `{verdict}` after {lasted}."),
            };
        };
        let blamed = match self.router.map(|record| record.blame.unwrap_or_default()) {
            Some(blame) => self.blamed(blame),
            None => "only the router knows whom to look at, and its record is missing".to_owned(),
        };
        let what = words::capital(words::reason(reason));
        format!("{what} {phase}, {lasted} after the room began ({verdict}); {blamed}.")
    }
}
