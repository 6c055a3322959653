//! `GET /openapi.json`: the HTTP API as an OpenAPI 3.1 document. It is made from what the checks are made from: the tables
//! of harmless fields, the limits and the lists of codes. Tests hold it against the parsers, field by field, and against
//! answers.

mod answers;
pub(crate) mod errors;
mod requests;

use serde_json::{Map, Value, json};

use super::state::FrontState;

/// The document of this router: its model, its limits.
pub(crate) fn document(state: &FrontState) -> Value {
    let mut schemas = Map::new();
    schemas.extend(requests::schemas(state));
    schemas.extend(answers::schemas());
    schemas.insert("Error".to_owned(), errors::any());
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Innkeeper",
            "version": env!("CARGO_PKG_VERSION"),
            "summary": "The OpenAI API of a disaggregated LLM server",
            "description": "A field is honoured, harmless, or refused by its name; none is ignored. The status is held back until the first token: \
                what fails before it is a real status, what fails after it an error event in the stream, followed by `[DONE]`. The same \
                service is spoken over gRPC at the same port: `innkeeper.inference.v1.Inference`, by reflection.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "paths": paths(),
        "components": {
            "schemas": schemas,
            "headers": errors::headers(),
            "parameters": parameters(),
            "securitySchemes": { "ApiKey": {
                "type": "http", "scheme": "bearer",
                "description": "One of the API keys that the operator gave out; a router without any asks for none.",
            } },
        },
        "security": [{ "ApiKey": [] }, {}],
    })
}

fn paths() -> Value {
    let answered = |summary: &str, request: &str, content: Value| {
        json!({ "post": {
            "summary": summary,
            "parameters": common_parameters(&[]),
            "requestBody": body(request),
            "responses": errors::responses(content, errors::GENERATING),
        } })
    };
    let chat =
        json!({ "application/json": schema("ChatCompletion"), "text/event-stream": stream("ChatCompletionChunk") });
    let completion =
        json!({ "application/json": schema("Completion"), "text/event-stream": stream("CompletionChunk") });
    let id = json!({ "name": "id", "in": "path", "required": true, "schema": { "type": "string" } });
    let get = |summary: &str, parameters: Value, content: &str, others: &[u16]| {
        let content = json!({ "application/json": schema(content) });
        json!({ "get": {
            "summary": summary, "parameters": parameters, "responses": errors::responses(content, others),
        } })
    };
    json!({
        "/v1/chat/completions": answered("Answers a chat", "ChatCompletionRequest", chat),
        "/v1/completions": answered("Goes on with prompts", "CompletionRequest", completion),
        "/v1/models": get("Lists the served model", common_parameters(&[]), "ModelList", errors::READING),
        "/v1/models/{id}": get("Shows a model", common_parameters(&[id]), "Model", errors::READING_ONE),
        "/abort_request": { "post": {
            "summary": "Aborts every request that lives under an id, or will arrive under it",
            "parameters": common_parameters(&[]),
            "requestBody": body("AbortRequest"),
            "responses": errors::responses(json!({ "application/json": schema("Aborted") }), errors::ABORTING),
        } },
        "/openapi.json": { "get": {
            "summary": "This document",
            "security": [],
            "parameters": common_parameters(&[]),
            "responses": errors::responses(json!({ "application/json": { "schema": { "type": "object" } } }), errors::OPEN),
        } },
    })
}

fn schema(name: &str) -> Value {
    json!({ "schema": reference(name) })
}

fn stream(chunk: &str) -> Value {
    let description = format!(
        "One of the server-sent events: a `{chunk}`, `{{\"error\": …}}` if the request fails after its first token, and at last `[DONE]`. \
         Lines that begin with a colon only say that the answer is being worked on."
    );
    let json = json!({ "anyOf": [reference(chunk), reference("Error")] });
    let said = json!({ "type": "string", "contentMediaType": "application/json", "contentSchema": json });
    let event = json!({ "event": { "const": "message" }, "data": { "anyOf": [{ "const": "[DONE]" }, said] } });
    json!({ "schema": { "type": "object", "properties": event, "required": ["data"], "description": description } })
}

fn body(name: &str) -> Value {
    json!({ "required": true, "content": { "application/json": schema(name) } })
}

/// A reference to a schema.
fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

/// An object of exactly these fields.
fn object(properties: Value, required: &[&str]) -> Value {
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

fn common_parameters(own: &[Value]) -> Value {
    let common = ["RequestId", "TraceParent"].map(|name| json!({ "$ref": format!("#/components/parameters/{name}") }));
    own.iter().chain(&common).cloned().collect()
}

fn parameters() -> Value {
    json!({
        "RequestId": {
            "name": "x-request-id",
            "in": "header",
            "description": "The client's id of the request, under which it may be aborted. Without one, or with an empty one, the router makes \
                one. It is on every answer.",
            "schema": { "type": "string", "pattern": "^[!-~]{0,256}$" },
        },
        "TraceParent": {
            "name": "traceparent",
            "in": "header",
            "description": "The W3C trace context of the caller. One that is not valid is left out, as its standard asks.",
            "schema": { "type": "string" },
        },
    })
}
