//! Text out of a stream of ids, never cutting a character in two.

use std::sync::Arc;

use super::Tokenizer;

/// Turns ids into text as they come. Bytes of an incomplete character are held back until the rest arrives.
pub struct Detokenizer {
    tokenizer: Arc<dyn Tokenizer>,
    held: Vec<u8>,
}

impl Detokenizer {
    /// A stream that begins now.
    #[must_use]
    pub fn new(tokenizer: Arc<dyn Tokenizer>) -> Self {
        Self {
            tokenizer,
            held: Vec::new(),
        }
    }

    /// The text that became complete with this token; often empty for a part of a character or a special token.
    pub fn push(&mut self, id: u32) -> String {
        self.held.extend_from_slice(self.tokenizer.token_bytes(id));
        let mut text = String::new();
        loop {
            match std::str::from_utf8(&self.held) {
                Ok(rest) => {
                    text.push_str(rest);
                    self.held.clear();
                    return text;
                }
                Err(error) => {
                    let (valid, rest) = self.held.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    let Some(bad) = error.error_len() else {
                        self.held = rest.to_vec();
                        return text;
                    };
                    // These bytes can never become a character.
                    text.push(char::REPLACEMENT_CHARACTER);
                    self.held = rest[bad..].to_vec();
                }
            }
        }
    }

    /// What is still held back when the stream ends: nothing, or one U+FFFD for a character that never got complete.
    pub fn finish(&mut self) -> String {
        let rest = String::from_utf8_lossy(&self.held).into_owned();
        self.held.clear();
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::ByteTokenizer;

    fn stream() -> Detokenizer {
        Detokenizer::new(Arc::new(ByteTokenizer::new()))
    }

    #[test]
    fn a_character_comes_out_whole() {
        let mut stream = stream();
        let parts: Vec<String> = "aé😀b".bytes().map(|byte| stream.push(u32::from(byte))).collect();
        assert_eq!(parts, ["a", "", "é", "", "", "", "😀", "b"]);
        assert_eq!(stream.finish(), "");
    }

    #[test]
    fn broken_bytes_become_one_replacement_and_do_not_hold_up_the_rest() {
        let mut stream = stream();
        assert_eq!(stream.push(0xF0), "");
        assert_eq!(stream.push(0x9F), "");
        assert_eq!(stream.push(u32::from(b'x')), "\u{FFFD}x");
        assert_eq!(stream.push(0xFF), "\u{FFFD}");
        assert_eq!(stream.push(0xC3), "");
        assert_eq!(stream.finish(), "\u{FFFD}");
        assert_eq!(stream.finish(), "");
    }

    #[test]
    fn special_and_unknown_tokens_are_silent() {
        let mut stream = stream();
        assert_eq!(stream.push(ByteTokenizer::EOS), "");
        assert_eq!(stream.push(u32::MAX), "");
    }
}
