//! Measures many schedules: the cost of a tick that finds no due schedule, the time until all
//! schedules that are due at the same instant have fired, and the delay of a single fire.
//!
//! | measurement | file |
//! |---|---|
//! | first statement of a tick, while no schedule is due | `tick` |
//! | schedules that are all due at the same instant | `burst` |
//! | one schedule that fires every second on an otherwise idle fleet | `delay` |

use anyhow::Result;
use tokio_postgres::types::Type;

use crate::context::RunContext;
use crate::context::database::Database;
use crate::fleet::{Fleet, FleetSpec};
use crate::measure::rounds::{Measured, against, alternate, at_most, case};
use crate::report::number_format::short_count;
use crate::result::{Better, Case, Scenario};

mod burst;
mod delay;
mod tick;

/// Creates schedules that fire once a day, between two and twenty-two hours from now, so that none
/// is due during the measurement.
const SET: &str = "SELECT /* loadtest.set_schedules */ count(mill.set_schedule('schedule ' || lpad(n::text, 9, '0'), format('daily(%s)', to_char(
    now() AT TIME ZONE 'UTC' + interval '2 hours' + (n - 1) * interval '20 hours' / $1::float8, 'HH24:MI:SS')),
    'SELECT 1'))
FROM generate_series(1, $1::bigint) AS n";

const PLANNED: &str = "SELECT /* loadtest.planned */ NOT EXISTS (SELECT FROM mill.schedules s WHERE s.next_fire_at IS NULL)";

/// Number of schedules in the reference case.
const FEW: i64 = 100;

/// Maximum duration of a tick with many schedules, and maximum delay of a fire, in milliseconds.
const BOUND: f64 = 100.0;

/// Maximum ratio of the duration of a tick with many schedules to that of a tick with few.
const FLAT: f64 = 1.5;

pub(crate) async fn run(context: &RunContext) -> Result<Scenario> {
    let run = &context.run;
    let fleet_spec = FleetSpec::new(run.workers.unwrap_or(2), run.common.readers.unwrap_or(8));
    let many = context.tasks(10_000, 1_000);
    let databases = [
        planned(context, "schedules_few", &fleet_spec, FEW).await?,
        planned(context, "schedules_many", &fleet_spec, many).await?,
        planned(context, "schedules_burst", &fleet_spec, many).await?,
    ];
    let words = short_count(many);
    let ticks = [format!("a tick, {FEW} schedules"), format!("a tick, {words} schedules")];
    let ms = |name: &str| case(name, "ms", Better::Lower);
    let cases = vec![
        ms(&ticks[0]),
        against(ms(&ticks[1]), &ticks[0], Some(FLAT)),
        case(format!("{words} due at once, until every run has ended"), "s", Better::Lower),
        at_most("delay of a fire", "ms", BOUND),
    ];
    let mut scenario = alternate(context, cases, async |n, round| match n {
        0 | 1 => {
            let times = tick::round(context, &databases[n]).await?;
            let goal = (n == 1).then_some(BOUND);
            let longest = Case { goal, ..ms(&format!("{}, the longest", ticks[n])) };
            let max = times.at(100.0);
            Ok(Measured::of_times(times).also(longest, max))
        }
        2 => burst::round(context, &databases[2], &fleet_spec, (many, round)).await,
        _ => {
            let (times, check) = delay::round(context, &fleet_spec).await?;
            let max = times.at(100.0);
            let measured = Measured::of_times(times).also(ms("delay of a fire, the longest"), max);
            Ok(measured.check(check))
        }
    })
    .await?;
    scenario.notes = vec![
        format!(
            "{} ticks and {} fires per round, {}",
            tick::ticks(context),
            delay::fires(context),
            fleet_spec.describe()
        ),
        "a schedule is daily(…) at a second of its own, of one task, SELECT 1".to_owned(),
    ];
    Ok(scenario)
}

/// Returns a database with `schedules` schedules whose first instants the fleet has computed.
async fn planned(
    context: &RunContext,
    label: &str,
    fleet_spec: &FleetSpec,
    schedules: i64,
) -> Result<Database> {
    context.progress.stage(&format!("schedules: creating {schedules}"));
    let database = context.database(label).await?;
    database.session.query_typed(SET, &[(&schedules, Type::INT8)]).await?;
    let mut fleet = Fleet::start(context, &database, fleet_spec).await?;
    fleet.until(PLANNED, &[]).await?;
    fleet.stop().await?;
    database.vacuum_and_checkpoint().await?;
    Ok(database)
}
