//! Folders as models come in them, but tiny: a tokenizer of bytes and one of SentencePiece's kind.

use std::fs;
use std::sync::Arc;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::super::decode::byte_table;
use super::super::{Message, TextError, Tokenizer, load_tokenizer};

pub(super) const END: u32 = 300;
pub(super) const START: u32 = 301;
pub(super) const STOP: u32 = 302;
pub(super) const THINK: u32 = 303;
pub(super) const SPACES: u32 = 304;
pub(super) const TOOL: u32 = 305;

pub(super) const SPACE: u32 = 259;
pub(super) const SPACE_HI: u32 = 260;
pub(super) const HI: u32 = 261;
pub(super) const INST: u32 = 262;
pub(super) const SPACE_INST_OVER: u32 = 263;

pub(super) fn added(id: u32, content: &str, special: bool) -> Value {
    json!({"id": id, "content": content, "special": special, "lstrip": false, "rstrip": false, "single_word": false,
           "normalized": false})
}

/// One id per byte, `he` and ` he`, and what is added.
pub(super) fn of_bytes(more: &[Value]) -> Value {
    let mut vocabulary: serde_json::Map<String, Value> = byte_table()
        .into_iter()
        .map(|(stand_in, byte)| (stand_in.to_string(), json!(byte)))
        .collect();
    vocabulary.insert("he".to_owned(), json!(256));
    vocabulary.insert("Ġhe".to_owned(), json!(257));
    let mut listed = vec![
        added(END, "<|endoftext|>", true),
        added(START, "<|im_start|>", true),
        added(STOP, "<|im_end|>", true),
        added(THINK, "<think>", false),
        added(SPACES, "   ", false),
        added(TOOL, "<|tool|>", false),
    ];
    listed.extend_from_slice(more);
    json!({
        "version": "1.0", "added_tokens": listed, "normalizer": null,
        "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}, "padding": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": null, "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "dropout": null, "vocab": vocabulary, "merges": ["h e", "Ġ he"]},
    })
}

/// `<unk> <s> </s>`, bytes from 3 on, and some pieces.
pub(super) fn of_pieces() -> Value {
    let bytes = (0..=255).map(|byte| format!("<0x{byte:02X}>"));
    let pieces = ["<unk>", "<s>", "</s>"].map(str::to_owned).into_iter().chain(bytes);
    let pieces = pieces.chain(["▁", "▁Hi", "Hi", "[INST]", "▁[/INST]"].map(str::to_owned));
    let pieces: Vec<Value> = pieces.map(|piece| json!([piece, -1.0])).collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
        "added_tokens": [added(0, "<unk>", true), added(1, "<s>", true), added(2, "</s>", true)],
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]},
        "model": {"type": "Unigram", "unk_id": 0, "vocab": pieces, "byte_fallback": true},
    })
}

pub(super) fn folder(files: &[(&str, String)]) -> TempDir {
    let folder = tempfile::tempdir().expect("a directory");
    for (name, content) in files {
        fs::write(folder.path().join(name), content).expect("writes");
    }
    folder
}

pub(super) fn load(files: &[(&str, String)]) -> Result<Arc<dyn Tokenizer>, TextError> {
    load_tokenizer(folder(files).path())
}

pub(super) fn chatml(template: &str, more: &[Value]) -> Arc<dyn Tokenizer> {
    let config = json!({"eos_token": "<|im_end|>", "chat_template": template});
    load(&[
        ("tokenizer.json", of_bytes(more).to_string()),
        ("tokenizer_config.json", config.to_string()),
    ])
    .unwrap_or_else(|error| panic!("{error}"))
}

pub(super) fn pieces(config: Value) -> Arc<dyn Tokenizer> {
    load(&[
        ("tokenizer.json", of_pieces().to_string()),
        ("tokenizer_config.json", config.to_string()),
    ])
    .unwrap_or_else(|error| panic!("{error}"))
}

pub(super) fn bytes(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

/// The ids of bytes, three more than the bytes.
pub(super) fn spelled(text: &str) -> Vec<u32> {
    text.bytes().map(|byte| u32::from(byte) + 3).collect()
}

pub(super) fn user(content: &str) -> [Message; 1] {
    [Message::new("user", content)]
}

pub(super) fn between(before: &str, content: Vec<u32>) -> Vec<u32> {
    let after = [vec![STOP], bytes("\n"), vec![START], bytes("assistant\n")];
    [vec![START], bytes(before), content]
        .concat()
        .into_iter()
        .chain(after.concat())
        .collect()
}
