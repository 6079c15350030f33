//! One cell's database and fleet, and what can be seen of its tasks.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use cluster::Cluster;
use rustix::process::Signal;
use tokio::time::sleep;

use super::cell::{Cell, Fault};
use super::ground::{Ground, SEATS, TASKS};
use super::seat::{READERS, Seat};
use super::session::Session;
use super::subject::{Counts, Subject, TABLES, count, interrupted};

/// Between two looks at what is waited for.
const STEP: Duration = Duration::from_millis(20);

/// How long a fleet may take to be complete again.
const PATIENCE: Duration = Duration::from_secs(40);

/// Workers that are registered and beat, and sessions of readers.
const READY: &str = "/* chaos.ready */
SELECT (SELECT count(*) FROM mill.workers w JOIN mill.worker_starts s ON s.id = w.id
        WHERE s.pid = ANY ($1) AND w.beat_at > now() - interval '3 seconds'),
    (SELECT count(*) FROM pg_stat_activity a WHERE a.datname = current_database()
        AND a.usename = 'etl' AND a.application_name LIKE 'pgmill reader %')";

/// Whose each task is, if it waits to be let go.
const HELD: &str = "/* chaos.held */
SELECT s.pid, t.session_pid FROM mill.tasks t JOIN mill.worker_starts s ON s.id = t.claimed_by
    JOIN pg_stat_activity a ON a.pid = t.session_pid
WHERE t.name = ANY ($1) AND a.wait_event = 'advisory' ORDER BY t.id";

const BACKEND: &str = "/* chaos.backend */
SELECT t.session_pid FROM mill.tasks t WHERE t.name = $1 AND t.session_pid IS NOT NULL
UNION ALL SELECT a.session_pid FROM mill.attempts a WHERE a.name = $1 AND a.final";

/// Tasks of these names that have come to an end.
const ENDED: &str = "/* chaos.ended */
SELECT count(DISTINCT a.name) FROM mill.attempts a WHERE a.final AND a.name = ANY ($1)";

/// Who is hit.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Victim {
    pub(crate) seat: usize,
    pub(crate) backend: Option<i32>,
}

pub(crate) struct Site<'a> {
    pub(crate) ground: &'a mut Ground,
    pub(crate) cell: Cell,
    pub(crate) short: bool,
    pub(crate) database: String,
    pub(crate) session: Session,
    /// Has the advisory locks of the tasks that are held.
    pub(crate) holder: Session,
    pub(crate) seats: Vec<Seat>,
    /// Of the try that goes on.
    pub(crate) standby: Option<Cluster>,
    subjects: Vec<Subject>,
}

impl<'a> Site<'a> {
    /// A database, and seats without workers.
    pub(crate) async fn new(
        ground: &'a mut Ground,
        cell: Cell,
        number: usize,
        short: bool,
    ) -> Result<Self> {
        let database = format!("chaos_{number}");
        let admin = Session::open(&ground.cluster.url("postgres")).await?;
        let create = format!("/* chaos.create */ CREATE DATABASE {database} {}", ground.place());
        admin.execute(&create).await?;
        let url = ground.cluster.url(&database);
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
        let mut seats = Vec::new();
        for seat in 0..SEATS {
            seats.push(Seat::new(ground, cell, seat, &database).await?);
        }
        let (standby, subjects) = (None, Vec::new());
        Ok(Self { ground, cell, short, database, session, holder, seats, standby, subjects })
    }

    /// What a try needs anew.
    pub(crate) async fn prepare(&mut self) -> Result<()> {
        if self.cell.fault == Fault::Promotion {
            self.standby = Some(self.ground.stand_by().await?);
        }
        Ok(())
    }

    /// The next task that the fault is about.
    pub(crate) fn subject(&mut self) -> Subject {
        let subject = Subject::new(self.next_number(), self.cell);
        self.subjects.push(subject);
        subject
    }

    /// A quick one.
    pub(crate) fn bystander(&mut self) -> Subject {
        let subject = Subject::bystander(self.next_number(), self.cell);
        self.subjects.push(subject);
        subject
    }

    fn next_number(&self) -> i64 {
        self.subjects.last().map_or(2, |last| last.number + 1)
    }

