//! Performs operator actions with the functions that `pgmill` calls, and records the replies.

use anyhow::Result;
use checker::{Answer, Op, OpKind};

use super::load_generator::KnownIds;
use super::plan::OperatorAction;
use crate::session::{Reply, Session};

/// An operator with a session.
pub(crate) struct Operator {
    pub(crate) session: Session,
    pub(crate) ops: Vec<Op>,
    pub(crate) operator_actions: usize,
}

/// Resumes every paused queue and every draining worker.
const RESUME_ALL: &str = "SELECT /* chaos.resume_all */ (SELECT count(mill.resume(q.name)) FROM mill.queues q WHERE q.paused),
    (SELECT count(mill.drain(w.id, false)) FROM mill.workers w WHERE w.draining)";

impl Operator {
    /// Creates an operator for the server that accepts writes.
    pub(crate) fn new(url: &str) -> Self {
        Self { session: Session::new(url, "chaos operator"), ops: Vec::new(), operator_actions: 0 }
    }

    /// Performs an action once. Another module performs deploys.
    ///
    /// # Errors
    /// Returns an error if no server is available for a minute.
    pub(crate) async fn act(&mut self, act: &OperatorAction, known: &KnownIds) -> Result<()> {
        self.operator_actions += 1;
        match act {
            OperatorAction::Cancel { draw } => {
                // Most of the known tasks have ended, so choose a live task every other time.
                let task = if draw % 2 == 0 { known.task(*draw) } else { self.live(*draw).await? };
                self.task(OpKind::Cancel, "cancel", task).await?;
            }
            OperatorAction::Retry { draw } => {
                self.task(OpKind::Retry, "retry", known.task(*draw)).await?;
            }
            OperatorAction::CancelMany { queue, count } => self.cancel_many(queue, *count).await?,
            OperatorAction::CancelRun { draw, kill } => {
                if let Some(run) = known.run(*draw) {
                    self.session.ask(&format!("SELECT mill.cancel_run({run}, {kill})")).await?;
                }
            }
            OperatorAction::RestartRun { draw } => self.restart(known.run(*draw)).await?,
            OperatorAction::Pause { queue } => {
                self.execute(&format!("SELECT mill.pause('{queue}')")).await?;
            }
            OperatorAction::Resume => {
                self.execute("SELECT mill.resume(q.name) FROM mill.queues q WHERE q.paused")
                    .await?;
            }
            OperatorAction::Drain => {
                self.execute("SELECT mill.drain(w.id) FROM mill.workers w ORDER BY w.id LIMIT 1")
                    .await?;
            }
            OperatorAction::Undrain => {
                self.execute("SELECT mill.drain(w.id, false) FROM mill.workers w WHERE w.draining")
                    .await?;
            }
            OperatorAction::Limit { kind, name, max_running } => {
                self.execute(&format!(
                    "SELECT mill.set_max_running('{kind}', '{name}', {max_running})"
                ))
                .await?;
            }
            OperatorAction::SetSharedCommit { on } => {
                let budget = if *on { "'20 ms'" } else { "NULL" };
                let queue = super::work_item::SHARED;
                self.execute(&format!("SELECT mill.set_shared_commit('{queue}', {budget})"))
                    .await?;
            }
            OperatorAction::Deploy { .. } => {}
        }
        Ok(())
    }

    /// Undoes everything that keeps the fleet from working.
    ///
    /// # Errors
    /// Returns an error if there is no reply for a minute.
    pub(crate) async fn resume_all(&mut self) -> Result<()> {
        self.session.until_answered(RESUME_ALL).await.map(drop)
    }

    /// Runs a statement whose reply is not needed.
    async fn execute(&mut self, sql: &str) -> Result<()> {
        self.session.ask(sql).await.map(drop)
    }

    async fn task(&mut self, what: OpKind, function: &str, task: Option<i64>) -> Result<()> {
        let Some(task) = task else { return Ok(()) };
        let reply = self.session.ask(&format!("SELECT mill.{function}({task})")).await?;
        let op = |answer| Op { task: Some(task), ..Op::new(what, answer) };
        self.ops.push(match reply {
            Reply::Rows(rows) => Op { reply: rows[0].try_get(0)?, ..op(Answer::Ok) },
            Reply::Refused(message) => Op { reply: Some(message), ..op(Answer::Refused) },
            Reply::Unknown => op(Answer::Unknown),
        });
        Ok(())
    }

    /// Returns a random live task.
    async fn live(&mut self, draw: u32) -> Result<Option<i64>> {
        let sql = format!("SELECT t.id FROM mill.tasks t ORDER BY hashint8(t.id + {draw}) LIMIT 1");
        match self.session.ask(&sql).await? {
            Reply::Rows(rows) => Ok(rows.first().map(|row| row.try_get(0)).transpose()?),
            Reply::Refused(_) | Reply::Unknown => Ok(None),
        }
    }

    async fn cancel_many(&mut self, queue: &str, count: i64) -> Result<()> {
        // Calls the function that `pgmill task cancel --queue` calls.
        let sql = format!(
            "SELECT c.id, c.result FROM mill.cancel_many(ARRAY(SELECT t.id FROM mill.tasks t
             WHERE t.queue = '{queue}' AND t.node IS NULL ORDER BY t.id LIMIT {count})) AS c"
        );
        if let Reply::Rows(rows) = self.session.ask(&sql).await? {
            for row in rows {
                let op = Op::new(OpKind::Cancel, Answer::Ok);
                self.ops.push(Op { task: row.try_get(0)?, reply: row.try_get(1)?, ..op });
            }
        }
        Ok(())
    }

    async fn restart(&mut self, run: Option<i64>) -> Result<()> {
        let Some(run) = run else { return Ok(()) };
        let reply =
            self.session.ask(&format!("SELECT mill.restart_run({run}, force => true)")).await?;
        let answer = match reply {
            Reply::Rows(_) => Answer::Ok,
            Reply::Refused(_) => Answer::Refused,
            Reply::Unknown => Answer::Unknown,
        };
        self.ops.push(Op { run: Some(run), ..Op::new(OpKind::RestartRun, answer) });
        Ok(())
    }
}
