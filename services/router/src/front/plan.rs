//! A checked request → prompts as token ids, and what each choice asks of the router.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use innkeeper_actors::ports::NewRequest;
use innkeeper_engine::text::TextError;
use innkeeper_room::prefix::Blocks;
use innkeeper_room::{Sampling, Work};

use super::answer::{Renderer, Shape, Wanted};
use super::api::{ChatRequest, Common, CompletionRequest, Prompt};
use super::error::{ApiError, RoomFailure};
use super::request_id::random_u64;
use super::state::{FrontState, Route};

/// Who asks.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// The client's id of the request.
    pub(crate) rid: Arc<str>,
    /// Whose quota it counts for.
    pub(crate) client: String,
    /// Whose prompts it may find in a prefix cache; 0: nobody's.
    pub(crate) tenant: u128,
    /// The caller's trace, if it sent a valid one.
    pub(crate) traceparent: Option<String>,
}

/// One choice: a request of its own for the router's tree.
pub(crate) struct ChoicePlan {
    pub(crate) request: NewRequest,
    /// The first of its prompt.
    pub(crate) first: bool,
    pub(crate) wanted: Wanted,
}

/// A request that is ready to be submitted.
pub(crate) struct Plan {
    pub(crate) stream: bool,
    pub(crate) choices: Vec<ChoicePlan>,
    pub(crate) renderer: Renderer,
}

/// What the two kinds of request still have in common once their prompts are token ids.
struct Draft {
    route: Route,
    common: Common,
    prompts: Vec<Arc<[u32]>>,
    max_tokens: Option<u32>,
    logprobs: Option<u8>,
    shape: Shape,
}

impl Plan {
    /// What it asks for in tokens: every prompt, and the most that each answer may have.
    pub(crate) fn tokens(&self) -> u64 {
        let prompts: u64 = self.renderer.prompts.iter().map(|prompt| prompt.len() as u64).sum();
        let answers: u64 = self
            .choices
            .iter()
            .map(|choice| u64::from(choice.request.max_tokens))
            .sum();
        prompts + answers
    }

    /// The same for one of its choices, as if all were alike.
    pub(crate) fn tokens_of_a_choice(&self) -> u64 {
        self.tokens() / (self.choices.len() as u64).max(1)
    }

    /// Plans a chat. Encoding takes time that grows with the text.
    pub(crate) fn chat(state: &FrontState, caller: &Caller, request: ChatRequest) -> Result<Self, ApiError> {
        let ids = state
            .tokenizer
            .chat(&request.messages)
            .map_err(|error| text_error("messages", &error))?;
        let ChatRequest {
            common,
            messages: _,
            max_tokens,
            logprobs,
        } = request;
        let prompts = vec![Arc::from(ids)];
        Self::build(
            state,
            caller,
            Draft {
                route: Route::Chat,
                common,
                prompts,
                max_tokens,
                logprobs,
                shape: Shape::Chat,
            },
        )
    }

    /// Plans completions. As [`Plan::chat`].
    pub(crate) fn completions(
        state: &FrontState,
        caller: &Caller,
        request: CompletionRequest,
    ) -> Result<Self, ApiError> {
        let CompletionRequest {
            common,
            prompts,
            max_tokens,
            echo,
            logprobs,
        } = request;
        let echo = echo.then(|| prompts.iter().map(|prompt| prompt_text(state, prompt)).collect());
        let encode = |prompt| match prompt {
            Prompt::Text(text) => state
                .tokenizer
                .encode(&text, false)
                .map_err(|error| text_error("prompt", &error)),
            Prompt::Ids(ids) => Ok(ids),
        };
        let prompts = prompts
            .into_iter()
            .map(|prompt| encode(prompt).map(Arc::from))
            .collect::<Result<_, _>>()?;
        let shape = Shape::Completion { echo };
        Self::build(
            state,
            caller,
            Draft {
                route: Route::Completions,
                common,
                prompts,
                max_tokens,
                logprobs,
                shape,
            },
        )
    }

    fn build(state: &FrontState, caller: &Caller, draft: Draft) -> Result<Self, ApiError> {
        let seed = draft.common.seed.map_or_else(random_u64, i64::cast_unsigned);
        let eos = if draft.common.ignore_eos {
            &[]
        } else {
            state.tokenizer.eos_ids()
        };
        let stop_ids: Arc<[u32]> = eos.iter().chain(&draft.common.stop_token_ids).copied().collect();
        let mut choices = Vec::new();
        let mut prompt_of = Vec::new();
        for (at, prompt) in draft.prompts.iter().enumerate() {
            let max_tokens = answer_tokens(state, &draft, prompt)?;
            let blocks = Blocks::of(prompt, state.block_tokens);
            for nth in 0..draft.common.n {
                // The nth answer to a prompt does not depend on what else was asked for with it.
                let seed = seed.wrapping_add(u64::from(nth));
                prompt_of.push(at);
                let asked = Asked {
                    prompt,
                    blocks: &blocks,
                    max_tokens,
                    seed,
                    first: nth == 0,
                };
                choices.push(draft.choice(state, caller, &stop_ids, &asked));
            }
        }
        let renderer = draft.renderer(state, caller, prompt_of);
        Ok(Self {
            stream: draft.common.stream,
            choices,
            renderer,
        })
    }
}

