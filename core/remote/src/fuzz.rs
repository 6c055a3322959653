//! The body of a fuzz target: everything here that reads bytes of an engine. The fuzzer, a test of its corpus and the
//! property tests may run it; no build that serves has it.

use crate::{exposition, sglang, sse, ticket, vllm};

/// Takes the bytes for each thing that an engine may say. The first byte cuts the stream.
pub fn run(bytes: &[u8]) {
    let Some((cut, rest)) = bytes.split_first() else { return };
    let mut events = vec![];
    let mut stream = sse::Events::new(1 << 16);
    let mut cursor = sglang::Cursor::new(2);
    for part in rest.chunks(usize::from(*cut).max(1)) {
        if stream.push(part, &mut events).is_err() {
            break;
        }
    }
    for event in events.iter().map(Vec::as_slice).chain([rest]) {
        let _ = vllm::piece(event, 2);
        let _ = vllm::computed(event);
        let _ = cursor.piece(event);
        let _ = sglang::ended(event);
        let _ = sglang::look(event);
        let _ = sglang::identity(event);
        if let Ok(read) = ticket::Ticket::decode(event) {
            let again = read.encode().map(|bytes| ticket::Ticket::decode(&bytes));
            assert_eq!(again, Ok(Ok(read)), "a ticket reads back");
        }
    }
    let page = String::from_utf8_lossy(rest);
    let _ = vllm::look(&page);
    for sample in exposition::samples(&page) {
        assert!(sample.value.is_finite());
        let _ = sample.label("model_name");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn nothing_hurts(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            super::run(&bytes);
        }

        #[test]
        fn nothing_that_looks_like_an_engine_hurts(text in "[ds:{}\\[\\]\",0-9a-z_ \\n\\r]{0,300}") {
            super::run(text.as_bytes());
        }
    }
}
