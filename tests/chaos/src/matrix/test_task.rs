//! The tasks of a cell: their statements, their permitted outcomes, and their actual outcomes,
//! counted from the effects and not from worker reports.

use anyhow::{Context, Result, ensure};

use super::cell::{Cell, Mode, Moment, Place};
use super::fault::Fault;
use super::test_bed::TARGET;
use crate::session::Session;

/// Tables for the effects, and gates. A gate is an advisory lock with the number of a task: the
/// task waits on it while the suite holds it. Locks for which tasks compete have two keys.
pub(crate) const TABLES: &str = "CREATE /* chaos.tables */ TABLE public.effect (test_task bigint NOT NULL, hold boolean NOT NULL DEFAULT false, padding text);
CREATE TABLE public.counter (n bigint NOT NULL);
INSERT INTO public.counter VALUES (0);
CREATE FUNCTION public.hold_at_end() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.hold THEN
        PERFORM pg_advisory_xact_lock_shared(NEW.test_task);
    END IF;
    RETURN NULL;
END
$$;
CREATE CONSTRAINT TRIGGER hold_at_end AFTER INSERT ON public.effect
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.hold_at_end();
GRANT INSERT ON public.effect TO etl;
GRANT SELECT, UPDATE ON public.counter TO etl";

const FIRST: &str = "current_setting('mill.attempt') = '1'";

/// A task of a cell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TestTask {
    pub(crate) number: i64,
    cell: Cell,
    /// A quick task in addition to those that the fault targets.
    bystander: bool,
}

/// Outcomes of tasks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) lost: u32,
    pub(crate) duplicates: u32,
    pub(crate) unknown: u32,
}

impl TestTask {
    pub(crate) fn new(number: i64, cell: Cell) -> Self {
        Self { number, cell, bystander: false }
    }

    pub(crate) fn bystander(number: i64, cell: Cell) -> Self {
        let cell = Cell { mode: Mode::Transaction, ..cell };
        Self { number, cell, bystander: true }
    }

    /// Name of the task in pgmill's tables.
    pub(crate) fn name(&self) -> String {
        format!("test_task {}", self.number)
    }

    /// Returns the enqueue statement.
    pub(crate) fn enqueue(&self) -> String {
        let Self { number, cell, .. } = self;
        let statement = self.statement().replace('\'', "''");
        let mode = match cell.mode {
            Mode::Transaction => "",
            Mode::AtLeastOnce => ", mode => 'autocommit'",
            Mode::AtMostOnce => ", mode => 'autocommit', at_most_once => true",
        };
        // With a single attempt, a fault that uses up an attempt becomes visible.
        let max_attempts = match cell.fault {
            Fault::DataDiskFull | Fault::TempDiskFull | Fault::LocksExhausted => 100,
            Fault::NeverEnds | Fault::BackendStoppedPastTimeout if !self.bystander => 3,
            // An administrator who ends the session of a task uses up an attempt.
            Fault::BackendEnded if cell.mode != Mode::AtMostOnce => 2,
            _ => 1,
        };
        let timeout = match cell.fault {
            Fault::NeverEnds | Fault::BackendStoppedPastTimeout if !self.bystander => {
                ", timeout => '1 second'"
            }
            _ => "",
        };
        let target = match cell.place {
            Place::Queue => String::new(),
            Place::Target => format!(", run_as => '{TARGET}'"),
        };
        let due = match cell.moment {
            Moment::Scheduled if !self.bystander => ", due_at => now() + interval '4 seconds'",
            // Longer than any client retries: an ended task no longer has its key, and the client
            // would enqueue a second one. The trial makes the task due.
            Moment::Enqueue if !self.bystander => ", due_at => now() + interval '1 day'",
            _ => "",
        };
        format!(
            "SELECT /* chaos.enqueue */ mill.enqueue('{statement}', name => '{}', \
             key => 'test_task {number}', max_attempts => {max_attempts}, backoff => 'fixed', \
             retry_interval => '200 milliseconds'{mode}{timeout}{target}{due})",
            self.name()
        )
    }

    /// Returns the statement that makes the task due.
    pub(crate) fn make_due(&self) -> String {
        format!(
            "UPDATE /* chaos.make_due */ mill.tasks SET due_at = now() WHERE name = '{}'",
            self.name()
        )
    }

