//! Measures schedules that are all due at the same instant, for example midnight.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use jiff::Timestamp;
use queue::enqueue::database_now;
use tokio::time::sleep;
use tokio_postgres::types::Type;

use super::vacuum_and_checkpoint;
use crate::context::RunContext;
use crate::context::database::Database;
use crate::context::session::Session;
use crate::fleet::{Fleet, FleetSpec};
use crate::measure::drain::open_queue;
use crate::measure::sample::Sampler;
use crate::result::{Check, Series};

/// Removes the rows of earlier rounds.
const NO_RUNS: &str = "TRUNCATE /* loadtest.no_runs */ mill.runs, mill.run_tasks, mill.run_edges, mill.run_events, mill.schedule_log";

const DUE: &str =
    "UPDATE /* loadtest.due_at_once */ mill.schedules SET next_fire_at = $1, next_tick_at = $1";

const ENDED: &str =
    "SELECT /* loadtest.runs_ended */ count(*) FROM mill.runs r WHERE r.state <> 'running'";

/// Seconds from the instant to the last fire, and to the end of the last run.
const TOOK: &str =
    "SELECT /* loadtest.burst */ coalesce(extract(epoch FROM max(r.started_at) - $1), 0)::float8,
    coalesce(extract(epoch FROM max(r.finished_at) - $1), 0)::float8
FROM mill.runs r";

const FIRES: &str = "SELECT /* loadtest.fires_by_second */ floor(extract(epoch FROM r.started_at - $1))::float8, count(*)::float8
FROM mill.runs r GROUP BY 1 ORDER BY 1";

const RUNS: &str = "SELECT /* loadtest.burst_runs */ count(*), count(DISTINCT r.schedule_id), count(*) FILTER (WHERE r.fire_at = $1),
    count(*) FILTER (WHERE r.state = 'succeeded'),
    (SELECT count(*) FROM mill.attempts a WHERE a.outcome = 'succeeded')
FROM mill.runs r";

const LOGGED: &str = "SELECT /* loadtest.burst_log */ count(*) FILTER (WHERE l.event = 'fired'), count(*) FILTER (WHERE l.event = 'completed'),
    count(*) FILTER (WHERE l.event NOT IN ('fired', 'completed'))
FROM mill.schedule_log l";

/// Time from the preparation to the instant. During this time every worker polls, and so learns the
/// instant.
const AHEAD: Duration = Duration::from_secs(5);

/// Interval between two polls. It is long, because the query counts all runs.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// No finished run for this long means that a component hangs.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);

/// Result of a round.
pub(super) struct Burst {
    /// Seconds from the instant to the end of the last run.
    pub(super) seconds: f64,
    /// Number of fires per second, from the instant at which all schedules are due to the last fire.
    pub(super) fires: f64,
    pub(super) series: Vec<Series>,
    pub(super) checks: Vec<Check>,
}

/// Runs a round with `schedules` schedules.
#[expect(clippy::cast_precision_loss, reason = "a count of schedules")]
pub(super) async fn round(
    context: &RunContext,
    database: &Database,
    fleet_spec: &FleetSpec,
    (schedules, number): (i64, usize),
) -> Result<Burst> {
    let session = &database.session;
    database.empty().await?;
    session.batch_execute(NO_RUNS).await?;
    vacuum_and_checkpoint(database).await?;
    let mut fleet = Fleet::start(context, database, fleet_spec).await?;
    open_queue(database).await?;
    let at: Timestamp = database_now(&**session).await? + AHEAD;
    session.execute(DUE, &[&at]).await?;
    ensure!(
        database_now(&**session).await? < at,
        "the instant passed before the schedules were planned"
    );
    let sampler = Sampler::start(context, database, fleet.pids()).await?;
    until_ended(context, session, &mut fleet, schedules).await?;
    let mut series = sampler.end(number);
    fleet.stop().await?;
    let took = session.query_typed(TOOK, &[(&at, Type::TIMESTAMPTZ)]).await?;
    let (last_fire, seconds): (f64, f64) = (took[0].get(0), took[0].get(1));
    series.push(by_second(session, at, last_fire, number).await?);
    let fires = schedules as f64 / last_fire.max(f64::EPSILON);
    let checks = outcome(session, at, (schedules, number)).await?;
    Ok(Burst { seconds, fires, series, checks })
}

async fn until_ended(
    context: &RunContext,
    session: &Session,
    fleet: &mut Fleet<'_>,
    schedules: i64,
) -> Result<()> {
    let (mut ended, mut moved) = (0, Instant::now());
    while ended < schedules {
        sleep(POLL_INTERVAL).await;
        fleet.check()?;
        let now: i64 = session.query_typed(ENDED, &[]).await?[0].get(0);
        if now > ended {
            (ended, moved) = (now, Instant::now());
        }
        ensure!(
            moved.elapsed() < STALL_TIMEOUT,
            "{ended} of {schedules} runs have finished, none within {STALL_TIMEOUT:?}{}",
            fleet.tails()
        );
        context.progress.state(&format!("{ended} of {schedules} runs have finished"));
    }
    Ok(())
}

/// Returns the fires in each full second. The last second is incomplete, and left out.
async fn by_second(
    session: &Session,
    at: Timestamp,
    last_fire: f64,
    round: usize,
) -> Result<Series> {
    let rows = session.query_typed(FIRES, &[(&at, Type::TIMESTAMPTZ)]).await?;
    let points = rows.iter().map(|row| (row.get::<_, f64>(0), row.get(1)));
    let points = points.filter(|(second, _)| *second < last_fire.floor());
    let points = points.map(|(second, fires)| (second + 0.5, fires)).collect();
    Ok(Series { name: "fires".into(), unit: "fires/s".into(), round, points })
}

async fn outcome(
    session: &Session,
    at: Timestamp,
    (schedules, round): (i64, usize),
) -> Result<Vec<Check>> {
    let row = &session.query_typed(RUNS, &[(&at, Type::TIMESTAMPTZ)]).await?[0];
    let counts @ [runs, distinct, on_time, succeeded, attempts]: [i64; 5] =
        [0, 1, 2, 3, 4].map(|n| row.get(n));
    let once = Check {
        what: format!("every schedule fired once and its run succeeded, round {round}"),
        passed: counts == [schedules; 5],
        detail: format!(
            "{runs} runs of {distinct} schedules, {on_time} at the instant, {succeeded} succeeded, \
             {attempts} attempts"
        ),
    };
    let row = &session.query_typed(LOGGED, &[]).await?[0];
    let [fired, completed, others]: [i64; 3] = [0, 1, 2].map(|n| row.get(n));
    let logged = Check {
        what: format!("the log contains exactly each fire and each completion, round {round}"),
        passed: (fired, completed, others) == (schedules, schedules, 0),
        detail: format!("{fired} fired, {completed} completed, {others} others"),
    };
    Ok(vec![once, logged])
}
