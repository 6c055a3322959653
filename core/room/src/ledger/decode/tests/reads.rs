//! An engine that reads the KV itself, by a ticket.

use super::*;

fn ticket(bench: &mut Bench, epoch: Epoch, within: u64) -> Vec<Effect> {
    bench.go(Event::Ticket {
        room: room(1),
        epoch,
        read_within: Millis(within),
    })
}

fn made(bench: &mut Bench, tokens: u32) -> Vec<Effect> {
    bench.go(Event::Made { room: room(1), tokens })
}

fn pull() -> Effect {
    Effect::Pull { room: room(1) }
}

fn say_committed(epoch: Epoch) -> Effect {
    Effect::SayCommitted { room: room(1), epoch }
}

#[test]
fn it_commits_when_its_engine_has_read_and_not_before() {
    let mut bench = Bench::at("input");
    assert_eq!(ticket(&mut bench, E1, 20_000), vec![pull()]);
    assert_eq!(bench.phase(1), Some(Phase::WaitingForInput));
    assert!(
        !told(&made(&mut bench, 1), 1, &FromWorker::Tokens { position: 0, count: 1 }),
        "no token before the commit"
    );
    let read = bench.go(Event::Pulled { room: room(1) });
    assert!(told(&read, 1, &FromWorker::Committed) && read.contains(&say_committed(E1)));
    assert!(!read.contains(&Effect::Decode { room: room(1) }), "it decodes already");
    assert_eq!(bench.phase(1), Some(Phase::Decoding));
    assert!(told(
        &made(&mut bench, 1),
        1,
        &FromWorker::Tokens { position: 0, count: 1 }
    ));
    assert_eq!(bench.ledger.gauges(bench.now).engine_permits, 1);
    // Once.
    let again = bench.go(Event::Pulled { room: room(1) });
    assert!(!told(&again, 1, &FromWorker::Committed));
}

#[test]
fn the_deadline_of_the_read_rules_alone() {
    let mut bench = Bench::at("input");
    let _ = ticket(&mut bench, E1, 20_000);
    assert_eq!(failed(&bench.wait(19_999), 1), None, "four TTL without anything to see");
    let over = bench.wait(1);
    assert_eq!(failed(&over, 1), Some((Reason::TransferStalled, Owes::Prefill)));
    assert!(over.contains(&Effect::CancelEngine { room: room(1) }));
    // What it was to write to is nobody's until it says that it stopped.
    let _ = bench.go(Event::Quiesced {
        room: room(1),
        epoch: E1,
    });
    assert_eq!(bench.ledger.gauges(bench.now).pages.quarantined, 10);
    let back = bench.go(Event::EngineStopped { room: room(1) });
    assert!(back.contains(&Effect::ClosePages { room: room(1) }));
}

#[test]
fn an_engine_that_stands_still_reads_nothing() {
    let mut bench = Bench::at("input");
    let _ = ticket(&mut bench, E1, 60_000);
    let mut held = 0;
    let over = bench.wait_doing(5500, |bench| {
        held += 250;
        bench.engine(Some(held))
    });
    assert_eq!(failed(&over, 1), Some((Reason::EngineStalled, Owes::Decode)));
}

#[test]
fn a_connection_that_breaks_meanwhile_is_only_a_connection() {
    let mut bench = Bench::at("input");
    let _ = ticket(&mut bench, E1, 60_000);
    let _ = bench.go(Event::Broken {
        room: room(1),
        epoch: E1,
    });
    assert_eq!(failed(&bench.wait(6000), 1), None, "the engines read all the same");
    let _ = bench.go(Event::Quiesced {
        room: room(1),
        epoch: E1,
    });
    let answered = bench.hello(1, E2);
    assert_eq!(replies(&answered), vec![(room(1), E2, HelloReply::Ready)]);
    assert_eq!(ticket(&mut bench, E2, 60_000), vec![], "the same ticket again");
    let read = bench.go(Event::Pulled { room: room(1) });
    assert!(read.contains(&say_committed(E2)));
}

#[test]
fn what_ends_before_the_commit_is_no_answer() {
    for (event, reason) in [
        (Event::EngineFinished { room: room(1) }, Reason::EngineError),
        (
            Event::EngineEnded {
                room: room(1),
                reason: Reason::KvUnproven,
            },
            Reason::KvUnproven,
        ),
    ] {
        let mut bench = Bench::at("input");
        let _ = ticket(&mut bench, E1, 20_000);
        assert_eq!(failed(&bench.go(event), 1), Some((reason, Owes::Decode)));
        assert_eq!(bench.ledger.gauges(bench.now).engine_permits, 0);
    }
}

#[test]
fn a_manifest_of_slabs_is_no_commit_while_the_engine_reads() {
    let mut bench = Bench::at("input");
    let _ = ticket(&mut bench, E1, 20_000);
    let complete = bench.go(Event::Complete {
        room: room(1),
        epoch: E1,
    });
    assert!(!told(&complete, 1, &FromWorker::Committed));
    let _ = bench.go(Event::Pulled { room: room(2) });
}
