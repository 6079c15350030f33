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

use anyhow::{Context, Result, ensure};
use futures_util::future;
use queue::enqueue::database_now;
use tokio::task::JoinSet;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Statement};
use uuid::Uuid;

use crate::context::RunContext;
use crate::context::database::{Database, EFFECT};
use crate::context::session::Session;
use crate::measure::drain::{CEILING, Drained, done};
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
    attempt, outcome, priority, session_pid, final,
    queue, rows, statement)
SELECT clock_timestamp(), ",
            $id,
            ", now(), now(), now(), $3, $3, 1, 'succeeded', 'normal', pg_backend_pid(), true, 'default', 1, ",
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
    /// Number of tasks.
    pub(crate) tasks: i64,
}

impl Ceiling {
    /// Fills the bare table, and runs its tasks.
    pub(crate) async fn run(
        self,
        context: &RunContext,
        database: &Database,
        round: usize,
    ) -> Result<Drained> {
        database.has_room(self.connections).await?;
        database.empty().await?;
        database.fill_bare(&context.progress, self.tasks, EFFECT).await?;
        database.vacuum_and_checkpoint().await?;
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
        while let Some(ended) = running.join_next().await {
            ended.context("a connection of the ceiling was lost")??;
        }
        let series = sampler.end(round);
        let mut drained = done(&database.session, CEILING, (begun_at, None), round).await?;
        drained.series.extend(series);
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
        let (delete, insert, types) = match group {
            1 => (DELETE, INSERT, [Type::INT8, Type::TEXT, Type::UUID]),
            _ => (DELETE_GROUP, INSERT_GROUP, [Type::INT8_ARRAY, Type::TEXT_ARRAY, Type::UUID]),
        };
        let delete = session.prepare(delete).await?;
        let insert = session.prepare_typed(insert, &types).await?;
        Ok(Self { session, delete, insert })
    }

    /// Runs tasks until all numbers are taken.
    async fn run(self, ceiling: Ceiling, next: Arc<AtomicI64>) -> Result<()> {
        let size = i64::try_from(ceiling.group)?;
        loop {
            let first = next.fetch_add(size, Ordering::Relaxed);
            let last = ceiling.tasks.min(first + size - 1);
            if first > last {
                return Ok(());
            }
            let ids: Vec<i64> = (first..=last).collect();
            let statements: Vec<String> =
                ids.iter().map(|id| EFFECT.replace("%s", &id.to_string())).collect();
            if size == 1 {
                self.transaction(&statements, &ids[0], &statements[0]).await?;
            } else {
                self.transaction(&statements, &ids, &statements).await?;
            }
        }
    }

    /// Sends the transaction of these statements, whose parameters are `ids` and `texts`.
    async fn transaction(
        &self,
        statements: &[String],
        ids: &(dyn ToSql + Sync),
        texts: &(dyn ToSql + Sync),
    ) -> Result<()> {
        let client: &Client = &self.session;
        let insert = [ids, texts, &Uuid::nil()];
        let (begun, ran, deleted, inserted, committed) = future::join5(
            client.batch_execute("BEGIN"),
            future::try_join_all(statements.iter().map(|statement| client.simple_query(statement))),
            client.execute(&self.delete, &[ids]),
            client.execute(&self.insert, &insert),
            client.batch_execute("COMMIT"),
        )
        .await;
        begun?;
        ran?;
        let all = u64::try_from(statements.len())?;
        ensure!(deleted? == all && inserted? == all, "a task is missing");
        Ok(committed?)
    }
}
