//! What the load asked for and was answered.

use anyhow::Result;
use tokio_postgres::Client;

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    /// A task.
    Enqueue,
    /// A run.
    StartRun,
    /// The end of a task.
    Cancel,
    /// A task that has ended, again.
    Retry,
    /// A run that has ended, again.
    RestartRun,
}

/// What came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It happened.
    Ok,
    /// It did not happen.
    Refused,
    /// The answer was lost: either may be true.
    Unknown,
}

/// One operation of the load: a row of `chaos.ops`.
#[derive(Clone, Debug)]
pub struct Op {
    /// What.
    pub what: OpKind,
    /// Whether it happened.
    pub answer: Answer,
    /// The word that came back.
    pub reply: Option<String>,
    /// Of the task, or the parameter `op` of the run.
    pub name: Option<String>,
    /// Deduplication key.
    pub key: Option<String>,
    /// The task that the answer, or the operation, names.
    pub task: Option<i64>,
    /// The run.
    pub run: Option<i64>,
}

impl Op {
    /// With nothing but what and answer.
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

/// Copies operations into `chaos.ops`, in their order. Best done once, at the end, from memory.
///
/// # Errors
/// Database trouble.
pub async fn record(client: &Client, ops: &[Op]) -> Result<()> {
    const INSERT: &str = "/* checker.record */
        INSERT INTO chaos.ops (what, answer, reply, name, key, task, run)
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
