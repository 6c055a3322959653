//! A pair of engines: stand-ins of this process, or a real pair that somebody has started.

use std::path::{Path, PathBuf};
use std::time::Duration;

use innkeeper_integration::signal;
use innkeeper_remote::look::Look;
use innkeeper_remote::standin::{Config, Fabric, Kind, Standin};
use innkeeper_remote::vllm::look;
use rustix::process::Signal;
use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::folder;

/// The model as clients of Innkeeper name it.
pub const MODEL: &str = "pair";
/// Where a real pair is.
const REAL: &str = "INNKEEPER_ENGINES";

/// Which engine of the pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    Prefill,
    Decode,
}

/// The pair.
pub struct Engines {
    sides: Sides,
    folder: PathBuf,
    lease: u64,
    http: reqwest::Client,
    _dir: Option<TempDir>,
}

enum Sides {
    StandIn(Box<[Standin; 2]>),
    Real(Real),
}

/// What `INNKEEPER_ENGINES` names.
#[derive(Deserialize)]
struct Real {
    prefill: Process,
    decode: Process,
    /// The model's folder.
    folder: PathBuf,
    lease_seconds: u64,
}

#[derive(Deserialize)]
struct Process {
    url: String,
    /// Its core: what stands still while its front end answers.
    core: u32,
}

impl Engines {
    pub async fn start() -> Self {
        Self::with(|_| {}).await
    }

    /// Each phase takes long enough to be met.
    pub async fn slow() -> Self {
        Self::with(|config| {
            config.chunk_time = Duration::from_millis(150);
            config.step_time = Duration::from_millis(25);
            config.pull_time = Duration::from_millis(1500);
        })
        .await
    }

    async fn with(change: impl Fn(&mut Config)) -> Self {
        let http = reqwest::Client::new();
        if let Ok(path) = std::env::var(REAL) {
            let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
            let real: Real = serde_json::from_str(&text).unwrap();
            return Self {
                folder: real.folder.clone(),
                lease: real.lease_seconds,
                sides: Sides::Real(real),
                http,
                _dir: None,
            };
        }
        let fabric = Fabric::default();
        let mut config = Config::new(Kind::Vllm);
        config.pages = 402;
        change(&mut config);
        let prefill = Standin::start(config.clone(), fabric.clone()).await.unwrap();
        let decode = Standin::start(config.clone(), fabric).await.unwrap();
        let dir = TempDir::new().unwrap();
        folder::write(dir.path());
        Self {
            folder: dir.path().to_owned(),
            lease: config.lease.as_secs(),
            sides: Sides::StandIn(Box::new([prefill, decode])),
            http,
            _dir: Some(dir),
        }
    }

    fn is_real(&self) -> bool {
        matches!(self.sides, Sides::Real(_))
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub const fn lease_seconds(&self) -> u64 {
        self.lease
    }

    /// A real pair on two cores takes its time.
    pub fn ttl_ms(&self) -> u64 {
        if self.is_real() { 5_000 } else { 2_000 }
    }

    /// How many requests.
    pub fn many(&self) -> u64 {
        if self.is_real() { 50 } else { 30 }
    }

    /// The longest prompt, in tokens.
    pub fn longest(&self) -> u64 {
        if self.is_real() { 3_000 } else { 1_000 }
    }

    /// In which whole blocks KV is read.
    pub fn page_tokens(&self) -> u64 {
        if self.is_real() { 128 } else { 16 }
    }

    /// A bound with room for a machine that does other things too.
    pub fn bound(&self, bound: Duration) -> Duration {
        bound * 2 + Duration::from_secs(if self.is_real() { 10 } else { 5 })
    }

    fn url(&self, which: Which) -> String {
        match (&self.sides, which) {
            (Sides::StandIn(pair), Which::Prefill) => pair[0].url(),
            (Sides::StandIn(pair), Which::Decode) => pair[1].url(),
            (Sides::Real(real), Which::Prefill) => real.prefill.url.clone(),
            (Sides::Real(real), Which::Decode) => real.decode.url.clone(),
        }
    }

    /// Of both, prefill's first.
    pub fn urls(&self) -> String {
        format!("{},{}", self.url(Which::Prefill), self.url(Which::Decode))
    }

    /// Its core stands still; its front end answers as if nothing were.
    pub fn stop(&self, which: Which) {
        match &self.sides {
            Sides::StandIn(pair) => pair[which as usize].freeze(true),
            Sides::Real(real) => signal(real.core(which), Signal::STOP),
        }
    }

    pub fn cont(&self, which: Which) {
        match &self.sides {
            Sides::StandIn(pair) => pair[which as usize].freeze(false),
            Sides::Real(real) => signal(real.core(which), Signal::CONT),
        }
    }

    /// What it shows of itself.
    pub async fn look(&self, which: Which) -> Look {
        let url = format!("{}/metrics", self.url(which));
        look(&self.http.get(url).send().await.unwrap().text().await.unwrap())
    }

    /// The share of its pages that is in use.
    pub async fn used(&self, which: Which) -> f64 {
        match &self.sides {
            Sides::StandIn(pair) => pair[which as usize].held() as f64,
            Sides::Real(_) => {
                // A step of the engine, so that its gauge is of now.
                self.ask(which, &[300], 1).await;
                self.look(which).await.load.used as f64 / 1e6
            }
        }
    }

    /// What the decode engine answers that computes all itself.
    pub async fn alone(&self, prompt: &[u64], most: u64) -> Vec<u64> {
        self.ask(Which::Decode, prompt, most).await
    }

    async fn ask(&self, which: Which, prompt: &[u64], most: u64) -> Vec<u64> {
        let models: Value = self.get(which, "/v1/models").await;
        let body = json!({
            "model": models["data"][0]["id"], "prompt": prompt, "max_tokens": most, "temperature": 0, "ignore_eos": true,
            "return_token_ids": true,
        });
        let url = format!("{}/v1/completions", self.url(which));
        let answer: Value = self
            .http
            .post(url)
            .json(&body)
            .send()
            .await
            .unwrap()
            .json()
            .await
            .unwrap();
        let ids = answer["choices"][0]["token_ids"].as_array();
        let ids = ids.unwrap_or_else(|| panic!("no token ids: {answer}"));
        ids.iter().map(|id| id.as_u64().unwrap()).collect()
    }

    async fn get(&self, which: Which, path: &str) -> Value {
        let url = format!("{}{path}", self.url(which));
        self.http.get(url).send().await.unwrap().json().await.unwrap()
    }
}

impl Real {
    const fn core(&self, which: Which) -> u32 {
        match which {
            Which::Prefill => self.prefill.core,
            Which::Decode => self.decode.core,
        }
    }
}
