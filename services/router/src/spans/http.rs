//! The span of an HTTP request, with the names of OpenTelemetry's conventions for HTTP servers and for generative AI.

use std::sync::{Mutex, PoisonError};

use innkeeper_node::telemetry::{Kept, Tracer, failed, parse, text};
use opentelemetry::KeyValue;
use opentelemetry::trace::{Span as _, SpanKind};

use crate::front::{RequestEnd, Route, ServerSpan};

/// Ends with its last holder: the handler, or the body of the answer.
pub(super) struct HttpSpan {
    span: Mutex<Kept>,
}

impl HttpSpan {
    pub(super) fn begin(tracer: &Tracer, route: Route, rid: &str, model: &str, caller: Option<&str>) -> Self {
        let (path, operation) = match route {
            Route::Chat => ("/v1/chat/completions", "chat"),
            Route::Completions => ("/v1/completions", "text_completion"),
        };
        let attributes = vec![
            KeyValue::new("http.request.method", "POST"),
            KeyValue::new("http.route", path),
            KeyValue::new("url.path", path),
            KeyValue::new("url.scheme", "http"),
            KeyValue::new("gen_ai.operation.name", operation),
            KeyValue::new("gen_ai.provider.name", "innkeeper"),
            KeyValue::new("gen_ai.request.model", model.to_owned()),
            KeyValue::new("gen_ai.response.model", model.to_owned()),
            KeyValue::new("innkeeper.rid", rid.to_owned()),
        ];
        let parent = caller.and_then(parse);
        let span = tracer.span(format!("POST {path}"), SpanKind::Server, parent.as_ref(), attributes);
        Self { span: Mutex::new(span) }
    }

    fn span(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.span.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ServerSpan for HttpSpan {
    fn traceparent(&self) -> String {
        text(self.span().span_context())
    }

    fn status(&self, status: u16) {
        self.span()
            .set_attribute(KeyValue::new("http.response.status_code", i64::from(status)));
    }

    fn ended(&self, end: &RequestEnd) {
        let mut span = self.span();
        let whole = |tokens: u64| i64::try_from(tokens).unwrap_or(i64::MAX);
        span.set_attributes([
            KeyValue::new("gen_ai.usage.input_tokens", whole(end.prompt_tokens)),
            KeyValue::new("gen_ai.usage.output_tokens", whole(end.completion_tokens)),
            KeyValue::new("innkeeper.outcome", end.outcome),
        ]);
        if end.outcome != "done" {
            span.set_attribute(KeyValue::new("error.type", end.outcome));
        }
        // What a client did wrong is no error of this server.
        if !matches!(end.outcome, "done" | "refused") {
            failed(&mut span, end.outcome);
        }
    }
}

impl Drop for HttpSpan {
    fn drop(&mut self) {
        self.span().end();
    }
}
