//! What SGLang answers.

use innkeeper_room::Token;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use crate::answer::{DECODE, PREFILL, Reads};
use crate::failure::{RemoteError, words};
use crate::leg::{Finish, Piece};

#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(default)]
    output_ids: Vec<u32>,
    #[serde(default)]
    meta_info: Meta,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
struct Meta {
    #[serde(default)]
    finish_reason: Option<Reason>,
    #[serde(default)]
    completion_tokens: usize,
    #[serde(default)]
    output_token_logprobs: Option<Vec<Logprob>>,
    #[serde(default)]
    output_top_logprobs: Option<Vec<Option<Vec<Logprob>>>>,
}

#[derive(Deserialize)]
struct Reason {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    message: Option<String>,
}

/// Logprob, id, and a text that is not asked for.
#[derive(Deserialize)]
struct Logprob(
    Option<f32>,
    u32,
    #[serde(default)]
    #[expect(dead_code, reason = "it stands there, and is not asked for")]
    Option<IgnoredAny>,
);

fn read<'a>(what: &'static str, body: &'a [u8]) -> Result<Answer<'a>, RemoteError> {
    let answer: Answer<'_> = serde_json::from_slice(body).map_err(|error| RemoteError::Unreadable {
        what,
        why: error.to_string(),
    })?;
    match answer.error {
        Some(_) => Err(RemoteError::Said { message: words(body) }),
        None => Ok(answer),
    }
}

fn finish(what: &'static str, reason: Option<Reason>) -> Result<Option<Finish>, RemoteError> {
    let Some(reason) = reason else { return Ok(None) };
    let finish = Finish::named(&reason.kind);
    if finish.is_good() {
        return Ok(Some(finish));
    }
    let said = reason.message.filter(|said| !said.is_empty());
    Err(match said {
        Some(said) => RemoteError::Said {
            message: words(said.as_bytes()),
        },
        None => RemoteError::Ended {
            what,
            reason: finish.word().to_owned(),
        },
    })
}

/// Reads prefill's answer, which comes when the KV has been handed over.
///
/// # Errors
/// [`RemoteError`]. A request that somebody aborted is answered with status 200 and another end than a good one.
pub fn ended(body: &[u8]) -> Result<Finish, RemoteError> {
    let answer = read(PREFILL, body)?;
    finish(PREFILL, answer.meta_info.finish_reason)?.ok_or_else(|| RemoteError::Unreadable {
        what: PREFILL,
        why: "it has no finish reason".to_owned(),
    })
}

/// Reads the events of decode's stream. Each has either all tokens so far or those that are new, depending on how the engine was
/// started; the count of tokens says which.
#[derive(Clone, Copy, Debug)]
pub struct Cursor {
    seen: usize,
    top: u8,
}

impl Cursor {
    /// Before the first event; with so many alternatives per token.
    #[must_use]
    pub const fn new(top: u8) -> Self {
        Self { seen: 0, top }
    }

    /// Reads the next event.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub fn piece(&mut self, event: &[u8]) -> Result<Piece, RemoteError> {
        let answer = read(DECODE, event)?;
        let meta = answer.meta_info;
        let total = meta.completion_tokens;
        let wrong = |why: String| RemoteError::Unreadable { what: DECODE, why };
        let new = total
            .checked_sub(self.seen)
            .ok_or_else(|| wrong(format!("{} tokens were there, and now {total}", self.seen)))?;
        let held = answer.output_ids.len();
        if held != total && held != new {
            return Err(wrong(format!(
                "{held} ids are neither {new} new tokens nor all {total}"
            )));
        }
        let ids = tail(answer.output_ids, new);
        let logprobs = tail(meta.output_token_logprobs.unwrap_or_default(), new);
        let tops = tail(meta.output_top_logprobs.unwrap_or_default(), new);
        if !logprobs.is_empty() && logprobs.len() != new {
            return Err(wrong(format!(
                "{} logprobs are not those of {new} tokens",
                logprobs.len()
            )));
        }
        let mut tokens: Vec<_> = ids.into_iter().map(|id| Token { id, ..Token::default() }).collect();
        for (token, logprob) in tokens.iter_mut().zip(logprobs) {
            if token.id != logprob.1 {
                return Err(wrong(format!("token {} has the logprob of {}", token.id, logprob.1)));
            }
            token.logprob = logprob.0.unwrap_or_default();
        }
        for (token, top) in tokens.iter_mut().zip(tops) {
            token.top = self.alternatives(top.unwrap_or_default());
        }
        self.seen = total;
        Ok(Piece {
            tokens,
            finish: finish(DECODE, meta.finish_reason)?,
        })
    }

    fn alternatives(&self, listed: Vec<Logprob>) -> Vec<(u32, f32)> {
        let mut all: Vec<_> = listed
            .into_iter()
            .map(|Logprob(logprob, id, _)| (id, logprob.unwrap_or(f32::NEG_INFINITY)))
            .collect();
        all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        all.truncate(usize::from(self.top));
        all
    }
}

