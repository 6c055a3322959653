//! Fields that are known but not supported, and the values with which they change nothing. The checks and the OpenAPI
//! document are made from the same table.

use serde_json::{Value, json};

/// A field, and what it may be beside null.
pub(crate) type Harmless = (&'static str, Pass);

/// Values that change nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pass {
    /// None.
    Never,
    /// The number 0.
    Zero,
    /// The number 1.
    One,
    /// One of these whole numbers.
    Numbers(&'static [i64]),
    /// `false`.
    False,
    /// `true`.
    True,
    /// Either: a hint.
    Boolean,
    /// A list or an object with nothing in it.
    Empty,
    /// One of these words.
    Words(&'static [&'static str]),
    /// Any text: a hint.
    Text,
    /// Any object: a hint.
    Object,
    /// The list of the one word `text`.
    TextOnly,
    /// An object whose `type` is `text`.
    TextFormat,
}

impl Pass {
    /// Whether the value changes nothing.
    pub(super) fn allows(self, value: &Value) -> bool {
        match self {
            Self::Never => false,
            Self::Zero => value.as_f64() == Some(0.0),
            Self::One => value.as_f64() == Some(1.0),
            Self::Numbers(numbers) => numbers.iter().any(|number| value.as_f64() == json!(number).as_f64()),
            Self::False => value.as_bool() == Some(false),
            Self::True => value.as_bool() == Some(true),
            Self::Boolean => value.is_boolean(),
            Self::Empty => {
                value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(serde_json::Map::is_empty)
            }
            Self::Words(words) => value.as_str().is_some_and(|word| words.contains(&word)),
            Self::Text => value.is_string(),
            Self::Object => value.is_object(),
            Self::TextOnly => *value == json!(["text"]),
            Self::TextFormat => value.get("type").is_some_and(|kind| kind == "text"),
        }
    }

    /// The same as a JSON schema, with null.
    pub(crate) fn schema(self) -> Value {
        match self {
            Self::Never => json!({ "type": "null" }),
            Self::Zero => one_of(&[json!(0)]),
            Self::One => one_of(&[json!(1)]),
            Self::Numbers(numbers) => one_of(&numbers.iter().map(|number| json!(number)).collect::<Vec<_>>()),
            Self::False => one_of(&[json!(false)]),
            Self::True => one_of(&[json!(true)]),
            Self::Boolean => json!({ "type": ["boolean", "null"] }),
            Self::Empty => json!({ "type": ["array", "object", "null"], "maxItems": 0, "maxProperties": 0 }),
            Self::Words(words) => one_of(&words.iter().map(|word| json!(word)).collect::<Vec<_>>()),
            Self::Text => json!({ "type": ["string", "null"] }),
            Self::Object => json!({ "type": ["object", "null"] }),
            Self::TextOnly => one_of(&[json!(["text"])]),
            Self::TextFormat => json!({
                "type": ["object", "null"], "properties": { "type": { "const": "text" } }, "required": ["type"],
            }),
        }
    }
}

fn one_of(values: &[Value]) -> Value {
    let all: Vec<&Value> = values.iter().chain([&Value::Null]).collect();
    json!({ "enum": all })
}
