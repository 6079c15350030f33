//! Drains a long backlog while a transaction with an old snapshot stays open, so that no dead row
//! can be removed. Compares the rate of the first tasks with that of the last tasks.

use anyhow::Result;

use crate::context::RunContext;
use crate::context::database::{Database, EFFECT};
use crate::context::session::Session;
use crate::fleet::FleetSpec;
use crate::measure::drain::{Drained, Until, close_queue, drain};
use crate::measure::effects;
use crate::measure::rounds::{against, alternate, case, rate};
use crate::measure::sample::{Claims, claims};
use crate::result::{Better, Case, Check, Scenario};

const UNPINNED: &str = "no old snapshot";
const PINNED: &str = "old snapshot open";

/// Begins the transaction. Its first statement takes the snapshot.
const SNAPSHOT: &str = "BEGIN /* loadtest.snapshot */ ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM loadtest.effects";

/// Seconds after the first task until a fifth, four fifths and all of the tasks were finished.
const FIFTHS: &str = "SELECT /* loadtest.fifths */ array(SELECT extract(epoch FROM at - f.first)::float8 FROM unnest(f.at) AS at)
FROM (SELECT min(a.started_at) AS first,
        percentile_disc(ARRAY[0.2, 0.8, 1.0]) WITHIN GROUP (ORDER BY a.finished_at) AS at
    FROM mill.attempts a WHERE a.outcome = 'succeeded') AS f";

/// Numbers in addition to the rate, one per round and case.
#[derive(Default)]
struct SecondaryMetrics {
    first_fifth: Vec<f64>,
    last_fifth: Vec<f64>,
    buffers: Vec<f64>,
}

pub(crate) async fn run(context: &RunContext) -> Result<Scenario> {
    let fleet_spec = FleetSpec::from_options(context);
    let tasks = context.tasks(1_000_000, 30_000);
    let database = context.database("pinned").await?;
    let mut cases = vec![rate(UNPINNED), against(rate(PINNED), UNPINNED, Some(0.85))];
    let mut secondary = [SecondaryMetrics::default(), SecondaryMetrics::default()];
    let mut checks = Vec::new();
    alternate(context, "pinned", &mut cases, async |n, round| {
        let (drained, claimed) =
            one(context, &database, &fleet_spec, tasks, (n == 1, round)).await?;
        let (first, last) = fifths(&database.session, tasks).await?;
        secondary[n].first_fifth.push(first);
        secondary[n].last_fifth.push(last);
        if claimed.rows > 0.0 {
            secondary[n].buffers.push(claimed.buffers / claimed.rows);
        }
        let check = effects::all(&*database.session, 1, tasks).await?;
        let what = format!("{}, {}, round {round}", check.what, [UNPINNED, PINNED][n]);
        checks.push(Check { what, ..check });
        Ok(drained.into())
    })
    .await?;
    let counted = database.counts_statements;
    context.drop_database(database).await?;
    let [unpinned, pinned] = secondary;
    cases.extend(secondary_cases(unpinned, pinned));
    let mut notes = vec![format!("{tasks} tasks per round, {}", fleet_spec.describe())];
    if !counted {
        notes.push("buffers not counted: the server has no pg_stat_statements".to_owned());
    }
    Ok(Scenario { cases, checks, notes, ..Scenario::default() })
}

/// Returns the rates of the first and the last fifth of the succeeded tasks, in tasks per second.
pub(crate) async fn fifths(session: &Session, tasks: i64) -> Result<(f64, f64)> {
    let row = session.query_typed(FIFTHS, &[]).await?;
    let at: Vec<f64> = row[0].get(0);
    #[expect(clippy::cast_precision_loss, reason = "a count of tasks")]
    let fifth = tasks as f64 / 5.0;
    Ok((fifth / at[0], fifth / (at[2] - at[1])))
}

/// Returns the cases for the slope and for the buffers per claimed task.
fn secondary_cases(unpinned: SecondaryMetrics, pinned: SecondaryMetrics) -> Vec<Case> {
    let mut cases = Vec::new();
    for (what, secondary) in [(UNPINNED, unpinned), (PINNED, pinned)] {
        let first = format!("{what}: first fifth");
        let goal = (what == PINNED).then_some(0.9);
        let last = against(rate(format!("{what}: last fifth")), &first, goal);
        cases.push(Case { rounds: secondary.first_fifth, ..rate(first) });
        cases.push(Case { rounds: secondary.last_fifth, ..last });
        if !secondary.buffers.is_empty() {
            let name = format!("{what}: buffers per claimed task");
            let goal = (what == PINNED).then_some(30.0);
            let buffers = case(name, "buffers", Better::Lower);
            cases.push(Case { rounds: secondary.buffers, goal, ..buffers });
        }
    }
    cases
}

async fn one(
    context: &RunContext,
    database: &Database,
    fleet_spec: &FleetSpec,
    tasks: i64,
    (pinned, round): (bool, usize),
) -> Result<(Drained, Claims)> {
    database.empty().await?;
    close_queue(database).await?;
    database.fill(&context.progress, (1, tasks), EFFECT).await?;
    database.vacuum_and_checkpoint().await?;
    let snapshot: Option<Session> = match pinned {
        true => Some(context.connect(database.url()).await?),
        false => None,
    };
    if let Some(session) = &snapshot {
        session.batch_execute(SNAPSHOT).await?;
    }
    let before = counted(database).await?;
    let drained = drain(context, database, fleet_spec, Until::Empty, round).await?;
    let after = counted(database).await?;
    if let Some(session) = &snapshot {
        session.batch_execute("ROLLBACK /* loadtest.let_go */").await?;
    }
    Ok((drained, after.since(before)))
}

async fn counted(database: &Database) -> Result<Claims> {
    match database.counts_statements {
        true => claims(&database.session).await,
        false => Ok(Claims::default()),
    }
}
