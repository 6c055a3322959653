//! What vLLM answers.

use std::collections::BTreeMap;

use innkeeper_room::Token;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::answer::{DECODE, PREFILL, Reads};
use crate::failure::{RemoteError, words};
use crate::leg::{Finish, Piece};
use crate::ticket::VllmTicket;

/// What prefill's engine made of a prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Computed {
    /// Where its KV is.
    pub ticket: VllmTicket,
    /// How it ended.
    pub finish: Finish,
}

#[derive(Deserialize)]
struct Completion<'a> {
    #[serde(default)]
    choices: Vec<Choice>,
    #[serde(borrow, default)]
    kv_transfer_params: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    text: String,
    #[serde(default)]
    token_ids: Option<Vec<u32>>,
    #[serde(default)]
    logprobs: Option<Logprobs>,
    #[serde(default)]
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Logprobs {
    #[serde(default)]
    token_logprobs: Option<Vec<Option<f32>>>,
    #[serde(default)]
    top_logprobs: Option<Vec<Option<BTreeMap<String, f32>>>>,
}

fn read<'a>(what: &'static str, body: &'a [u8]) -> Result<Completion<'a>, RemoteError> {
    serde_json::from_slice(body).map_err(|error| RemoteError::Unreadable {
        what,
        why: error.to_string(),
    })
}

/// Reads prefill's answer.
///
/// # Errors
/// [`RemoteError`]: unreadable, ended for another reason than its length or a stop, or without a usable ticket.
pub fn computed(body: &[u8]) -> Result<Computed, RemoteError> {
    let answer = read(PREFILL, body)?;
    if answer.error.is_some() {
        return Err(RemoteError::Said { message: words(body) });
    }
    let finish = answer
        .choices
        .first()
        .and_then(|choice| choice.finish_reason.as_deref());
    let finish = Finish::named(finish.unwrap_or("nothing"));
    if !finish.is_good() {
        return Err(RemoteError::Ended {
            what: PREFILL,
            reason: finish.word().to_owned(),
        });
    }
    let ticket = answer.kv_transfer_params.ok_or_else(|| RemoteError::NoTicket {
        why: "`kv_transfer_params` is missing".to_owned(),
    })?;
    Ok(Computed {
        ticket: VllmTicket::new(ticket)?,
        finish,
    })
}

/// Reads an event of decode's stream. `top`: alternatives per token that were asked for.
///
/// # Errors
/// [`RemoteError::Said`] for an error inside of the stream, [`RemoteError::Unreadable`] for what is no event, or has text and
/// no ids.
pub fn piece(event: &[u8], top: u8) -> Result<Piece, RemoteError> {
    let answer = read(DECODE, event)?;
    if answer.error.is_some() {
        return Err(RemoteError::Said { message: words(event) });
    }
    let Some(choice) = answer.choices.into_iter().next() else {
        // The event of the usage.
        return Ok(Piece::default());
    };
    let finish = choice.finish_reason.as_deref().map(Finish::named);
    let ids = match choice.token_ids {
        Some(ids) => ids,
        None if choice.text.is_empty() => vec![],
        None => {
            return Err(unreadable(
                "it has text and no `token_ids`: this engine does not know `return_token_ids`",
            ));
        }
    };
    Ok(Piece {
        tokens: tokens(&ids, choice.logprobs, top)?,
        finish,
    })
}

/// Reads the events of decode's stream, of which none may end otherwise than well.
#[derive(Clone, Copy, Debug)]
pub struct Reader {
    top: u8,
}

impl Reader {
    /// With so many alternatives per token.
    pub(super) const fn new(top: u8) -> Self {
        Self { top }
    }
}

impl Reads for Reader {
    fn piece(&mut self, event: &[u8]) -> Result<Piece, RemoteError> {
        let piece = piece(event, self.top)?;
        match &piece.finish {
            Some(finish) if !finish.is_good() => Err(RemoteError::Ended {
                what: DECODE,
                reason: finish.word().to_owned(),
            }),
            Some(_) | None => Ok(piece),
        }
    }
}

fn tokens(ids: &[u32], logprobs: Option<Logprobs>, top: u8) -> Result<Vec<Token>, RemoteError> {
    let Some(logprobs) = logprobs else {
        let bare = |id: &u32| Token {
            id: *id,
            ..Token::default()
        };
        return Ok(ids.iter().map(bare).collect());
    };
    let sampled = logprobs.token_logprobs.unwrap_or_default();
    if sampled.len() != ids.len() {
        return Err(unreadable("it has another number of logprobs than of ids"));
    }
    let mut best = logprobs.top_logprobs.unwrap_or_default().into_iter();
    let mut tokens = Vec::with_capacity(ids.len());
    for (id, logprob) in ids.iter().zip(sampled) {
        tokens.push(Token {
            id: *id,
            logprob: logprob.unwrap_or_default(),
            top: alternatives(best.next().flatten().unwrap_or_default(), top)?,
        });
    }
    Ok(tokens)
}

