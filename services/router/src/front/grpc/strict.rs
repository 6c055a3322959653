//! Fields that this server does not know. Protocol buffers skip them; here none is ignored, so they are looked for before a
//! message is decoded.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use prost::Message;
use prost::bytes::Buf;
use prost::encoding::{WireType, decode_key, decode_varint};
use prost_types::FileDescriptorSet;

use crate::front::error::ApiError;

/// Compressed or not, and the length.
const FRAME_HEAD: usize = 5;

/// A message's fields: their numbers, and of those that are messages the type's full name.
type FieldTypes = BTreeMap<u32, Option<String>>;

/// The contract as its descriptors have it.
struct Contract {
    messages: BTreeMap<String, FieldTypes>,
    /// A method's path, and the type that it takes.
    methods: BTreeMap<String, String>,
}

static CONTRACT: LazyLock<Contract> = LazyLock::new(|| {
    let described = FileDescriptorSet::decode(innkeeper_proto::inference::DESCRIPTORS);
    // The build made it; without it every call of the service would be refused below, and the tests fail.
    Contract::of(&described.unwrap_or_default())
});

impl Contract {
    fn of(described: &FileDescriptorSet) -> Self {
        let mut contract = Self {
            messages: BTreeMap::new(),
            methods: BTreeMap::new(),
        };
        for file in &described.file {
            let package = file.package();
            for message in &file.message_type {
                let fields = message.field.iter().filter_map(|field| {
                    let number = u32::try_from(field.number()).ok()?;
                    // Enums have a type name as well.
                    let is_message = field.r#type() == prost_types::field_descriptor_proto::Type::Message;
                    Some((number, is_message.then(|| field.type_name().to_owned())))
                });
                let name = format!(".{package}.{}", message.name());
                contract.messages.insert(name, fields.collect());
            }
            for service in &file.service {
                for method in &service.method {
                    let path = format!("/{package}.{}/{}", service.name(), method.name());
                    contract.methods.insert(path, method.input_type().to_owned());
                }
            }
        }
        contract
    }
}

/// Checks the one message of a call.
///
/// # Errors
/// If it has a field that is not in the contract, or is no message at all.
pub(super) fn check(path: &str, body: &[u8]) -> Result<(), ApiError> {
    let Some(kind) = CONTRACT.methods.get(path) else {
        // The service says that it has no such method.
        return Ok(());
    };
    match body.split_at_checked(FRAME_HEAD) {
        // What is compressed is refused by the service, whatever it says.
        Some((head, message)) if head[0] == 0 => walk(kind, message),
        _ => Ok(()),
    }
}

fn walk(kind: &str, mut rest: &[u8]) -> Result<(), ApiError> {
    let broken = |what: &dyn std::fmt::Display| ApiError::Invalid {
        param: None,
        code: "invalid_body",
        message: format!("the message is not a valid `{}`: {what}", short(kind)),
    };
    let Some(fields) = CONTRACT.messages.get(kind) else {
        return Err(broken(&"its type is not described"));
    };
    while rest.has_remaining() {
        let (number, wire) = decode_key(&mut rest).map_err(|error| broken(&error))?;
        let Some(nested) = fields.get(&number) else {
            let name = format!("{}.{number}", short(kind));
            let message = format!("`{name}` is not a field that this server knows");
            return Err(ApiError::invalid(name, "unknown_parameter", message));
        };
        let length = match wire {
            WireType::Varint => decode_varint(&mut rest).map(|_| 0),
            WireType::SixtyFourBit => Ok(8),
            WireType::ThirtyTwoBit => Ok(4),
            WireType::LengthDelimited => decode_varint(&mut rest),
            WireType::StartGroup | WireType::EndGroup => return Err(broken(&"it has a group")),
        };
        let length = usize::try_from(length.map_err(|error| broken(&error))?).unwrap_or(usize::MAX);
        let Some((value, after)) = rest.split_at_checked(length) else {
            return Err(broken(&"it ends too early"));
        };
        if let (Some(nested), WireType::LengthDelimited) = (nested, wire) {
            walk(nested, value)?;
        }
        rest = after;
    }
    Ok(())
}

/// A type's own name.
fn short(kind: &str) -> &str {
    kind.rsplit('.').next().unwrap_or(kind)
}

#[cfg(test)]
mod tests {
    use innkeeper_proto::inference::{Chat, ChatMessage, GenerateRequest, generate_request::Input};

    use super::*;

    const GENERATE: &str = "/innkeeper.inference.v1.Inference/Generate";

    fn frame(message: &[u8]) -> Vec<u8> {
        let length = u32::try_from(message.len()).unwrap();
        [&[0][..], &length.to_be_bytes(), message].concat()
    }

    fn whole() -> GenerateRequest {
        let message = |role: &str| ChatMessage {
            role: role.to_owned(),
            content: "é".repeat(200),
        };
        GenerateRequest {
            model: "m".to_owned(),
            input: Some(Input::Chat(Chat {
                messages: vec![message("user"), message("assistant")],
            })),
            max_tokens: Some(3),
            temperature: Some(0.5),
            top_p: Some(1.0),
            seed: Some(-1),
            n: Some(2),
            stop: vec!["a".to_owned()],
            stop_token_ids: vec![1, 300],
            ignore_eos: Some(true),
            top_logprobs: Some(1),
            echo: Some(false),
            service_tier: Some("flex".to_owned()),
        }
    }

    #[test]
    fn every_field_of_the_contract_passes_and_any_other_is_named() {
        let message = whole().encode_to_vec();
        assert_eq!(check(GENERATE, &frame(&message)), Ok(()));
        // A field 31 with the number 1, at the end.
        let more = [&message[..], &[0xf8, 0x01, 0x01]].concat();
        let error = check(GENERATE, &frame(&more)).unwrap_err();
        assert_eq!(
            (error.code(), error.param().as_deref()),
            ("unknown_parameter", Some("GenerateRequest.31"))
        );
        // The same inside of a message of the chat: field 4 (the chat) → field 1 (a message) → field 31.
        let nested = [0x22, 5, 0x0a, 3, 0xf8, 0x01, 0x01];
        let error = check(GENERATE, &frame(&nested)).unwrap_err();
        assert_eq!(error.param().as_deref(), Some("ChatMessage.31"));
    }

    #[test]
    fn what_is_no_message_is_refused_and_never_a_panic() {
        let message = whole().encode_to_vec();
        for end in 1..message.len() {
            // Cut between two fields it is a shorter message.
            let _ = check(GENERATE, &frame(&message[..end]));
        }
        for broken in [
            &[0x0a, 200, 1][..],
            &[0x0b],
            &[0xff],
            &[0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f],
        ] {
            assert_eq!(
                check(GENERATE, &frame(broken)).unwrap_err().code(),
                "invalid_body",
                "{broken:?}"
            );
        }
    }
}
