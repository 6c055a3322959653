//! A node's spans.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use innkeeper_room::{Incarnation, Role};
use opentelemetry::trace::{
    Link, Span as _, SpanBuilder, SpanContext, SpanKind, Status, TraceContextExt as _, Tracer as _, TracerProvider as _,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider, Span};
use tokio::sync::oneshot;

use super::queue::{self, Flush, SpanCounts};
use super::{TelemetryError, exporter};
use crate::config::TelemetryConfig;

/// A span that is kept until its end is known.
pub type Kept = Span;

/// Makes a node's spans. Cheap to clone; the task that exports ends with the last clone and the last span.
#[derive(Clone)]
pub struct Tracer(Arc<Inner>);

struct Inner {
    tracer: SdkTracer,
    counts: Arc<SpanCounts>,
    flush: Flush,
}

impl std::fmt::Debug for Tracer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tracer")
            .field("counts", &self.0.counts)
            .finish_non_exhaustive()
    }
}

impl Tracer {
    /// The tracer of one node; `None` if its configuration names no collector. Within a tokio runtime.
    ///
    /// # Errors
    /// [`TelemetryError::Exporter`] says what is wrong with the configuration.
    pub fn start(
        config: &TelemetryConfig,
        role: Role,
        name: &str,
        incarnation: Incarnation,
    ) -> Result<Option<Self>, TelemetryError> {
        let Some(otlp) = &config.otlp else { return Ok(None) };
        let mut exporter = exporter::build(otlp)?;
        let resource = Resource::builder()
            .with_service_name(format!("innkeeper-{role}"))
            .with_attributes([
                KeyValue::new("service.namespace", "innkeeper"),
                KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
                KeyValue::new("service.instance.id", incarnation.to_string()),
                KeyValue::new("innkeeper.node", name.to_owned()),
                KeyValue::new("process.pid", i64::from(std::process::id())),
            ])
            .build();
        opentelemetry_sdk::trace::SpanExporter::set_resource(&mut exporter, &resource);
        let counts = Arc::new(SpanCounts::default());
        let (queue, flush) = queue::start(exporter, Arc::clone(&counts));
        let provider = SdkTracerProvider::builder()
            .with_span_processor(queue)
            .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(otlp.ratio()))))
            .with_resource(resource)
            .build();
        Ok(Some(Self(Arc::new(Inner {
            tracer: provider.tracer("innkeeper"),
            counts,
            flush,
        }))))
    }

    /// Begins a span. Without a parent it begins a trace, which is sampled.
    #[must_use]
    pub fn span(
        &self,
        name: impl Into<Cow<'static, str>>,
        kind: SpanKind,
        parent: Option<&SpanContext>,
        attributes: Vec<KeyValue>,
    ) -> Kept {
        self.build(
            SpanBuilder::from_name(name).with_kind(kind).with_attributes(attributes),
            parent,
        )
    }

    /// Begins a span within this node that began at `since`, or now.
    #[must_use]
    pub fn step(
        &self,
        name: &'static str,
        parent: &SpanContext,
        since: Option<SystemTime>,
        link: Option<(SpanContext, &'static str)>,
        attributes: Vec<KeyValue>,
    ) -> Kept {
        let mut builder = SpanBuilder::from_name(name)
            .with_kind(SpanKind::Internal)
            .with_attributes(attributes);
        if let Some(since) = since {
            builder = builder.with_start_time(since);
        }
        if let Some((context, what)) = link {
            builder = builder.with_links(vec![Link::new(context, vec![KeyValue::new("innkeeper.link", what)], 0)]);
        }
        self.build(builder, Some(parent))
    }

    fn build(&self, builder: SpanBuilder, parent: Option<&SpanContext>) -> Kept {
        // Never the thread's own: an actor's thread has none, or another's.
        let mut context = Context::new();
        if let Some(parent) = parent {
            context = context.with_remote_span_context(parent.clone());
        }
        self.0.tracer.build_with_context(builder, &context)
    }

    /// What became of the spans.
    #[must_use]
    pub fn counts(&self) -> &Arc<SpanCounts> {
        &self.0.counts
    }

    /// Exports what waits, within `limit`.
    pub async fn flush(&self, limit: Duration) {
        let flush = async {
            let (done, flushed) = oneshot::channel();
            self.0.flush.send(done).await.ok()?;
            flushed.await.ok()
        };
        if !matches!(tokio::time::timeout(limit, flush).await, Ok(Some(()))) {
            tracing::warn!("the last spans were not exported in time");
        }
    }
}

/// Says that a span failed, and why.
pub fn failed(span: &mut Kept, why: impl Into<Cow<'static, str>>) {
    span.set_status(Status::error(why));
}
