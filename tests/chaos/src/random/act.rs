//! What an operator does, by the functions that `pgmill` calls; noted with the answers.

use anyhow::Result;
use checker::{Answer, Op, What};

use super::load::Known;
use super::plan::Act;
use super::session::{Asked, Session};

/// An operator with a session.
pub(crate) struct Operator {
    pub(crate) session: Session,
    pub(crate) ops: Vec<Op>,
    pub(crate) acts: usize,
}

/// Every queue that was paused, and every worker that drains.
const EASE: &str = "/* chaos.ease */
SELECT (SELECT count(mill.resume(q.name)) FROM mill.queues q WHERE q.paused),
    (SELECT count(mill.drain(w.id, false)) FROM mill.workers w WHERE w.draining)";

impl Operator {
    /// For the server that takes writes.
    pub(crate) fn new(url: &str) -> Self {
        Self { session: Session::new(url, "chaos operator"), ops: Vec::new(), acts: 0 }
    }

    /// Does it once. A deploy is somebody else's.
    ///
    /// # Errors
    /// No server for a minute.
    pub(crate) async fn act(&mut self, act: &Act, known: &Known) -> Result<()> {
        self.acts += 1;
        match act {
            Act::Cancel { draw } => {
                // Most of those that are known have ended: every other time one that has not.
                let task = if draw % 2 == 0 { known.task(*draw) } else { self.live(*draw).await? };
                self.task(What::Cancel, "cancel", task).await?;
            }
            Act::Retry { draw } => {
                self.task(What::Retry, "retry", known.task(*draw)).await?;
            }
            Act::CancelMany { queue, count } => self.cancel_many(queue, *count).await?,
            Act::CancelRun { draw, kill } => {
                if let Some(run) = known.run(*draw) {
                    self.session.ask(&format!("SELECT mill.cancel_run({run}, {kill})")).await?;
                }
            }
            Act::RestartRun { draw } => self.restart(known.run(*draw)).await?,
            Act::Pause { queue } => self.say(&format!("SELECT mill.pause('{queue}')")).await?,
            Act::Resume => {
                self.say("SELECT mill.resume(q.name) FROM mill.queues q WHERE q.paused").await?;
            }
            Act::Drain => {
                self.say("SELECT mill.drain(w.id) FROM mill.workers w ORDER BY w.id LIMIT 1")
                    .await?;
            }
            Act::Undrain => {
                self.say("SELECT mill.drain(w.id, false) FROM mill.workers w WHERE w.draining")
                    .await?;
            }
            Act::Limit { kind, name, most } => {
                self.say(&format!("SELECT mill.set_max_running('{kind}', '{name}', {most})"))
                    .await?;
            }
            Act::Share { on } => {
                let budget = if *on { "'20 ms'" } else { "NULL" };
                let queue = super::item::SHARED;
                self.say(&format!("SELECT mill.share_commits('{queue}', {budget})")).await?;
            }
            Act::Deploy { .. } => {}
        }
        Ok(())
    }

    /// Takes back what keeps the fleet from working.
    ///
    /// # Errors
    /// No answer for a minute.
    pub(crate) async fn ease(&mut self) -> Result<()> {
        self.session.rows(EASE).await.map(drop)
    }

    /// Says something whose answer nobody needs.
    async fn say(&mut self, sql: &str) -> Result<()> {
        self.session.ask(sql).await.map(drop)
    }

    async fn task(&mut self, what: What, function: &str, task: Option<i64>) -> Result<()> {
        let Some(task) = task else { return Ok(()) };
        let asked = self.session.ask(&format!("SELECT mill.{function}({task})")).await?;
        let op = |answer| Op { task: Some(task), ..Op::new(what, answer) };
        self.ops.push(match asked {
            Asked::Rows(rows) => Op { said: rows[0].try_get(0)?, ..op(Answer::Ok) },
            Asked::Refused(message) => Op { said: Some(message), ..op(Answer::Refused) },
            Asked::Unknown => op(Answer::Unknown),
        });
        Ok(())
    }

    /// Some live task.
    async fn live(&mut self, draw: u32) -> Result<Option<i64>> {
        let sql = format!("SELECT t.id FROM mill.tasks t ORDER BY hashint8(t.id + {draw}) LIMIT 1");
        match self.session.ask(&sql).await? {
            Asked::Rows(rows) => Ok(rows.first().map(|row| row.try_get(0)).transpose()?),
            Asked::Refused(_) | Asked::Unknown => Ok(None),
        }
    }

    async fn cancel_many(&mut self, queue: &str, count: i64) -> Result<()> {
        // The same statement for each as `pgmill task cancel --queue` sends.
        let sql = format!(
            "SELECT t.id, mill.cancel(t.id) FROM (SELECT t.id FROM mill.tasks t
             WHERE t.queue = '{queue}' AND t.node IS NULL ORDER BY t.id LIMIT {count}) AS t"
        );
        if let Asked::Rows(rows) = self.session.ask(&sql).await? {
            for row in rows {
                let op = Op::new(What::Cancel, Answer::Ok);
                self.ops.push(Op { task: row.try_get(0)?, said: row.try_get(1)?, ..op });
            }
        }
        Ok(())
    }

    async fn restart(&mut self, run: Option<i64>) -> Result<()> {
        let Some(run) = run else { return Ok(()) };
        let asked =
            self.session.ask(&format!("SELECT mill.restart_run({run}, force => true)")).await?;
        let answer = match asked {
            Asked::Rows(_) => Answer::Ok,
            Asked::Refused(_) => Answer::Refused,
            Asked::Unknown => Answer::Unknown,
        };
        self.ops.push(Op { run: Some(run), ..Op::new(What::RestartRun, answer) });
        Ok(())
    }
}
