//! Text → JSON: whole answers, chunks, and the events that carry them.

use std::sync::Arc;

use innkeeper_engine::text::Tokenizer;
use innkeeper_room::Token;
use serde::Serialize;

use super::{Finish, Piece};
use crate::front::api::{
    ChatChoice, ChatChunk, ChatChunkChoice, ChatCompletion, ChatLogprob, ChatLogprobs, ChatMessage, Completion,
    CompletionChoice, CompletionLogprobs, Delta, PromptTokensDetails, TokenLogprob, Usage,
};
use crate::front::session::Counted;

/// The last event of every stream.
pub(crate) const DONE: &[u8] = b"data: [DONE]\n\n";

/// Writes one server-sent event. JSON never contains a line end, so one data line is enough.
pub(crate) fn event(out: &mut Vec<u8>, value: &impl Serialize) {
    out.extend_from_slice(b"data: ");
    // Writing into memory cannot fail, and none of our types has a key that is not a string.
    if serde_json::to_writer(&mut *out, value).is_err() {
        tracing::error!("an answer could not be written as JSON");
    }
    out.extend_from_slice(b"\n\n");
}

/// Which kind of answer.
#[derive(Clone, Debug)]
pub(crate) enum Shape {
    /// A chat.
    Chat,
    /// Completions; with `echo`, each choice begins with its prompt's text.
    Completion {
        /// The text of each prompt, if it is to be echoed.
        echo: Option<Vec<String>>,
    },
}

/// Renders one HTTP request's answers.
pub(crate) struct Renderer {
    pub(crate) shape: Shape,
    pub(crate) id: String,
    pub(crate) created: u64,
    pub(crate) model: String,
    pub(crate) tokenizer: Arc<dyn Tokenizer>,
    /// Whether logprobs are shown.
    pub(crate) logprobs: bool,
    /// Whether ids are shown.
    pub(crate) ids: bool,
    /// Whether a stream ends with its usage.
    pub(crate) include_usage: bool,
    /// The ids of each prompt.
    pub(crate) prompts: Vec<Arc<[u32]>>,
    /// Which prompt each choice belongs to.
    pub(crate) prompt_of: Vec<usize>,
    /// Which choices have begun (in a stream).
    pub(crate) begun: Vec<bool>,
}

impl Renderer {
    /// The events of a piece of a choice: its beginning too, if it has not begun.
    pub(crate) fn piece(&mut self, choice: usize, piece: Piece, out: &mut Vec<u8>) {
        self.begin(choice, out);
        if !piece.is_empty() {
            self.chunk(choice, Some(piece), None, out);
        }
    }

    /// The events of a choice's end.
    pub(crate) fn finish(&mut self, choice: usize, finish: Finish, out: &mut Vec<u8>) {
        self.begin(choice, out);
        self.chunk(choice, None, Some(finish), out);
    }

    /// The last events of a stream that went well.
    pub(crate) fn end(&self, counted: Counted, out: &mut Vec<u8>) {
        if self.include_usage {
            let usage = Some(Some(self.usage(counted)));
            match self.shape {
                Shape::Chat => event(out, &self.chat_chunk(Vec::new(), usage, None)),
                Shape::Completion { .. } => event(out, &self.completion(Vec::new(), usage)),
            }
        }
        out.extend_from_slice(DONE);
    }

    /// The whole answer.
    pub(crate) fn whole(self, answers: Vec<(Piece, Finish)>, counted: Counted) -> Result<Vec<u8>, serde_json::Error> {
        match self.shape {
            Shape::Chat => serde_json::to_vec(&self.whole_chat(answers, counted)),
            Shape::Completion { .. } => {
                let choices = answers.into_iter().enumerate();
                let choices = choices
                    .map(|(at, (piece, finish))| self.whole_choice(at, piece, finish))
                    .collect();
                serde_json::to_vec(&self.completion(choices, Some(Some(self.usage(counted)))))
            }
        }
    }

