//! The mock engine: the conformance suite, and what only the mock can do.
#![allow(missing_docs)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::*;
use innkeeper_engine::text::ByteTokenizer;
use innkeeper_engine::{Engine, EngineError, MockConfig, MockEngine, monolithic};
use innkeeper_room::{Sampling, SlabError, SlabId, Work};

fn quick() -> MockConfig {
    let chunk_target = Duration::from_millis(5);
    MockConfig {
        prefill_micros: 20,
        decode_micros: 200,
        total_pages: 600,
        chunk_target,
        ..MockConfig::default()
    }
}

fn rig() -> Rig {
    // Unequal chunking on the two sides must not matter.
    let decode = MockConfig {
        chunk_target: Duration::from_millis(1),
        ..quick()
    };
    Rig {
        prefill: MockEngine::new(quick()),
        decode: MockEngine::new(decode),
    }
}

#[test]
fn disaggregated_runs_equal_monolithic_ones() {
    disaggregated_equals_monolithic(&rig(), &[1, 15, 16, 17, 70, 333, 48, 5], 20);
}

#[test]
fn migration_keeps_the_answer() {
    a_continued_request_gives_the_same_tokens(&rig());
}

#[test]
fn sealing() {
    slabs_are_sealed_in_order(&rig(), 777);
    slabs_are_sealed_in_order(&rig(), 16);
    slabs_are_sealed_in_order(&rig(), 1);
}

#[test]
fn cancelling_a_prefill() {
    a_cancelled_prefill_stops_once(&rig(), 6_000);
}

#[test]
fn cancelling_a_decode() {
    a_cancelled_decode_stops_once(&rig());
}

#[test]
fn closing() {
    closed_handles_refuse(&rig());
    a_room_has_one_job(&rig(), 6_000);
}

#[test]
fn refusing() {
    wrong_input_is_refused(&rig());
}

#[test]
fn ending() {
    answers_end_where_they_should(&rig());
}

#[test]
fn reporting() {
    status_tells_what_was_done(&rig());
}

#[test]
fn reusing() {
    let mut engines = vec![MockEngine::new(quick()), MockEngine::new(quick())];
    let pools: Vec<_> = engines.iter().map(|engine| Arc::clone(engine.pool())).collect();
    let rig = Rig {
        decode: engines.remove(1),
        prefill: engines.remove(0),
    };
    a_reused_prefix_changes_no_bit(&rig);
    assert!(pools.iter().all(|pool| pool.violations() == 0));
}

/// The checksum is that of the first seal: one that was made anew when the page was reused would be right over wrong bytes.
#[test]
fn a_damaged_page_of_the_cache_does_not_fit_its_checksum() {
    let engine = MockEngine::new(quick());
    let work = work(prompt(40, 1), Sampling::default());
    let manifest = prefill(&*engine, room(1), &work);
    let names = names(2);
    engine.close_keeping(room(1), &[(0, names[0]), (1, names[1])]);
    assert!(engine.damage(names[1]));
    let (_, again) = prefill_reusing(&*engine, room(2), &work, &names);
    assert_eq!(again.slabs[2], manifest.slabs[2], "what was sealed is what is said");
    let mut bytes = vec![0; again.slabs[2].len as usize];
    let source = engine.source(room(2)).expect("has pages");
    source.read(again.slabs[2].id, 0, &mut bytes).expect("reads");
    assert_ne!(crc32fast::hash(&bytes), again.slabs[2].checksum);
}

#[test]
fn a_shared_page_is_written_by_nobody() {
    let engine = MockEngine::new(quick());
    let work = work(prompt(40, 1), Sampling::default());
    prefill(&*engine, room(1), &work);
    let names = names(2);
    engine.close_keeping(room(1), &[(0, names[0]), (1, names[1])]);
    engine.open_reusing(room(2), 40, &names).expect("opens");
    let sink = engine.importer(room(2), 40).expect("has pages");
    assert_eq!(sink.write(SlabId(0), 0, &[1]), Err(SlabError::Closed));
    assert_eq!(engine.pool().violations(), 1);
    assert_eq!(sink.write(SlabId(4), 0, &[1]), Ok(()), "its own page is");
    // Two whole pages are 32 tokens: of a prompt as long one token must be computed.
    assert_eq!(engine.open_reusing(room(3), 32, &names), Err(EngineError::NotCached));
    engine.close(room(2));
    assert_eq!(engine.status().free_pages, 598);
}

