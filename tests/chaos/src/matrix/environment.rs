//! Database and fleet of one cell, and the observed state of its tasks.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use cluster::Cluster;
use rustix::process::Signal;
use tokio::task::block_in_place;
use tokio::time::sleep;

use super::cell::Cell;
use super::fault::Fault;
use super::resources::pooler::Pooler;
use super::test_bed::{FLEET, READERS, TARGET, TASKS, TestBed, WORKER_SLOTS};
use super::test_task::{Counts, TABLES, TestTask, count, interrupted};
use super::worker_slot::WorkerSlot;
use crate::session::Session;

/// Polling interval.
const STEP: Duration = Duration::from_millis(20);

/// Time limit for the fleet to be complete again.
const TIMEOUT: Duration = Duration::from_secs(40);

/// Number of registered workers with current heartbeats.
const WORKERS: &str = "SELECT /* chaos.workers */ count(*) FROM mill.workers w JOIN mill.worker_starts s ON s.id = w.id
WHERE s.pid = ANY ($1) AND w.heartbeat_at > now() - interval '3 seconds'";

/// Number of sessions of readers in a database.
const CONNECTED: &str = "SELECT /* chaos.connected */ count(*) FROM pg_stat_activity a WHERE a.datname = current_database()
    AND a.usename = 'etl' AND a.application_name LIKE 'pgmill reader %'";

/// Backends that wait on a gate.
const WAITING: &str =
    "SELECT /* chaos.waiting */ coalesce(array_agg(a.pid), '{}') FROM pg_stat_activity a
WHERE a.datname = current_database() AND a.wait_event = 'advisory'";

/// The worker and the backend of each task that runs in one of these backends.
const HELD: &str = "SELECT /* chaos.held */ s.pid, t.session_pid FROM mill.tasks t JOIN mill.worker_starts s ON s.id = t.claimed_by
WHERE t.name = ANY ($1) AND t.session_pid = ANY ($2) ORDER BY t.id";

/// Number of effects of a task.
const EFFECTS: &str =
    "SELECT /* chaos.effects */ count(*) FROM public.effect e WHERE e.test_task = $1";

const BACKEND: &str = "SELECT /* chaos.backend */ t.session_pid FROM mill.tasks t WHERE t.name = $1 AND t.session_pid IS NOT NULL
UNION ALL SELECT a.session_pid FROM mill.attempts a WHERE a.name = $1 AND a.final";

