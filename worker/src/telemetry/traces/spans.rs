//! The spans of a task, with the attributes that the semantic conventions of OpenTelemetry define for
//! messaging systems and databases. Attributes that these do not define begin with `pgmill.`.
//!
//! Points in time come from the database clock.

use std::time::Instant;

use jiff::Timestamp;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::trace::v1::span::{Link, SpanKind};
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{Span, Status};
use queue::lost_attempts::LostAttempt;
use queue::{Claim, Disposition, Outcome, RunId, TaskId, WorkerId, scan};

use crate::telemetry::traces::ids::{Parent, SpanId, TraceId};
use crate::telemetry::traces::task_trace::{StatementRun, TaskTrace};

/// Value of `messaging.system`.
const SYSTEM: &str = "pgmill";

/// The trace is sampled.
const SAMPLED: u32 = 1;
/// It is known whether the parent, or the span that a link names, is in another process.
const REMOTE_KNOWN: u32 = 0x100;
/// It is.
const REMOTE: u32 = 0x200;

/// Commands that `db.operation.name` can name. A word that is not a command may be anything, and is
/// not exported.
const OPERATIONS: [&str; 26] = [
    "ALTER", "ANALYZE", "CALL", "CLUSTER", "COMMENT", "COPY", "CREATE", "DELETE", "DO", "DROP",
    "EXPLAIN", "GRANT", "INSERT", "LOCK", "MERGE", "NOTIFY", "REFRESH", "REINDEX", "REVOKE",
    "SELECT", "SET", "TRUNCATE", "UPDATE", "VACUUM", "VALUES", "WITH",
];

/// An attempt that has ended.
pub(super) struct Attempt<'a> {
    pub(super) trace: TraceId,
    pub(super) parent: Parent,
    pub(super) span: SpanId,
    pub(super) task: TaskId,
    pub(super) attempt: u32,
    pub(super) queue: &'a str,
    pub(super) name: Option<&'a str>,
    pub(super) run: Option<RunId>,
    /// The worker that ran the attempt.
    pub(super) worker: WorkerId,
    pub(super) enqueued_at: Timestamp,
    pub(super) started_at: Timestamp,
    pub(super) finished_at: Timestamp,
    pub(super) disposition: Disposition,
    pub(super) sqlstate: Option<&'a str>,
}