/// Moves the KV of one room, changes it on the way, and decodes.
fn decode_after(change: impl Fn(&mut Vec<(SlabId, Vec<u8>)>)) -> Vec<u32> {
    let rig = rig();
    let work = work(prompt(40, 1), Sampling::default());
    let manifest = prefill(&*rig.prefill, room(1), &work);
    let source = rig.prefill.source(room(1)).expect("has pages");
    let mut slabs: Vec<_> = manifest
        .slabs
        .iter()
        .map(|meta| {
            let mut bytes = vec![0; meta.len as usize];
            source.read(meta.id, 0, &mut bytes).expect("reads");
            (meta.id, bytes)
        })
        .collect();
    change(&mut slabs);
    rig.decode.open(room(1), 60).expect("opens");
    let sink = rig.decode.importer(room(1), 40).expect("has pages");
    slabs
        .iter()
        .for_each(|(id, bytes)| sink.write(*id, 0, bytes).expect("writes"));
    let decode = start_decode(&*rig.decode, room(1), &work, monolithic::first_token(&manifest), 20);
    decode.wait_over();
    decode.tokens().iter().map(|token| token.id).collect()
}

#[test]
fn one_wrong_or_missing_byte_changes_the_output() {
    let right = decode_after(|_| ());
    assert_eq!(right.len(), 19);
    for (slab, byte) in [(0, 0), (3, 511), (5, 255)] {
        let wrong = decode_after(|slabs| slabs[slab].1[byte] ^= 1);
        assert_ne!(wrong, right, "slab {slab}, byte {byte}");
    }
    let missing = decode_after(|slabs| drop(slabs.remove(2)));
    assert_ne!(missing, right, "a slab that never came");
    let swapped = decode_after(|slabs| {
        let other = slabs[2].1.clone();
        slabs[0].1 = other;
    });
    assert_ne!(swapped, right, "another page's slab");
}

#[test]
fn a_write_behind_its_back_is_found_out() {
    let engine = MockEngine::new(quick());
    let work = work(prompt(40, 1), Sampling::default());
    let manifest = prefill(&*engine, room(1), &work);
    engine.close(room(1));
    let other = MockEngine::new(MockConfig {
        decode_micros: 2_000,
        ..quick()
    });
    other.open(room(1), 200).expect("opens");
    let late = other.importer(room(1), 40).expect("has pages");
    let sink = start_decode(&*other, room(1), &work, monolithic::first_token(&manifest), 100);
    sink.wait("a token", |log| !log.is_empty());
    late.write(SlabId(0), 0, &[1])
        .expect("this permit was never taken back");
    sink.wait_over();
    assert!(matches!(&sink.ends()[..], [Heard::Failed(EngineError::Broken(text))] if text.contains("foreign")));
    assert_eq!(other.pool().violations(), 0);
}

#[test]
fn a_stalled_engine_shows_what_it_has_in_hand_and_nothing_else_moves() {
    let engine = MockEngine::new(quick());
    engine.open(room(1), 100).expect("opens");
    engine.stall();
    let sink = Recorder::new();
    engine
        .prefill(room(1), work(prompt(100, 1), Sampling::default()), sink.clone())
        .expect("starts");
    wait_until("it is in hand", || engine.status().in_hand.is_some());
    let progress = engine.status().progress;
    let first = engine.status().in_hand.expect("in hand");
    wait_until("it grows", || {
        engine
            .status()
            .in_hand
            .is_some_and(|now| now > first + Duration::from_millis(30))
    });
    assert!(engine.cancel(room(1)), "accepted, but only a boundary stops it");
    assert!(
        !engine.shutdown(Duration::from_millis(20)),
        "a wedged engine does not end"
    );
    assert_eq!((engine.status().progress, sink.ends()), (progress, vec![]));
    engine.resume();
    sink.wait_over();
    assert_eq!(sink.ends(), [Heard::Stopped]);
    assert!(engine.shutdown(Duration::from_secs(20)));
    let refused = engine.prefill(room(1), work(prompt(100, 1), Sampling::default()), sink);
    assert!(matches!(refused, Err(EngineError::Broken(_))), "after its end");
}

#[test]
fn a_failure_ends_that_job_alone() {
    let rig = rig();
    let engine = MockEngine::new(quick());
    engine.open(room(1), 20).expect("opens");
    engine.fail_next();
    let sink = Recorder::new();
    engine
        .prefill(room(1), work(prompt(20, 1), Sampling::default()), sink.clone())
        .expect("starts");
    sink.wait_over();
    assert!(matches!(&sink.ends()[..], [Heard::Failed(EngineError::Broken(_))]));
    engine.close(room(1));
    let work = work(prompt(20, 1), Sampling::default());
    assert_eq!(
        alone(&*engine, room(1), &work, 4),
        alone(&*rig.decode, room(1), &work, 4)
    );
}

