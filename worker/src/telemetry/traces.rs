//! Traces: exports spans of tasks by OTLP. docs/tracing.md lists the spans and their attributes.
//!
//! `sampler` selects the tasks that are traced, when they are claimed. `task_trace` collects the times
//! of a traced task, `spans` makes its spans, with the ids of `ids`, and `exporter` sends them.
//! Without `--otlp-endpoint`, no task is traced.

pub(crate) mod exporter;
mod ids;
pub(crate) mod sampler;
mod spans;
pub(crate) mod task_trace;

use opentelemetry_proto::tonic::trace::v1::Span;
use queue::lost_attempts::LostAttempt;
use queue::server::Server;
use queue::{Claim, Disposition, TaskId, Traceparent, WorkerId};
use tokio::sync::mpsc;

use crate::telemetry::traces::exporter::SpanCounts;
use crate::telemetry::traces::ids::{Parent, SpanId, TraceId, traceparent};
use crate::telemetry::traces::sampler::Sampler;
use crate::telemetry::traces::spans::{Attempt, statement_span, wait_span};
use crate::telemetry::traces::task_trace::TaskTrace;

/// The traces of this worker.
#[derive(Default)]
pub(crate) struct Traces {
    tracer: Option<Tracer>,
    /// Whether statements get a comment with the trace context.
    comments: bool,
}

/// Traces tasks, and passes their spans to the exporter.
pub(crate) struct Tracer {
    pub(crate) sampler: Sampler,
    /// Ratio of the traces that a sampler with a ratio samples.
    pub(crate) ratio: f64,
    /// Whether spans contain the texts of statements.
    pub(crate) statements: bool,
    pub(crate) worker: WorkerId,
    pub(crate) spans: mpsc::Sender<Span>,
    pub(crate) counts: SpanCounts,
}

impl Traces {
    pub(crate) fn new(tracer: Option<Tracer>, comments: bool) -> Self {
        Self { tracer, comments }
    }

    /// Returns whether tasks can be traced.
    pub(crate) fn enabled(&self) -> bool {
        self.tracer.is_some()
    }

    /// Begins the trace of a claimed task; returns `None` if the task is not traced. `server`: returns
    /// the server of the queue.
    pub(crate) fn begin(
        &self,
        claim: &mut Claim,
        server: impl FnOnce() -> Option<Server>,
    ) -> Option<Box<TaskTrace>> {
        if self.tracer.is_none() && !self.comments {
            return None;
        }
        let tracer = self.tracer.as_ref();
        let trace = tracer.and_then(|tracer| tracer.begin(claim, server).map(Box::new));
        if self.comments {
            let of_statement = trace.as_ref().and_then(|it| traceparent(it.trace, it.statement_id));
            if let Some(context) = of_statement.or_else(|| claim.traceparent().cloned()) {
                claim.set_trace_comment(&context);
            }
        }
        trace
    }

    /// Records that the attempt starts, which ends the wait of the task.
    pub(crate) fn attempt_started(&self, trace: Option<&mut Box<TaskTrace>>, claim: &Claim) {
        if let (Some(tracer), Some(trace)) = (&self.tracer, trace) {
            trace.start();
            tracer.send(wait_span(trace.trace, trace.parent.span, claim));
        }
    }

    /// Records the end of an attempt, after its result is recorded in the queue. An attempt whose
    /// claim was lost is reported by the worker that has reclaimed the task.
    pub(crate) fn attempt_ended(
        &self,
        trace: Option<Box<TaskTrace>>,
        claim: &Claim,
        disposition: Disposition,
        sqlstate: Option<&str>,
    ) {
        if let (Some(tracer), Some(trace)) = (&self.tracer, trace)
            && disposition != Disposition::Lost
        {
            tracer.attempt_ended(&trace, claim, disposition, sqlstate);
        }
    }

    /// Records the attempts of a dead worker.
    pub(crate) fn attempts_lost(&self, attempts: &[LostAttempt], server: Option<Server>) {
        let Some(tracer) = &self.tracer else { return };
        for lost in attempts {
            if let Some((trace, parent)) = tracer.sample(lost.task, lost.caller.as_ref(), || server)
            {
                Attempt::of_lost(trace, parent, lost).spans().for_each(|span| tracer.send(span));
            }
        }
    }
}

impl Tracer {
    fn begin(&self, claim: &Claim, server: impl FnOnce() -> Option<Server>) -> Option<TaskTrace> {
        let (trace, parent) = self.sample(claim.id(), claim.traceparent(), server)?;
        Some(TaskTrace::new(trace, parent))
    }

    /// Returns the trace of the task and the parent of its spans; `None` if the task is not sampled.
    fn sample(
        &self,
        task: TaskId,
        caller: Option<&Traceparent>,
        server: impl FnOnce() -> Option<Server>,
    ) -> Option<(TraceId, Parent)> {
        let (trace, parent) = match caller {
            Some(caller) => {
                let parent = Parent { span: SpanId::of_caller(caller), of_caller: true };
                (TraceId::of_caller(caller), parent)
            }
            None => {
                let trace = TraceId::of_task(server()?.database_id(), task);
                (trace, Parent { span: SpanId::of_enqueue(trace, task), of_caller: false })
            }
        };
        self.sampler.samples(self.ratio, trace, caller).then_some((trace, parent))
    }

    fn attempt_ended(
        &self,
        trace: &TaskTrace,
        claim: &Claim,
        disposition: Disposition,
        sqlstate: Option<&str>,
    ) {
        let attempt = Attempt::of_claim(trace, (claim, self.worker), disposition, sqlstate);
        if let Some(ran) = &trace.statement {
            let text = self.statements.then(|| claim.statement());
            self.send(statement_span(trace, attempt.span, ran, (claim, text)));
        }
        attempt.spans().for_each(|span| self.send(span));
    }

    /// Passes the span to the exporter, or drops the span if the exporter does not keep up.
    fn send(&self, span: Span) {
        if self.spans.try_send(span).is_err() {
            self.counts.dropped(1, &"more spans than the exporter can send");
        }
    }
}
