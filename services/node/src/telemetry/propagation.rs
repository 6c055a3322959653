//! W3C trace context, as it travels in Open and in HTTP headers.

use std::collections::HashMap;

use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::TraceContextExt;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

const HEADER: &str = "traceparent";

/// The span's `traceparent`; empty if spans are not exported.
#[must_use]
pub fn current(span: &Span) -> String {
    let mut carrier = HashMap::new();
    TraceContextPropagator::new().inject_context(&span.context(), &mut carrier);
    carrier.remove(HEADER).unwrap_or_default()
}

/// Makes the span a child of the one that `traceparent` names. One that cannot be read changes nothing. Call it before
/// the span is entered.
pub fn follow(span: &Span, traceparent: &str) {
    let carrier = HashMap::from([(HEADER.to_owned(), traceparent.to_owned())]);
    let parent = TraceContextPropagator::new().extract(&carrier);
    if parent.span().span_context().is_valid() {
        // Without an exporter there is nothing to set.
        let _ = span.set_parent(parent);
    }
}
