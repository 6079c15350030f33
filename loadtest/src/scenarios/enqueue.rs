//! Measures enqueueing in two ways. The library enqueues single tasks and tasks in bulk, compared
//! with inserts into a table of the same shape. The program `enqueue` is compared with `psql`.
//!
//! No worker runs. Every commit waits for the disk.

mod program;

use std::time::Instant;

use anyhow::Result;
use futures_util::SinkExt;
use queue::enqueue::{NewTask, TaskOptions, enqueue, enqueue_many};
use tokio::task::JoinSet;
use tokio_postgres::types::Type;

use crate::context::RunContext;
use crate::context::database::{Database, EFFECT};
use crate::context::session::Session;
use crate::measure::rounds::{Measured, against, alternate, at_most, case, rate};
use crate::result::{Better, Check, Scenario};

const BARE: &str = "INSERT /* loadtest.bare_one */ INTO bare.tasks (statement) VALUES ($1)";

const COPY: &str = "COPY /* loadtest.bare_copy */ bare.tasks (statement) FROM STDIN";

const COUNT: &str = "SELECT /* loadtest.enqueued */ (SELECT count(*) FROM mill.tasks) + (SELECT count(*) FROM bare.tasks)";

/// Number of tasks per statement of a bulk, as in the program `enqueue`.
const CHUNK: usize = 1000;

/// Number of lines per COPY message.
const COPY_LINES: usize = 1000;

/// Operation to measure.
#[derive(Clone, Copy)]
enum Way {
    Bare,
    Enqueue,
    Copy,
    Bulk,
    Program,
    Psql,
}

/// Case, operation, and number of connections.
const STEPS: [(&str, Way, usize); 8] = [
    ("bare INSERT, 1 connection", Way::Bare, 1),
    ("enqueue, 1 connection", Way::Enqueue, 1),
    ("bare INSERT, 10 connections", Way::Bare, 10),
    ("enqueue, 10 connections", Way::Enqueue, 10),
    ("COPY into the bare table", Way::Copy, 1),
    ("bulk enqueue", Way::Bulk, 1),
    ("enqueue program, one task", Way::Program, 1),
    ("psql -c, one task", Way::Psql, 1),
];

pub(crate) async fn run(context: &RunContext) -> Result<Scenario> {
    let database = context.database("enqueue").await?;
    let cases = STEPS.iter().enumerate().map(|(n, (name, way, _))| match way {
        Way::Bare | Way::Copy => rate(*name),
        Way::Enqueue => against(rate(*name), STEPS[n - 1].0, Some(0.9)),
        Way::Bulk => against(rate(*name), STEPS[n - 1].0, Some(0.5)),
        Way::Program => at_most(*name, "ms", 15.0),
        Way::Psql => case(*name, "ms", Better::Lower),
    });
    let psql = program::psql(context);
    let starts = context.size(100, 30);
    let mut scenario = alternate(context, cases.collect(), async |n, _| {
        let (_, way, connections) = STEPS[n];
        database.empty().await?;
        database.vacuum_and_checkpoint().await?;
        let tasks = match way {
            Way::Bare | Way::Enqueue => context.size(10_000, 1_000),
            Way::Copy | Way::Bulk => context.size(500_000, 50_000),
            Way::Program | Way::Psql => starts,
        };
        let measured = match (way, &psql) {
            (Way::Program, _) => {
                let command = || program::enqueue(context, &database);
                Measured::of_times(program::start_to_end(command, starts).await?)
            }
            (Way::Psql, Some(psql)) => {
                let command = || program::psql_task(psql, &database);
                Measured::of_times(program::start_to_end(command, starts).await?)
            }
            (Way::Psql, None) => return Ok(Measured::default()),
            _ => Measured::new(submit(context, &database, (way, connections), tasks).await?),
        };
        let there: i64 = database.session.query_typed(COUNT, &[]).await?[0].get(0);
        Ok(measured.check(Check {
            what: "every task was stored".to_owned(),
            passed: usize::try_from(there)? == tasks,
            detail: format!("{tasks} submitted, {there} stored"),
        }))
    })
    .await?;
    scenario.notes = vec![format!("programs: {starts} starts per round")];
    if psql.is_none() {
        scenario.notes.push("psql not measured: the server was given by --database-url".to_owned());
    }
    Ok(scenario)
}

/// Returns tasks per second over connections that are already open.
#[expect(clippy::cast_precision_loss, reason = "a count of tasks")]
async fn submit(
    context: &RunContext,
    database: &Database,
    (way, connections): (Way, usize),
    tasks: usize,
) -> Result<f64> {
    let mut sessions = Vec::new();
    for _ in 0..connections {
        sessions.push(context.connect(database.url()).await?);
    }
    let begun = Instant::now();
    let mut running = JoinSet::new();
    for (n, session) in sessions.into_iter().enumerate() {
        let each = tasks / connections;
        running.spawn(on_one(session, way, n * each + 1..(n + 1) * each + 1));
    }
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    Ok(tasks as f64 / begun.elapsed().as_secs_f64())
}

fn task(n: usize) -> NewTask {
    NewTask { statement: statement(n), ..NewTask::default() }
}

fn statement(n: usize) -> String {
    EFFECT.replace("%s", &n.to_string())
}

/// Runs one connection's share. Each statement commits, except for bulk and COPY, which are one
/// transaction.
async fn on_one(mut session: Session, way: Way, numbers: std::ops::Range<usize>) -> Result<()> {
    let options = TaskOptions::default();
    match way {
        Way::Bare => {
            for n in numbers {
                // An unnamed statement, as the library sends: it needs one round trip and no
                // separate prepare.
                let statement = statement(n);
                session.query_typed(BARE, &[(&statement, Type::TEXT)]).await?;
            }
        }
        Way::Enqueue => {
            for n in numbers {
                enqueue(&*session, &task(n), &options, None).await?;
            }
        }
        Way::Bulk => {
            let transaction = session.transaction().await?;
            for first in numbers.step_by(CHUNK) {
                let many: Vec<NewTask> = (first..first + CHUNK).map(task).collect();
                enqueue_many(&transaction, &many, &options).await?;
            }
            transaction.commit().await?;
        }
        Way::Copy => {
            let mut sink = Box::pin(session.copy_in::<_, bytes::Bytes>(COPY).await?);
            for first in numbers.step_by(COPY_LINES) {
                let lines: String =
                    (first..first + COPY_LINES).map(|n| statement(n) + "\n").collect();
                sink.send(lines.into()).await?;
            }
            sink.close().await?;
        }
        Way::Program | Way::Psql => {}
    }
    Ok(())
}
