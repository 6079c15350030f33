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
use crate::measure::rounds::{Measured, against, alternate, rate};
use crate::result::{Case, Check, Scenario};

const BARE: &str = "INSERT /* loadtest.bare_one */ INTO bare.tasks (statement) VALUES ($1)";

const BARE_MANY: &str =
    "INSERT /* loadtest.bare_many */ INTO bare.tasks (statement) SELECT s FROM unnest($1) AS s";

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
    BareMany,
    EnqueueMany,
    Copy,
    Bulk,
}

/// A case: the operation, the number of connections, and the reference.
struct Step {
    name: &'static str,
    way: Way,
    connections: usize,
    reference: Option<&'static str>,
    goal: Option<f64>,
}

impl Step {
    const fn bare(name: &'static str, way: Way, connections: usize) -> Self {
        Self { name, way, connections, reference: None, goal: None }
    }

    const fn compared_with(bare: &Self, name: &'static str, way: Way, goal: Option<f64>) -> Self {
        Self { name, way, connections: bare.connections, reference: Some(bare.name), goal }
    }
}

const ONE: Step = Step::bare("bare INSERT, 1 connection", Way::Bare, 1);
const TEN: Step = Step::bare("bare INSERT, 10 connections", Way::Bare, 10);
const HUNDRED: Step = Step::bare("bare INSERT of 100 at once", Way::BareMany, 1);
const COPIED: Step = Step::bare("COPY into the bare table", Way::Copy, 1);

const STEPS: [Step; 8] = [
    ONE,
    Step::compared_with(&ONE, "enqueue, 1 connection", Way::Enqueue, Some(0.9)),
    TEN,
    Step::compared_with(&TEN, "enqueue, 10 connections", Way::Enqueue, Some(0.9)),
    HUNDRED,
    Step::compared_with(&HUNDRED, "enqueue of 100 at once", Way::EnqueueMany, None),
    COPIED,
    Step::compared_with(&COPIED, "bulk enqueue", Way::Bulk, Some(0.5)),
];

pub(crate) async fn run(context: &RunContext) -> Result<Scenario> {
    let database = context.database("enqueue").await?;
    let mut cases: Vec<Case> = STEPS
        .iter()
        .map(|step| match step.reference {
            Some(reference) => against(rate(step.name), reference, step.goal),
            None => rate(step.name),
        })
        .collect();
    let mut checks = Vec::new();
    alternate(context, "enqueue", &mut cases, async |n, round| {
        let Step { name, way, connections, .. } = STEPS[n];
        let tasks = count(context, way);
        database.empty().await?;
        database.vacuum_and_checkpoint().await?;
        let value = submit(context, &database, way, connections, tasks).await?;
        let there: i64 = database.session.query_typed(COUNT, &[]).await?[0].get(0);
        checks.push(Check {
            what: format!("every task was stored, {name}, round {round}"),
            passed: usize::try_from(there)? == tasks,
            detail: format!("{tasks} submitted, {there} stored"),
        });
        Ok(Measured { value, ..Measured::default() })
    })
    .await?;
    let mut scenario = Scenario { cases, checks, ..Scenario::default() };
    program::measure(context, &database, &mut scenario).await?;
    context.drop_database(database).await?;
    Ok(scenario)
}

/// Returns the tasks per round.
fn count(context: &RunContext, way: Way) -> usize {
    match way {
        Way::Bare | Way::Enqueue => context.size(10_000, 1_000),
        Way::BareMany | Way::EnqueueMany => context.size(100_000, 20_000),
        Way::Copy | Way::Bulk => context.size(500_000, 50_000),
    }
}

/// Returns tasks per second over connections that are already open.
#[expect(clippy::cast_precision_loss, reason = "a count of tasks")]
async fn submit(
    context: &RunContext,
    database: &Database,
    way: Way,
    connections: usize,
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
        Way::BareMany => {
            for first in numbers.step_by(100) {
                let many: Vec<String> = (first..first + 100).map(statement).collect();
                session.query_typed(BARE_MANY, &[(&many, Type::TEXT_ARRAY)]).await?;
            }
        }
        Way::EnqueueMany => {
            for first in numbers.step_by(100) {
                let many: Vec<NewTask> = (first..first + 100).map(task).collect();
                enqueue_many(&*session, &many, &options).await?;
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
    }
    Ok(())
}
