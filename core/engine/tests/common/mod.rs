//! What every engine must do, written once and run against each of them.
#![allow(dead_code, missing_docs, unreachable_pub, reason = "each test binary uses its part")]

mod recorder;

use std::sync::Arc;
use std::time::{Duration, Instant};

use innkeeper_engine::{ClosableSink, DecodeJob, Engine, EngineError, monolithic};
use innkeeper_room::{BlockHash, Manifest, RoomId, Sampling, SlabError, SlabId, Token, Work};

pub use recorder::{Heard, Recorder};

/// Two engines with equal layouts, as prefill and as decode.
pub struct Rig {
    pub prefill: Arc<dyn Engine>,
    pub decode: Arc<dyn Engine>,
}

pub fn room(number: u64) -> RoomId {
    RoomId::from_random(number)
}

/// A prompt of `len` ids that depends on `salt`, within every vocabulary here.
pub fn prompt(len: usize, salt: u64) -> Arc<[u32]> {
    (0..len as u64)
        .map(|at| 32 + ((at * 7 + salt * 31 + at * at * salt) % 90) as u32)
        .collect()
}

pub fn work(prompt: Arc<[u32]>, sampling: Sampling) -> Arc<Work> {
    Arc::new(Work {
        prompt,
        sampling,
        ..Work::default()
    })
}

pub fn seeded(seed: u64) -> Sampling {
    Sampling {
        temperature: 0.8,
        top_p: 0.95,
        seed,
        top_logprobs: 2,
    }
}

pub fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < until, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Prefill on one engine; its manifest.
pub fn prefill(engine: &dyn Engine, room: RoomId, work: &Arc<Work>) -> Manifest {
    engine.open(room, work.prompt.len() as u32).expect("opens");
    let sink = Recorder::new();
    engine
        .prefill(room, Arc::clone(work), sink.clone())
        .expect("prefill starts");
    sink.wait_over();
    sink.manifest().expect("prefill finishes")
}

/// Copies all slabs as a transfer would, in odd pieces, and compares the checksums.
pub fn copy(from: &dyn Engine, to: &dyn Engine, room: RoomId, manifest: &Manifest) {
    copy_room((from, room), (to, room), manifest);
}

/// As [`copy`], from one room to another.
pub fn copy_room((from, sent): (&dyn Engine, RoomId), (to, room): (&dyn Engine, RoomId), manifest: &Manifest) {
    let source = from.source(sent).expect("has pages");
    let sink = to.importer(room, manifest.token_count).expect("has pages");
    for meta in &manifest.slabs {
        assert_eq!(sink.slab_len(meta.id), Some(meta.len));
        let mut offset = 0;
        while offset < meta.len {
            let mut piece = vec![0; (meta.len - offset).min(1_001) as usize];
            source.read(meta.id, offset, &mut piece).expect("reads");
            sink.write(meta.id, offset, &piece).expect("writes");
            offset += piece.len() as u32;
        }
        assert_eq!(sink.checksum(meta.id), Ok(meta.checksum), "slab {:?}", meta.id);
    }
    sink.close();
}

/// Starts the decode of what was imported.
pub fn start_decode(
    engine: &dyn Engine,
    room: RoomId,
    work: &Arc<Work>,
    first: Token,
    max_tokens: u32,
) -> Arc<Recorder> {
    let sink = Recorder::new();
    let job = DecodeJob {
        work: Arc::clone(work),
        first,
        max_tokens,
    };
    engine.decode(room, job, sink.clone()).expect("decode starts");
    sink
}

/// The whole way: prefill here, copy, decode there.
pub fn disaggregated(rig: &Rig, room: RoomId, work: &Arc<Work>, max_tokens: u32) -> Vec<Token> {
    let manifest = prefill(&*rig.prefill, room, work);
    rig.decode
        .open(room, work.prompt.len() as u32 + max_tokens)
        .expect("opens");
    copy(&*rig.prefill, &*rig.decode, room, &manifest);
    rig.prefill.close(room);
    let first = monolithic::first_token(&manifest);
    let sink = start_decode(&*rig.decode, room, work, first.clone(), max_tokens);
    sink.wait_over();
    assert_eq!(sink.ends(), [Heard::Finished]);
    rig.decode.close(room);
    std::iter::once(first).chain(sink.tokens()).collect()
}