impl<'a> Attempt<'a> {
    /// Returns the attempt of this claim, which has ended now.
    pub(super) fn of_claim(
        trace: &TaskTrace,
        (claim, worker): (&'a Claim, WorkerId),
        disposition: Disposition,
        sqlstate: Option<&'a str>,
    ) -> Self {
        let span = match disposition {
            // The next attempt has the same number, because this attempt is not counted.
            Disposition::Released => SpanId::random(),
            _ => SpanId::of_attempt(trace.trace, claim.id(), claim.attempt()),
        };
        Self {
            trace: trace.trace,
            parent: trace.parent,
            span,
            task: claim.id(),
            attempt: claim.attempt(),
            queue: claim.queue(),
            name: claim.name(),
            run: claim.run(),
            worker,
            enqueued_at: claim.enqueued_at(),
            started_at: trace.time(claim, trace.started),
            finished_at: trace.time(claim, Instant::now()),
            disposition,
            sqlstate,
        }
    }

    /// Returns the attempt that ended because its worker died.
    pub(super) fn of_lost(trace: TraceId, parent: Parent, lost: &'a LostAttempt) -> Self {
        Self {
            trace,
            parent,
            span: SpanId::of_attempt(trace, lost.task, lost.attempt),
            task: lost.task,
            attempt: lost.attempt,
            queue: &lost.queue,
            name: lost.name.as_deref(),
            run: lost.run,
            worker: lost.worker,
            enqueued_at: lost.enqueued_at,
            started_at: lost.started_at,
            finished_at: lost.finished_at,
            disposition: match lost.last {
                true => Disposition::Finished(lost.outcome),
                false => Disposition::Retried(lost.outcome),
            },
            sqlstate: None,
        }
    }

    /// Returns the span of the attempt, and with the first attempt that of the enqueue if the caller
    /// has none.
    pub(super) fn spans(&self) -> impl Iterator<Item = Span> {
        let counted = self.disposition != Disposition::Released;
        let first = counted && self.attempt == 1 && !self.parent.of_caller;
        first.then(|| self.enqueue()).into_iter().chain([self.process()])
    }

    fn process(&self) -> Span {
        let (outcome, retried) = match self.disposition {
            Disposition::Finished(outcome) => (outcome.as_str(), false),
            Disposition::Retried(outcome) => (outcome.as_str(), true),
            Disposition::Released => ("released", true),
            Disposition::Lost => ("lost", true),
        };
        let failed = !matches!(
            self.disposition,
            Disposition::Finished(Outcome::Succeeded) | Disposition::Released
        );
        let mut attributes = messaging(self.queue, self.task);
        attributes.extend([
            attribute("messaging.operation.name", "process"),
            attribute("messaging.operation.type", "process"),
            attribute("messaging.client.id", self.worker.to_string()),
            attribute("pgmill.task.attempt", i64::from(self.attempt)),
            attribute("pgmill.attempt.outcome", outcome),
            attribute("pgmill.attempt.retried", retried),
        ]);
        attributes.extend(self.name.map(|name| attribute("pgmill.task.name", name.to_owned())));
        attributes.extend(self.run.map(|run| attribute("pgmill.run.id", run.0)));
        if failed {
            attributes.push(attribute("error.type", self.sqlstate.unwrap_or(outcome).to_owned()));
        }
        let before = (self.attempt > 1).then(|| Link {
            trace_id: self.trace.0.to_vec(),
            span_id: SpanId::of_attempt(self.trace, self.task, self.attempt - 1).0.to_vec(),
            flags: SAMPLED | REMOTE_KNOWN | REMOTE,
            ..Link::default()
        });
        Span {
            name: format!("process {}", self.queue),
            kind: SpanKind::Consumer.into(),
            attributes,
            links: before.into_iter().collect(),
            status: Some(status(failed)),
            flags: SAMPLED | REMOTE_KNOWN | REMOTE,
            ..span(
                self.trace,
                self.span,
                Some(self.parent.span),
                (self.started_at, self.finished_at),
            )
        }
    }

    fn enqueue(&self) -> Span {
        let mut attributes = messaging(self.queue, self.task);
        attributes.extend([
            attribute("messaging.operation.name", "send"),
            attribute("messaging.operation.type", "send"),
        ]);
        Span {
            name: format!("send {}", self.queue),
            kind: SpanKind::Producer.into(),
            attributes,
            flags: SAMPLED | REMOTE_KNOWN,
            ..span(self.trace, self.parent.span, None, (self.enqueued_at, self.enqueued_at))
        }
    }
}

/// Returns the span from the due time of the task to its claim.
pub(super) fn wait_span(trace: TraceId, parent: SpanId, claim: &Claim) -> Span {
    let mut attributes = messaging(claim.queue(), claim.id());
    attributes.push(attribute("pgmill.task.attempt", i64::from(claim.attempt())));
    Span {
        name: format!("wait {}", claim.queue()),
        kind: SpanKind::Internal.into(),
        attributes,
        flags: SAMPLED | REMOTE_KNOWN | REMOTE,
        ..span(trace, SpanId::random(), Some(parent), (claim.due_at(), claim.claimed_at()))
    }
}

/// Returns the span of the statement. `text`: the text, if it is exported.
pub(super) fn statement_span(
    trace: &TaskTrace,
    attempt: SpanId,
    ran: &StatementRun,
    (claim, text): (&Claim, Option<&str>),
) -> Span {
    let operation = operation(claim.statement());
    let name = operation.map(|name| format!("{name} {}", ran.database));
    let mut attributes = vec![
        attribute("db.system.name", "postgresql"),
        attribute("db.namespace", ran.database.clone()),
    ];
    if let Some(server) = &ran.server {
        attributes.push(attribute("server.address", server.address.clone()));
        attributes.extend(server.port.map(|port| attribute("server.port", i64::from(port))));
    }
    attributes.extend(operation.map(|name| attribute("db.operation.name", name)));
    attributes.extend(text.map(|text| attribute("db.query.text", text.to_owned())));
    let rows = ran.rows.and_then(|rows| i64::try_from(rows).ok());
    attributes.extend(rows.map(|rows| attribute("pgmill.statement.rows", rows)));
    match ran.error.as_deref() {
        None => {}
        Some("") => attributes.push(attribute("error.type", "connection_lost")),
        Some(sqlstate) => attributes.extend([
            attribute("db.response.status_code", sqlstate.to_owned()),
            attribute("error.type", sqlstate.to_owned()),
        ]),
    }
    let times = (trace.time(claim, ran.begun), trace.time(claim, ran.ended));
    Span {
        name: name.unwrap_or_else(|| ran.database.clone()),
        kind: SpanKind::Client.into(),
        attributes,
        status: Some(status(ran.error.is_some())),
        flags: SAMPLED | REMOTE_KNOWN,
        ..span(trace.trace, trace.statement_id, Some(attempt), times)
    }
}

/// Returns the command of a single statement.
fn operation(sql: &str) -> Option<&'static str> {
    let [statement] = &scan::statements(sql)[..] else { return None };
    let command = statement.leading_words().next()?;
    OPERATIONS.into_iter().find(|name| name.eq_ignore_ascii_case(command))
}

fn messaging(queue: &str, task: TaskId) -> Vec<KeyValue> {
    vec![
        attribute("messaging.system", SYSTEM),
        attribute("messaging.destination.name", queue.to_owned()),
        attribute("messaging.message.id", task.to_string()),
    ]
}

fn span(
    trace: TraceId,
    id: SpanId,
    parent: Option<SpanId>,
    (start, end): (Timestamp, Timestamp),
) -> Span {
    Span {
        trace_id: trace.0.to_vec(),
        span_id: id.0.to_vec(),
        parent_span_id: parent.map(|parent| parent.0.to_vec()).unwrap_or_default(),
        start_time_unix_nano: nanoseconds(start),
        end_time_unix_nano: nanoseconds(end.max(start)),
        ..Span::default()
    }
}

fn nanoseconds(time: Timestamp) -> u64 {
    time.as_nanosecond().try_into().unwrap_or_default()
}

fn status(failed: bool) -> Status {
    let code = if failed { StatusCode::Error } else { StatusCode::Unset };
    Status { code: code.into(), ..Status::default() }
}

/// Returns an attribute.
pub(super) fn attribute(key: &str, value: impl Into<opentelemetry::Value>) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(value.into().into()), ..KeyValue::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_commands_are_named() {
        assert_eq!(operation(" /* x */ select secret"), Some("SELECT"));
        assert_eq!(operation("Insert INTO t VALUES (1);"), Some("INSERT"));
        assert_eq!(operation("hunter2 x"), None);
        assert_eq!(operation("SELECT 1; SELECT 2"), None);
    }
}
