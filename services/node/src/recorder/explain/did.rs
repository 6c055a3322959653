//! What Innkeeper did about it, and what the client got.

use innkeeper_room::{Reason, Role};

use super::{Facts, words};
use crate::recorder::record::{Cause, Client, Record, What};

impl Facts<'_> {
    /// What was done, in the order in which it was.
    pub(super) fn did(&self) -> Vec<String> {
        let mut did = vec![];
        if let Some(record) = self.router {
            self.ended_by(record, &mut did);
        }
        for record in self.workers().filter(|record| record.ended_unix_ms.is_some()) {
            self.let_go(record, &mut did);
        }
        if let Some(record) = self.router {
            let asked = record.entries.iter().any(|entry| entry.what == What::EvidenceAsked);
            if asked {
                did.push("the router asked the workers what they had seen, before it said whom to look at".to_owned());
            }
            if record.entries.iter().any(|entry| entry.what == What::LeaseRevoked) {
                did.push("the room's lease was given back".to_owned());
            }
            if let Client::NextAttempt { room, attempt, .. } = &record.client {
                did.push(format!(
                    "attempt {attempt} was opened as room {room} on {}",
                    next_pair(&record.client)
                ));
            }
        }
        did
    }

    fn ended_by(&self, record: &Record, did: &mut Vec<String>) {
        let reason = record.verdict.as_deref().and_then(Reason::from_code);
        let by = match record.cause {
            None => return,
            Some(Cause::Timer) => match reason.and_then(words::timer) {
                Some(timer) => format!("{timer} ran out at the router, which ended the room"),
                None => "the router ended the room at a deadline of its own".to_owned(),
            },
            Some(Cause::Worker(role)) if record.refused => format!("{} refused the room", self.node(role)),
            Some(Cause::Worker(role)) if reason.is_none() => format!("{} was done", self.node(role)),
            Some(Cause::Worker(role)) => match reason.and_then(words::timer) {
                Some(timer) => format!("{timer} ran out at {}, which told the router", self.node(role)),
                None => format!("{} told the router", self.node(role)),
            },
            Some(Cause::Connection(role)) => format!(
                "the router saw its connection to {} break, which ended the room at once",
                self.node(role)
            ),
            Some(Cause::Member(role)) => format!("the router found {} gone, and ended the room", self.node(role)),
            Some(Cause::Lease) => "the router saw the room's lease end in the store, and judged it".to_owned(),
            Some(Cause::Operator) => "an operator asked the router to evict the room (`rooms evict`)".to_owned(),
            Some(Cause::Client) => {
                "the router ended the room for its client, which had closed its connection or taken \
                                    nothing"
                    .to_owned()
            }
            Some(Cause::Abort) => "the router ended the room because an abort of its request came".to_owned(),
            Some(Cause::Satisfied) => "the router ended the room: the answer was complete".to_owned(),
            Some(Cause::Drain) => "the router was shutting down, and the time for that was over".to_owned(),
            Some(Cause::Actor) => "the room's actor died, and supervision ended the room".to_owned(),
            Some(Cause::Other) => return,
        };
        let ended = record.entries.iter().any(|entry| entry.what == What::Abort);
        let told = if ended {
            ", and told the workers that still had a part"
        } else {
            ""
        };
        did.push(format!("{by}{told}"));
    }

    /// A part that is over: its pages are kept from everybody until nobody can touch them.
    fn let_go(&self, record: &Record, did: &mut Vec<String>) {
        let node = self.node(record.role);
        let end = record.end.as_deref().unwrap_or("?");
        let after = words::time(record.lasted(self.case.now_ms));
        let held = record.phases.iter().any(|span| match record.role {
            Role::Prefill => matches!(
                span.phase,
                innkeeper_room::Phase::WaitingForInput | innkeeper_room::Phase::Transferring
            ),
            Role::Decode | Role::Router => {
                span.phase > innkeeper_room::Phase::Bootstrapping && !span.phase.is_terminal()
            }
        });
        let pages = match (held, record.pages) {
            (true, pages @ 1..) => {
                format!("; its {pages} KV pages went to quarantine, to be used again once nobody could touch them")
            }
            _ => String::new(),
        };
        did.push(format!("{node} ended its part after {after} ({end}){pages}"));
    }

    /// What the client got.
    pub(super) fn client(&self) -> String {
        let Some(record) = self.router else {
            return "not known: only the router could say it, and its record is missing".to_owned();
        };
        let passed = record.tokens.count;
        match &record.client {
            Client::Unknown if self.is_live() && passed > 0 => format!("{passed} tokens of this room so far"),
            Client::Unknown if self.is_live() => "nothing yet".to_owned(),
            Client::Unknown => "not known: the router ended before the request was answered".to_owned(),
            Client::Waits => "nothing more yet: its request waits for another pair".to_owned(),
            Client::Done => format!("all that it asked for ({passed} tokens of this room)"),
            Client::Failed { code, .. } if code == "aborted" || code == "client_stalled" => {
                "nothing more: it had asked for the end, or was gone".to_owned()
            }
            Client::Failed {
                code,
                after_tokens: true,
                ..
            } => {
                format!("the tokens that had passed, then an error event `{code}` in its stream")
            }
            Client::Failed { code, status, .. } => format!("HTTP {status} with the code `{code}`"),
            Client::NextAttempt { room, .. } => {
                let so_far = match passed {
                    0 => "nothing of it had passed".to_owned(),
                    _ => format!("{passed} tokens had passed, and the next ones follow them"),
                };
                format!("no error: room {room} carried on ({so_far})")
            }
        }
    }
}

/// The pair of the next attempt.
fn next_pair(client: &Client) -> String {
    let Client::NextAttempt {
        prefill,
        prefill_name,
        decode,
        decode_name,
        ..
    } = client
    else {
        return String::new();
    };
    let name =
        |name: &Option<String>, node: &innkeeper_room::Incarnation| name.clone().unwrap_or_else(|| node.to_string());
    format!("{} and {}", name(prefill_name, prefill), name(decode_name, decode))
}