pub fn alone(engine: &dyn Engine, room: RoomId, work: &Arc<Work>, max_tokens: u32) -> Vec<Token> {
    let mut heard = Vec::new();
    let tokens = monolithic::generate(engine, room, work, max_tokens, &mut |position, token| {
        assert_eq!(position as usize, heard.len());
        heard.push(token.clone());
    });
    assert_eq!(tokens.as_ref(), Ok(&heard));
    heard
}

/// Disaggregated runs give the tokens and logprobs of monolithic ones, alone and eight at once.
pub fn disaggregated_equals_monolithic(rig: &Rig, lengths: &[usize], max_tokens: u32) {
    let works: Vec<_> = (0u64..)
        .zip(lengths)
        .map(|(at, len)| {
            let sampling = if at % 2 == 0 {
                Sampling {
                    top_logprobs: 3,
                    ..Sampling::default()
                }
            } else {
                seeded(at)
            };
            work(prompt(*len, at), sampling)
        })
        .collect();
    let expected: Vec<_> = (0u64..)
        .zip(&works)
        .map(|(at, work)| alone(&*rig.decode, room(1_000 + at), work, max_tokens))
        .collect();
    assert!(
        expected.windows(2).all(|pair| pair[0] != pair[1]),
        "different prompts give different answers"
    );
    for ((at, work), expected) in (0u64..).zip(&works).zip(&expected) {
        assert_eq!(
            &disaggregated(rig, room(2_000 + at), work, max_tokens),
            expected,
            "alone, prompt {at}"
        );
    }
    std::thread::scope(|scope| {
        let runs: Vec<_> = (0u64..8)
            .map(|at| {
                let work = &works[at as usize % works.len()];
                scope.spawn(move || disaggregated(rig, room(3_000 + at), work, max_tokens))
            })
            .collect();
        for (at, run) in runs.into_iter().enumerate() {
            assert_eq!(
                run.join().expect("runs"),
                expected[at % works.len()],
                "at once, prompt {at}"
            );
        }
    });
    nothing_leaked(rig);
}

/// A later attempt that continues from prompt + tokens gives the rest of the same answer.
pub fn a_continued_request_gives_the_same_tokens(rig: &Rig) {
    let first = work(prompt(21, 5), seeded(11));
    let all = alone(&*rig.decode, room(1), &first, 12);
    let kept = 5;
    let mut longer = first.prompt.to_vec();
    longer.extend(all[..kept].iter().map(|token| token.id));
    let rest = Arc::new(Work {
        prompt: longer.into(),
        start_position: kept as u32,
        ..(*first).clone()
    });
    assert_eq!(disaggregated(rig, room(2), &rest, 12 - kept as u32), all[kept..]);
    nothing_leaked(rig);
}

/// Slabs are sealed in order, with the checksum of their bytes, and only sealed ones can be read.
pub fn slabs_are_sealed_in_order(rig: &Rig, len: usize) {
    let engine = &*rig.prefill;
    let work = work(prompt(len, 3), Sampling::default());
    let id = room(7);
    engine.open(id, len as u32 + 40).expect("opens");
    let source = engine.source(id).expect("has pages");
    assert!(
        matches!(source.read(SlabId(0), 0, &mut [0]), Err(SlabError::OutOfRange { .. })),
        "nothing is sealed yet"
    );
    let sink = Recorder::new();
    engine.prefill(id, Arc::clone(&work), sink.clone()).expect("starts");
    sink.wait_over();
    let manifest = sink.manifest().expect("finishes");
    let layout = engine.layout();
    assert_eq!(manifest.token_count as usize, len);
    assert_eq!(manifest.slabs, sink.sealed());
    assert_eq!(manifest.slabs.len() as u32, layout.slabs(len as u32));
    assert_eq!(manifest.bytes(), layout.bytes(len as u32));
    for (at, meta) in (0..).zip(&manifest.slabs) {
        assert_eq!(
            (meta.id, meta.len),
            (SlabId(at), layout.slab_len(SlabId(at), len as u32))
        );
        let mut bytes = vec![0; meta.len as usize];
        source.read(meta.id, 0, &mut bytes).expect("reads");
        assert_eq!(crc32fast::hash(&bytes), meta.checksum);
        assert!(source.read(meta.id, 1, &mut bytes).is_err(), "past the end");
    }
    let beyond = SlabId(manifest.slabs.len() as u32);
    assert!(
        source.read(beyond, 0, &mut [0]).is_err(),
        "the room's spare pages are not the prompt's"
    );
    engine.close(id);
    assert_eq!(source.read(SlabId(0), 0, &mut [0]), Err(SlabError::Closed));
}

