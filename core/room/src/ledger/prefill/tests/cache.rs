//! The prefix cache: what is reused, what is kept, and what goes.

use super::*;
use crate::cache::BlockHash;

/// The names of a prompt's whole pages: 100 tokens in pages of 10. Tenants have nothing in common.
fn names(tenant: u128, pages: u32) -> Vec<BlockHash> {
    (0..pages).map(|at| BlockHash(tenant << 64 | u128::from(at))).collect()
}

impl Bench {
    fn open_named(&mut self, number: u64, prompt_tokens: u32, blocks: Vec<BlockHash>) {
        let spec = RoomSpec {
            prompt_tokens,
            ..spec(number)
        };
        let _ = self.go(Event::Open {
            spec,
            decode_addr: "d:1".into(),
            token: 7,
            blocks: blocks.into(),
        });
    }

    /// Starts a room; what it reuses, and what went for it.
    fn start_named(
        &mut self,
        number: u64,
        prompt_tokens: u32,
        blocks: Vec<BlockHash>,
    ) -> (Vec<BlockHash>, Vec<BlockHash>) {
        self.open_named(number, prompt_tokens, blocks);
        let ready = self.reply(number, E1, HelloReply::Ready);
        let evicted = ready.iter().find_map(|effect| match effect {
            Effect::Evict { blocks } => Some(blocks.clone()),
            _ => None,
        });
        let reuse = ready.iter().find_map(|effect| match effect {
            Effect::Compute { reuse, .. } => Some(reuse.clone()),
            _ => None,
        });
        let reuse = reuse.unwrap_or_else(|| panic!("room {number} does not start: {ready:?}"));
        let reused = u32::try_from(reuse.len()).unwrap() * 10;
        assert!(told(&ready, number, &FromWorker::Started { epoch: E1, reused }));
        (reuse, evicted.unwrap_or_default())
    }

    /// Seals, hands over, lets go; what is kept of it.
    fn hand_over(&mut self, number: u64) -> Vec<(u32, BlockHash)> {
        let _ = self.go(Event::Sealed {
            room: room(number),
            bytes: 1000,
        });
        let _ = self.go(Event::Committed {
            room: room(number),
            epoch: E1,
        });
        kept(&self.let_go(number))
    }

    fn let_go(&mut self, number: u64) -> Vec<Effect> {
        self.go(Event::Quiesced {
            room: room(number),
            epoch: E1,
        })
    }

    fn pages(&self) -> PageCounts {
        self.ledger.gauges(self.now).pages
    }
}

fn kept(effects: &[Effect]) -> Vec<(u32, BlockHash)> {
    let keeps = effects.iter().find_map(|effect| match effect {
        Effect::ClosePages { keep, .. } => Some(keep.clone()),
        _ => None,
    });
    keeps.unwrap_or_else(|| panic!("no pages go back: {effects:?}"))
}

#[test]
fn a_prompt_that_begins_alike_computes_what_follows() {
    let mut bench = Bench::new();
    assert_eq!(bench.start_named(1, 100, names(1, 10)), (vec![], vec![]));
    let all: Vec<_> = (0..).zip(names(1, 10)).collect();
    assert_eq!(bench.hand_over(1), all);
    assert_eq!((bench.pages().cached, bench.pages().available()), (10, 70));
    // Of the same prompt one token is computed, and so the last page is not reused.
    assert_eq!(bench.start_named(2, 100, names(1, 10)).0, names(1, 9));
    assert_eq!((bench.pages().held, bench.pages().cached), (10, 1));
    // A longer one reads the same pages beside it: each counts once.
    assert_eq!(bench.start_named(3, 125, names(1, 12)).0, names(1, 10));
    assert_eq!((bench.pages().held, bench.pages().cached), (14, 0));
    assert_eq!(bench.hand_over(2), vec![], "what it computed is there already");
    assert_eq!(bench.hand_over(3), vec![(10, names(1, 11)[10]), (11, names(1, 12)[11])]);
    assert_eq!((bench.pages().cached, bench.pages().free), (12, 58));
}

