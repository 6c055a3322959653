//! What must hold: while the adversary is at work, and once it has left.

use std::sync::Arc;
use std::time::Duration;

use innkeeper_leases::Store;
use innkeeper_room::ledger::Gauges;
use innkeeper_room::ledger::router::Outcome;
use ractor::ActorStatus;

use crate::clients::{Client, Habit};
use crate::cluster::Cluster;
use crate::faults::Planned;
use crate::life::Life;
use crate::net::ROUTER;
use crate::story::{lock, tell, wrong};

/// Looks at everything that can be seen now, without waiting for it to change.
pub(crate) async fn look(cluster: &Arc<Cluster>) {
    for life in cluster.lives() {
        let name = cluster.shape.name(life.slot);
        // A hung or stopped ledger does not answer.
        let Some((gauges, zombies)) = life.tree.gauges().await else {
            continue;
        };
        let total = if life.slot == ROUTER { 0 } else { cluster.shape.pages };
        if gauges.pages.total() != total && !life.dead.is_cancelled() {
            wrong!(cluster.story, "I7: {name} counts {:?} of {total} pages", gauges.pages);
        }
        if zombies > 0 {
            wrong!(cluster.story, "{name} has {zombies} zombies");
        }
    }
}

/// Kinds of tasks that a node always has, at most so many.
fn resident(life: &Life, kind: &str, workers: u64) -> u64 {
    match kind {
        "alarm" | "watch" => 1,
        "node_link" | "node_stream" if life.slot == ROUTER => workers,
        // The router's node stream.
        "service" => 1,
        _ => 0,
    }
}

/// What is left of requests anywhere; empty when everything has healed.
pub(crate) async fn leftovers(cluster: &Arc<Cluster>) -> Vec<String> {
    let mut left = vec![];
    let workers = cluster.shape.workers() as u64;
    for slot in 0..=cluster.shape.workers() {
        let name = cluster.shape.name(slot);
        let Some(life) = cluster.life(slot) else {
            left.push(format!("{name} is down"));
            continue;
        };
        match life.tree.gauges().await {
            Some((gauges, 0)) if is_clean(&gauges) => {}
            other => left.push(format!("{name} has {other:?}")),
        }
        for (kind, live) in life.tasks.counts() {
            if live > resident(&life, kind, workers) {
                left.push(format!("{name} has {live} tasks `{kind}`"));
            }
        }
        let actors = life.tree.ledger().get_children().len();
        if actors > 0 {
            left.push(format!("{name} has {actors} actors"));
        }
        if let Some(engine) = &life.engine
            && engine.left() != (cluster.shape.pages, 0, 0)
        {
            left.push(format!("{name}'s engine has {:?}", engine.left()));
        }
        let dialed = life.dialer.as_ref().map_or(0, |dialer| dialer.connections());
        let heard = life.door.as_ref().map_or(0, |door| door.connections());
        if dialed + heard > 0 {
            left.push(format!("{name} has {} data connections", dialed + heard));
        }
    }
    left.extend(keys_left(cluster).await);
    for (name, tasks) in lock(&cluster.graves).iter() {
        let live: Vec<_> = tasks.counts().into_iter().filter(|(_, live)| *live > 0).collect();
        if !live.is_empty() {
            left.push(format!("a dead {name} has tasks {live:?}"));
        }
    }
    // One node stream per worker.
    if cluster.net.streams() as u64 != workers {
        left.push(format!("the control network carries {} streams", cluster.net.streams()));
    }
    for kind in ["downstream", "upstream"] {
        let live = cluster.net.tasks.live(kind);
        if live != workers {
            left.push(format!("the control network has {live} tasks `{kind}`"));
        }
    }
    left
}

async fn keys_left(cluster: &Arc<Cluster>) -> Vec<String> {
    let Ok(keys) = cluster.store.keys().await else {
        return vec!["the store does not answer".to_owned()];
    };
    let lives: Vec<_> = cluster
        .lives()
        .iter()
        .map(|life| life.incarnation.to_string())
        .collect();
    let mut left: Vec<_> = lives
        .iter()
        .filter(|life| !keys.iter().any(|(key, _)| key.ends_with(*life)))
        .map(|life| format!("the store has no record of {life}"))
        .collect();
    let strange = keys
        .iter()
        .filter(|(key, _)| !lives.iter().any(|life| key.ends_with(life)));
    left.extend(strange.map(|(key, _)| format!("the store has {key}")));
    left
}