/// A cancelled prefill stops at a chunk boundary, once, and says nothing afterwards. `len` must take several chunks.
pub fn a_cancelled_prefill_stops_once(rig: &Rig, len: usize) {
    let engine = &*rig.prefill;
    let id = room(8);
    engine.open(id, len as u32).expect("opens");
    let sink = Recorder::new();
    engine
        .prefill(id, work(prompt(len, 4), Sampling::default()), sink.clone())
        .expect("starts");
    sink.wait("a chunk", |log| {
        log.iter().any(|heard| matches!(heard, Heard::Computed(_)))
    });
    assert!(engine.cancel(id));
    sink.wait_over();
    assert_eq!(sink.ends(), [Heard::Stopped]);
    assert!(sink.computed() < len as u32, "it stopped in the middle");
    wait_until("the job is gone", || engine.status().jobs == 0);
    assert!(!engine.cancel(id), "nobody is left to call");
    assert!(engine.close(id) > 0);
    assert_eq!(engine.close(id), 0, "closing is idempotent");
    assert_eq!(sink.ends(), [Heard::Stopped]);
    nothing_leaked(rig);
}

/// A cancelled decode stops at a step boundary, once.
pub fn a_cancelled_decode_stops_once(rig: &Rig) {
    let work = work(prompt(20, 6), Sampling::default());
    let id = room(9);
    let manifest = prefill(&*rig.prefill, id, &work);
    rig.decode.open(id, 20 + 400).expect("opens");
    copy(&*rig.prefill, &*rig.decode, id, &manifest);
    let sink = start_decode(&*rig.decode, id, &work, monolithic::first_token(&manifest), 400);
    sink.wait("three tokens", |log| {
        log.iter().filter(|heard| matches!(heard, Heard::Token(..))).count() >= 3
    });
    assert!(rig.decode.cancel(id));
    sink.wait_over();
    assert_eq!(sink.ends(), [Heard::Stopped]);
    let before = sink.tokens().len();
    assert!(before < 399);
    wait_until("the job is gone", || rig.decode.status().jobs == 0);
    assert!(!rig.decode.cancel(id));
    assert_eq!(sink.tokens().len(), before, "not a token after its end");
    rig.decode.close(id);
    rig.prefill.close(id);
    nothing_leaked(rig);
}

/// A permit that was taken back, and pages that were given back, are closed for good.
pub fn closed_handles_refuse(rig: &Rig) {
    let engine = &*rig.decode;
    let id = room(10);
    engine.open(id, 40).expect("opens");
    let (one, other) = (importer(engine, id), importer(engine, id));
    let len = engine.layout().slab_len(SlabId(0), 40) as usize;
    one.write(SlabId(0), 0, &vec![7; len]).expect("writes");
    one.close();
    assert_eq!(one.write(SlabId(0), 0, &[1]), Err(SlabError::Closed));
    assert_eq!(one.checksum(SlabId(0)), Err(SlabError::Closed));
    assert_eq!(
        other.checksum(SlabId(0)),
        Ok(crc32fast::hash(&vec![7; len])),
        "the other permit is untouched"
    );
    assert!(matches!(
        other.write(SlabId(0), len as u32, &[1]),
        Err(SlabError::OutOfRange { .. })
    ));
    assert!(matches!(
        other.write(SlabId(9_999), 0, &[1]),
        Err(SlabError::OutOfRange { .. })
    ));
    assert_eq!(other.slab_len(SlabId(9_999)), None);
    assert_eq!(engine.close(id), engine.layout().pages(40));
    assert_eq!(other.write(SlabId(0), 0, &[1]), Err(SlabError::Closed));
    assert!(engine.importer(id, 40).is_none());
    assert!(engine.source(id).is_none());
    nothing_leaked(rig);
}

fn importer(engine: &dyn Engine, room: RoomId) -> Arc<dyn ClosableSink> {
    engine.importer(room, 40).expect("has pages")
}