#[test]
fn a_tenant_finds_only_its_own_and_a_prompt_without_names_nothing() {
    let mut bench = Bench::new();
    bench.start_named(1, 100, names(1, 10));
    bench.hand_over(1);
    assert_eq!(bench.start_named(2, 100, names(2, 10)).0, vec![]);
    assert_eq!(bench.start_named(3, 100, vec![]).0, vec![]);
    assert_eq!(bench.hand_over(3), vec![], "and leaves nothing");
    let mut off = Bench::with(
        Settings {
            prefix_cache_percent: 0,
            ..Settings::default()
        },
        70,
    );
    off.start_named(1, 100, names(1, 10));
    assert_eq!(off.hand_over(1), vec![]);
    assert_eq!(off.start_named(2, 100, names(1, 10)).0, vec![]);
}

#[test]
fn a_full_cache_delays_nobody_and_never_goes_under_a_reader() {
    let mut bench = Bench::with(Settings::default(), 20);
    bench.start_named(1, 100, names(1, 10));
    bench.hand_over(1);
    bench.start_named(2, 100, names(2, 10));
    bench.hand_over(2);
    assert_eq!((bench.pages().cached, bench.pages().free), (20, 0));
    // It reads the first nine of the tenant that is unused longest: what goes is the end of it, then the other's from its end.
    let (reuse, evicted) = bench.start_named(3, 120, names(1, 9));
    assert_eq!(reuse, names(1, 9));
    let ends = [vec![names(1, 10)[9]], vec![names(2, 10)[9], names(2, 9)[8]]].concat();
    assert_eq!(evicted, ends);
    assert_eq!((bench.pages().held, bench.pages().cached), (12, 8));
    // Twelve are held: ten more there are not, and none of those that are read goes for them.
    bench.open_named(4, 100, names(3, 10));
    let waits = bench.reply(4, E1, HelloReply::Ready);
    assert!(
        !waits
            .iter()
            .any(|effect| matches!(effect, Effect::Compute { .. } | Effect::Evict { .. })),
        "{waits:?}"
    );
    let _ = bench.go(Event::Sealed {
        room: room(3),
        bytes: 1,
    });
    let _ = bench.go(Event::Committed {
        room: room(3),
        epoch: E1,
    });
    let starts = bench.let_go(3);
    assert!(
        starts.iter().any(|effect| matches!(effect, Effect::Compute { .. })),
        "{starts:?}"
    );
}

#[test]
fn nothing_is_kept_of_a_room_that_failed_or_was_not_sealed() {
    let mut bench = Bench::new();
    bench.start_named(1, 100, names(1, 10));
    let _ = bench.go(Event::Sealed {
        room: room(1),
        bytes: 1000,
    });
    let _ = bench.say(1, ToWorker::Abort(Reason::Aborted));
    assert_eq!(kept(&bench.let_go(1)), vec![]);
    // R says that it is done while the engine computes: what it stops at is not whole.
    bench.start_named(2, 100, names(1, 10));
    let _ = bench.say(2, ToWorker::Committed);
    let _ = bench.let_go(2);
    assert_eq!(kept(&bench.go(Event::EngineStopped { room: room(2) })), vec![]);
    // The same, but its last slab was sealed by then: the word of that came behind D's.
    bench.start_named(3, 100, names(1, 10));
    let _ = bench.say(3, ToWorker::Committed);
    let _ = bench.let_go(3);
    let late = bench.go(Event::Sealed {
        room: room(3),
        bytes: 1000,
    });
    assert_eq!(kept(&late).len(), 10);
}

