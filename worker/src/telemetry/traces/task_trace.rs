//! The trace of one claimed task.

use std::time::Instant;

use conninfo::{ConnectionTarget, ServerAddress};
use jiff::{SignedDuration, Timestamp};
use queue::Claim;

use crate::telemetry::traces::ids::{Parent, SpanId, TraceId};

/// What a reader measures of a traced task.
pub(crate) struct TaskTrace {
    pub(super) trace: TraceId,
    pub(super) parent: Parent,
    /// Id of the span of the statement. It is known before the statement is sent.
    pub(super) statement_id: SpanId,
    /// When the worker received the claim.
    claimed: Instant,
    pub(super) started: Instant,
    pub(super) statement: Option<StatementRun>,
}

/// One execution of the task's statement.
pub(super) struct StatementRun {
    /// Name of the database.
    pub(super) database: String,
    /// Address of the server; `None` if the login has several hosts.
    pub(super) server: Option<ServerAddress>,
    pub(super) begun: Instant,
    pub(super) ended: Instant,
    pub(super) rows: Option<u64>,
    /// SQLSTATE of its error; empty if the error has none.
    pub(super) error: Option<String>,
}

impl TaskTrace {
    pub(super) fn new(trace: TraceId, parent: Parent) -> Self {
        let now = Instant::now();
        let statement_id = SpanId::random();
        Self { trace, parent, statement_id, claimed: now, started: now, statement: None }
    }

    /// Returns the trace id as hexadecimal digits.
    pub(crate) fn trace_id(&self) -> String {
        self.trace.hex()
    }

    /// Records that the attempt starts. In a shared commit, its statement has run already.
    pub(super) fn start(&mut self) {
        self.started = self.statement.as_ref().map_or_else(Instant::now, |ran| ran.begun);
    }

    /// Records an execution of the statement, which is the last one so far. `error`: the SQLSTATE if
    /// it failed.
    pub(crate) fn statement_ran(
        &mut self,
        target: &ConnectionTarget,
        (begun, ended): (Instant, Instant),
        rows: Option<u64>,
        error: Option<&str>,
    ) {
        let (database, server) = (target.dbname().to_owned(), target.server_address());
        let error = error.map(str::to_owned);
        self.statement = Some(StatementRun { database, server, begun, ended, rows, error });
    }

    /// Returns the point in time by the database clock: the time of the claim, plus the time since
    /// then that this process measured.
    pub(super) fn time(&self, claim: &Claim, at: Instant) -> Timestamp {
        let since = SignedDuration::try_from(at.saturating_duration_since(self.claimed));
        let since = since.unwrap_or_default();
        claim.claimed_at().checked_add(since).unwrap_or(claim.claimed_at())
    }
}