/// Number of tasks with these names that have finished.
const ENDED: &str = "SELECT /* chaos.ended */ count(DISTINCT a.name) FROM mill.attempts a WHERE a.final AND a.name = ANY ($1)";

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
    /// Session in the queue's database.
    pub(crate) session: Session,
    /// Session in the target, if there is one.
    in_target: Option<Session>,
    /// Session that holds the advisory locks which keep tasks waiting.
    pub(crate) holder: Session,
    pub(crate) worker_slots: Vec<WorkerSlot>,
    /// Pooler between the client and the server, in the current trial.
    pub(crate) pooler: Option<Pooler>,
    /// Standby of the current trial.
    pub(crate) standby: Option<Cluster>,
    /// Former primary of the current trial. Its connections stay open, and it answers nothing.
    pub(crate) frozen: Option<Cluster>,
    /// Former primary of the current trial, which accepts writes.
    pub(crate) old_primary: Option<Cluster>,
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
        let options = test_bed.create_options();
        let create = format!("CREATE /* chaos.create */ DATABASE {database} {options}");
        admin.execute(&create).await?;
        let url = test_bed.cluster.url(&database);
        let session = Session::open(&url).await?;
        queue::schema::init(session.client()?).await?;
        session.execute(TABLES).await?;
        session.execute(&format!("GRANT /* chaos.grant */ mill_worker TO {FLEET}")).await?;
        let in_target = create_target(test_bed, &session, &database).await?;
        if cell.fault == Fault::Serialization {
            let set = "SET default_transaction_isolation = 'repeatable read'";
            let sql =
                format!("ALTER /* chaos.isolate */ ROLE {TASKS} IN DATABASE {database} {set}");
            session.execute(&sql).await?;
        }
        let holder = Session::open(&test_bed.target_url(&database).unwrap_or(url)).await?;
        let mut worker_slots = Vec::new();
        for worker_slot in 0..WORKER_SLOTS {
            worker_slots.push(WorkerSlot::new(test_bed, cell, worker_slot, &database).await?);
        }
        let (pooler, standby, test_tasks) = (None, None, Vec::new());
        let (frozen, old_primary) = (None, None);
        Ok(Self {
            test_bed,
            cell,
            short,
            database,
            session,
            in_target,
            holder,
            worker_slots,
            pooler,
            standby,
            frozen,
            old_primary,
            test_tasks,
        })
    }

    /// Prepares the next trial.
    pub(crate) async fn prepare(&mut self) -> Result<()> {
        self.end_frozen()?;
        if self.cell.fault.promotes() {
            let asynchronous = self.cell.fault.standby_is_asynchronous();
            self.standby = Some(self.test_bed.start_standby(asynchronous).await?);
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
            let seen = self.seen(&pids).await;
            let worker_slots = i64::try_from(self.worker_slots.len())?;
            if let Ok((workers, readers)) = seen
                && workers >= worker_slots
                && readers >= worker_slots * READERS
            {
                return Ok(());
            }
            if begun.elapsed() > TIMEOUT {
                bail!(
                    "the fleet has not recovered; live workers and connected readers: {seen:?}{}",
                    self.tails()
                );
            }
            sleep(STEP).await;
        }
    }

    /// Returns the number of live workers with these pids, and of readers connected to the database
    /// of the tasks.
    async fn seen(&self, pids: &[i32]) -> Result<(i64, i64)> {
        let workers = self.session.one(WORKERS, &[&pids]).await?;
        let readers = self.task_session().one(CONNECTED, &[]).await?;
        Ok((workers.unwrap_or_default(), readers.unwrap_or_default()))
    }

    /// Returns the session in the database in which the tasks run.
    pub(crate) fn task_session(&self) -> &Session {
        self.in_target.as_ref().unwrap_or(&self.session)
    }

    /// Reconnects after an outage of a server. Does nothing while the outage lasts.
    pub(crate) async fn reconnect(&mut self) {
        let sessions = [&mut self.session, &mut self.holder].into_iter().chain(&mut self.in_target);
        for session in sessions {
            let _ = session.reconnect().await;
        }
    }

    /// Enqueues a task, retrying until the database accepts it.
    pub(crate) async fn enqueue(&mut self, test_task: TestTask) -> Result<()> {
        self.execute(&test_task.enqueue()).await
    }

    /// Makes a task due, retrying until the database accepts it.
    pub(crate) async fn make_due(&mut self, test_task: TestTask) -> Result<()> {
        self.execute(&test_task.make_due()).await
    }

    /// Executes a statement that has no further effect if it is repeated, until the database accepts it.
    async fn execute(&mut self, statement: &str) -> Result<()> {
        let begun = Instant::now();
        loop {
            self.reconnect().await;
            match self.session.execute(statement).await {
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
            let waiting: Option<Vec<i32>> = self.task_session().one(WAITING, &[]).await?;
            let rows = self.session.rows(HELD, &[&names, &waiting]).await?;
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

    /// Waits until the effect of the task is committed.
    pub(crate) async fn until_effective(&self, test_task: TestTask) -> Result<()> {
        let begun = Instant::now();
        while self.task_session().one::<i64>(EFFECTS, &[&test_task.number]).await? == Some(0) {
            ensure!(begun.elapsed() < TIMEOUT, "a sent commit was not executed");
            sleep(STEP).await;
        }
        Ok(())
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
        self.reconnect().await;
        let counts = count(&self.session, self.task_session(), &self.test_tasks).await?;
        if self.cell.interrupts() {
            let count = interrupted(&self.session).await?;
            ensure!(count >= i64::from(tries), "the fault hit {count} attempts in {tries} trials");
        }
        let drop = format!("DROP /* chaos.drop */ DATABASE {} WITH (FORCE)", self.database);
        let queue = self.test_bed.cluster.url("postgres");
        for url in [Some(queue), self.test_bed.target_url("postgres")].into_iter().flatten() {
            Session::open(&url).await?.execute(&drop).await?;
        }
        Ok(counts)
    }

    /// Returns the last lines of the workers' logs, for an error message.
    pub(crate) fn tails(&self) -> String {
        self.worker_slots.iter().map(WorkerSlot::tail).collect()
    }
}

/// Creates the database of the target, if there is one, and declares the target in the queue.
async fn create_target(
    test_bed: &TestBed,
    queue: &Session,
    database: &str,
) -> Result<Option<Session>> {
    let (Some(admin), Some(url)) = (test_bed.target_url("postgres"), test_bed.target_url(database))
    else {
        return Ok(None);
    };
    let create = format!("CREATE /* chaos.create_target */ DATABASE {database}");
    Session::open(&admin).await?.execute(&create).await?;
    let target = Session::open(&url).await?;
    queue::receipt::init(target.client()?, &[TASKS.to_owned()]).await?;
    target.execute(TABLES).await?;
    let declare = format!(
        "SELECT /* chaos.declare_target */ \
         mill.set_target('{TARGET}', allowed => ARRAY[current_user])"
    );
    queue.execute(&declare).await?;
    Ok(Some(target))
}