    fn statement(&self) -> String {
        let n = self.number;
        let effect = format!("INSERT INTO public.effect (test_task) VALUES ({n})");
        let gate = format!("SELECT pg_advisory_xact_lock_shared({n}) WHERE {FIRST}");
        if self.bystander {
            return effect;
        }
        match (self.cell.fault, self.cell.moment) {
            (Fault::NeverEnds, _) => {
                format!("{effect}; SELECT pg_sleep(CASE WHEN {FIRST} THEN 1e6 ELSE 0 END)")
            }
            (Fault::OutOfMemory, _) => {
                format!("{effect}; SELECT repeat('x', CASE WHEN {FIRST} THEN 200000000 ELSE 1 END)")
            }
            (Fault::Deadlock, _) => {
                // An odd and an even task take the same two locks in opposite order.
                let lock = |which| format!("SELECT pg_advisory_xact_lock(0, {which})");
                format!("{effect}; {}; {gate}; {}", lock(1 + n % 2), lock(2 - n % 2))
            }
            (Fault::Serialization, _) => {
                format!("{effect}; {gate}; UPDATE public.counter SET n = n + 1")
            }
            (Fault::OwnCommit, _) => format!("{effect}; COMMIT"),
            (Fault::OwnCommitInBlock, _) => format!("DO $$ BEGIN {effect}; COMMIT; END $$"),
            (Fault::DataDiskFull, _) => format!(
                "{gate}; INSERT INTO public.effect (test_task, padding) SELECT {n}, \
                 string_agg(md5(random()::text), '') FROM generate_series(1, 20000)"
            ),
            // The sort needs more than its memory, but little of the disk.
            (Fault::TempDiskFull, _) => format!(
                "{gate}; SET work_mem = '64kB'; INSERT INTO public.effect (test_task, padding) \
                 SELECT {n}, max(s.x) FROM (SELECT md5(i::text) AS x FROM generate_series(1, 20000) AS i \
                 ORDER BY x OFFSET 1) AS s"
            ),
            // The effect comes after the promotion, on the old primary.
            (fault, Moment::Executing) if fault.keeps_old_primary() => format!("{gate}; {effect}"),
            (_, Moment::Executing | Moment::Heartbeat) => format!("{effect}; {gate}"),
            (_, Moment::Completing) if self.cell.mode == Mode::Transaction => {
                format!("INSERT INTO public.effect (test_task, hold) VALUES ({n}, {FIRST})")
            }
            _ => effect,
        }
    }

    /// Returns whether the task must be refused without an effect.
    fn refused(&self) -> bool {
        matches!(self.cell.fault, Fault::OwnCommit | Fault::OwnCommitInBlock) && !self.bystander
    }
}

/// Number of effects of each task.
const EFFECTS: &str =
    "SELECT /* chaos.count_effects */ (SELECT count(*) FROM public.effect e WHERE e.test_task = n)
FROM unnest($1::int8[]) WITH ORDINALITY AS s (n, o) ORDER BY o";

/// State of each task: its outcomes, one for each end, and whether it is live.
const LEFT: &str = "SELECT /* chaos.left */ ARRAY(SELECT a.outcome::text FROM mill.attempts a WHERE a.final AND a.name = 'test_task ' || n),
    (SELECT count(*) FROM mill.tasks t WHERE t.name = 'test_task ' || n)
FROM unnest($1::int8[]) WITH ORDINALITY AS s (n, o) ORDER BY o";

/// Counts the outcomes of the tasks, from their ends in the queue and their effects in the database
/// in which they ran; stuck tasks are not lost.
pub(crate) async fn count(
    queue: &Session,
    effects: &Session,
    test_tasks: &[TestTask],
) -> Result<Counts> {
    let numbers: Vec<i64> = test_tasks.iter().map(|test_task| test_task.number).collect();
    let left = queue.rows(LEFT, &[&numbers]).await.context("cannot count")?;
    let effects = effects.rows(EFFECTS, &[&numbers]).await.context("cannot count effects")?;
    let mut counts = Counts::default();
    for (test_task, (left, effects)) in test_tasks.iter().zip(left.iter().zip(&effects)) {
        let (ends, live): (Vec<String>, i64) = (left.get(0), left.get(1));
        let effects: i64 = effects.get(0);
        if effects > 1 || ends.len() > 1 || ends.len() == 1 && live > 0 || live > 1 {
            counts.duplicates += 1;
        }
        let end = ends.first().map(String::as_str);
        ensure!(
            end.is_some() || live > 0 || effects == 0,
            "task {} is missing, but its effect is not",
            test_task.number
        );
        counts.lost += u32::from(match end {
            Some("failed") if test_task.refused() => effects != 0,
            Some("succeeded") => effects == 0 || test_task.refused(),
            Some("unknown") => test_task.cell.mode != Mode::AtMostOnce,
            Some(_) => true,
            None => live == 0,
        });
        counts.unknown += u32::from(end == Some("unknown"));
    }
    Ok(counts)
}

/// Returns the number of unsuccessful attempts, which is the number of attempts that the fault hit.
pub(crate) async fn interrupted(session: &Session) -> Result<i64> {
    let sql = "SELECT /* chaos.interrupted */ count(*) FROM mill.attempts a WHERE a.outcome <> 'succeeded'";
    Ok(session.one(sql, &[]).await?.unwrap_or_default())
}
