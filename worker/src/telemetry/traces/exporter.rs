//! Sends spans to a receiver of OTLP over HTTP, in batches.
//!
//! Tasks pass their spans on without waiting. If the receiver does not keep up, spans are dropped, and
//! counted.

use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, Instant};

use notification::Endpoint;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use parking_lot::Mutex;
use prometheus::IntCounterVec;
use prost::Message;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::telemetry::traces::spans::attribute;

/// Maximum number of spans that wait for the exporter, about 4 MB.
pub(crate) const MAX_WAITING: usize = 4096;
/// Maximum number of spans in a request.
const MAX_BATCH: usize = 512;
/// Time for which a batch waits for more spans.
const BATCH_DELAY: Duration = Duration::from_secs(1);
/// How often a batch is sent, if the receiver is unavailable.
const ATTEMPTS: u32 = 3;
/// Wait before the second attempt. The wait doubles with each further attempt.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum wait between two attempts, whatever the receiver asks for.
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(30);
/// Time for the last spans at the end of the worker.
const LAST_TIMEOUT: Duration = Duration::from_secs(2);
/// Minimum time between two warnings about dropped spans.
const WARNING_INTERVAL: Duration = Duration::from_secs(600);

/// Version of the semantic conventions of the attributes.
const SCHEMA_URL: &str = "https://opentelemetry.io/schemas/1.37.0";

/// Counts spans by what happened to them; clones share the counts.
#[derive(Clone)]
pub(crate) struct SpanCounts {
    counts: IntCounterVec,
    warned: Arc<Mutex<Option<Instant>>>,
}

impl SpanCounts {
    pub(crate) fn new(counts: IntCounterVec) -> Self {
        let it = Self { counts, warned: Arc::default() };
        it.count("exported", 0);
        it.count("dropped", 0);
        it
    }

    /// Counts dropped spans, and logs the reason unless one was logged recently.
    pub(crate) fn dropped(&self, spans: usize, reason: &dyn Display) {
        self.count("dropped", spans);
        let mut warned = self.warned.lock();
        if warned.is_none_or(|at| at.elapsed() >= WARNING_INTERVAL) {
            *warned = Some(Instant::now());
            tracing::warn!(%reason, "spans of traces are dropped");
        }
    }

    fn count(&self, result: &str, spans: usize) {
        let spans = u64::try_from(spans).unwrap_or(u64::MAX);
        self.counts.with_label_values(&[result]).inc_by(spans);
    }
}

/// Sends the spans of this worker.
pub(crate) struct Exporter {
    pub(crate) endpoint: Endpoint,
    /// Attributes of the resource that the spans describe.
    pub(crate) resource: Vec<(String, String)>,
    pub(crate) spans: mpsc::Receiver<Span>,
    pub(crate) counts: SpanCounts,
    /// Cancelled when all readers have finished.
    pub(crate) end: CancellationToken,
}

impl Exporter {
    /// Sends spans until the end of the worker, and then the last ones for a short time.
    pub(crate) async fn run(mut self) {
        let end = self.end.clone();
        let late = async {
            end.cancelled().await;
            sleep(LAST_TIMEOUT).await;
        };
        tokio::select! {
            () = self.export_all() => {}
            () = late => tracing::warn!("the receiver of traces is too slow, the last spans are dropped"),
        }
    }

    async fn export_all(&mut self) {
        let (end, mut batch) = (self.end.clone(), Vec::new());
        while end.run_until_cancelled(self.fill(&mut batch)).await.is_some() {
            self.export(std::mem::take(&mut batch)).await;
        }
        self.spans.close();
        while !batch.is_empty() || self.spans.recv_many(&mut batch, MAX_BATCH).await > 0 {
            self.export(std::mem::take(&mut batch)).await;
        }
    }

    /// Waits for a span, and then for more spans for a short time.
    async fn fill(&mut self, batch: &mut Vec<Span>) {
        if batch.is_empty() && self.spans.recv_many(batch, MAX_BATCH).await == 0 {
            // There are no senders any more.
            std::future::pending::<()>().await;
        }
        let more = async {
            while batch.len() < MAX_BATCH
                && self.spans.recv_many(batch, MAX_BATCH - batch.len()).await > 0
            {}
        };
        let _ = timeout(BATCH_DELAY, more).await;
    }

    /// Sends a batch. Drops the batch if the receiver refuses it, or stays unavailable.
    async fn export(&self, batch: Vec<Span>) {
        let spans = batch.len();
        let content = bytes::Bytes::from(self.request(batch).encode_to_vec());
        let mut wait = RETRY_INTERVAL;
        for attempt in 1.. {
            let Err(error) = self.endpoint.send(content.clone()).await else {
                self.counts.count("exported", spans);
                return;
            };
            if error.rejected || attempt == ATTEMPTS || self.end.is_cancelled() {
                self.counts.dropped(spans, &error);
                return;
            }
            let pause = error.retry_after.unwrap_or(wait).min(MAX_RETRY_INTERVAL);
            self.end.run_until_cancelled(sleep(pause)).await;
            wait *= 2;
        }
    }

    fn request(&self, spans: Vec<Span>) -> ExportTraceServiceRequest {
        let attributes = self.resource.iter().map(|(key, value)| attribute(key, value.clone()));
        let resource = Resource { attributes: attributes.collect(), ..Resource::default() };
        let scope = InstrumentationScope {
            name: "pgmill".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..InstrumentationScope::default()
        };
        ExportTraceServiceRequest {
            resource_spans: vec![ResourceSpans {
                resource: Some(resource),
                scope_spans: vec![ScopeSpans {
                    scope: Some(scope),
                    spans,
                    schema_url: String::new(),
                }],
                schema_url: SCHEMA_URL.to_owned(),
            }],
        }
    }
}
