//! Spans that have ended wait here for the collector. Whoever ends a span never waits: what does not fit is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use opentelemetry::Context;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Span, SpanData, SpanExporter, SpanProcessor};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout, timeout_at};

/// Spans that wait for the collector; more are dropped.
const WAITING: usize = 4096;
/// Spans in one export.
const BATCH: usize = 512;
/// One export may take this long; a collector that is slower loses spans.
pub(super) const EXPORT_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a span waits for others to travel with.
const GATHER: Duration = Duration::from_millis(500);

/// What became of this node's spans.
#[derive(Debug, Default)]
pub struct SpanCounts {
    exported: AtomicU64,
    /// They found no place in the queue.
    overflown: AtomicU64,
    /// The collector did not take them.
    failed: AtomicU64,
}

impl SpanCounts {
    /// By what became of them: `exported`, `queue_full`, `export_failed`.
    #[must_use]
    pub fn get(&self) -> [(&'static str, u64); 3] {
        [
            ("exported", self.exported.load(Ordering::Relaxed)),
            ("queue_full", self.overflown.load(Ordering::Relaxed)),
            ("export_failed", self.failed.load(Ordering::Relaxed)),
        ]
    }
}

/// The way in: where the SDK puts spans that have ended.
#[derive(Debug)]
pub(super) struct Queue {
    spans: mpsc::Sender<SpanData>,
    counts: Arc<SpanCounts>,
}

impl SpanProcessor for Queue {
    fn on_start(&self, _span: &mut Span, _context: &Context) {}

    fn on_end(&self, span: SpanData) {
        if self.spans.try_send(span).is_err() {
            self.counts.overflown.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _timeout: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// Asks for everything that waits to be exported; answered when it is, or failed.
pub(super) type Flush = mpsc::Sender<oneshot::Sender<()>>;

/// Starts the task behind a queue. It ends with the queue.
pub(super) fn start<E: SpanExporter + 'static>(exporter: E, counts: Arc<SpanCounts>) -> (Queue, Flush) {
    let (spans, waiting) = mpsc::channel(WAITING);
    let (flush, flushes) = mpsc::channel(1);
    let pump = Pump {
        waiting,
        flushes,
        exporter,
        counts: Arc::clone(&counts),
        failing: false,
    };
    // Not one of the node's own tasks: it outlives the drain, to export what the drain did.
    tokio::spawn(pump.run());
    (Queue { spans, counts }, flush)
}

struct Pump<E> {
    waiting: mpsc::Receiver<SpanData>,
    flushes: mpsc::Receiver<oneshot::Sender<()>>,
    exporter: E,
    counts: Arc<SpanCounts>,
    /// The last export failed: that is said once, and not for each.
    failing: bool,
}

impl<E: SpanExporter> Pump<E> {
    async fn run(mut self) {
        loop {
            let mut batch = Vec::with_capacity(BATCH);
            tokio::select! {
                // No deadline: without spans there is nothing to do.
                taken = self.waiting.recv_many(&mut batch, BATCH) => {
                    if taken == 0 {
                        return;
                    }
                    let asked = self.gather(&mut batch).await;
                    self.export(batch).await;
                    if let Some(asker) = asked {
                        self.flush(asker).await;
                    }
                }
                Some(asker) = self.flushes.recv() => self.flush(asker).await,
            }
        }
    }

    /// Waits for more spans, not long, and not once somebody wants them out.
    async fn gather(&mut self, batch: &mut Vec<SpanData>) -> Option<oneshot::Sender<()>> {
        let end = Instant::now() + GATHER;
        while batch.len() < BATCH {
            let left = BATCH - batch.len();
            tokio::select! {
                more = timeout_at(end, self.waiting.recv_many(batch, left)) => {
                    if !matches!(more, Ok(taken) if taken > 0) {
                        break;
                    }
                }
                asker = self.flushes.recv() => return asker,
            }
        }
        None
    }

    async fn flush(&mut self, asker: oneshot::Sender<()>) {
        loop {
            let mut batch = Vec::with_capacity(BATCH);
            while batch.len() < BATCH
                && let Ok(span) = self.waiting.try_recv()
            {
                batch.push(span);
            }
            if batch.is_empty() || asker.is_closed() {
                break;
            }
            self.export(batch).await;
        }
        // An asker that gave up is no failure of ours.
        let _ = asker.send(());
    }

    async fn export(&mut self, batch: Vec<SpanData>) {
        let spans = batch.len() as u64;
        let exported = match timeout(EXPORT_TIMEOUT, self.exporter.export(batch)).await {
            Ok(exported) => exported.map_err(|error| error.to_string()),
            Err(_) => Err(format!("no answer within {EXPORT_TIMEOUT:?}")),
        };
        match exported {
            Ok(()) => {
                self.counts.exported.fetch_add(spans, Ordering::Relaxed);
                if std::mem::take(&mut self.failing) {
                    tracing::info!("the collector takes spans again");
                }
            }
            Err(why) => {
                self.counts.failed.fetch_add(spans, Ordering::Relaxed);
                if std::mem::replace(&mut self.failing, true) {
                    tracing::debug!(why, spans, "the collector took no spans");
                } else {
                    tracing::warn!(
                        why,
                        spans,
                        "the collector took no spans: they are lost, and so are others until it does"
                    );
                }
            }
        }
    }
}
