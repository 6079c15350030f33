//! The requests of the load with their replies.

use anyhow::Result;
use tokio_postgres::Client;

/// Kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    /// Enqueue a task.
    Enqueue,
    /// Start a run.
    StartRun,
    /// Cancel a task.
    Cancel,
    /// Retry an ended task.
    Retry,
    /// Restart an ended run.
    RestartRun,
}

/// Kind of reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The operation was executed.
    Ok,
    /// The operation was refused and had no effect.
    Refused,
    /// The reply was lost. The operation may have been executed or not.
    Unknown,
}

/// One operation of the load: a row of `chaos.ops`.
#[derive(Clone, Debug)]
pub struct Op {
    /// Kind of request.
    pub what: OpKind,
    /// Kind of reply.
    pub answer: Answer,
    /// Status word in the reply.
    pub reply: Option<String>,
    /// Name of the task, or the parameter `op` of the run.
    pub name: Option<String>,
    /// Deduplication key.
    pub key: Option<String>,
    /// Task in the reply or in the request.
    pub task: Option<i64>,
    /// Run id.
    pub run: Option<i64>,
}

impl Op {
    /// Creates an operation with only request and reply.
    #[must_use]
    pub fn new(what: OpKind, answer: Answer) -> Self {
        Self { what, answer, reply: None, name: None, key: None, task: None, run: None }
    }
}

impl OpKind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Enqueue => "enqueue",
            Self::StartRun => "start_run",
            Self::Cancel => "cancel",
            Self::Retry => "retry",
            Self::RestartRun => "restart_run",
        }
    }
}

impl Answer {
    fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Refused => "refused",
            Self::Unknown => "unknown",
        }
    }
}

/// Copies operations into `chaos.ops` in order. Call this once at the end, from memory.
///
/// # Errors
/// Returns an error if a statement fails.
pub async fn record(client: &Client, ops: &[Op]) -> Result<()> {
    const INSERT: &str = "INSERT /* checker.record */ INTO chaos.ops (what, answer, reply, name, key, task, run)
        SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[],
            $7::bigint[])";
    for ops in ops.chunks(10_000) {
        let whats: Vec<&str> = ops.iter().map(|op| op.what.as_str()).collect();
        let answers: Vec<&str> = ops.iter().map(|op| op.answer.as_str()).collect();
        let reply: Vec<Option<&str>> = ops.iter().map(|op| op.reply.as_deref()).collect();
        let names: Vec<Option<&str>> = ops.iter().map(|op| op.name.as_deref()).collect();
        let keys: Vec<Option<&str>> = ops.iter().map(|op| op.key.as_deref()).collect();
        let tasks: Vec<Option<i64>> = ops.iter().map(|op| op.task).collect();
        let runs: Vec<Option<i64>> = ops.iter().map(|op| op.run).collect();
        client.execute(INSERT, &[&whats, &answers, &reply, &names, &keys, &tasks, &runs]).await?;
    }
    Ok(())
}