#[test]
fn a_shared_page_is_in_quarantine_only_with_its_last_reader() {
    let mut bench = Bench::new();
    bench.start_named(1, 100, names(1, 10));
    bench.hand_over(1);
    bench.start_named(2, 100, names(1, 10));
    bench.start_named(3, 100, names(1, 10));
    let _ = bench.say(2, ToWorker::Abort(Reason::Aborted));
    assert_eq!(
        (bench.pages().held, bench.pages().quarantined),
        (10, 1),
        "the other reads on"
    );
    let _ = bench.say(3, ToWorker::Abort(Reason::Aborted));
    assert_eq!((bench.pages().held, bench.pages().quarantined), (0, 11));
    for number in [2, 3] {
        let _ = bench.go(Event::EngineStopped { room: room(number) });
        let _ = bench.let_go(number);
    }
    assert_eq!(
        (bench.pages().quarantined, bench.pages().cached),
        (0, 10),
        "and is cached as before"
    );
}

#[test]
fn what_was_corrupt_at_decode_does_not_stay() {
    let mut bench = Bench::new();
    bench.start_named(1, 100, names(1, 10));
    bench.hand_over(1);
    bench.start_named(2, 55, names(1, 5));
    bench.start_named(3, 100, names(1, 10));
    let failed = bench.go(Event::PeerFailed {
        room: room(2),
        epoch: E1,
        reason: Reason::KvCorrupt,
        evidence: Evidence::default(),
    });
    let gone = failed.iter().find_map(|effect| match effect {
        Effect::Evict { blocks } => Some(blocks.clone()),
        _ => None,
    });
    assert_eq!(
        gone,
        Some(vec![names(1, 10)[9]]),
        "what followed and nobody reads goes at once"
    );
    assert_eq!(bench.hand_over(3), vec![], "what was computed from it is not kept");
    assert_eq!((bench.pages().held, bench.pages().cached), (0, 0));
    let _ = bench.go(Event::EngineStopped { room: room(2) });
    let last = bench.let_go(2);
    assert!(
        matches!(last.last(), Some(Effect::Evict { blocks }) if blocks.len() == 5),
        "the rest goes with its last reader: {last:?}"
    );
    assert_eq!(bench.pages(), PageCounts::all_free(70));
    assert_eq!(bench.start_named(4, 100, names(1, 10)).0, vec![]);
}

#[test]
fn another_epoch_keeps_the_pages_that_are_reused() {
    let mut bench = Bench::new();
    bench.start_named(1, 100, names(1, 10));
    bench.hand_over(1);
    bench.start_named(2, 100, names(1, 10));
    let _ = bench.broken(2, E1);
    let ready = bench.reply(2, E2, HelloReply::Ready);
    assert!(
        !ready.iter().any(|effect| matches!(effect, Effect::Compute { .. })),
        "{ready:?}"
    );
    assert_eq!(bench.pages().held, 10);
}

#[test]
fn shared_pages_that_do_not_come_back_count_for_the_fence() {
    let mut bench = Bench::with(Settings::default(), 40);
    bench.start_named(1, 100, names(1, 10));
    bench.hand_over(1);
    // One page of its own, which is no quarter of 40; nine that it reads.
    bench.start_named(2, 100, names(1, 10));
    let _ = bench.say(2, ToWorker::Abort(Reason::Aborted));
    assert!(!bench.wait(9999).contains(&Effect::Serving(false)));
    assert_eq!(bench.wait(1)[0], Effect::Serving(false));
}

/// What is left of a prompt behind a long prefix takes as long as a chunk and has few tokens: it says nothing of the rate.
#[test]
fn rooms_that_reuse_a_prefix_do_not_make_a_worker_slow() {
    let mut bench = Bench::new();
    bench.start_named(1, 100, names(1, 10));
    bench.hand_over(1);
    for number in 2..=20 {
        bench.start_named(number, 100, names(1, 10));
        bench.now = bench.now + Millis(250);
        bench.progress += 1;
        let _ = bench.engine(Some(0));
        bench.hand_over(number);
    }
    for number in 21..=24 {
        bench.start_named(number, 100, names(u128::from(number), 10));
        assert_eq!(bench.phase(number), Some(Phase::WaitingForInput), "{number}");
    }
}