impl Reads for Cursor {
    fn piece(&mut self, event: &[u8]) -> Result<Piece, RemoteError> {
        Self::piece(self, event)
    }
}

/// The last `count` of them, or all if there are fewer.
fn tail<T>(mut items: Vec<T>, count: usize) -> Vec<T> {
    items.drain(..items.len().saturating_sub(count));
    items
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn event(ids: &[u32], total: usize, finish: &str) -> Vec<u8> {
        let logprobs: Vec<_> = ids.iter().map(|id| format!("[-0.5,{id},null]")).collect();
        let tops: Vec<_> = ids
            .iter()
            .map(|id| format!("[[-0.25,3,null],[-0.5,{id},null]]"))
            .collect();
        format!(
            r#"{{"text":"x","output_ids":{ids:?},"meta_info":{{"id":"r","completion_tokens":{total},"finish_reason":{finish},
            "output_token_logprobs":[{}],"output_top_logprobs":[{}]}}}}"#,
            logprobs.join(","),
            tops.join(",")
        )
        .into_bytes()
    }

    fn ids(piece: &Piece) -> Vec<u32> {
        piece.tokens.iter().map(|token| token.id).collect()
    }

    #[test]
    fn all_so_far_or_only_the_new_ones() {
        for events in [
            [event(&[7], 1, "null"), event(&[7, 8, 9], 3, "null")],
            [event(&[7], 1, "null"), event(&[8, 9], 3, "null")],
        ] {
            let mut cursor = Cursor::new(1);
            let first = cursor.piece(&events[0]).expect("good");
            assert_eq!(ids(&first), [7]);
            let second = cursor.piece(&events[1]).expect("good");
            assert_eq!(ids(&second), [8, 9]);
            assert_eq!(
                (second.tokens[1].logprob, &second.tokens[1].top[..]),
                (-0.5, &[(3, -0.25)][..])
            );
            let last = cursor
                .piece(&event(&[], 3, r#"{"type":"length","length":3}"#))
                .expect("good");
            assert_eq!((last.tokens.len(), last.finish), (0, Some(Finish::Length)));
        }
    }

    #[test]
    fn what_does_not_add_up_is_refused() {
        let mut cursor = Cursor::new(0);
        cursor.piece(&event(&[7, 8], 2, "null")).expect("good");
        assert!(cursor.piece(&event(&[7], 1, "null")).is_err(), "tokens went away");
        assert!(
            cursor.piece(&event(&[7, 8], 5, "null")).is_err(),
            "neither all nor the new"
        );
        let text = String::from_utf8(event(&[9], 3, "null")).expect("text");
        let error = cursor
            .piece(text.replace("-0.5,9", "-0.5,6").as_bytes())
            .expect_err("another id");
        assert!(error.to_string().contains("token 9"), "{error}");
    }

    #[test]
    fn ends_of_prefill() {
        let good = event(&[7], 1, r#"{"type":"length","length":1}"#);
        assert_eq!(ended(&good).expect("good"), Finish::Length);
        for (body, word) in [
            (
                event(&[], 0, r#"{"type":"abort","message":"Abort in waiting queue"}"#),
                "waiting queue",
            ),
            (event(&[], 0, r#"{"type":"abort"}"#), "`abort`"),
            (event(&[7], 1, "null"), "finish reason"),
            (
                br#"{"error":{"message":"Lost connection with prefill instance"}}"#.to_vec(),
                "Lost",
            ),
            (b"[]".to_vec(), "cannot be read"),
        ] {
            let error = ended(&body).expect_err("refused").to_string();
            assert!(error.contains(word), "{error} has no {word}");
        }
    }

    proptest! {
        #[test]
        fn no_event_hurts(bytes in proptest::collection::vec(any::<u8>(), 0..100), at in 0usize..300, total in any::<usize>()) {
            let mut damaged = event(&[7, 8], total, "null");
            let at = at % damaged.len();
            damaged.splice(at.., bytes.iter().copied());
            for body in [&bytes, &damaged, &event(&[7, 8], total, "null")] {
                let mut cursor = Cursor::new(3);
                let _ = cursor.piece(body);
                let _ = cursor.piece(body);
                let _ = ended(body);
            }
        }

        /// However an engine cuts its stream, and whichever way it writes it, the same tokens come out.
        #[test]
        fn every_cut_gives_the_same_tokens(cuts in proptest::collection::vec(1usize..4, 1..10), cumulative in any::<bool>()) {
            let total: usize = cuts.iter().sum();
            let all: Vec<u32> = (10..).take(total).collect();
            let (mut cursor, mut got, mut seen) = (Cursor::new(1), vec![], 0);
            for cut in cuts {
                let from = if cumulative { 0 } else { seen };
                seen += cut;
                let piece = cursor.piece(&event(&all[from..seen], seen, "null")).expect("good");
                got.extend(ids(&piece));
            }
            prop_assert_eq!(got, all);
        }
    }
}
