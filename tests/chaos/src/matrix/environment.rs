//! Database and fleet of one cell, and the observed state of its tasks.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use cluster::Cluster;
use rustix::process::Signal;
use tokio::task::block_in_place;
use tokio::time::sleep;

use super::cell::{Cell, Fault};
use super::session::Session;
use super::test_bed::{TASKS, TestBed, WORKER_SLOTS};
use super::test_task::{Counts, TABLES, TestTask, count, interrupted};
use super::worker_slot::{READERS, WorkerSlot};

/// Polling interval.
const STEP: Duration = Duration::from_millis(20);

/// Time limit for the fleet to be complete again.
const TIMEOUT: Duration = Duration::from_secs(40);

/// Number of registered workers with current heartbeats, and number of sessions of readers.
const READY: &str = "/* chaos.ready */
SELECT (SELECT count(*) FROM mill.workers w JOIN mill.worker_starts s ON s.id = w.id
        WHERE s.pid = ANY ($1) AND w.heartbeat_at > now() - interval '3 seconds'),
    (SELECT count(*) FROM pg_stat_activity a WHERE a.datname = current_database()
        AND a.usename = 'etl' AND a.application_name LIKE 'pgmill reader %')";

/// The worker and the backend of each task that waits on its gate.
const HELD: &str = "/* chaos.held */
SELECT s.pid, t.session_pid FROM mill.tasks t JOIN mill.worker_starts s ON s.id = t.claimed_by
    JOIN pg_stat_activity a ON a.pid = t.session_pid
WHERE t.name = ANY ($1) AND a.wait_event = 'advisory' ORDER BY t.id";

const BACKEND: &str = "/* chaos.backend */
SELECT t.session_pid FROM mill.tasks t WHERE t.name = $1 AND t.session_pid IS NOT NULL
UNION ALL SELECT a.session_pid FROM mill.attempts a WHERE a.name = $1 AND a.final";

/// Number of tasks with these names that have finished.
const ENDED: &str = "/* chaos.ended */
SELECT count(DISTINCT a.name) FROM mill.attempts a WHERE a.final AND a.name = ANY ($1)";

/// The worker and the backend that the fault hits.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Victim {
    pub(crate) worker_slot: usize,
    pub(crate) backend: Option<i32>,
}

pub(crate) struct Environment<'a> {
    pub(crate) test_bed: &'a mut TestBed,
    pub(crate) cell: Cell,
    pub(crate) short: bool,
    pub(crate) database: String,
    pub(crate) session: Session,
    /// Session that holds the advisory locks which keep tasks waiting.
    pub(crate) holder: Session,
    pub(crate) worker_slots: Vec<WorkerSlot>,
    /// Standby of the current trial.
    pub(crate) standby: Option<Cluster>,
    /// Former primary of the current trial. Its connections stay open, and it answers nothing.
    pub(crate) frozen: Option<Cluster>,
    test_tasks: Vec<TestTask>,
}

impl<'a> Environment<'a> {
    /// Creates a database and worker slots without workers.
    pub(crate) async fn new(
        test_bed: &'a mut TestBed,
        cell: Cell,
        number: usize,
        short: bool,
    ) -> Result<Self> {
        let database = format!("chaos_{number}");
        let admin = Session::open(&test_bed.cluster.url("postgres")).await?;
        let create = format!("/* chaos.create */ CREATE DATABASE {database} {}", test_bed.place());
        admin.execute(&create).await?;
        let url = test_bed.cluster.url(&database);
        let session = Session::open(&url).await?;
        queue::schema::init(session.client()).await?;
        session.execute(TABLES).await?;
        if cell.fault == Fault::Serialization {
            let set = "SET default_transaction_isolation = 'repeatable read'";
            let sql =
                format!("/* chaos.isolate */ ALTER ROLE {TASKS} IN DATABASE {database} {set}");
            session.execute(&sql).await?;
        }
        let holder = Session::open(&url).await?;
        let mut worker_slots = Vec::new();
        for worker_slot in 0..WORKER_SLOTS {
            worker_slots.push(WorkerSlot::new(test_bed, cell, worker_slot, &database).await?);
        }
        let (standby, frozen, test_tasks) = (None, None, Vec::new());
        Ok(Self {
            test_bed,
            cell,
            short,
            database,
            session,
            holder,
            worker_slots,
            standby,
            frozen,
            test_tasks,
        })
    }

    /// Prepares the next trial.
    pub(crate) async fn prepare(&mut self) -> Result<()> {
        self.end_frozen()?;
        if matches!(self.cell.fault, Fault::Promotion | Fault::FrozenPromotion) {
            self.standby = Some(self.test_bed.start_standby().await?);
        }
        Ok(())
    }

    /// Ends the former primary, which must not resume: it would still accept writes.
    fn end_frozen(&mut self) -> Result<()> {
        self.frozen.take().map_or(Ok(()), |mut server| block_in_place(|| server.crash()))
    }

    /// Returns the next task to be hit by the fault.
    pub(crate) fn test_task(&mut self) -> TestTask {
        let test_task = TestTask::new(self.next_number(), self.cell);
        self.test_tasks.push(test_task);
        test_task
    }

    /// Returns a quick task that the fault does not target.
    pub(crate) fn bystander(&mut self) -> TestTask {
        let test_task = TestTask::bystander(self.next_number(), self.cell);
        self.test_tasks.push(test_task);
        test_task
    }