/// What cannot be computed is refused at once, and changes nothing.
pub fn wrong_input_is_refused(rig: &Rig) {
    let engine = &*rig.prefill;
    let id = room(11);
    let start = |prompt: Arc<[u32]>| engine.prefill(id, work(prompt, Sampling::default()), Recorder::new());
    assert_eq!(start(prompt(3, 0)), Err(EngineError::Unknown(id)));
    let limits = engine.limits();
    assert!(matches!(engine.open(id, 0), Err(EngineError::Input(_))));
    assert!(matches!(
        engine.open(id, limits.context + 1),
        Err(EngineError::Input(_))
    ));
    engine.open(id, 32).expect("opens");
    assert_eq!(engine.open(id, 32), Err(EngineError::Exists(id)));
    assert!(matches!(start(Arc::from([])), Err(EngineError::Input(_))));
    assert!(matches!(
        start(Arc::from([1, limits.vocabulary])),
        Err(EngineError::Input(_))
    ));
    assert!(
        matches!(start(prompt(1_000, 0)), Err(EngineError::Input(_))),
        "longer than its pages"
    );
    let job = |max_tokens, first| DecodeJob {
        work: work(prompt(30, 0), Sampling::default()),
        first: Token {
            id: first,
            ..Token::default()
        },
        max_tokens,
    };
    assert!(matches!(
        engine.decode(id, job(0, 1), Recorder::new()),
        Err(EngineError::Input(_))
    ));
    assert!(matches!(
        engine.decode(id, job(90, 1), Recorder::new()),
        Err(EngineError::Input(_))
    ));
    assert!(matches!(
        engine.decode(id, job(2, limits.vocabulary), Recorder::new()),
        Err(EngineError::Input(_))
    ));
    let free = engine.status().free_pages;
    let mut opened = Vec::new();
    let refused = (0..).map(|at| (room(50_000 + at), engine.open(room(50_000 + at), limits.context)));
    for (id, result) in refused {
        match result {
            Ok(()) => opened.push(id),
            Err(error) => {
                assert!(matches!(error, EngineError::NoPages { .. }), "{error}");
                break;
            }
        }
    }
    for id in opened {
        engine.close(id);
    }
    assert_eq!(engine.status().free_pages, free, "a refused open takes nothing");
    engine.close(id);
    nothing_leaked(rig);
}

/// An answer of one token and one that a stop id ends need no step more than that.
pub fn answers_end_where_they_should(rig: &Rig) {
    let base = work(prompt(20, 8), Sampling::default());
    let all = alone(&*rig.decode, room(12), &base, 8);
    assert_eq!(alone(&*rig.decode, room(13), &base, 1), all[..1]);
    let stop = all
        .iter()
        .position(|token| token.id != all[0].id)
        .expect("the answer varies");
    let stopping = |id| {
        Arc::new(Work {
            stop_ids: Arc::from([id]),
            ..(*base).clone()
        })
    };
    assert_eq!(
        alone(&*rig.decode, room(14), &stopping(all[stop].id), 8),
        all[..=stop],
        "the stop id is the last"
    );
    assert_eq!(disaggregated(rig, room(15), &stopping(all[0].id), 8), all[..1]);
    nothing_leaked(rig);
}

/// Counters only grow, by what was done; what is in hand is shown.
pub fn status_tells_what_was_done(rig: &Rig) {
    let engine = &*rig.decode;
    let before = engine.status();
    alone(engine, room(16), &work(prompt(33, 9), Sampling::default()), 5);
    wait_until("nothing is in hand", || engine.status().in_hand.is_none());
    let after = engine.status();
    assert_eq!(after.prompt_tokens - before.prompt_tokens, 33);
    assert_eq!(
        after.output_tokens - before.output_tokens,
        4,
        "the first token is prefill's"
    );
    assert!(after.progress >= before.progress + 5, "a chunk and four steps");
    wait_until("no job", || engine.status().jobs == 0);
}