    /// Once each seat has a worker that beats, and all readers are connected.
    pub(crate) async fn ready(&mut self) -> Result<()> {
        let begun = Instant::now();
        loop {
            for seat in &mut self.seats {
                seat.fill(self.ground)?;
            }
            let pids: Vec<i32> =
                self.seats.iter().filter_map(Seat::pid).map(u32::cast_signed).collect();
            self.mend().await;
            let seen = self.session.rows(READY, &[&pids]).await;
            let seats = i64::try_from(self.seats.len())?;
            if let Ok(rows) = &seen {
                let (workers, readers): (i64, i64) = (rows[0].get(0), rows[0].get(1));
                if workers >= seats && readers >= seats * READERS {
                    return Ok(());
                }
            }
            if begun.elapsed() > PATIENCE {
                let seen = seen.map(|rows| (rows[0].get::<_, i64>(0), rows[0].get::<_, i64>(1)));
                bail!("the fleet does not come back: {seen:?}{}", self.tails());
            }
            sleep(STEP).await;
        }
    }

    /// Connects again after the server was away; while it is, nothing happens.
    pub(crate) async fn mend(&mut self) {
        let _ = self.session.mend().await;
        let _ = self.holder.mend().await;
    }

    /// Submits, and tries until the database takes it.
    pub(crate) async fn enqueue(&mut self, subject: Subject) -> Result<()> {
        let begun = Instant::now();
        loop {
            self.mend().await;
            match self.session.execute(&subject.enqueue(false)).await {
                Ok(()) => return Ok(()),
                Err(error) if begun.elapsed() > PATIENCE => return Err(error),
                Err(_) => sleep(STEP).await,
            }
        }
    }

    /// Once all of them wait to be let go: who has the first.
    pub(crate) async fn until_held(&mut self, subjects: &[Subject]) -> Result<Victim> {
        let names: Vec<String> = subjects.iter().map(Subject::name).collect();
        let begun = Instant::now();
        loop {
            let rows = self.session.rows(HELD, &[&names]).await?;
            if rows.len() == subjects.len() {
                let pid: i32 = rows[0].get(0);
                let holds = |seat: &Seat| seat.pid() == Some(pid.cast_unsigned());
                if let Some(seat) = self.seats.iter().position(holds) {
                    return Ok(Victim { seat, backend: rows[0].get(1) });
                }
            }
            ensure!(begun.elapsed() < PATIENCE, "no task to hit{}", self.tails());
            sleep(STEP).await;
        }
    }

    /// The backend that has or had the task.
    pub(crate) async fn backend(&self, subject: Subject) -> Result<Option<i32>> {
        self.session.one(BACKEND, &[&subject.name()]).await
    }

    /// When all of them had come to an end; `None`: not before the deadline. The database may be away.
    pub(crate) async fn until_ended(
        &mut self,
        subjects: &[Subject],
        deadline: Instant,
    ) -> Option<Instant> {
        let names: Vec<String> = subjects.iter().map(Subject::name).collect();
        let all = i64::try_from(names.len()).unwrap_or(i64::MAX);
        loop {
            self.mend().await;
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

    /// Stops the fleet, so that nothing can happen any more, counts, and removes the database. So
    /// many tries were to be met by the fault.
    pub(crate) async fn close(mut self, tries: u32) -> Result<Counts> {
        for seat in &self.seats {
            if seat.pid().is_some() {
                seat.signal(Signal::TERM)?;
            }
        }
        for seat in &mut self.seats {
            if seat.pid().is_some() {
                let tail = seat.tail();
                let status = seat.until_ended().await?;
                ensure!(status.success(), "a worker ended with {status}{tail}");
            }
        }
        self.session.mend().await?;
        let counts = count(&self.session, &self.subjects).await?;
        if self.cell.interrupts() {
            let met = interrupted(&self.session).await?;
            ensure!(met >= i64::from(tries), "the fault has met {met} attempts in {tries} tries");
        }
        let admin = Session::open(&self.ground.cluster.url("postgres")).await?;
        admin
            .execute(&format!("/* chaos.drop */ DROP DATABASE {} WITH (FORCE)", self.database))
            .await?;
        Ok(counts)
    }

    /// The ends of the workers' logs, for an error message.
    pub(crate) fn tails(&self) -> String {
        self.seats.iter().map(Seat::tail).collect()
    }
}
