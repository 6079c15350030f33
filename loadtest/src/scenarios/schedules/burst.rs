//! Measures schedules that are all due at the same instant, for example midnight.

use std::time::Duration;

use anyhow::{Result, ensure};
use jiff::Timestamp;
use queue::enqueue::database_now;

use crate::context::RunContext;
use crate::context::database::Database;
use crate::context::session::Session;
use crate::fleet::{Fleet, FleetSpec};
use crate::measure::rounds::{Measured, case};
use crate::measure::sample::Sampler;
use crate::report::number_format::short_count;
use crate::result::{Better, Check, Series};

/// Removes the rows of earlier rounds.
const NO_RUNS: &str = "TRUNCATE /* loadtest.no_runs */ mill.runs, mill.run_tasks, mill.run_edges, mill.run_events, mill.schedule_log";

const DUE: &str =
    "UPDATE /* loadtest.due_at_once */ mill.schedules SET next_fire_at = $1, next_tick_at = $1";

const ENDED: &str =
    "SELECT /* loadtest.bursts_ended */ NOT EXISTS (SELECT FROM mill.schedules s WHERE s.next_tick_at <= $1)
    AND NOT EXISTS (SELECT FROM mill.runs r WHERE r.state = 'running')";

/// Seconds from the instant to the last fire, and to the end of the last run.
const TOOK: &str =
    "SELECT /* loadtest.burst */ coalesce(extract(epoch FROM max(r.started_at) - $1), 0)::float8,
    coalesce(extract(epoch FROM max(r.finished_at) - $1), 0)::float8
FROM mill.runs r";

const FIRES: &str = "SELECT /* loadtest.fires_by_second */ floor(extract(epoch FROM r.started_at - $1))::float8, count(*)::float8
FROM mill.runs r GROUP BY 1 ORDER BY 1";

/// Counts of runs, of attempts, and of the entries of the log.
const OUTCOME: &str = "SELECT /* loadtest.burst_outcome */ count(*), count(DISTINCT r.schedule_id), count(*) FILTER (WHERE r.fire_at = $1),
    count(*) FILTER (WHERE r.state = 'succeeded'),
    (SELECT count(*) FROM mill.attempts a WHERE a.outcome = 'succeeded'),
    (SELECT count(*) FROM mill.schedule_log l WHERE l.event = 'fired'),
    (SELECT count(*) FROM mill.schedule_log l WHERE l.event = 'completed'),
    (SELECT count(*) FROM mill.schedule_log l WHERE l.event NOT IN ('fired', 'completed'))
FROM mill.runs r";

/// Time from the preparation to the instant. During this time every worker polls, and so learns the
/// instant.
const AHEAD: Duration = Duration::from_secs(5);

/// Runs a round with `schedules` schedules. Returns the seconds from the instant to the end of the
/// last run.
pub(super) async fn round(
    context: &RunContext,
    database: &Database,
    fleet_spec: &FleetSpec,
    (schedules, number): (i64, usize),
) -> Result<Measured> {
    let session = &database.session;
    database.empty().await?;
    session.batch_execute(NO_RUNS).await?;
    database.vacuum_and_checkpoint().await?;
    let mut fleet = Fleet::start(context, database, fleet_spec).await?;
    let at: Timestamp = database.resume().await? + AHEAD;
    session.execute(DUE, &[&at]).await?;
    ensure!(
        database_now(&**session).await? < at,
        "the instant passed before the schedules were planned"
    );
    let sampler = Sampler::start(context, database, fleet.pids()).await?;
    fleet.until(ENDED, &[&at]).await?;
    let mut series = sampler.end(number);
    fleet.stop().await?;
    let took = session.query_one(TOOK, &[&at]).await?;
    let (last_fire, seconds): (f64, f64) = (took.get(0), took.get(1));
    let rows = session.query(FIRES, &[&at]).await?;
    let counts = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    series.push(Series::by_second("fires", "fires/s", number, (counts, last_fire)));
    #[expect(clippy::cast_precision_loss, reason = "a count of schedules")]
    let fires = schedules as f64 / last_fire.max(f64::EPSILON);
    let name = format!("{} due at once, fires", short_count(schedules));
    let measured = Measured { series, ..Measured::new(seconds) };
    let measured = measured.also(case(name, "fires/s", Better::Higher), fires);
    Ok(measured.check(outcome(session, at, schedules).await?))
}

async fn outcome(session: &Session, at: Timestamp, schedules: i64) -> Result<Check> {
    let row = session.query_one(OUTCOME, &[&at]).await?;
    let counts @ [runs, distinct, on_time, succeeded, attempts, fired, completed, others]: [i64;
        8] = [0, 1, 2, 3, 4, 5, 6, 7].map(|n| row.get(n));
    Ok(Check {
        what: "every schedule fired once, its run succeeded, and the log has just that".to_owned(),
        passed: counts[..7] == [schedules; 7] && others == 0,
        detail: format!(
            "{runs} runs of {distinct} schedules, {on_time} at the instant, {succeeded} succeeded, \
             {attempts} attempts; log: {fired} fired, {completed} completed, {others} others"
        ),
    })
}
