//! Whatever overtakes what, no leg is called computed that is not.

use proptest::prelude::*;

use super::*;

fn look(inflight: u64) -> Look {
    let mut look = Look::default();
    look.load.inflight = inflight;
    look
}

#[test]
fn the_oldest_that_were_open_when_it_was_asked_are_computed() {
    let mut order = Order::default();
    let (first, second) = (order.posted(), order.posted());
    let asked = order.asked();
    let third = order.posted();
    assert!(order.shown(&asked, &look(1)));
    assert!(order.is_computed(first) && !order.is_computed(second));
    assert!(!order.shown(&asked, &look(1)), "nothing new");
    // The first is answered while a look is out that counts it still.
    let asked = order.asked();
    order.over(first);
    assert!(!order.shown(&asked, &look(1)));
    assert!(!order.is_computed(first) && !order.is_computed(second));
    assert!(order.shown(&asked, &look(2)));
    assert!(order.is_computed(second) && !order.is_computed(third));
    // What is posted while a look is out is not meant by it.
    let asked = order.asked();
    let fourth = order.posted();
    assert!(order.shown(&asked, &look(3)));
    assert!(order.is_computed(third) && !order.is_computed(fourth));
}

#[test]
fn a_canary_may_be_what_is_counted() {
    let mut order = Order::default();
    let leg = order.posted();
    let asked = order.asked();
    order.canary_sent();
    order.canary_back();
    assert!(
        !order.shown(&asked, &look(1)),
        "it came and went while the look was out"
    );
    order.canary_sent();
    let asked = order.asked();
    assert!(!order.shown(&asked, &look(1)));
    order.canary_back();
    assert!(!order.shown(&asked, &look(1)), "it was out when the look was asked for");
    let asked = order.asked();
    assert!(order.shown(&asked, &look(1)));
    assert!(order.is_computed(leg));
}

#[test]
fn what_was_given_up_is_counted_until_the_engine_is_empty() {
    let mut order = Order::default();
    let (gone, next) = (order.posted(), order.posted());
    order.lost(gone);
    let asked = order.asked();
    order.shown(&asked, &look(1));
    assert!(!order.is_computed(next), "it is the other one that hangs there");
    let asked = order.asked();
    order.shown(&asked, &look(0));
    let asked = order.asked();
    order.shown(&asked, &look(1));
    assert!(order.is_computed(next));
    assert_eq!(order.open.len(), 1);
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Post,
    Canary,
    /// The engine computes what has waited longest.
    Compute,
    /// Decode takes the KV of one.
    Take(usize),
    /// The answer of one that was taken arrives.
    Answer(usize),
    Ask,
    /// The engine counts.
    Count,
    Show,
}

/// Canaries are rare: each hides a leg for as long as it is out.
fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        60 => Just(Act::Post),
        2 => Just(Act::Canary),
        60 => Just(Act::Compute),
        60 => any::<usize>().prop_map(Act::Take),
        60 => any::<usize>().prop_map(Act::Answer),
        40 => Just(Act::Ask),
        40 => Just(Act::Count),
        40 => Just(Act::Show),
    ]
}

/// An engine that computes in the order of arrival. `None` is a canary.
#[derive(Default)]
struct Engine {
    order: Order,
    queue: Vec<Option<u64>>,
    inflight: Vec<Option<u64>>,
    computed: BTreeSet<u64>,
    /// Over there, not yet answered here.
    taken: Vec<Option<u64>>,
    asked: Option<Asked>,
    counted: Option<u64>,
}

impl Engine {
    fn act(&mut self, act: Act) {
        let pick = |from: &mut Vec<Option<u64>>, at: usize| (!from.is_empty()).then(|| from.remove(at % from.len()));
        match act {
            Act::Post => {
                let leg = self.order.posted();
                self.queue.push(Some(leg));
            }
            Act::Canary => {
                self.order.canary_sent();
                self.queue.push(None);
            }
            Act::Compute => {
                if let Some(next) = pick(&mut self.queue, 0) {
                    self.computed.extend(next);
                    self.inflight.push(next);
                }
            }
            Act::Take(at) => {
                let taken = pick(&mut self.inflight, at);
                self.taken.extend(taken);
            }
            Act::Answer(at) => match pick(&mut self.taken, at) {
                Some(Some(leg)) => self.order.over(leg),
                Some(None) => self.order.canary_back(),
                None => {}
            },
            Act::Ask => {
                self.asked = Some(self.order.asked());
                self.counted = None;
            }
            Act::Count => self.counted = Some(self.inflight.len() as u64),
            Act::Show => {
                if let (Some(asked), Some(counted)) = (self.asked.take(), self.counted.take()) {
                    self.order.shown(&asked, &look(counted));
                }
            }
        }
    }
}

proptest! {
    /// Whatever overtakes what: no leg is called computed that is not, and a look in calm marks all that are.
    #[test]
    fn nothing_is_called_computed_that_is_not(acts in proptest::collection::vec(act(), 0..200)) {
        let mut engine = Engine::default();
        for act in acts {
            engine.act(act);
            for leg in engine.order.open.keys().filter(|leg| engine.order.is_computed(**leg)) {
                prop_assert!(engine.computed.contains(leg), "{leg}");
            }
        }
        // All that decode has taken is answered, and the canaries are through.
        while !engine.taken.is_empty() {
            engine.act(Act::Answer(0));
        }
        while engine.order.canaries_out > 0 {
            engine.act(Act::Compute);
            engine.act(Act::Take(engine.inflight.iter().position(Option::is_none).unwrap_or_default()));
            engine.act(Act::Answer(0));
        }
        for act in [Act::Ask, Act::Count, Act::Show] {
            engine.act(act);
        }
        for leg in engine.inflight.iter().flatten() {
            prop_assert!(engine.order.is_computed(*leg), "{leg}");
        }
    }
}
