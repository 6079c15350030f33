//! The ceiling: the rate that the same server reaches with the same transactions, but without a
//! queue.
//!
//! The ceiling opens as many connections as the fleet has readers. Each connection takes the next
//! task number and sends in one round trip: BEGIN, the task's own statement as text, the delete of
//! the task's row by primary key, the insert of its history row, COMMIT. The tables have the shape
//! of the queue's tables and are filled beforehand. With shared commits, one transaction holds the
//! statements of several tasks, with one set-based delete and one set-based insert.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use futures_util::future;
use queue::enqueue::database_now;
use tokio::task::JoinSet;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Statement};
use uuid::Uuid;

use crate::context::RunContext;
use crate::context::database::Database;
use crate::context::session::Session;
use crate::measure::drain::{CEILING, Drained, done, throughput};
use crate::measure::sample::Sampler;

const DELETE: &str = "DELETE /* loadtest.bare_delete */ FROM bare.tasks t WHERE t.id = $1";

const DELETE_GROUP: &str =
    "DELETE /* loadtest.bare_delete_group */ FROM bare.tasks t WHERE t.id = ANY ($1)";

/// The history row of a task that succeeded.
macro_rules! insert {
    ($name:literal, $id:literal, $statement:literal, $from:literal) => {
        concat!(
            "INSERT /* ",
            $name,
            " */ INTO bare.attempts (finished_at, task_id, enqueued_at, due_at, started_at, worker_id, token,
    retry_interval, attempt, outcome, priority, mode, backoff, max_attempts, session_pid, final,
    jitter, at_most_once, external, queue, rows, statement)
SELECT clock_timestamp(), ",
            $id,
            ", now(), now(), now(), $3, $3, '10 seconds', 1, 'succeeded', 'normal', 'transaction',
    'exponential', 3, pg_backend_pid(), true, true, false, false, 'default', 1, ",
            $statement,
            $from
        )
    };
}

const INSERT: &str = insert!("loadtest.bare_insert", "$1", "$2", "");

const INSERT_GROUP: &str = insert!(
    "loadtest.bare_insert_group",
    "t.id",
    "t.statement",
    " FROM unnest($1, $2) AS t (id, statement)"
);

/// Parameters of a ceiling round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ceiling {
    pub(crate) connections: u32,
    /// Number of tasks per transaction.
    pub(crate) group: usize,
    /// Highest task number in `bare.tasks`.
    pub(crate) last: i64,
    /// Statement of each task; `%s` stands for the task number.
    pub(crate) statement: &'static str,
}

impl Ceiling {
    /// Runs the round on `bare.tasks`, which holds tasks 1 to `last`.
    pub(crate) async fn run(
        self,
        context: &RunContext,
        database: &Database,
        round: usize,
    ) -> Result<Drained> {
        database.has_room(self.connections).await?;
        let mut lanes = Vec::new();
        for _ in 0..self.connections {
            lanes.push(Lane::open(context, database, self.group).await?);
        }
        let sampler = Sampler::start(context, database, Vec::new()).await?;
        let next = Arc::new(AtomicI64::new(1));
        let begun_at = database_now(&*database.session).await?;
        let mut running = JoinSet::new();
        for lane in lanes {
            running.spawn(lane.run(self, Arc::clone(&next)));
        }
        let shown = async {
            loop {
                tokio::time::sleep(Duration::from_secs(1)).await;
                let done = next.load(Ordering::Relaxed).min(self.last);
                context.progress.state(&format!("about {done} of {}", self.last));
            }
        };
        let all = async {
            while let Some(ended) = running.join_next().await {
                ended.context("a connection of the ceiling was lost")??;
            }
            anyhow::Ok(())
        };
        tokio::select! {
            ended = all => ended?,
            () = shown => {}
        }
        let mut series = sampler.end(round);
        let mut drained = done(&database.session, CEILING, begun_at, None).await?;
        series.extend(throughput(&database.session, CEILING, begun_at, &drained, round).await?);
        drained.series = series;
        Ok(drained)
    }
}

/// One connection of the ceiling.
struct Lane {
    session: Session,
    delete: Statement,
    insert: Statement,
}

impl Lane {
    async fn open(context: &RunContext, database: &Database, group: usize) -> Result<Self> {
        let session = context.connect(database.url()).await?;
        let (delete, insert) = if group == 1 {
            let types = [Type::INT8, Type::TEXT, Type::UUID];
            (session.prepare(DELETE).await?, session.prepare_typed(INSERT, &types).await?)
        } else {
            let types = [Type::INT8_ARRAY, Type::TEXT_ARRAY, Type::UUID];
            (
                session.prepare(DELETE_GROUP).await?,
                session.prepare_typed(INSERT_GROUP, &types).await?,
            )
        };
        Ok(Self { session, delete, insert })
    }

    /// Runs tasks until all numbers are taken.
    async fn run(self, ceiling: Ceiling, next: Arc<AtomicI64>) -> Result<()> {
        let size = i64::try_from(ceiling.group)?;
        loop {
            let first = next.fetch_add(size, Ordering::Relaxed);
            let last = ceiling.last.min(first + size - 1);
            if first > last {
                return Ok(());
            }
            let ids: Vec<i64> = (first..=last).collect();
            let statements: Vec<String> =
                ids.iter().map(|id| ceiling.statement.replace("%s", &id.to_string())).collect();
            if size == 1 {
                self.one(ids[0], &statements[0]).await?;
            } else {
                self.group(&ids, &statements).await?;
            }
        }
    }

    async fn one(&self, id: i64, statement: &str) -> Result<()> {
        let client: &Client = &self.session;
        let worker = Uuid::nil();
        let insert: [&(dyn tokio_postgres::types::ToSql + Sync); 3] = [&id, &statement, &worker];
        let (begun, ran, deleted, inserted, committed) = future::join5(
            client.batch_execute("BEGIN"),
            client.simple_query(statement),
            client.execute(&self.delete, &[&id]),
            client.execute(&self.insert, &insert),
            client.batch_execute("COMMIT"),
        )
        .await;
        begun?;
        ran?;
        anyhow::ensure!(deleted? == 1 && inserted? == 1, "task {id} is missing");
        Ok(committed?)
    }

    async fn group(&self, ids: &[i64], statements: &[String]) -> Result<()> {
        let client: &Client = &self.session;
        let worker = Uuid::nil();
        let all = statements.iter().map(|statement| client.simple_query(statement));
        let insert: [&(dyn tokio_postgres::types::ToSql + Sync); 3] = [&ids, &statements, &worker];
        let (begun, ran, deleted, inserted, committed) = future::join5(
            client.batch_execute("BEGIN"),
            future::try_join_all(all),
            client.execute(&self.delete, &[&ids]),
            client.execute(&self.insert, &insert),
            client.batch_execute("COMMIT"),
        )
        .await;
        begun?;
        ran?;
        let all = u64::try_from(ids.len())?;
        anyhow::ensure!(deleted? == all && inserted? == all, "a task is missing");
        Ok(committed?)
    }
}
