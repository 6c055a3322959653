//! What a token is in text: the other direction, one token at a time. A decoder that needs to see a token's neighbours
//! cannot be used for a stream, and is refused.

use std::collections::HashMap;

use serde_json::Value;

/// How a vocabulary spells bytes.
pub(super) enum Decode {
    /// GPT-2's: a printable character for each byte.
    ByteLevel(HashMap<char, u8>),
    /// SentencePiece's: text with stand-ins, in this order.
    Pieces(Vec<Step>),
}

/// One step from a piece to text.
pub(super) enum Step {
    /// Each of the first becomes the second.
    Replace(String, String),
    /// `<0x41>` is the byte 0x41.
    Bytes,
}

impl Decode {
    /// GPT-2's.
    pub(super) fn byte_level() -> Self {
        Self::ByteLevel(byte_table())
    }

    /// As a `tokenizer.json` describes it under `decoder`.
    ///
    /// # Errors
    /// Says which decoder cannot be used.
    pub(super) fn from_json(decoder: &Value) -> Result<Self, String> {
        let mut steps = Vec::new();
        if flatten(decoder, &mut steps)? {
            return if steps.is_empty() {
                Ok(Self::byte_level())
            } else {
                Err("it mixes `ByteLevel` with other decoders".to_owned())
            };
        }
        if steps.is_empty() {
            return Err("there is none that this program knows".to_owned());
        }
        Ok(Self::Pieces(steps))
    }

    /// The bytes of a subword.
    pub(super) fn bytes(&self, token: &str) -> Vec<u8> {
        match self {
            Self::ByteLevel(table) => {
                let all: Option<Vec<u8>> = token.chars().map(|stand_in| table.get(&stand_in).copied()).collect();
                // Not from the table: whoever made the file spelled it out.
                all.unwrap_or_else(|| token.as_bytes().to_vec())
            }
            Self::Pieces(steps) => {
                let mut text = token.to_owned();
                for step in steps {
                    match step {
                        Step::Replace(from, to) => text = text.replace(from.as_str(), to),
                        Step::Bytes => {
                            if let Some(byte) = spelled_byte(&text) {
                                return vec![byte];
                            }
                        }
                    }
                }
                text.into_bytes()
            }
        }
    }

    /// The bytes of a token that was added to the vocabulary: in a vocabulary of bytes it is not spelled by them.
    pub(super) fn added_bytes(&self, token: &str) -> Vec<u8> {
        match self {
            Self::ByteLevel(_) => token.as_bytes().to_vec(),
            Self::Pieces(_) => self.bytes(token),
        }
    }
}

/// The steps of a decoder, those of sequences one after the other. True: it is one of bytes.
fn flatten(decoder: &Value, steps: &mut Vec<Step>) -> Result<bool, String> {
    match decoder["type"].as_str() {
        Some("Sequence") => {
            let mut byte_level = false;
            for inner in decoder["decoders"].as_array().into_iter().flatten() {
                byte_level |= flatten(inner, steps)?;
            }
            return Ok(byte_level);
        }
        Some("ByteLevel") => return Ok(true),
        Some("Metaspace") => {
            let stand_in = decoder["replacement"].as_str().unwrap_or("▁");
            steps.push(Step::Replace(stand_in.to_owned(), " ".to_owned()));
        }
        Some("Replace") => match (decoder["pattern"]["String"].as_str(), decoder["content"].as_str()) {
            (Some(from), Some(to)) if !from.is_empty() => steps.push(Step::Replace(from.to_owned(), to.to_owned())),
            _ => return Err("`Replace` by a regular expression is not supported".to_owned()),
        },
        Some("ByteFallback") => steps.push(Step::Bytes),
        // Joining is what a stream does; and what `Strip` takes from the start of a text is no start in the middle of one.
        Some("Fuse" | "Strip") => {}
        Some(other) => return Err(format!("`{other}` is not supported")),
        None => return Err("there is none".to_owned()),
    }
    Ok(false)
}

fn spelled_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    let hex = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    hex.then(|| u8::from_str_radix(digits, 16).ok())?
}

/// GPT-2's printable stand-ins for bytes: the printable Latin-1 characters are themselves, the others follow from 256.
pub(super) fn byte_table() -> HashMap<char, u8> {
    let mut next = 256u32;
    let mut table = HashMap::new();
    for byte in 0..=255u8 {
        let stand_in = if matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF) {
            char::from(byte)
        } else {
            next += 1;
            char::from_u32(next - 1).unwrap_or(char::REPLACEMENT_CHARACTER)
        };
        table.insert(stand_in, byte);
    }
    table
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pieces_keep_their_spaces_and_spell_bytes() {
        let decoder = json!({"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]});
        let decode = Decode::from_json(&decoder).expect("known");
        assert_eq!(decode.bytes("▁Hello"), b" Hello");
        assert_eq!(decode.bytes("▁▁"), b"  ");
        assert_eq!(decode.bytes("<0xE2>"), [0xE2]);
        assert_eq!(decode.bytes("<0x+1>"), b"<0x+1>", "no byte");
        assert_eq!(decode.bytes("<0xE2>x"), b"<0xE2>x");
    }

    #[test]
    fn bytes_are_those_of_the_table_and_added_tokens_are_spelled_out() {
        let decode = Decode::from_json(&json!({"type": "ByteLevel"})).expect("known");
        assert_eq!(decode.bytes("ĠhÃ©Ċ"), " hé\n".as_bytes());
        assert_eq!(decode.added_bytes("é"), "é".as_bytes());
        assert_eq!(decode.bytes("two words"), b"two words");
    }

    #[test]
    fn a_decoder_that_looks_at_neighbours_is_refused() {
        for (decoder, name) in [
            (json!({"type": "WordPiece"}), "WordPiece"),
            (
                json!({"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "CTC"}]}),
                "CTC",
            ),
            (
                json!({"type": "Replace", "pattern": {"Regex": "a"}, "content": ""}),
                "regular",
            ),
            (json!(null), "none"),
        ] {
            let refused = Decode::from_json(&decoder).err().unwrap_or_default();
            assert!(refused.contains(name), "{refused}");
        }
    }
}