    fn begin(&mut self, choice: usize, out: &mut Vec<u8>) {
        if self.begun.get(choice).copied().unwrap_or(true) {
            return;
        }
        self.begun[choice] = true;
        match &self.shape {
            Shape::Chat => {
                let delta = Delta {
                    role: Some("assistant"),
                    content: Some(String::new()),
                };
                let first = ChatChunkChoice {
                    index: choice,
                    delta,
                    logprobs: None,
                    finish_reason: None,
                    token_ids: None,
                };
                // A chat has one prompt; its ids are told once, with the first chunk of all.
                let first_of_all = self.begun.iter().filter(|begun| **begun).count() == 1;
                let ids = self.prompts.first().filter(|_| self.ids && first_of_all);
                event(
                    out,
                    &self.chat_chunk(vec![first], self.no_usage(), ids.map(|ids| &**ids)),
                );
            }
            Shape::Completion { .. } => {
                let text = self.echo(choice).to_owned();
                if text.is_empty() && !self.ids {
                    return;
                }
                let prompt_token_ids = self.prompt_ids(choice);
                let first = CompletionChoice {
                    index: choice,
                    text,
                    logprobs: None,
                    finish_reason: None,
                    prompt_token_ids,
                    token_ids: None,
                };
                event(out, &self.completion(vec![first], self.no_usage()));
            }
        }
    }

    fn chunk(&self, choice: usize, piece: Option<Piece>, finish: Option<Finish>, out: &mut Vec<u8>) {
        let finish_reason = finish.map(Finish::name);
        let has_text = piece.is_some();
        let mut piece = piece.unwrap_or_default();
        let token_ids = (self.ids && has_text).then(|| std::mem::take(&mut piece.ids));
        let shown = has_text && self.logprobs;
        match self.shape {
            Shape::Chat => {
                let delta = Delta {
                    role: None,
                    content: has_text.then_some(piece.text),
                };
                let logprobs = shown.then(|| self.chat_logprobs(piece.tokens.iter().map(|shown| &shown.token)));
                let choice = ChatChunkChoice {
                    index: choice,
                    delta,
                    logprobs,
                    finish_reason,
                    token_ids,
                };
                event(out, &self.chat_chunk(vec![choice], self.no_usage(), None));
            }
            Shape::Completion { .. } => {
                let logprobs = shown.then(|| self.completion_logprobs(&piece));
                let text = piece.text;
                let choice = CompletionChoice {
                    index: choice,
                    text,
                    logprobs,
                    finish_reason,
                    prompt_token_ids: None,
                    token_ids,
                };
                event(out, &self.completion(vec![choice], self.no_usage()));
            }
        }
    }

    fn whole_chat(self, answers: Vec<(Piece, Finish)>, counted: Counted) -> ChatCompletion {
        let choice = |(index, (piece, finish)): (usize, (Piece, Finish))| ChatChoice {
            index,
            logprobs: self
                .logprobs
                .then(|| self.chat_logprobs(piece.tokens.iter().map(|shown| &shown.token))),
            message: ChatMessage {
                role: "assistant",
                content: piece.text,
                refusal: None,
            },
            finish_reason: finish.name(),
            token_ids: self.ids.then_some(piece.ids),
        };
        let choices = answers.into_iter().enumerate().map(choice).collect();
        ChatCompletion {
            choices,
            usage: self.usage(counted),
            prompt_token_ids: self.prompt_ids(0),
            id: self.id,
            object: "chat.completion",
            created: self.created,
            model: self.model,
        }
    }

    fn whole_choice(&self, index: usize, piece: Piece, finish: Finish) -> CompletionChoice {
        CompletionChoice {
            index,
            logprobs: self.logprobs.then(|| self.completion_logprobs(&piece)),
            text: format!("{}{}", self.echo(index), piece.text),
            finish_reason: Some(finish.name()),
            prompt_token_ids: self.prompt_ids(index),
            token_ids: self.ids.then_some(piece.ids),
        }
    }

