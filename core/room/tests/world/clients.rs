//! The clients: one request each, and what they must get.

use innkeeper_room::ledger::router::{self, Arrival, OnFailure, Outcome, Policies, RoomEnd};
use innkeeper_room::prefix::Blocks;
use innkeeper_room::{Class, Reason, RequestKey, Verdict};

use crate::world::{Act, Client, ClientAct, PAGE_TOKENS, World, tell};

impl World {
    // === clients ===

    /// A new client whose request arrives at `arrives`.
    pub(crate) fn new_client(&mut self, prompt: u32, max_tokens: u32, arrives: u64) -> RequestKey {
        let key = RequestKey(self.clients.len() as u64 + 1);
        let client = Client {
            prompt,
            max_tokens,
            arrives,
            arrived: false,
            tokens: 0,
            stops_after: self
                .rng
                .one_in(4)
                .then(|| u32::try_from(self.rng.between(1, 4)).unwrap_or(1)),
            answer: None,
            gave_up: None,
            cut_off: false,
            failed_rooms: 0,
        };
        self.clients.insert(key, client);
        self.schedule(arrives, Act::Client(ClientAct::Arrive(key)));
        key
    }

    pub(crate) fn client(&mut self, act: ClientAct) {
        if !self.nodes[0].up {
            // Nobody listens: the client's connection is refused, and it is none of ours.
            let (ClientAct::Arrive(key) | ClientAct::Abort(key) | ClientAct::Gone(key) | ClientAct::Stalls(key)) = act;
            if let (Some(client), ClientAct::Arrive(_)) = (self.clients.get_mut(&key), &act) {
                client.cut_off = true;
            }
            return;
        }
        let now = self.now;
        match act {
            ClientAct::Arrive(key) => {
                let Some(client) = self.clients.get_mut(&key) else {
                    return;
                };
                client.arrived = true;
                client.arrives = now;
                // All begin alike.
                let blocks = if self.policies == Policies::default() {
                    Blocks::default()
                } else {
                    Blocks::of(&(0..client.prompt).collect::<Vec<_>>(), PAGE_TOKENS)
                };
                let arrival = Arrival {
                    request: key,
                    rid: format!("r{}", key.0),
                    // Two tenants and all classes, where a seed decides.
                    client: format!("c{}", if self.exact.is_none() { key.0 % 2 } else { 0 }),
                    model: None,
                    prompt_tokens: client.prompt,
                    blocks,
                    max_tokens: client.max_tokens,
                    class: if self.exact.is_none() {
                        Class::ALL[usize::try_from(key.0 % 3).unwrap_or_default()]
                    } else {
                        Class::Normal
                    },
                    on_failure: OnFailure::Migrate,
                    pair: None,
                };
                tell!(
                    self,
                    "request {} arrives: {} + {} tokens",
                    key.0,
                    arrival.prompt_tokens,
                    arrival.max_tokens
                );
                self.r_event(router::Event::Arrive(arrival));
            }
            ClientAct::Abort(key) => {
                if let Some(client) = self.clients.get_mut(&key) {
                    client.gave_up = Some(now);
                }
                tell!(self, "abort of request {}", key.0);
                let rid = format!("r{}", key.0);
                self.r_event(router::Event::Abort {
                    rid,
                    client: "c".into(),
                    ticket: key.0,
                });
            }
            ClientAct::Gone(key) => {
                let Some(client) = self.clients.get_mut(&key).filter(|client| client.arrived) else {
                    return;
                };
                client.gave_up = Some(now);
                tell!(self, "the client of request {} leaves", key.0);
                self.r_event(router::Event::ClientGone { request: key });
            }
            ClientAct::Stalls(key) => {
                let Some(client) = self.clients.get_mut(&key).filter(|client| client.arrived) else {
                    return;
                };
                client.gave_up = Some(now);
                tell!(self, "the client of request {} takes nothing", key.0);
                self.r_event(router::Event::ClientStalled { request: key });
            }
        }
    }

    /// The answer of a request.
    pub(crate) fn answered(&mut self, key: RequestKey, outcome: Outcome) {
        let now = self.now;
        tell!(self, "request {} is answered: {outcome:?}", key.0);
        let Some(client) = self.clients.get_mut(&key) else {
            return self.wrong(format!("an answer for nobody: {}", key.0));
        };
        if client.answer.is_some() {
            return self.wrong(format!("request {} is answered twice", key.0));
        }
        client.answer = Some((outcome, now));
        let stopped = client.stops_after.is_some_and(|after| client.tokens >= after);
        if outcome == Outcome::Done && client.tokens != client.max_tokens && !stopped {
            let (got, wanted) = (client.tokens, client.max_tokens);
            self.wrong(format!("request {} is Done with {got} of {wanted} tokens", key.0));
        }
    }

    /// A room's verdict with its blame.
    pub(crate) fn room_ended(&mut self, end: &RoomEnd) {
        tell!(self, "room {} ended: {} blame {:?}", end.room, end.verdict, end.blame);
        if self.ends.insert(end.room, *end).is_some() {
            self.wrong(format!("I1: room {} has two verdicts", end.room));
        }
        let refused = matches!(
            end.verdict,
            Verdict::Done | Verdict::Failed(Reason::Overloaded | Reason::Draining | Reason::WrongIncarnation)
        );
        if let Some(client) = self.clients.get_mut(&end.request).filter(|_| !refused) {
            client.failed_rooms += 1;
        }
    }
}
