//! The messages of a session.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures::Stream;
use innkeeper_proto::inference::generate_reply::Reply;
use innkeeper_proto::inference::{Alternative, Delta, Finish, FinishReason, GenerateReply, TokenLogprob, Usage};
use innkeeper_room::Reason;
use tonic::Status;

use super::status::status;
use crate::front::answer::{self, Piece, Renderer, Shown};
use crate::front::error::{ApiError, RoomFailure};
use crate::front::feed::{Fed, Feed, Times, Writer};
use crate::front::session::{Counted, Session, Step};

type Item = Result<GenerateReply, Status>;

/// What a call's connection polls. Dropping it aborts the rooms behind it.
pub struct Replies {
    feed: Feed<VecDeque<Item>>,
    /// Those of the last block that the connection has not taken.
    block: VecDeque<Item>,
    closed: bool,
}

impl Replies {
    /// Begins with the first step.
    pub(super) fn start(session: Session, renderer: Renderer, first: Step, times: Times) -> Self {
        let writer = ReplyWriter {
            renderer,
            queue: VecDeque::new(),
        };
        Self {
            feed: Feed::start(session, writer, first, times),
            block: VecDeque::new(),
            closed: false,
        }
    }
}

impl Stream for Replies {
    type Item = Item;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Item>> {
        loop {
            if let Some(next) = self.block.pop_front() {
                return Poll::Ready(Some(next));
            }
            if self.closed {
                return Poll::Ready(None);
            }
            let fed = ready!(self.feed.poll(cx));
            self.closed = !matches!(fed, Fed::Block(_));
            match fed {
                Fed::Block(block) => self.block = block,
                Fed::Complete => {}
                Fed::Stalled => self.block.push_back(Err(broken(Reason::ClientStalled))),
                Fed::Died => self.block.push_back(Err(broken(Reason::InternalError))),
            }
        }
    }
}

/// The end of a call of which no room told.
fn broken(reason: Reason) -> Status {
    let failure = RoomFailure {
        reason,
        ..RoomFailure::internal()
    };
    status(&ApiError::from(failure))
}

/// Steps as messages.
struct ReplyWriter {
    renderer: Renderer,
    queue: VecDeque<Item>,
}

impl Writer for ReplyWriter {
    type Block = VecDeque<Item>;

    fn step(&mut self, step: Step, counted: Counted) {
        match step {
            Step::Piece { choice, piece } => {
                self.begin(choice);
                if !piece.is_empty() {
                    let delta = self.delta(choice, piece);
                    self.say(Reply::Delta(delta));
                }
            }
            Step::Finished { choice, finish } => {
                self.begin(choice);
                let reason = match finish {
                    answer::Finish::Stop => FinishReason::Stop,
                    answer::Finish::Length => FinishReason::Length,
                };
                self.say(Reply::Finish(Finish {
                    choice: index(choice),
                    reason: reason.into(),
                }));
            }
            Step::Failed(failure) => self.queue.push_back(Err(status(&failure.into()))),
            Step::Done => {
                let usage = self.usage(counted);
                self.say(Reply::Usage(usage));
            }
        }
    }

    /// HTTP/2 has pings, and they are no messages.
    fn keep_alive(&mut self) {}

    fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    fn take(&mut self) -> VecDeque<Item> {
        std::mem::take(&mut self.queue)
    }
}

impl ReplyWriter {
    fn say(&mut self, reply: Reply) {
        self.queue.push_back(Ok(GenerateReply { reply: Some(reply) }));
    }

    /// The prompt's own text, if it is to be echoed.
    fn begin(&mut self, choice: usize) {
        let begun = self.renderer.begun.get_mut(choice);
        if begun.is_none_or(|begun| std::mem::replace(begun, true)) {
            return;
        }
        let text = self.renderer.echo(choice).to_owned();
        if !text.is_empty() {
            self.say(Reply::Delta(Delta {
                choice: index(choice),
                text,
                ..Delta::default()
            }));
        }
    }

    fn delta(&self, choice: usize, piece: Piece) -> Delta {
        Delta {
            choice: index(choice),
            text: piece.text,
            token_ids: piece.ids,
            logprobs: piece.tokens.iter().map(|shown| self.logprob(shown)).collect(),
        }
    }

    fn logprob(&self, Shown { token, offset }: &Shown) -> TokenLogprob {
        let said = self.renderer.logprob(token.id, token.logprob);
        let alternative = |(id, logprob): &(u32, f32)| {
            let said = self.renderer.logprob(*id, *logprob);
            Alternative {
                id: *id,
                token: said.token,
                bytes: said.bytes,
                logprob: said.logprob,
            }
        };
        TokenLogprob {
            id: token.id,
            token: said.token,
            bytes: said.bytes,
            logprob: said.logprob,
            text_offset: *offset,
            top: token.top.iter().map(alternative).collect(),
        }
    }

    fn usage(&self, counted: Counted) -> Usage {
        let usage = self.renderer.usage(counted);
        let prompt = self.renderer.prompts.first();
        Usage {
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.completion_tokens,
            total_tokens: usage.total_tokens,
            prompt_token_ids: prompt.map(|ids| ids.to_vec()).unwrap_or_default(),
            cached_tokens: usage.prompt_tokens_details.cached_tokens,
        }
    }
}

/// Choices are few: `Limits::max_choices`.
fn index(choice: usize) -> u32 {
    u32::try_from(choice).unwrap_or(u32::MAX)
}