    fn chat_chunk<'a>(
        &'a self,
        choices: Vec<ChatChunkChoice>,
        usage: Option<Option<Usage>>,
        prompt_token_ids: Option<&'a [u32]>,
    ) -> ChatChunk<'a> {
        let object = "chat.completion.chunk";
        ChatChunk {
            id: &self.id,
            object,
            created: self.created,
            model: &self.model,
            choices,
            usage,
            prompt_token_ids,
        }
    }

    fn completion(&self, choices: Vec<CompletionChoice>, usage: Option<Option<Usage>>) -> Completion<'_> {
        let object = "text_completion";
        Completion {
            id: &self.id,
            object,
            created: self.created,
            model: &self.model,
            choices,
            usage,
        }
    }

    /// The usage of a chunk that is not the last: null if the client asked for usage, absent if not.
    fn no_usage(&self) -> Option<Option<Usage>> {
        self.include_usage.then_some(None)
    }

    /// What was counted.
    pub(crate) fn usage(&self, counted: Counted) -> Usage {
        let prompt_tokens = self.prompts.iter().map(|ids| ids.len() as u64).sum();
        Usage {
            prompt_tokens,
            completion_tokens: counted.produced,
            total_tokens: prompt_tokens + counted.produced,
            prompt_tokens_details: PromptTokensDetails {
                cached_tokens: counted.cached,
            },
        }
    }

    /// What a choice begins with: its prompt's text, or nothing.
    pub(crate) fn echo(&self, choice: usize) -> &str {
        match &self.shape {
            Shape::Completion { echo: Some(texts) } => self
                .prompt_of
                .get(choice)
                .and_then(|prompt| texts.get(*prompt))
                .map_or("", String::as_str),
            Shape::Completion { echo: None } | Shape::Chat => "",
        }
    }

    fn prompt_ids(&self, choice: usize) -> Option<Vec<u32>> {
        let prompt = self.prompts.get(*self.prompt_of.get(choice)?)?;
        self.ids.then(|| prompt.to_vec())
    }

    fn chat_logprobs<'a>(&self, tokens: impl Iterator<Item = &'a Token>) -> ChatLogprobs {
        let content = tokens.map(|token| ChatLogprob {
            token: self.logprob(token.id, token.logprob),
            top_logprobs: token
                .top
                .iter()
                .map(|(id, logprob)| self.logprob(*id, *logprob))
                .collect(),
        });
        ChatLogprobs {
            content: content.collect(),
            refusal: None,
        }
    }

    fn completion_logprobs(&self, piece: &Piece) -> CompletionLogprobs {
        let mut lists = CompletionLogprobs::default();
        for shown in &piece.tokens {
            let token = self.logprob(shown.token.id, shown.token.logprob);
            let mut top = serde_json::Map::new();
            // Two tokens may read alike (parts of characters): the likelier one stays.
            for (id, logprob) in &shown.token.top {
                let alternative = self.logprob(*id, *logprob);
                top.entry(alternative.token)
                    .or_insert_with(|| alternative.logprob.into());
            }
            top.entry(token.token.clone()).or_insert_with(|| token.logprob.into());
            lists.tokens.push(token.token);
            lists.token_logprobs.push(token.logprob);
            lists.top_logprobs.push(top);
            lists.text_offset.push(shown.offset);
        }
        lists
    }

    /// A token as clients read it.
    pub(crate) fn logprob(&self, id: u32, logprob: f32) -> TokenLogprob {
        let (token, bytes) = self.tokenizer.token_text(id);
        // JSON has no infinity; this is what OpenAI writes for a token that cannot come.
        TokenLogprob {
            token,
            logprob: if logprob.is_finite() { logprob } else { -9999.0 },
            bytes,
        }
    }
}