/// What one choice is made of, beside what all have.
struct Asked<'a> {
    prompt: &'a Arc<[u32]>,
    blocks: &'a Blocks,
    max_tokens: u32,
    seed: u64,
    first: bool,
}

impl Draft {
    fn choice(&self, state: &FrontState, caller: &Caller, stop_ids: &Arc<[u32]>, asked: &Asked<'_>) -> ChoicePlan {
        let Asked {
            prompt,
            blocks,
            max_tokens,
            seed,
            first,
        } = *asked;
        let sampling = Sampling {
            temperature: self.common.temperature,
            top_p: self.common.top_p,
            seed,
            top_logprobs: self.logprobs.unwrap_or(0),
        };
        let work = Work {
            prompt: Arc::clone(prompt),
            start_position: 0,
            sampling,
            stop_ids: Arc::clone(stop_ids),
            request_id: Arc::clone(&caller.rid),
            traceparent: caller.traceparent.clone().unwrap_or_default(),
            tenant: caller.tenant,
        };
        let request = NewRequest {
            rid: caller.rid.to_string(),
            client: caller.client.clone(),
            model: Some(state.model.id.clone()),
            work,
            blocks: blocks.clone(),
            max_tokens,
            class: state.rates.class(&caller.client, self.common.class),
            on_failure: match self.route {
                Route::Chat => state.on_failure.chat,
                Route::Completions => state.on_failure.completions,
            },
        };
        let wanted = Wanted {
            stops: self.common.stops.clone(),
            stop_ids: Arc::clone(stop_ids),
            max_tokens,
            logprobs: self.logprobs.is_some(),
            ids: self.common.return_token_ids,
        };
        ChoicePlan { request, first, wanted }
    }

    fn renderer(&self, state: &FrontState, caller: &Caller, prompt_of: Vec<usize>) -> Renderer {
        let prefix = match self.route {
            Route::Chat => "chatcmpl",
            Route::Completions => "cmpl",
        };
        // A clock before 1970 is no reason to refuse an answer.
        let created = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |age| age.as_secs());
        Renderer {
            shape: self.shape.clone(),
            id: format!("{prefix}-{}", caller.rid),
            created,
            // Under the name that the client used.
            model: self.common.model.clone(),
            tokenizer: Arc::clone(&state.tokenizer),
            logprobs: self.logprobs.is_some(),
            ids: self.common.return_token_ids,
            include_usage: self.common.include_usage,
            prompts: self.prompts.clone(),
            begun: vec![false; prompt_of.len()],
            prompt_of,
        }
    }
}

/// How many tokens may be produced for a prompt.
fn answer_tokens(state: &FrontState, draft: &Draft, prompt: &[u32]) -> Result<u32, ApiError> {
    let limits = &state.limits;
    let (param, default) = match draft.route {
        Route::Chat => ("messages", limits.default_chat_tokens),
        Route::Completions => ("prompt", limits.default_completion_tokens),
    };
    if prompt.is_empty() {
        return Err(ApiError::invalid(
            param,
            "invalid_value",
            format!("`{param}` must have at least one token"),
        ));
    }
    let tokens = u32::try_from(prompt.len()).unwrap_or(u32::MAX);
    let room_left = limits.context.saturating_sub(tokens);
    let answer = draft.max_tokens.unwrap_or_else(|| default.min(room_left).max(1));
    if answer > room_left {
        return Err(ApiError::ContextLength {
            param,
            context: limits.context,
            prompt: tokens,
            answer,
        });
    }
    Ok(answer)
}

/// A prompt's text, for `echo`.
fn prompt_text(state: &FrontState, prompt: &Prompt) -> String {
    match prompt {
        Prompt::Text(text) => text.clone(),
        Prompt::Ids(ids) => {
            let bytes: Vec<u8> = ids
                .iter()
                .flat_map(|id| state.tokenizer.token_bytes(*id))
                .copied()
                .collect();
            String::from_utf8_lossy(&bytes).into_owned()
        }
    }
}

fn text_error(param: &'static str, error: &TextError) -> ApiError {
    match error {
        TextError::Messages(_) | TextError::Encode(_) => ApiError::invalid(param, "invalid_value", error.to_string()),
        TextError::Model(_) | TextError::Folder { .. } | TextError::Template(_) => {
            tracing::error!(%error, "the tokenizer broke");
            ApiError::Room(RoomFailure::internal())
        }
    }
}
