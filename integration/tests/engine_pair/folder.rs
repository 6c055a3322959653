//! The folder of a model that the stand-in engines serve: a tokenizer of bytes, and names for all other ids.

use std::path::Path;

use innkeeper_remote::standin::VOCABULARY;
use serde_json::{Map, Value, json};

/// Writes tokenizer and configuration.
pub fn write(folder: &Path) {
    let mut vocabulary = Map::new();
    for (id, letter) in (0u32..).zip(byte_letters()) {
        vocabulary.insert(letter.to_string(), Value::from(id));
    }
    let added: Vec<Value> = (256..VOCABULARY)
        .map(|id| {
            json!({
                "id": id, "content": format!("<{id}>"), "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": false,
            })
        })
        .collect();
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": vocabulary, "merges": [],
        },
    });
    let say = |name: &str, value: &Value| std::fs::write(folder.join(name), value.to_string()).unwrap();
    say("tokenizer.json", &tokenizer);
    say(
        "config.json",
        &json!({"max_position_embeddings": 8192, "eos_token_id": 0}),
    );
    say(
        "tokenizer_config.json",
        &json!({"chat_template": "{% for message in messages %}{{ message.content }}{% endfor %}"}),
    );
}

/// How byte-level tokenizers write each byte: printable ones as they are, all others from U+0100 on.
fn byte_letters() -> impl Iterator<Item = char> {
    let mut next = 0x100;
    (0u8..=255).map(move |byte| {
        if matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff) {
            char::from(byte)
        } else {
            next += 1;
            char::from_u32(next - 1).unwrap()
        }
    })
}
