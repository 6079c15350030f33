//! A fleet that is registered and holds its locks and tasks, without processes.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use queue::claim::{CLAIM, SESSION_SETTINGS};
use queue::heartbeat::{HeartbeatReport, WorkerRegistration, heartbeat, register};
use queue::poll::{PollOptions, Served, poll};
use queue::{RunId, TaskId, Token, WorkerId};
use tokio_postgres::Statement;

use super::super::runs::FORGET;
use crate::context::RunContext;
use crate::context::database::{Database, QUEUE};
use crate::context::session::Session;

/// Number of worker locks that one session holds.
const LOCKS_PER_SESSION: u32 = 50;

/// Assigns the oldest tasks to workers that have no tasks.
const ASSIGN_TASKS: &str = "WITH /* loadtest.assign_tasks */ idle AS (
    SELECT w.id, row_number() OVER (ORDER BY w.id) AS n FROM mill.workers w
    WHERE NOT EXISTS (SELECT FROM mill.tasks t WHERE t.state = 'running' AND t.claimed_by = w.id)
), oldest AS (
    SELECT t.id, row_number() OVER (ORDER BY t.id) AS n FROM mill.tasks t WHERE t.state = 'pending'
    ORDER BY t.id LIMIT $1::bigint * (SELECT count(*) FROM idle)
)
UPDATE mill.tasks t SET state = 'running', attempt = 1, claimed_at = clock_timestamp(), claimed_by = idle.id,
    token = gen_random_uuid(), session_pid = 1, session_started_at = now()
FROM oldest JOIN idle ON idle.n = (oldest.n - 1) / $1::bigint + 1 WHERE t.id = oldest.id";

const NEXT: &str = "SELECT /* loadtest.next_pending */ coalesce(min(t.id), 1) - 1 FROM mill.tasks t WHERE t.state = 'pending'";

const VACUUM: &str = "VACUUM /* loadtest.vacuum_fleet */ (ANALYZE) mill.tasks, mill.workers";

const COST: &str = r"SELECT /* loadtest.statement_cost */ sum(s.shared_blks_hit + s.shared_blks_read)::float8 / sum(s.calls)
FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
WHERE d.datname = current_database() AND s.query LIKE $1";

/// Number of warm-up calls. The first calls of a session plan the statement and fill caches.
const FIRST: usize = 10;

/// The statements that every worker sends, and how often it sends them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// Every 5 s.
    Heartbeat,
    /// Every 1.3 s, whether the worker is idle or busy.
    Poll,
    /// A poll that also reads the other workers; only some polls do.
    PollPeers,
    /// When readers become idle. Claims 8 tasks.
    Claim,
}

pub(super) const MEASURED: [Operation; 4] =
    [Operation::Heartbeat, Operation::Poll, Operation::PollPeers, Operation::Claim];

impl Operation {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Heartbeat => "a heartbeat",
            Self::Poll => "a poll",
            Self::PollPeers => "a poll of the peers",
            Self::Claim => "a claim of 8",
        }
    }

    /// Pattern of its text in pg_stat_statements.
    fn pattern(self) -> &'static str {
        match self {
            Self::Heartbeat => "%/* queue.heartbeat */%",
            Self::Poll | Self::PollPeers => "%/* queue.poll */%",
            Self::Claim => "%/* queue.claim */%",
        }
    }
}

pub(super) struct SimulatedFleet<'a> {
    context: &'a RunContext,
    database: &'a Database,
    workers: Vec<WorkerId>,
    /// Sessions that hold the worker locks.
    holders: Vec<Session>,
    session: Session,
    claimer: Session,
    claim: Statement,
}

