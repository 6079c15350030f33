//! Measures the cost of an idle fleet: statements, WAL, processor time. The server's own part is
//! measured first, without any worker, and subtracted.

use std::time::Duration;

use anyhow::Result;
use tokio::time::sleep;

use crate::context::RunContext;
use crate::context::database::Database;
use crate::fleet::{Fleet, FleetSpec};
use crate::measure::process::children;
use crate::measure::rounds::case;
use crate::measure::sample::cpu_seconds;
use crate::result::{Better, Case, Scenario};

/// Number of statements in this database except those of the load test, and bytes of WAL from all
/// databases.
const COUNTED: &str = "SELECT /* loadtest.idle */ coalesce(sum(s.calls), 0)::float8, (pg_current_wal_insert_lsn() - '0/0')::float8
FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
WHERE d.datname = current_database() AND s.query NOT LIKE '%/* loadtest.%'";

/// Number of transactions, in place of statements if the server does not count these.
const COMMITTED: &str = "SELECT /* loadtest.idle_commits */ (d.xact_commit + d.xact_rollback)::float8, (pg_current_wal_insert_lsn() - '0/0')::float8
FROM pg_stat_database d WHERE d.datname = current_database()";

/// Time until polls have reached their longest interval and start-up is over.
const SETTLE_TIME: Duration = Duration::from_secs(5);

/// Counters at one moment.
#[derive(Clone, Copy)]
struct Cost {
    statements: f64,
    wal_bytes: f64,
    worker_seconds: f64,
    server_seconds: f64,
}

pub(crate) async fn run(context: &RunContext) -> Result<Scenario> {
    let run = &context.run;
    let fleet_spec = FleetSpec::new(run.workers.unwrap_or(50), run.readers.unwrap_or(8));
    let length = context.duration(Duration::from_secs(60), Duration::from_secs(15));
    let database = context.database("idle").await?;
    let mut cases = cases();
    for round in 1..=context.rounds() {
        context.progress.stage(&format!("idle: no worker, round {round}"));
        database.vacuum_and_checkpoint().await?;
        let empty = over(context, &database, &[], length).await?;
        context.progress.stage(&format!("idle: {}, round {round}", fleet_spec.describe()));
        let fleet = Fleet::start(context, &database, &fleet_spec).await?;
        sleep(SETTLE_TIME).await;
        let idle = over(context, &database, &fleet.pids(), length).await?;
        fleet.stop().await?;
        let each = 60.0 / length.as_secs_f64() / f64::from(fleet_spec.workers);
        let values = [
            (idle.statements - empty.statements) * each,
            (idle.wal_bytes - empty.wal_bytes) / 1024.0 * each,
            idle.worker_seconds * 1000.0 * each,
            (idle.server_seconds - empty.server_seconds) * 1000.0 * each,
        ];
        for (case, value) in cases.iter_mut().zip(values) {
            case.rounds.push(value.max(0.0));
        }
        context.keep(&cases);
        context.progress.line(&format!("idle, round {round}: {:.1} statements", values[0]));
    }
    let mut notes = vec![format!("{}, {} s per round", fleet_spec.describe(), length.as_secs())];
    if !database.counts_statements {
        cases[0].name = "transactions".to_owned();
        notes.push("statements not counted: the server has no pg_stat_statements".to_owned());
    }
    if context.postmaster().is_none() {
        cases.pop();
    }
    context.drop_database(database).await?;
    Ok(Scenario { cases, notes, ..Scenario::default() })
}

fn cases() -> Vec<Case> {
    let each = |name: &str, unit: &str, goal: Option<f64>| Case {
        goal,
        ..case(name, &format!("{unit} per worker and minute"), Better::Lower)
    };
    vec![
        each("statements", "statements", Some(60.0)),
        each("WAL", "kB", Some(10.0)),
        each("processor time of the worker", "ms", None),
        each("processor time of the server", "ms", None),
    ]
}

/// Returns the increase of the counters during this time.
async fn over(
    context: &RunContext,
    database: &Database,
    pids: &[u32],
    length: Duration,
) -> Result<Cost> {
    let before = snapshot(context, database, pids).await?;
    sleep(length).await;
    let after = snapshot(context, database, pids).await?;
    Ok(Cost {
        statements: after.statements - before.statements,
        wal_bytes: after.wal_bytes - before.wal_bytes,
        worker_seconds: after.worker_seconds - before.worker_seconds,
        server_seconds: after.server_seconds - before.server_seconds,
    })
}

async fn snapshot(context: &RunContext, database: &Database, pids: &[u32]) -> Result<Cost> {
    let sql = if database.counts_statements { COUNTED } else { COMMITTED };
    let row = database.session.query_typed(sql, &[]).await?;
    Ok(Cost {
        statements: row[0].get(0),
        wal_bytes: row[0].get(1),
        worker_seconds: cpu_seconds(pids),
        server_seconds: context.postmaster().map_or(0.0, |pid| cpu_seconds(&children(pid))),
    })
}
