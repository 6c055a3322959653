//! The worlds that are explored: small ones, each for what it makes possible.

use crate::faults::Fault;
use crate::world::{Exact, Order, Shape, World};

/// A world and its requests.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) shape: Shape,
    pub(crate) exact: Exact,
    /// Prompt tokens, tokens to make, and when it arrives.
    pub(crate) requests: &'static [(u32, u32, u64)],
    /// Prefill workers keep what they compute: prompts of even and of odd lengths begin alike.
    pub(crate) cached: bool,
    /// Neither pings nor kernels find a silence: the timers alone must do.
    pub(crate) deaf: bool,
    /// Only these faults; all, if there is none.
    pub(crate) only: Option<fn(&Fault) -> bool>,
    /// One visited state in so many is left in silence.
    pub(crate) silence_every: u64,
    /// One run in so many is followed by new requests.
    pub(crate) heal_every: u64,
}

/// When the nodes know each other.
const WARM: u64 = 1290;

const fn shape(prefills: usize, decodes: usize, pages: u32, requests: u32) -> Shape {
    Shape {
        prefills,
        decodes,
        pages,
        prefill_pages: pages,
        permits: 8,
        requests,
        remote: false,
    }
}

const PROMPT: Exact = Exact {
    step: 0,
    coin: false,
    order: Order::Oldest,
};
const SLOW: Exact = Exact {
    step: 500,
    coin: true,
    ..PROMPT
};

const BASE: Case = Case {
    name: "one pair",
    shape: shape(1, 1, 6, 1),
    exact: PROMPT,
    requests: &[(5, 2, 1300)],
    cached: false,
    deaf: false,
    only: None,
    silence_every: 200,
    heal_every: 8,
};

impl Case {
    /// All cases.
    pub(crate) fn all() -> Vec<Self> {
        vec![
            BASE,
            Self {
                name: "one pair, a chunk or step takes a quarter of the TTL",
                exact: SLOW,
                requests: &[(12, 3, 1300)],
                ..BASE
            },
            Self {
                name: "one pair, nobody notices a silence",
                deaf: true,
                ..BASE
            },
            Self {
                name: "two pairs: another attempt is possible",
                shape: shape(2, 2, 6, 1),
                ..BASE
            },
            Self {
                name: "two requests, and pages at D for one",
                shape: shape(1, 1, 3, 2),
                requests: &[(5, 2, 1300), (4, 4, 1300)],
                ..BASE
            },
            Self {
                name: "two slow requests, pages at D for one: it waits longer than a lease lives",
                shape: shape(1, 1, 3, 2),
                exact: SLOW,
                requests: &[(4, 8, 1300), (4, 2, 1300)],
                ..BASE
            },
            Self {
                name: "two requests, and pages at P for one",
                shape: Shape {
                    prefill_pages: 3,
                    ..shape(1, 1, 8, 2)
                },
                requests: &[(12, 1, 1300), (12, 1, 1300)],
                ..BASE
            },
            // The last two read what the first two left, and something must go for them.
            Self {
                name: "two prompts, and the same again: P reuses what it kept",
                shape: Shape {
                    prefill_pages: 6,
                    ..shape(1, 1, 12, 4)
                },
                cached: true,
                requests: &[(12, 1, 1300), (9, 1, 1300), (9, 2, 1310), (12, 2, 1310)],
                ..BASE
            },
        ]
    }

    /// Engines that are processes of their own and read KV from each other.
    pub(crate) fn remote() -> Vec<Self> {
        let remote = |prefills, decodes, pages, requests| Shape {
            remote: true,
            ..shape(prefills, decodes, pages, requests)
        };
        vec![
            Self {
                name: "remote engines, one pair",
                shape: remote(1, 1, 6, 1),
                ..BASE
            },
            Self {
                name: "remote engines, a chunk, a step or a read takes a quarter of the TTL",
                shape: remote(1, 1, 6, 1),
                exact: SLOW,
                requests: &[(4, 8, 1300)],
                ..BASE
            },
            // P's engine gives the first one's pages to the second.
            Self {
                name: "remote engines, a second prompt comes when the lease of the first is over",
                shape: remote(1, 1, 6, 2),
                requests: &[(5, 2, 1300), (4, 4, 2900)],
                ..BASE
            },
            Self {
                name: "remote engines, two pairs",
                shape: remote(2, 2, 6, 1),
                ..BASE
            },
        ]
    }

    /// Faults that only together reach what no single one does: links that hide a death, and hands that let go late while
    /// a connection is made anew.
    pub(crate) fn pairs() -> Vec<Self> {
        let hidden = |fault: &Fault| {
            matches!(
                fault,
                Fault::ControlHole(1) | Fault::Crash(2, 100) | Fault::StoreAway | Fault::Hang(2)
            )
        };
        let late = |fault: &Fault| {
            matches!(
                fault,
                Fault::LateQuiesce(..) | Fault::CutData { .. } | Fault::DataHole { .. } | Fault::Abort(_)
            )
        };
        vec![
            Self {
                name: "one pair, a death behind a silent link",
                deaf: true,
                only: Some(hidden),
                ..BASE
            },
            Self {
                name: "one pair, hands that let go late and connections made anew",
                exact: SLOW,
                requests: &[(12, 2, 1300)],
                only: Some(late),
                ..BASE
            },
        ]
    }

    /// The same in the other canonical order.
    pub(crate) fn newest_first(&self) -> Self {
        Self {
            exact: Exact {
                order: Order::Newest,
                ..self.exact
            },
            ..self.clone()
        }
    }

    /// The world, when everybody knows everybody and the first request is about to arrive.
    pub(crate) fn world(&self, loud: bool) -> World {
        let mut world = World::exact(self.exact, self.shape.clone(), false);
        world.deaf = self.deaf;
        world.cached = self.cached;
        for (prompt, tokens, arrives) in self.requests {
            world.new_client(*prompt, *tokens, *arrives);
        }
        world.run_until(WARM);
        world.steps = 0;
        world.loud = loud;
        world
    }
}