/// A second job for a room that has one is refused; a room closed under its job hears `stopped`.
pub fn a_room_has_one_job(rig: &Rig, len: usize) {
    let engine = &*rig.prefill;
    let id = room(17);
    engine.open(id, len as u32).expect("opens");
    let sink = Recorder::new();
    let long = work(prompt(len, 4), Sampling::default());
    engine.prefill(id, Arc::clone(&long), sink.clone()).expect("starts");
    assert_eq!(engine.prefill(id, long, Recorder::new()), Err(EngineError::Exists(id)));
    sink.wait("a chunk", |log| {
        log.iter().any(|heard| matches!(heard, Heard::Computed(_)))
    });
    assert!(engine.close(id) > 0);
    sink.wait_over();
    assert_eq!(sink.ends(), [Heard::Stopped]);
    nothing_leaked(rig);
}

/// A prefill that begins behind pages of the prefix cache; how much it computed, and its manifest.
pub fn prefill_reusing(engine: &dyn Engine, room: RoomId, work: &Arc<Work>, reuse: &[BlockHash]) -> (u32, Manifest) {
    engine
        .open_reusing(room, work.prompt.len() as u32, reuse)
        .expect("opens");
    let sink = Recorder::new();
    engine
        .prefill(room, Arc::clone(work), sink.clone())
        .expect("prefill starts");
    sink.wait_over();
    let manifest = sink.manifest().expect("prefill finishes");
    assert_eq!(sink.sealed(), manifest.slabs, "each slab is told of once, in order");
    (sink.computed(), manifest)
}

/// Names of the first pages of a prompt, good for one test.
pub fn names(pages: u32) -> Vec<BlockHash> {
    (1..=u128::from(pages)).map(BlockHash).collect()
}

/// What is computed behind reused pages is what would be computed without them, bit for bit; and no page gets lost.
pub fn a_reused_prefix_changes_no_bit(rig: &Rig) {
    let engine = &*rig.prefill;
    let page = engine.layout().page_tokens as usize;
    let names = names(5);
    let first = work(prompt(5 * page + 3, 3), seeded(4));
    let manifest = prefill(engine, room(70_000), &first);
    let keep: Vec<(u32, BlockHash)> = (0..).zip(names.iter().copied()).collect();
    assert_eq!(
        engine.close_keeping(room(70_000), &keep),
        1,
        "the last page is not whole"
    );
    assert_eq!(engine.status().cached_pages, 5);
    // The same again, all of it or a part; and another prompt that begins with two of these pages.
    let mut other = first.prompt[..2 * page].to_vec();
    other.extend_from_slice(&prompt(3 * page, 9));
    let other = work(other.into(), seeded(4));
    let alone_other = prefill(&*rig.decode, room(70_009), &other);
    rig.decode.close(room(70_009));
    for (number, work, reuse, right) in [
        (1, &first, 5, &manifest),
        (2, &first, 3, &manifest),
        (3, &other, 2, &alone_other),
    ] {
        let id = room(70_000 + number);
        let (computed, again) = prefill_reusing(engine, id, work, &names[..reuse]);
        assert_eq!(&again, right, "checksums and first token, {reuse} pages reused");
        assert_eq!(computed as usize, work.prompt.len() - reuse * page);
        rig.decode.open(id, work.prompt.len() as u32 + 8).expect("opens");
        copy(engine, &*rig.decode, id, &again);
        let first = monolithic::first_token(&again);
        let sink = start_decode(&*rig.decode, id, work, first.clone(), 8);
        sink.wait_over();
        let answer: Vec<Token> = std::iter::once(first).chain(sink.tokens()).collect();
        engine.close(id);
        rig.decode.close(id);
        assert_eq!(answer, alone(&*rig.decode, room(70_010), work, 8));
    }
    // What is evicted while it is read goes with its reader.
    let (_, again) = prefill_reusing(engine, room(70_004), &first, &names);
    assert_eq!(engine.evict(&names), 5);
    assert_eq!(engine.status().cached_pages, 0);
    assert_eq!(
        engine.open_reusing(room(70_005), 6, &names[..1]),
        Err(EngineError::NotCached)
    );
    rig.decode.open(room(70_004), first.prompt.len() as u32).expect("opens");
    copy(engine, &*rig.decode, room(70_004), &again);
    engine.close(room(70_004));
    rig.decode.close(room(70_004));
    nothing_leaked(rig);
}

pub fn nothing_leaked(rig: &Rig) {
    for engine in [&rig.prefill, &rig.decode] {
        wait_until("all jobs are gone", || engine.status().jobs == 0);
        assert_eq!(engine.status().free_pages, engine.limits().total_pages);
    }
}
