//! The outcome of a trial: the tasks that a fault lost, duplicated or delayed.

use std::fmt::{self, Display, Formatter};
use std::time::{Duration, SystemTime};

use anyhow::Result;
use checker::{Answer, Expect, Op};

use crate::catalog::{Fault, Mode, Trial};
use crate::session;

/// Invariants that a count of the outcome reports. The first one finds lost tasks by their id,
/// which another task may have after an asynchronous failover.
const COUNTED: [&str; 3] = ["nothing_lost", "no_effect_twice", "nothing_left"];

/// Compares names, because a sequence repeats ids after an asynchronous failover.
const LOST: &str = "SELECT /* ha.lost */ count(*) FROM chaos.ops o WHERE o.answer = 'ok'
    AND NOT EXISTS (SELECT FROM mill.tasks t WHERE (t.id, t.name) = (o.task, o.name))
    AND NOT EXISTS (SELECT FROM mill.attempts a
        WHERE (a.task_id, a.name) = (o.task, o.name) AND a.final)";

const DUPLICATED: &str = "SELECT /* ha.duplicated */ count(*) FROM (SELECT FROM chaos.effect e GROUP BY e.task HAVING count(*) > 1) AS t";

const STUCK: &str = "SELECT /* ha.stuck */ count(*) FROM mill.tasks";

/// Requests that the producer repeated because the reply was lost, after the first task had already
/// succeeded.
const ENQUEUED_TWICE: &str =
    "SELECT /* ha.enqueued_twice */ count(*) FROM (SELECT FROM mill.attempts a WHERE a.final
    GROUP BY a.name HAVING count(*) > 1) AS t";

/// The longest time without a completed task that ended after the fault.
const PAUSE: &str =
    "SELECT /* ha.pause */ coalesce(max(extract(epoch FROM a.finished_at - a.before)), 0)::float8
FROM (SELECT a.finished_at, lag(a.finished_at) OVER (ORDER BY a.finished_at) AS before
    FROM mill.attempts a WHERE a.outcome = 'succeeded') AS a
WHERE a.finished_at > $1";

/// Course of one trial.
#[derive(Clone, Debug)]
pub(crate) struct Course {
    pub(crate) trial: Trial,
    /// Longest permitted pause.
    pub(crate) goal: Duration,
    pub(crate) fault_at: SystemTime,
    /// Time from the end of the fault until the old leader was a standby.
    pub(crate) repaired: Duration,
}

/// Result of one trial.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) course: Course,
    /// Longest time without a completed task.
    pub(crate) pause: Duration,
    pub(crate) acknowledged: usize,
    pub(crate) lost: i64,
    pub(crate) duplicated: i64,
    pub(crate) stuck: i64,
    pub(crate) enqueued_twice: i64,
    /// Violations of the checker's other invariants.
    pub(crate) violations: Vec<String>,
}

impl Outcome {
    /// Returns whether every goal was reached.
    pub(crate) fn passed(&self) -> bool {
        self.correct() && self.pause <= self.course.goal
    }

    /// Returns whether every promise was kept, however long the pause was. An asynchronous failover
    /// may lose tasks.
    pub(crate) fn correct(&self) -> bool {
        let may_lose =
            self.course.trial.mode == Mode::Asynchronous && self.course.trial.fault.moves_leader();
        (self.lost == 0 || may_lose && self.course.trial.fault != Fault::Switchover)
            && self.duplicated == 0
            && self.stuck == 0
            && self.violations.is_empty()
    }
}

impl Display for Outcome {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { acknowledged, lost, duplicated, stuck, enqueued_twice, .. } = self;
        let trial = self.course.trial;
        write!(
            f,
            "{trial}: pause {:.1} s, {acknowledged} acknowledged, {lost} lost, {duplicated} \
             duplicated, {stuck} stuck, {enqueued_twice} enqueued twice, standby again after {:.1} s",
            self.pause.as_secs_f64(),
            self.course.repaired.as_secs_f64()
        )?;
        if !self.passed() {
            write!(f, "   <-- GOAL MISSED")?;
        }
        self.violations.iter().try_for_each(|violation| write!(f, "\n    {violation}"))
    }
}

/// Counts what remains after a trial.
///
/// # Errors
/// Returns an error if a query fails.
pub(crate) async fn measure(url: &str, ops: &[Op], course: Course) -> Result<Outcome> {
    let (client, _driver) = session::open(url).await?;
    checker::record(&client, ops).await?;
    let expect = Expect { fleet_gone: true, ..Expect::default() };
    let findings = checker::check(&client, &expect).await?;
    let violations = findings
        .into_iter()
        .filter(|finding| finding.count > 0 && !COUNTED.contains(&finding.invariant))
        .map(|finding| format!("{}: {}", finding.invariant, finding.examples.join("; ")))
        .collect();
    let count = async |sql: &str| anyhow::Ok(client.query_one(sql, &[]).await?.try_get(0)?);
    let pause: f64 = client.query_one(PAUSE, &[&course.fault_at]).await?.try_get(0)?;
    Ok(Outcome {
        course,
        pause: Duration::from_secs_f64(pause),
        acknowledged: ops.iter().filter(|op| op.answer == Answer::Ok).count(),
        lost: count(LOST).await?,
        duplicated: count(DUPLICATED).await?,
        stuck: count(STUCK).await?,
        enqueued_twice: count(ENQUEUED_TWICE).await?,
        violations,
    })
}
