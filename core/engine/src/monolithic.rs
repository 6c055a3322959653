//! Prompt to answer in one engine: prefill, then decode in the same pages. What a disaggregated run is compared with.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use innkeeper_room::{Manifest, RoomId, SlabMeta, Token, Work};

use crate::port::{DecodeJob, DecodeSink, Engine, EngineError, PrefillSink};

/// An engine that says nothing for this long is given up: no chunk or step is meant to take nearly as long.
const SILENCE: Duration = Duration::from_secs(120);

/// What an engine says, in order. Messages per job are bounded by prompt chunks and tokens.
enum Word {
    Computed,
    Prefilled(Manifest),
    Token(u32, Token),
    Finished,
    Failed(EngineError),
    Stopped,
}

struct Sink(SyncSender<Word>);

impl Sink {
    /// Never waits: the engine's thread is everybody's. The queue holds all that a job can say.
    fn say(&self, word: Word) {
        if let Err(TrySendError::Full(_)) = self.0.try_send(word) {
            tracing::error!("a monolithic run said more than was reckoned with");
        }
    }
}

impl PrefillSink for Sink {
    fn sealed(&self, _slab: SlabMeta) {}
    fn computed(&self, _tokens: u32) {
        self.say(Word::Computed);
    }
    fn finished(&self, manifest: Manifest) {
        self.say(Word::Prefilled(manifest));
    }
    fn failed(&self, error: EngineError) {
        self.say(Word::Failed(error));
    }
    fn stopped(&self) {
        self.say(Word::Stopped);
    }
}

impl DecodeSink for Sink {
    fn token(&self, position: u32, token: Token) {
        self.say(Word::Token(position, token));
    }
    fn finished(&self) {
        self.say(Word::Finished);
    }
    fn failed(&self, error: EngineError) {
        self.say(Word::Failed(error));
    }
    fn stopped(&self) {
        self.say(Word::Stopped);
    }
}

/// Computes the prompt and produces up to `max_tokens` tokens, blocking the caller; `on_token` hears each one with its
/// position, the first included. Returns all of them. The room must be new to the engine; it is closed at the end.
///
/// # Errors
/// What [`Engine::open`], [`Engine::prefill`] and [`Engine::decode`] refuse, and [`EngineError::Broken`] if the engine
/// fails, is shut down, or says nothing for two minutes.
pub fn generate(
    engine: &dyn Engine,
    room: RoomId,
    work: &Arc<Work>,
    max_tokens: u32,
    on_token: &mut dyn FnMut(u32, &Token),
) -> Result<Vec<Token>, EngineError> {
    let prompt = u32::try_from(work.prompt.len()).unwrap_or(u32::MAX);
    engine.open(room, prompt.saturating_add(max_tokens.max(1)))?;
    let result = run(engine, room, work, max_tokens, on_token);
    if result.is_err() {
        // Its pages are closed in any case; a job that is still in hand finds them closed.
        engine.cancel(room);
    }
    engine.close(room);
    result
}

fn run(
    engine: &dyn Engine,
    room: RoomId,
    work: &Arc<Work>,
    max_tokens: u32,
    on_token: &mut dyn FnMut(u32, &Token),
) -> Result<Vec<Token>, EngineError> {
    let (sender, words) = sync_channel(work.prompt.len() + max_tokens as usize + 4);
    let sink = Arc::new(Sink(sender));
    engine.prefill(room, Arc::clone(work), Arc::clone(&sink) as Arc<dyn PrefillSink>)?;
    let manifest = loop {
        match hear(&words)? {
            Word::Prefilled(manifest) => break manifest,
            Word::Computed | Word::Token(..) | Word::Finished => {}
            Word::Failed(error) => return Err(error),
            Word::Stopped => return Err(EngineError::Broken("the prefill was stopped".to_owned())),
        }
    };
    let first = first_token(&manifest);
    on_token(0, &first);
    let mut tokens = vec![first.clone()];
    let job = DecodeJob {
        work: Arc::clone(work),
        first,
        max_tokens,
    };
    engine.decode(room, job, sink)?;
    loop {
        match hear(&words)? {
            Word::Token(position, token) => {
                on_token(position, &token);
                tokens.push(token);
            }
            Word::Finished => return Ok(tokens),
            Word::Computed | Word::Prefilled(_) => {}
            Word::Failed(error) => return Err(error),
            Word::Stopped => return Err(EngineError::Broken("the decode was stopped".to_owned())),
        }
    }
}

fn hear(words: &Receiver<Word>) -> Result<Word, EngineError> {
    words.recv_timeout(SILENCE).map_err(|error| match error {
        RecvTimeoutError::Timeout => EngineError::Broken(format!("it said nothing for {} s", SILENCE.as_secs())),
        RecvTimeoutError::Disconnected => EngineError::Broken("it dropped the job".to_owned()),
    })
}

/// The first token as decode and the gate see it.
#[must_use]
pub fn first_token(manifest: &Manifest) -> Token {
    let first = &manifest.first_token;
    let top = first
        .top
        .iter()
        .map(|(id, bits)| (*id, f32::from_bits(*bits)))
        .collect();
    Token {
        id: first.id,
        logprob: f32::from_bits(first.logprob_bits),
        top,
    }
}
