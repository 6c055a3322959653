//! The document says what the parsers do.

use std::collections::BTreeSet;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use innkeeper_room::Reason;
use serde_json::{Value, json};

use super::harness::*;
use crate::front::ApiError;
use crate::front::api::looked;
use crate::front::openapi::document;

fn the_document() -> Value {
    document(&state(&healthy()))
}

/// The names of all fields of a body, as the parsers name them.
fn names(document: &Value, schema: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    walk(
        document,
        &json!({ "$ref": format!("#/components/schemas/{schema}") }),
        "",
        &mut names,
    );
    names
}

fn walk(document: &Value, schema: &Value, path: &str, names: &mut BTreeSet<String>) {
    if let Some(reference) = schema["$ref"].as_str() {
        let pointer = reference.strip_prefix('#').expect("of this document");
        return walk(document, document.pointer(pointer).expect(pointer), path, names);
    }
    for kind in schema["anyOf"].as_array().into_iter().flatten() {
        walk(document, kind, path, names);
    }
    if schema["items"].is_object() {
        walk(document, &schema["items"], &format!("{path}[0]"), names);
    }
    // What is harmless is looked at as a whole.
    if !schema["additionalProperties"].is_boolean() {
        return;
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let name = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        walk(document, field, &name, names);
        names.insert(name);
    }
}

#[tokio::test]
async fn every_field_that_a_parser_knows_is_in_the_document_and_no_other() {
    let chat = json!({
        "model": "tiny", "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
        "stream": true, "stream_options": {},
    });
    let completion = json!({"model": "tiny", "prompt": "Hi", "stream": true, "stream_options": {}});
    for (path, body, schema) in [
        ("/v1/chat/completions", chat, "ChatCompletionRequest"),
        ("/v1/completions", completion, "CompletionRequest"),
        ("/abort_request", json!({"rid": "a"}), "AbortRequest"),
    ] {
        looked::take();
        assert_eq!(ask(&healthy(), path, body).await.status, StatusCode::OK, "{path}");
        assert_eq!(looked::take(), names(&the_document(), schema), "{path}");
    }
}

#[test]
fn every_error_code_is_in_the_document_under_its_status() {
    let document = the_document();
    let mut listed = BTreeSet::new();
    for operation in document["paths"]
        .as_object()
        .unwrap()
        .values()
        .flat_map(|path| path.as_object().unwrap().values())
    {
        for (status, response) in operation["responses"].as_object().unwrap() {
            let codes = response.pointer("/content/application~1json/schema/properties/error/properties/code/enum");
            for code in codes.and_then(Value::as_array).into_iter().flatten() {
                listed.insert((code.as_str().unwrap().to_owned(), status.parse().unwrap()));
            }
        }
    }
    let reasons = Reason::ALL.iter().map(|reason| (reason.code(), reason.http_status()));
    let all = ApiError::CODES.iter().copied().chain(reasons);
    let all: BTreeSet<(String, u16)> = all.map(|(code, status)| (code.to_owned(), status)).collect();
    assert_eq!(listed, all);
}

#[tokio::test]
async fn the_document_is_served_and_all_its_references_lead_somewhere() {
    let got = read(send(&healthy(), Request::get("/openapi.json").body(Body::empty()).unwrap()).await).await;
    assert_eq!(got.status, StatusCode::OK);
    let document = got.json();
    assert_eq!(document["openapi"], "3.1.0");
    let text = document.to_string();
    let references: BTreeSet<&str> = text
        .split("\"$ref\":\"#")
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
        .collect();
    assert!(references.len() > 10, "{references:?}");
    for pointer in references {
        assert!(document.pointer(pointer).is_some(), "{pointer} leads nowhere");
    }
}