impl<'a> SimulatedFleet<'a> {
    pub(super) async fn new(
        context: &'a RunContext,
        database: &'a Database,
    ) -> Result<SimulatedFleet<'a>> {
        let session = context.connect(database.url()).await?;
        let claimer = context.connect(database.url()).await?;
        claimer.batch_execute(SESSION_SETTINGS).await?;
        let claim = claimer.prepare(CLAIM).await.context("could not prepare the claim")?;
        let (workers, holders) = (Vec::new(), Vec::new());
        Ok(Self { context, database, workers, holders, session, claimer, claim })
    }

    /// Registers workers up to this number, each with its readers busy.
    pub(super) async fn grow(&mut self, size: u32, readers: u32) -> Result<()> {
        while self.workers.len() < size as usize {
            if self.workers.len() >= self.holders.len() * LOCKS_PER_SESSION as usize {
                self.holders.push(self.context.connect(self.database.url()).await?);
            }
            let worker = WorkerId::random();
            let registration = WorkerRegistration {
                worker,
                pid: 1,
                host: "simulated_fleet".to_owned(),
                version: "0",
                readers,
                profiles: BTreeMap::from([(String::new(), readers)]),
                queues: None,
                destinations: Vec::new(),
                heartbeat_interval: Duration::from_secs(5),
                orphan_timeout: Duration::from_secs(3600),
            };
            let holder = self.holders.last().context("no session was opened")?;
            register(&**holder, &registration, false).await?;
            self.workers.push(worker);
        }
        self.database.session.execute(ASSIGN_TASKS, &[&i64::from(readers)]).await?;
        self.database.session.batch_execute(VACUUM).await?;
        // Give each worker row a dead version, as regular heartbeats do.
        for worker in &self.workers {
            let report = HeartbeatReport { busy: readers as usize, ..HeartbeatReport::default() };
            heartbeat(&*self.session, *worker, &report).await?;
        }
        Ok(())
    }

    /// Deregisters all workers; the locks end with the sessions.
    pub(super) async fn deregister(self) -> Result<()> {
        for worker in &self.workers {
            queue::heartbeat::deregister(&*self.session, *worker).await?;
        }
        Ok(())
    }

    /// Returns the average number of buffers that a call of this statement reads in the current
    /// fleet.
    pub(super) async fn cost(&self, what: Operation, calls: usize) -> Result<f64> {
        let mut last: i64 = self.session.query_typed(NEXT, &[]).await?[0].get(0);
        for n in 0..FIRST + calls {
            if n == FIRST {
                self.database.session.query_typed(FORGET, &[]).await?;
            }
            self.call(what, self.workers[n % self.workers.len()], &mut last).await?;
        }
        let cost = self.database.session.query_one(COST, &[&what.pattern()]).await?;
        Ok(cost.get(0))
    }

    async fn call(&self, what: Operation, worker: WorkerId, last: &mut i64) -> Result<()> {
        match what {
            Operation::Heartbeat => {
                let claims: Vec<(TaskId, Token)> =
                    (1..=8).map(|id| (TaskId(id), Token::stale())).collect();
                let report =
                    HeartbeatReport { busy: 8, claims: &claims, ..HeartbeatReport::default() };
                let orders = heartbeat(&*self.session, worker, &report).await?;
                ensure!(orders.is_some(), "a worker of the simulated fleet is not registered");
            }
            Operation::Poll | Operation::PollPeers => {
                let peers = what == Operation::PollPeers;
                let wanted =
                    PollOptions { peers, unregistered: false, pending: true, runs_after: RunId(0) };
                poll(&*self.session, worker, &Served::default(), wanted).await?;
            }
            Operation::Claim => *last = self.claim(worker, *last).await?,
        }
        Ok(())
    }

    /// Claims like a worker that continues from its watermark; returns the next watermark.
    async fn claim(&self, worker: WorkerId, after: i64) -> Result<i64> {
        let (pids, started, after) = ([1_i32; 8], [Timestamp::UNIX_EPOCH; 8], [after]);
        let params: [&(dyn tokio_postgres::types::ToSql + Sync); 9] = [
            &[QUEUE].as_slice(),
            &["normal"].as_slice(),
            &after.as_slice(),
            &8_i64,
            &worker.0,
            &pids.as_slice(),
            &started.as_slice(),
            &[i64::MAX].as_slice(),
            &[""].as_slice(),
        ];
        let rows = self.claimer.query(&self.claim, &params).await?;
        ensure!(rows.len() == 8, "{} tasks claimed", rows.len());
        Ok(rows.iter().map(|row| row.get::<_, i64>(1)).max().unwrap_or(after[0]))
    }
}
