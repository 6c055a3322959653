//! A JSON object that is taken apart field by field: what is wrong, unsupported or unknown is refused by its name.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use super::harmless::Harmless;
use crate::front::error::ApiError;

/// Characters of an unknown field's name that are shown.
const LONGEST_SHOWN: usize = 64;

/// The fields of an object that were not looked at yet.
pub(crate) struct Fields {
    map: Map<String, Value>,
    /// Where the object is: empty, or `messages[0]`.
    path: String,
}

impl Fields {
    /// The object in a request's body.
    ///
    /// # Errors
    /// If it is not JSON or not an object.
    pub(crate) fn from_body(body: &[u8]) -> Result<Self, ApiError> {
        let malformed = |message| ApiError::Invalid {
            param: None,
            code: "invalid_json",
            message,
        };
        let value: Value =
            serde_json::from_slice(body).map_err(|error| malformed(format!("the body is not valid JSON: {error}")))?;
        match value {
            Value::Object(map) => Ok(Self::new(map)),
            other => Err(malformed(format!(
                "the body must be a JSON object, not {}",
                kind(&other)
            ))),
        }
    }

    /// These fields.
    pub(crate) const fn new(map: Map<String, Value>) -> Self {
        Self {
            map,
            path: String::new(),
        }
    }

    /// An object inside of the body.
    pub(super) fn nested(path: String, value: Value) -> Result<Self, ApiError> {
        match value {
            Value::Object(map) => Ok(Self { map, path }),
            other => Err(wrong_type(&path, "an object", &other)),
        }
    }

    /// The full name of a field.
    pub(super) fn name(&self, field: &str) -> String {
        if self.path.is_empty() {
            field.to_owned()
        } else {
            format!("{}.{field}", self.path)
        }
    }

    /// A complaint about a field.
    pub(super) fn complain(&self, field: &str, code: &'static str, message: impl std::fmt::Display) -> ApiError {
        let name = self.name(field);
        let message = format!("`{name}` {message}");
        ApiError::Invalid {
            param: Some(name),
            code,
            message,
        }
    }

    /// The field as it is; `None` if it is absent or null.
    pub(super) fn take(&mut self, field: &str) -> Option<Value> {
        #[cfg(test)]
        looked::at(&self.name(field));
        self.map.remove(field).filter(|value| !value.is_null())
    }

    /// A field that must be there.
    pub(super) fn require(&mut self, field: &str) -> Result<Value, ApiError> {
        self.take(field)
            .ok_or_else(|| self.complain(field, "missing_required_parameter", "is required"))
    }

    pub(super) fn boolean(&mut self, field: &str) -> Result<Option<bool>, ApiError> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(value)),
            Some(other) => Err(wrong_type(&self.name(field), "true or false", &other)),
        }
    }

    pub(super) fn integer(&mut self, field: &str, range: RangeInclusive<i64>) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.take(field) else { return Ok(None) };
        let whole = value.as_number().and_then(serde_json::Number::as_i128);
        let Some(number) = whole else {
            return Err(wrong_type(&self.name(field), "an integer", &value));
        };
        let (least, most) = (*range.start(), *range.end());
        if number < i128::from(least) {
            return Err(self.complain(
                field,
                "integer_below_min_value",
                format_args!("must be at least {least}, not {value}"),
            ));
        }
        match i64::try_from(number) {
            Ok(number) if number <= most => Ok(Some(number)),
            _ => Err(self.complain(
                field,
                "integer_above_max_value",
                format_args!("must be at most {most}, not {value}"),
            )),
        }
    }

    pub(super) fn number(&mut self, field: &str, range: RangeInclusive<f64>) -> Result<Option<f64>, ApiError> {
        let Some(value) = self.take(field) else { return Ok(None) };
        let Some(number) = value.as_f64() else {
            return Err(wrong_type(&self.name(field), "a number", &value));
        };
        if !range.contains(&number) {
            let (least, most) = (range.start(), range.end());
            let (code, bound) = if number < *least {
                ("decimal_below_min_value", format!("at least {least}"))
            } else {
                ("decimal_above_max_value", format!("at most {most}"))
            };
            return Err(self.complain(field, code, format_args!("must be {bound}, not {value}")));
        }
        Ok(Some(number))
    }

    /// Fields that are known but not supported: null and the value that changes nothing pass, all else is refused.
    pub(super) fn harmless(&mut self, fields: &[Harmless]) -> Result<(), ApiError> {
        for (field, pass) in fields {
            if self.take(field).is_some_and(|value| !pass.allows(&value)) {
                let message = "is not supported by this server; leave it out";
                return Err(self.complain(field, "unsupported_parameter", message));
            }
        }
        Ok(())
    }

    /// All fields must have been looked at.
    pub(super) fn finish(self) -> Result<(), ApiError> {
        match self.map.keys().next() {
            None => Ok(()),
            Some(unknown) => {
                let name = shown(unknown);
                Err(self.complain(&name, "unknown_parameter", "is not a field that this server knows"))
            }
        }
    }
}

/// A name as it is shown: a client may have made it as long as a body.
fn shown(name: &str) -> String {
    let mut short: String = name.chars().take(LONGEST_SHOWN).collect();
    if short.len() < name.len() {
        short.push('…');
    }
    short
}

/// A complaint about a value of the wrong type.
pub(super) fn wrong_type(name: &str, wanted: &str, found: &Value) -> ApiError {
    ApiError::invalid(
        name,
        "invalid_type",
        format!("`{name}` must be {wanted}, not {}", kind(found)),
    )
}

/// What a value is, for people. Never the value itself: it may be long or private.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(number) if number.is_f64() => "a decimal number",
        Value::Number(_) => "an integer",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// The names of all fields that were looked for on this thread, so that a test can hold them against the document.
#[cfg(test)]
pub(crate) mod looked {
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    thread_local! {
        static NAMES: RefCell<BTreeSet<String>> = const { RefCell::new(BTreeSet::new()) };
    }

    pub(super) fn at(name: &str) {
        NAMES.with_borrow_mut(|names| names.insert(name.to_owned()));
    }

    /// Those since the last time.
    pub(crate) fn take() -> BTreeSet<String> {
        NAMES.take()
    }
}
