//! Measures the server cost of one task and of one connection, from which other loads can be
//! computed.

use anyhow::Result;
use queue::operate::set_shared_commit;

use crate::context::RunContext;
use crate::context::database::{Database, EFFECT, QUEUE};
use crate::fleet::{Fleet, FleetSpec};
use crate::measure::drain::{Until, drain};
use crate::measure::effects;
use crate::measure::process::private_mb;
use crate::measure::rounds::case;
use crate::result::{Better, Check, Scenario, median};
use crate::scenarios::throughput::drain::BUDGET;

const LOG: &str = "SELECT /* loadtest.log_written */ (pg_current_wal_insert_lsn() - '0/0')::float8";

/// Bytes of the history per finished task, with indexes, which are megabytes per million tasks.
const HISTORY: &str = "SELECT /* loadtest.history_bytes */ sum(pg_total_relation_size(i.inhrelid))::float8 / (SELECT count(*) FROM mill.attempts)
FROM pg_inherits i WHERE i.inhparent = 'mill.attempts'::regclass";

/// Pids of the backends that run tasks.
const READERS: &str = "SELECT /* loadtest.reader_backends */ a.pid FROM pg_stat_activity a
WHERE a.datname = current_database() AND a.application_name LIKE 'pgmill reader %'";

/// Adds the WAL of a task, with one commit per task and with shared commits; the size of a history
/// row; and the memory of a connection.
pub(super) async fn add_costs(context: &RunContext, scenario: &mut Scenario) -> Result<()> {
    let tasks = context.tasks(50_000, 5_000);
    let fleet_spec = FleetSpec::from_options(context);
    let database = context.database("scale_task").await?;
    let session = &database.session;
    for (name, budget) in [("a commit each", None), ("shared commits, 50 ms", Some(BUDGET))] {
        set_shared_commit(&**session, QUEUE, budget).await?;
        let mut log = case(format!("a task, {name}: log"), "bytes", Better::Lower);
        for round in 1..=context.rounds() {
            context.progress.stage(&format!("scale: a task, {name}, round {round}"));
            database.renew(&context.progress, tasks, EFFECT).await?;
            let before: f64 = session.query_typed(LOG, &[]).await?[0].get(0);
            drain(context, &database, &fleet_spec, Until::Empty, round).await?;
            let after: f64 = session.query_typed(LOG, &[]).await?[0].get(0);
            #[expect(clippy::cast_precision_loss, reason = "a count of tasks")]
            log.rounds.push((after - before) / tasks as f64);
            let check = effects::all(&**session, 1, tasks).await?;
            let what = format!("{}, {name}, round {round}", check.what);
            scenario.checks.push(Check { what, ..check });
        }
        scenario.cases.push(log);
    }
    let mut history = case("history of a million tasks", "MB", Better::Lower);
    history.rounds.push(session.query_typed(HISTORY, &[]).await?[0].get(0));
    let mut memory = case("memory of a reader's connection", "MB", Better::Lower);
    memory.rounds.extend(connection(context, &database).await?);
    scenario.cases.extend([history, memory]);
    Ok(())
}

/// Returns the megabytes of private memory of a reader's backend after a few hundred tasks; `None`
/// if the server may run on another machine.
async fn connection(context: &RunContext, database: &Database) -> Result<Option<f64>> {
    database.renew(&context.progress, 5_000, EFFECT).await?;
    let mut fleet = Fleet::start(context, database, &FleetSpec::new(1, 16)).await?;
    database.resume().await?;
    fleet.until_empty().await?;
    let rows = database.session.query_typed(READERS, &[]).await?;
    let pids = rows.iter().map(|row| row.get::<_, i32>(0).cast_unsigned());
    let all: Vec<f64> = pids.filter_map(private_mb).collect();
    fleet.stop().await?;
    Ok(context.cluster().and_then(|_| median(&all)))
}