#[test]
fn shutdown_stops_every_job_and_reports_it() {
    let engine = MockEngine::new(MockConfig {
        decode_micros: 5_000,
        ..quick()
    });
    let sinks: Vec<_> = (1..=4)
        .map(|number| {
            engine.open(room(number), 4_000 / 4).expect("opens");
            let sink = Recorder::new();
            let work = work(prompt(900, number), Sampling::default());
            engine.prefill(room(number), work, sink.clone()).expect("starts");
            sink
        })
        .collect();
    assert!(engine.shutdown(Duration::from_secs(20)));
    for sink in sinks {
        assert_eq!(sink.ends().len(), 1);
    }
    assert_eq!(engine.status().jobs, 0);
}

#[test]
fn rooms_take_turns_and_steps_are_shared() {
    let engine = MockEngine::new(MockConfig {
        prefill_micros: 50,
        ..quick()
    });
    let long = Recorder::new();
    let short = Recorder::new();
    engine.open(room(1), 6_000).expect("opens");
    engine.open(room(2), 100).expect("opens");
    engine
        .prefill(room(1), work(prompt(6_000, 1), Sampling::default()), long.clone())
        .expect("starts");
    engine
        .prefill(room(2), work(prompt(100, 2), Sampling::default()), short.clone())
        .expect("starts");
    short.wait_over();
    assert!(long.ends().is_empty(), "the short prompt did not wait for the long one");
    engine.cancel(room(1));
    long.wait_over();

    let works: Vec<_> = (0..16)
        .map(|salt| work(prompt(16, salt), Sampling::default()))
        .collect();
    let manifests: Vec<_> = (100..)
        .zip(&works)
        .map(|(id, work)| prefill(&*engine, room(id), work))
        .collect();
    let before = engine.status().progress;
    engine.set_speed(50, 20_000);
    let sinks: Vec<_> = (200..)
        .zip(works.iter().zip(&manifests))
        .map(|(id, (work, manifest))| {
            engine.open(room(id), 32).expect("opens");
            copy_room((&*engine, room(id - 100)), (&*engine, room(id)), manifest);
            start_decode(&*engine, room(id), work, monolithic::first_token(manifest), 11)
        })
        .collect();
    sinks.iter().for_each(|sink| sink.wait_over());
    let steps = engine.status().progress - before;
    assert!(steps < 40, "10 tokens for each of 16 rooms took {steps} steps");
}

#[test]
fn output_is_printable_and_eos_comes_where_it_was_asked_for() {
    let engine = MockEngine::new(MockConfig {
        eos_at: Some(6),
        ..quick()
    });
    let stop_ids = Arc::from([ByteTokenizer::EOS]);
    let work = Arc::new(Work {
        prompt: prompt(20, 1),
        stop_ids,
        ..Work::default()
    });
    let tokens = alone(&*engine, room(1), &work, 50);
    let (last, text) = tokens.split_last().expect("tokens");
    assert_eq!((text.len(), last.id), (6, ByteTokenizer::EOS));
    assert!(text.iter().all(|token| (32..127).contains(&token.id)));
}

#[test]
fn greedy_output_ignores_the_seed_and_sampling_does_not() {
    let engine = MockEngine::new(quick());
    let run = |number, sampling| alone(&*engine, room(number), &work(prompt(20, 1), sampling), 20);
    let greedy = |seed| Sampling {
        seed,
        ..Sampling::default()
    };
    assert_eq!(run(1, greedy(1)), run(2, greedy(2)));
    assert_eq!(run(3, seeded(1)), run(4, seeded(1)));
    assert_ne!(run(5, seeded(1)), run(6, seeded(2)));
}

#[test]
fn pages_carry_their_owner_and_a_dropped_engine_lets_go() {
    let engine = MockEngine::new(quick());
    engine.open(room(5), 32).expect("opens");
    let owned = (0..engine.pool().total())
        .filter(|page| engine.pool().owner(*page) == 5)
        .count();
    assert_eq!(owned, 2);
    engine.stall();
    let sink = Recorder::new();
    engine
        .prefill(room(5), work(prompt(20, 1), Sampling::default()), sink.clone())
        .expect("starts");
    wait_until("in hand", || engine.status().in_hand.is_some());
    drop(engine);
    sink.wait_over();
    assert_eq!(sink.ends().len(), 1);
}
