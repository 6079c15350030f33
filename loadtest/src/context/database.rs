//! One database: the queue's schema, the effects table, and the bare tables of the ceiling.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use queue::enqueue::database_now;
use queue::operate::{self, set_shared_commit};
use queue::schema;

use crate::context::progress::Progress;
use crate::context::session::Session;

/// The effects table, and bare tables with the shape of the queue's. LIKE copies columns, defaults,
/// constraints and indexes, but not storage settings: `copy_options` copies those.
const TABLES: &str = "CREATE /* loadtest.tables */ SCHEMA loadtest;
CREATE TABLE loadtest.effects (task bigint NOT NULL);
CREATE SCHEMA bare;
CREATE TABLE bare.tasks (LIKE mill.tasks INCLUDING ALL);
CREATE TABLE bare.attempts (LIKE mill.attempts INCLUDING ALL);
DO $$
BEGIN
    EXECUTE (SELECT format('ALTER TABLE bare.tasks SET (%s)', array_to_string(c.reloptions, ', '))
        FROM pg_class c WHERE c.oid = 'mill.tasks'::regclass);
END
$$";

const EXTENSION: &str =
    "CREATE /* loadtest.extension */ EXTENSION IF NOT EXISTS pg_stat_statements";

/// Succeeds only if pg_stat_statements is loaded, not merely installed: querying the view needs the
/// library.
const PROBE: &str = "SELECT /* loadtest.probe */ count(*) FROM pg_stat_statements(false)";

/// Removes everything from earlier rounds.
const EMPTY: &str = "TRUNCATE /* loadtest.empty */ mill.tasks, mill.attempts, mill.dedup_keys, loadtest.effects, bare.tasks, bare.attempts";

const FILL: &str = "INSERT /* loadtest.fill */ INTO mill.tasks (statement) SELECT format($3, n) FROM generate_series($1::bigint, $2) AS n";

const FILL_BARE: &str = "INSERT /* loadtest.fill_bare */ INTO bare.tasks (id, statement)
SELECT n, format($3, n) FROM generate_series($1::bigint, $2) AS n";

/// Number of sessions that ordinary users may open.
const ALLOWED: &str = "SELECT /* loadtest.allowed */ current_setting('max_connections')::int8
    - current_setting('superuser_reserved_connections')::int8";

/// Number of sessions that the load test itself opens.
const OWN_SESSIONS: i64 = 5;

const SETTLE: [&str; 2] =
    ["VACUUM /* loadtest.vacuum */ (ANALYZE)", "CHECKPOINT /* loadtest.checkpoint */"];

/// Number of rows that one statement of a large insert adds.
const CHUNK: i64 = 200_000;

/// Queue that the measurements use: the default queue.
pub(crate) const QUEUE: &str = "default";

/// Statement of a task in most scenarios; %s stands for the task number.
pub(crate) const EFFECT: &str = "INSERT INTO loadtest.effects (task) VALUES (%s)";

/// One database of this run.
pub(crate) struct Database {
    name: String,
    url: String,
    /// Whether pg_stat_statements is loaded.
    pub(crate) counts_statements: bool,
    /// Session for setup and for reading results.
    pub(crate) session: Session,
}

impl Database {
    /// Prepares a new database, of which the session is: the queue's schema and the measurement
    /// tables.
    pub(crate) async fn prepare(
        (name, url): (String, String),
        session: Session,
        shared_commit: Option<Duration>,
    ) -> Result<Self> {
        schema::init(&*session).await.context("could not apply the schema")?;
        session.batch_execute(TABLES).await.context("could not create the tables")?;
        set_shared_commit(&*session, QUEUE, shared_commit).await?;
        let counts_statements = session.batch_execute(EXTENSION).await.is_ok()
            && session.query_typed(PROBE, &[]).await.is_ok();
        Ok(Self { name, url, counts_statements, session })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the connection string for programs. May contain a password: never put it on a
    /// command line.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Returns the same database with another session, which this connection string has opened.
    pub(crate) fn reached_by(&self, url: String, session: Session) -> Self {
        let counts_statements = self.counts_statements;
        Self { name: self.name.clone(), url, counts_statements, session }
    }

    /// Returns an error unless the server has room for this many sessions; call before opening
    /// them.
    pub(crate) async fn has_room(&self, sessions: u32) -> Result<()> {
        let allowed: i64 = self.session.query_typed(ALLOWED, &[]).await?[0].get(0);
        let needed = i64::from(sessions) + OWN_SESSIONS;
        ensure!(
            needed <= allowed,
            "{needed} connections are needed, but the server allows {allowed}; use fewer with \
             --workers and --readers, or raise max_connections"
        );
        Ok(())
    }

    /// Empties all tables for the next round.
    pub(crate) async fn empty(&self) -> Result<()> {
        self.session.batch_execute(EMPTY).await.context("could not empty the tables")
    }

    /// Pauses the queue: no task is claimed until [`Self::resume`].
    pub(crate) async fn pause(&self) -> Result<()> {
        Ok(operate::pause(&*self.session, QUEUE).await?)
    }

    /// Resumes the queue. Returns the database's time just before.
    pub(crate) async fn resume(&self) -> Result<Timestamp> {
        let resumed_at = database_now(&*self.session).await?;
        operate::resume(&*self.session, QUEUE).await?;
        Ok(resumed_at)
    }

    /// Prepares a round: a paused queue with tasks numbered 1 to `tasks`, and nothing else. `%s` in
    /// `statement` stands for the number.
    pub(crate) async fn renew(
        &self,
        progress: &Progress,
        tasks: i64,
        statement: &str,
    ) -> Result<()> {
        self.empty().await?;
        self.refill(progress, (1, tasks), statement).await
    }

    /// Prepares a round: pauses the queue, and adds tasks numbered `first` to `last`.
    pub(crate) async fn refill(
        &self,
        progress: &Progress,
        range: (i64, i64),
        statement: &str,
    ) -> Result<()> {
        self.pause().await?;
        self.fill_table(progress, FILL, range, statement).await?;
        self.vacuum_and_checkpoint().await
    }

    /// Fills the ceiling's table with the same tasks, whose ids are their numbers.
    pub(crate) async fn fill_bare(
        &self,
        progress: &Progress,
        tasks: i64,
        statement: &str,
    ) -> Result<()> {
        self.fill_table(progress, FILL_BARE, (1, tasks), statement).await
    }

    async fn fill_table(
        &self,
        progress: &Progress,
        sql: &str,
        (first, last): (i64, i64),
        statement: &str,
    ) -> Result<()> {
        for (from, to) in chunks(first, last) {
            let filled = self.session.execute(sql, &[&from, &to, &statement]).await;
            filled.context("could not insert the tasks")?;
            progress.state(&format!("filled {} of {}", to - first + 1, last - first + 1));
        }
        Ok(())
    }

    /// Prepares the server for a round: vacuums the database, updates the statistics, and completes
    /// a checkpoint.
    pub(crate) async fn vacuum_and_checkpoint(&self) -> Result<()> {
        for sql in SETTLE {
            self.session.batch_execute(sql).await.context("could not prepare the server")?;
        }
        Ok(())
    }
}

/// Splits the numbers of a large insert, so that progress is visible.
pub(crate) fn chunks(first: i64, last: i64) -> impl Iterator<Item = (i64, i64)> {
    let starts = std::iter::successors(Some(first), |from| Some(from + CHUNK));
    starts.take_while(move |from| *from <= last).map(move |from| (from, last.min(from + CHUNK - 1)))
}
