//! Measures the server cost of one task and of one connection, from which other loads can be
//! computed.

use anyhow::{Context, Result};
use queue::operate::set_shared_commit;

use crate::context::RunContext;
use crate::context::database::{Database, EFFECT, QUEUE};
use crate::fleet::{Fleet, FleetSpec};
use crate::measure::drain::{Until, close_queue, drain, open_queue, until_empty};
use crate::measure::effects;
use crate::measure::process::{children, ended_children_time, private_bytes};
use crate::measure::rounds::case;
use crate::measure::sample::cpu_seconds;
use crate::result::{Better, Case, Check};
use crate::scenarios::throughput::drain::BUDGET;

const LOG: &str = "SELECT /* loadtest.log_written */ (pg_current_wal_insert_lsn() - '0/0')::float8";

/// Bytes of the history of finished tasks, with indexes, and number of its rows.
const HISTORY: &str = "SELECT /* loadtest.history_bytes */ sum(pg_total_relation_size(i.inhrelid))::float8, (SELECT count(*) FROM mill.attempts)::float8
FROM pg_inherits i WHERE i.inhparent = 'mill.attempts'::regclass";

/// Pids of the backends that run tasks.
const READERS: &str = "SELECT /* loadtest.reader_backends */ a.pid FROM pg_stat_activity a
WHERE a.datname = current_database() AND a.application_name LIKE 'pgmill reader %'";

struct Spent {
    log_bytes: f64,
    server_seconds: f64,
    worker_seconds: f64,
}

/// Returns the WAL and the processor time per task, with one commit per task and with shared commits;
/// the size of a history row; and the memory of a connection.
pub(super) async fn costs(context: &RunContext) -> Result<(Vec<Case>, Vec<Check>)> {
    let tasks = context.tasks(50_000, 5_000);
    let fleet_spec = FleetSpec::from_options(context);
    let database = context.database("scale_task").await?;
    let mut cases = Vec::new();
    let mut checks = Vec::new();
    for (name, budget) in [("a commit each", None), ("shared commits, 50 ms", Some(BUDGET))] {
        set_shared_commit(&*database.session, QUEUE, budget).await?;
        let of =
            |what: &str, unit: &str| case(format!("a task, {name}: {what}"), unit, Better::Lower);
        let mut log = of("log", "bytes");
        let mut server = of("processor time of the server", "ms");
        let mut worker = of("processor time of the worker", "ms");
        for round in 1..=context.rounds() {
            context.progress.stage(&format!("scale: a task, {name}, round {round}"));
            let (spent, check) = round_of(context, &database, &fleet_spec, (tasks, round)).await?;
            #[expect(clippy::cast_precision_loss, reason = "a count of tasks")]
            let each = tasks as f64;
            log.rounds.push(spent.log_bytes / each);
            server.rounds.push(spent.server_seconds * 1000.0 / each);
            worker.rounds.push(spent.worker_seconds * 1000.0 / each);
            checks.push(Check { what: format!("{}, {name}, round {round}", check.what), ..check });
        }
        cases.extend([log, server, worker]);
    }
    let row = &database.session.query_typed(HISTORY, &[]).await?[0];
    let mut history = case("history of a million tasks", "MB", Better::Lower);
    history.rounds.push(row.get::<_, f64>(0) / row.get::<_, f64>(1));
    let mut memory = case("memory of a reader's connection", "MB", Better::Lower);
    memory.rounds.extend(connection(context, &database).await?);
    context.drop_database(database).await?;
    cases.extend([history, memory]);
    cases.retain(|case| !case.rounds.is_empty());
    Ok((cases, checks))
}

async fn round_of(
    context: &RunContext,
    database: &Database,
    fleet_spec: &FleetSpec,
    (tasks, round): (i64, usize),
) -> Result<(Spent, Check)> {
    database.empty().await?;
    close_queue(database).await?;
    database.fill(&context.progress, (1, tasks), EFFECT).await?;
    database.vacuum_and_checkpoint().await?;
    let before = spent(context, database).await?;
    drain(context, database, fleet_spec, Until::Empty, round).await?;
    let after = spent(context, database).await?;
    let spent = Spent {
        log_bytes: after.log_bytes - before.log_bytes,
        server_seconds: after.server_seconds - before.server_seconds,
        worker_seconds: after.worker_seconds - before.worker_seconds,
    };
    let check = effects::all(&*database.session, 1, tasks).await?;
    Ok((spent, check))
}

/// Returns the totals so far: the server's processes, including ended ones, and the workers, all of
/// which have ended.
async fn spent(context: &RunContext, database: &Database) -> Result<Spent> {
    let postmaster = context.postmaster().context("the server is not a private cluster")?;
    let ended = |pid| ended_children_time(pid).map_or(0.0, |time| time.as_secs_f64());
    Ok(Spent {
        log_bytes: database.session.query_typed(LOG, &[]).await?[0].get(0),
        server_seconds: cpu_seconds(&children(postmaster)) + ended(postmaster),
        worker_seconds: ended(std::process::id()),
    })
}

/// Returns the megabytes of private memory of a reader's backend after a few hundred tasks.
async fn connection(context: &RunContext, database: &Database) -> Result<Option<f64>> {
    const WARM: i64 = 5_000;
    database.empty().await?;
    close_queue(database).await?;
    database.fill(&context.progress, (1, WARM), EFFECT).await?;
    let mut fleet = Fleet::start(context, database, &FleetSpec::new(1, 16)).await?;
    open_queue(database).await?;
    until_empty(context, database, &mut fleet).await?;
    let rows = database.session.query_typed(READERS, &[]).await?;
    let all: Vec<f64> = rows
        .iter()
        .filter_map(|row| private_bytes(row.get::<_, i32>(0).cast_unsigned()))
        .map(|bytes| f64::from(u32::try_from(bytes / 1024).unwrap_or(u32::MAX)) / 1024.0)
        .collect();
    fleet.stop().await?;
    let count = u32::try_from(all.len())?;
    Ok((count > 0).then(|| all.iter().sum::<f64>() / f64::from(count)))
}