/// The best `top` of them. The engine adds the sampled token to its list, wherever it stands.
fn alternatives(listed: BTreeMap<String, f32>, top: u8) -> Result<Vec<(u32, f32)>, RemoteError> {
    let mut all = Vec::with_capacity(listed.len());
    for (name, logprob) in listed {
        let id = name.strip_prefix("token_id:").and_then(|id| id.parse().ok());
        let id = id.ok_or_else(|| unreadable("its alternatives are not named by their ids"))?;
        all.push((id, logprob));
    }
    all.sort_by(|a: &(u32, f32), b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    all.truncate(usize::from(top));
    Ok(all)
}

fn unreadable(why: &str) -> RemoteError {
    RemoteError::Unreadable {
        what: DECODE,
        why: why.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PARAMS: &str = r#"{"do_remote_prefill":true,"remote_block_ids":[[1]],"remote_engine_id":"e",
        "remote_request_id":"r","remote_host":"h","remote_port":5600}"#;

    fn answer(finish: &str, params: &str) -> Vec<u8> {
        format!(
            r#"{{"id":"cmpl-x","object":"text_completion","model":"tiny","choices":[{{"index":0,"text":" a",
            "token_ids":[9],"logprobs":null,"finish_reason":"{finish}","stop_reason":null}}],
            "usage":{{"prompt_tokens":3}},"kv_transfer_params":{params}}}"#
        )
        .into_bytes()
    }

    #[test]
    fn a_computed_prompt_has_a_ticket() {
        let computed = super::computed(&answer("length", PARAMS)).expect("good");
        assert_eq!((computed.finish, computed.ticket.blocks()), (Finish::Length, 1));
    }

    #[test]
    fn without_a_ticket_or_with_another_end_it_is_refused() {
        for (body, word) in [
            (answer("length", "null"), "kv_transfer_params"),
            (answer("length", "{}"), "field"),
            (answer("abort", PARAMS), "`abort`"),
            (answer("error", PARAMS), "`error`"),
            (b"{}".to_vec(), "`nothing`"),
            (br#"{"error":{"message":"no room","code":400}}"#.to_vec(), "no room"),
            (b"<html>".to_vec(), "cannot be read"),
        ] {
            let error = super::computed(&body).expect_err("refused").to_string();
            assert!(error.contains(word), "{error} has no {word}");
        }
    }

    #[test]
    fn pieces_carry_ids_and_logprobs() {
        let event = br#"{"choices":[{"index":0,"text":"ab","token_ids":[7,8],"finish_reason":null,"logprobs":{
            "token_logprobs":[-0.5,-1.5],"tokens":["token_id:7","token_id:8"],
            "top_logprobs":[{"token_id:3":-0.25,"token_id:7":-0.5,"token_id:1":-3.0},null]}}]}"#;
        let piece = super::piece(event, 2).expect("good");
        assert_eq!(piece.finish, None);
        assert_eq!(piece.tokens[0].top, [(3, -0.25), (7, -0.5)]);
        assert_eq!((piece.tokens[1].id, piece.tokens[1].logprob), (8, -1.5));
        let last =
            super::piece(br#"{"choices":[{"text":"","token_ids":[],"finish_reason":"stop"}]}"#, 0).expect("good");
        assert_eq!((last.tokens.len(), last.finish), (0, Some(Finish::Stop)));
        assert_eq!(
            super::piece(br#"{"choices":[],"usage":{}}"#, 0).expect("usage"),
            Piece::default()
        );
    }

    #[test]
    fn what_is_no_piece_is_said() {
        for (event, word) in [
            (&br#"{"error":{"message":"pull failed","code":500}}"#[..], "pull failed"),
            (br#"{"choices":[{"text":"a"}]}"#, "return_token_ids"),
            (
                br#"{"choices":[{"text":"a","token_ids":[1],"logprobs":{"token_logprobs":[]}}]}"#,
                "another number",
            ),
            (
                br#"{"choices":[{"text":"a","token_ids":[1],"logprobs":{"token_logprobs":[0],"top_logprobs":[{" a":0}]}}]}"#,
                "by their ids",
            ),
            (br#"{"choices":[{"text":"a","token_ids":[-1]}]}"#, "cannot be read"),
            (b"[DONE]", "cannot be read"),
        ] {
            let error = super::piece(event, 1).expect_err("refused").to_string();
            assert!(error.contains(word), "{error} has no {word}");
        }
    }

    proptest! {
        #[test]
        fn no_answer_hurts(bytes in proptest::collection::vec(any::<u8>(), 0..200), at in 0usize..300) {
            let _ = super::computed(&bytes);
            let _ = super::piece(&bytes, 3);
            let mut damaged = answer("length", PARAMS);
            let at = at % damaged.len();
            damaged.splice(at.., bytes);
            let _ = super::computed(&damaged);
            let _ = super::piece(&damaged, 3);
        }
    }
}
