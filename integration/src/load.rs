//! Load as clients make it: so many at a time, or so many a second whatever becomes of them; who asks, and what came back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::task::{JoinHandle, JoinSet};

use crate::client::{Answer, Client};

const PATH: &str = "/v1/completions";

/// One answer, and when it came.
#[derive(Clone, Debug)]
pub struct Heard {
    /// The HTTP status; 0: the connection broke.
    pub status: u16,
    /// `error.code`; empty if there is none.
    pub code: String,
    /// From the load's begin to the request.
    pub asked: Duration,
    /// From the request to the whole answer.
    pub took: Duration,
    /// Seconds, if the answer says when to come again.
    pub retry_after: Option<u64>,
}

/// What a load heard.
#[derive(Clone, Debug, Default)]
pub struct Load {
    /// All answers.
    pub heard: Vec<Heard>,
    /// How long requests were made.
    pub lasted: Duration,
}

impl Load {
    /// Asks `rate` times a second for `lasting`, whatever becomes of what was asked before; then waits for all answers.
    /// What is late on a starved machine is made up for, so that the number is what was wanted.
    pub async fn open(client: &Client, body: &Value, rate: f64, lasting: Duration) -> Self {
        let began = Instant::now();
        let mut asked = JoinSet::new();
        let mut count = 0_u32;
        while began.elapsed() < lasting {
            let due = began + Duration::from_secs_f64(f64::from(count) / rate);
            tokio::time::sleep_until(due.into()).await;
            let (client, body) = (client.clone(), body.clone());
            asked.spawn(async move { ask(&client, &body, began).await });
            count += 1;
        }
        Self {
            heard: asked.join_all().await,
            lasted: lasting,
        }
    }

    /// Keeps `clients` requests going for `lasting`.
    pub async fn closed(client: &Client, body: &Value, clients: usize, lasting: Duration) -> Self {
        let going = Going::start(client, body, clients);
        tokio::time::sleep(lasting).await;
        going.end().await
    }

    /// Answers with this status and code.
    pub fn of<'a>(&'a self, status: u16, code: &'a str) -> impl Iterator<Item = &'a Heard> {
        self.heard
            .iter()
            .filter(move |heard| heard.status == status && heard.code == code)
    }

    /// Whole answers a second, of those that came between `from` and the end of the asking.
    #[must_use]
    pub fn goodput(&self, from: Duration) -> f64 {
        let within = |heard: &&Heard| (from..self.lasted).contains(&(heard.asked + heard.took));
        let count = self.of(200, "").filter(within).count();
        f64::from(u32::try_from(count).unwrap_or(u32::MAX)) / (self.lasted - from).as_secs_f64()
    }

    /// How many answers there were by status and code.
    #[must_use]
    pub fn tally(&self) -> std::collections::BTreeMap<(u16, String), usize> {
        let mut tally = std::collections::BTreeMap::new();
        for heard in &self.heard {
            *tally.entry((heard.status, heard.code.clone())).or_default() += 1;
        }
        tally
    }
}

/// The time below which `percent` of these are.
#[must_use]
pub fn percentile<'a>(heard: impl Iterator<Item = &'a Heard>, percent: usize) -> Duration {
    let mut took: Vec<Duration> = heard.map(|heard| heard.took).collect();
    took.sort_unstable();
    let last = took.len().saturating_sub(1);
    took.get(last * percent / 100).copied().unwrap_or_default()
}

/// Clients that ask again and again until they are told to stop.
#[derive(Debug)]
pub struct Going {
    began: Instant,
    stop: Arc<AtomicBool>,
    clients: Vec<JoinHandle<Vec<Heard>>>,
}

impl Going {
    /// So many clients.
    #[must_use]
    pub fn start(client: &Client, body: &Value, clients: usize) -> Self {
        let (began, stop) = (Instant::now(), Arc::new(AtomicBool::new(false)));
        let one = |_| {
            let (client, body, stop) = (client.clone(), body.clone(), Arc::clone(&stop));
            tokio::spawn(async move {
                let mut heard = vec![];
                while !stop.load(Ordering::Relaxed) {
                    let answer = ask(&client, &body, began).await;
                    if answer.status == 0 {
                        // Nobody is there: as a client would, not as fast as it can.
                        tokio::time::sleep(Duration::from_millis(200)).await;
                    }
                    heard.push(answer);
                }
                heard
            })
        };
        Self {
            began,
            clients: (0..clients).map(one).collect(),
            stop,
        }
    }

    /// Stops, and waits for the answers that are outstanding.
    pub async fn end(self) -> Load {
        self.stop.store(true, Ordering::Relaxed);
        let lasted = self.began.elapsed();
        let mut heard = vec![];
        for client in self.clients {
            heard.extend(client.await.unwrap_or_else(|error| panic!("a client died: {error}")));
        }
        Load { heard, lasted }
    }
}

async fn ask(client: &Client, body: &Value, began: Instant) -> Heard {
    let asked = began.elapsed();
    let answer = client.try_post(PATH, None, body).await;
    let took = began.elapsed() - asked;
    match answer {
        Ok(answer) => Heard {
            status: answer.status,
            code: answer.code().to_owned(),
            asked,
            took,
            retry_after: retry_after(&answer),
        },
        Err(error) => Heard {
            status: 0,
            code: format!("{error:?}"),
            asked,
            took,
            retry_after: None,
        },
    }
}

fn retry_after(answer: &Answer) -> Option<u64> {
    answer.headers.get("retry-after")?.to_str().ok()?.parse().ok()
}