    fn next_number(&self) -> i64 {
        self.test_tasks.last().map_or(2, |last| last.number + 1)
    }

    /// Returns once each worker slot has a worker with a current heartbeat, and all readers are
    /// connected.
    pub(crate) async fn ready(&mut self) -> Result<()> {
        let begun = Instant::now();
        loop {
            for worker_slot in &mut self.worker_slots {
                worker_slot.fill(self.test_bed)?;
            }
            let pids: Vec<i32> = self
                .worker_slots
                .iter()
                .filter_map(WorkerSlot::pid)
                .map(u32::cast_signed)
                .collect();
            self.reconnect().await;
            let seen = self.session.rows(READY, &[&pids]).await;
            let worker_slots = i64::try_from(self.worker_slots.len())?;
            if let Ok(rows) = &seen {
                let (workers, readers): (i64, i64) = (rows[0].get(0), rows[0].get(1));
                if workers >= worker_slots && readers >= worker_slots * READERS {
                    return Ok(());
                }
            }
            if begun.elapsed() > TIMEOUT {
                let seen = seen.map(|rows| (rows[0].get::<_, i64>(0), rows[0].get::<_, i64>(1)));
                bail!(
                    "the fleet has not recovered; live workers and connected readers: {seen:?}{}",
                    self.tails()
                );
            }
            sleep(STEP).await;
        }
    }

    /// Reconnects after an outage of the server. Does nothing while the outage lasts.
    pub(crate) async fn reconnect(&mut self) {
        let _ = self.session.reconnect().await;
        let _ = self.holder.reconnect().await;
    }

    /// Enqueues a task, retrying until the database accepts it.
    pub(crate) async fn enqueue(&mut self, test_task: TestTask) -> Result<()> {
        let begun = Instant::now();
        loop {
            self.reconnect().await;
            match self.session.execute(&test_task.enqueue(false)).await {
                Ok(()) => return Ok(()),
                Err(error) if begun.elapsed() > TIMEOUT => return Err(error),
                Err(_) => sleep(STEP).await,
            }
        }
    }

    /// Waits until all tasks wait on their gates. Returns the worker and the backend of the first
    /// task.
    pub(crate) async fn until_held(&mut self, test_tasks: &[TestTask]) -> Result<Victim> {
        let names: Vec<String> = test_tasks.iter().map(TestTask::name).collect();
        let begun = Instant::now();
        loop {
            let rows = self.session.rows(HELD, &[&names]).await?;
            if rows.len() == test_tasks.len() {
                let pid: i32 = rows[0].get(0);
                let holds =
                    |worker_slot: &WorkerSlot| worker_slot.pid() == Some(pid.cast_unsigned());
                if let Some(worker_slot) = self.worker_slots.iter().position(holds) {
                    return Ok(Victim { worker_slot, backend: rows[0].get(1) });
                }
            }
            ensure!(
                begun.elapsed() < TIMEOUT,
                "not every task waits at its advisory lock{}",
                self.tails()
            );
            sleep(STEP).await;
        }
    }

    /// Returns the backend that runs or ran the task.
    pub(crate) async fn backend(&self, test_task: TestTask) -> Result<Option<i32>> {
        self.session.one(BACKEND, &[&test_task.name()]).await
    }

    /// Waits until all tasks have finished, and returns when that was; `None` if the deadline
    /// passes first. The database may be unavailable.
    pub(crate) async fn until_ended(
        &mut self,
        test_tasks: &[TestTask],
        deadline: Instant,
    ) -> Option<Instant> {
        let names: Vec<String> = test_tasks.iter().map(TestTask::name).collect();
        let all = i64::try_from(names.len()).unwrap_or(i64::MAX);
        loop {
            self.reconnect().await;
            if let Ok(Some(ended)) = self.session.one::<i64>(ENDED, &[&names]).await
                && ended >= all
            {
                return Some(Instant::now());
            }
            if Instant::now() > deadline {
                return None;
            }
            sleep(STEP).await;
        }
    }

    /// Stops the fleet, counts the outcomes, and removes the database. Returns an error if the
    /// fault hit fewer attempts than the trials require.
    pub(crate) async fn close(mut self, tries: u32) -> Result<Counts> {
        self.end_frozen()?;
        for worker_slot in &self.worker_slots {
            if worker_slot.pid().is_some() {
                worker_slot.signal(Signal::TERM)?;
            }
        }
        for worker_slot in &mut self.worker_slots {
            if worker_slot.pid().is_some() {
                let tail = worker_slot.tail();
                let status = worker_slot.until_ended().await?;
                ensure!(status.success(), "a worker ended with {status}{tail}");
            }
        }
        self.session.reconnect().await?;
        let counts = count(&self.session, &self.test_tasks).await?;
        if self.cell.interrupts() {
            let count = interrupted(&self.session).await?;
            ensure!(count >= i64::from(tries), "the fault hit {count} attempts in {tries} trials");
        }
        let admin = Session::open(&self.test_bed.cluster.url("postgres")).await?;
        admin
            .execute(&format!("/* chaos.drop */ DROP DATABASE {} WITH (FORCE)", self.database))
            .await?;
        Ok(counts)
    }

    /// Returns the last lines of the workers' logs, for an error message.
    pub(crate) fn tails(&self) -> String {
        self.worker_slots.iter().map(WorkerSlot::tail).collect()
    }
}