fn is_clean(gauges: &Gauges) -> bool {
    gauges.rooms.iter().sum::<u32>() == 0
        && gauges.pages.held + gauges.pages.quarantined == 0
        && gauges.room_permits + gauges.session_permits + gauges.engine_permits == 0
        && gauges.quarantined_rooms + gauges.requests + gauges.queued_requests == 0
        && gauges.unleased + gauges.stuck == 0
}

/// Waits until nothing is left; how long it took, or what is left.
pub(crate) async fn heal(cluster: &Arc<Cluster>, limit: u64) -> u64 {
    let began = cluster.story.now();
    let until = began + limit;
    loop {
        let left = leftovers(cluster).await;
        let took = cluster.story.now() - began;
        if left.is_empty() {
            return took;
        }
        if cluster.story.now() >= until {
            for what in left {
                wrong!(cluster.story, "I2: {limit} ms after the last fault and answer {what}");
            }
            return took;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until all clients have what they get.
pub(crate) async fn answered(cluster: &Arc<Cluster>, clients: &[Arc<Client>], limit: u64) {
    let until = cluster.story.now() + limit;
    while !clients.iter().all(|client| client.settled()) {
        if cluster.story.now() >= until {
            for client in clients.iter().filter(|client| !client.settled()) {
                let seen = lock(&client.seen).clone();
                wrong!(
                    cluster.story,
                    "I2: request {} is not over {limit} ms after the last fault: {seen:?}",
                    client.plan.number
                );
            }
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// As good as the faults allow.
pub(crate) fn judge(cluster: &Cluster, clients: &[Arc<Client>], faults: &[Planned]) {
    let harmless = faults.iter().all(|planned| planned.fault.is_harmless());
    let pairs = cluster.shape.prefills > 1 && cluster.shape.decodes > 1;
    let survives = pairs && faults.len() == 1 && faults[0].fault.leaves_another_pair();
    for client in clients {
        let seen = lock(&client.seen).clone();
        let patient = matches!(client.plan.habit, Habit::Patient | Habit::Satisfied(_));
        if !patient || seen.answer == Some(Outcome::Done) {
            if harmless && seen.attempts > 1 {
                wrong!(
                    cluster.story,
                    "request {} took {} attempts although nobody touched it",
                    client.plan.number,
                    seen.attempts
                );
            }
            continue;
        }
        if harmless {
            wrong!(
                cluster.story,
                "nothing but the store was touched, but request {} got {:?}",
                client.plan.number,
                seen.answer
            );
        } else if survives {
            wrong!(
                cluster.story,
                "another pair is well, but request {} got {:?}",
                client.plan.number,
                seen.answer
            );
        }
    }
}

/// Requests that come when everything has healed are Done, at the first try.
pub(crate) fn all_done(cluster: &Cluster, clients: &[Arc<Client>]) {
    for client in clients {
        let seen = lock(&client.seen).clone();
        if seen.answer != Some(Outcome::Done) || seen.attempts != 1 {
            wrong!(
                cluster.story,
                "after all faults request {} gets {:?} in {} attempts",
                client.plan.number,
                seen.answer,
                seen.attempts
            );
        }
    }
}

/// Everybody leaves as they should, and nothing stays.
pub(crate) async fn close(cluster: &Arc<Cluster>) {
    let lives = cluster.lives();
    for life in lives.iter().rev() {
        life.leaving.cancel();
        let name = cluster.shape.name(life.slot);
        if !life.tree.drain(Duration::from_secs(1)).await {
            wrong!(cluster.story, "{name} has nothing to do but its drain is not clean");
        }
        cluster.end(life, "the end of the run").await;
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    for life in &lives {
        let name = cluster.shape.name(life.slot);
        if life.tree.ledger().get_status() != ActorStatus::Stopped {
            wrong!(cluster.story, "the ledger of {name} outlives its node");
        }
    }
    let keys = cluster.store.keys().await;
    if keys.as_ref().is_ok_and(|keys| !keys.is_empty()) {
        wrong!(cluster.story, "everybody has left, and the store has {keys:?}");
    }
    tell!(cluster.story, "everybody has left");
}

/// The faults in words.
pub(crate) fn list(faults: &[Planned]) -> String {
    let words: Vec<_> = faults
        .iter()
        .map(|planned| format!("{:?} at {} for {}", planned.fault, planned.begins, planned.lasts))
        .collect();
    words.join(", ")
}
