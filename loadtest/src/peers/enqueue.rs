//! Measures enqueueing: one transaction per task from one connection and from ten, and bulk by the
//! fastest method of each queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Instant;

use anyhow::Result;
use queue::enqueue::{NewTask, TaskOptions, enqueue, enqueue_many};
use tokio::task::JoinSet;

use super::adapter::{Adapter, EnqueueTime, StepContext, TIMEOUT};
use super::catalog::Variant;
use super::install::Participants;
use super::round::set_up;
use super::turns::{Candidate, Entry, into_scenario, take_turns};
use crate::context::RunContext;
use crate::context::database::{Database, EFFECT};
use crate::measure::rounds::rate;
use crate::result::{Case, Scenario};

/// Tasks per bulk call, for pgmill and peers alike.
const AT_ONCE: i64 = 10_000;

/// Numbers of connections and of tasks.
const SINGLE: [(i64, i64); 2] = [(1, 1_000), (10, 4_000)];

/// Goal: the minimum ratio of pgmill's bulk rate to that of the best peer. Single enqueues have no
/// goal.
const GOAL: f64 = 2.0;

pub(super) async fn run(
    context: &RunContext,
    participants: &Participants,
    tasks: i64,
) -> Result<Scenario> {
    let mut entries = entries(participants);
    take_turns(context, "peers-enqueue", &mut entries, async |database, _, candidate, _| {
        match candidate {
            Candidate::Own(_) => own_round(context, database, tasks).await,
            Candidate::Peer(adapter, variant) => {
                peer_round(context, database, (adapter, variant), tasks).await
            }
        }
    })
    .await?;
    let mut scenario = into_scenario(entries);
    scenario.notes.push(format!(
        "bulk: {tasks} tasks, {AT_ONCE} per call; clients use the peer's own language"
    ));
    Ok(scenario)
}

fn entries(participants: &Participants) -> Vec<Entry<'_>> {
    let mut entries = Vec::new();
    let mut own = cases("pgmill");
    own[2].goal = Some(GOAL);
    entries.push(Entry::own(0, "pgmill", own));
    for adapter in &participants.adapters {
        entries.extend(adapter.peer.submit.iter().map(|it| Entry::peer(adapter, it, cases)));
    }
    entries
}

fn cases(name: &str) -> Vec<Case> {
    ["1 connection", "10 connections", "bulk"].map(|how| rate(format!("{name}, {how}"))).to_vec()
}

/// Returns tasks per second.
#[expect(clippy::cast_precision_loss, reason = "a count of tasks")]
fn per_second(tasks: i64, seconds: f64) -> f64 {
    tasks as f64 / seconds.max(f64::EPSILON)
}

async fn peer_round(
    context: &RunContext,
    database: &Database,
    (adapter, variant): (&Adapter, &'static Variant),
    tasks: i64,
) -> Result<Vec<f64>> {
    set_up(database, adapter, variant).await?;
    let step_context = StepContext { url: database.url(), settings: variant.settings };
    let mut rates = Vec::new();
    for (connections, count) in SINGLE {
        let count = context.size(count, count / 5);
        let words = format!("enqueue-single 1 {count} {connections}");
        let took: EnqueueTime = adapter.step(step_context, &words, TIMEOUT).await?;
        rates.push(per_second(count, took.seconds));
    }
    let took: EnqueueTime =
        adapter.step(step_context, &format!("enqueue 1 {tasks}"), TIMEOUT).await?;
    rates.push(per_second(tasks, took.seconds));
    Ok(rates)
}

async fn own_round(context: &RunContext, database: &Database, tasks: i64) -> Result<Vec<f64>> {
    let mut rates = Vec::new();
    for (connections, count) in SINGLE {
        let count = context.size(count, count / 5);
        let seconds = singly(context, database, connections, count).await?;
        rates.push(per_second(count, seconds));
    }
    let session = context.connect(database.url()).await?;
    let begun = Instant::now();
    let mut from = 1;
    while from <= tasks {
        let to = tasks.min(from + AT_ONCE - 1);
        let chunk: Vec<NewTask> = (from..=to).map(task).collect();
        enqueue_many(&*session, &chunk, &TaskOptions::default()).await?;
        from = to + 1;
    }
    rates.push(per_second(tasks, begun.elapsed().as_secs_f64()));
    Ok(rates)
}

/// Returns the seconds for `count` tasks from `connections` connections.
async fn singly(
    context: &RunContext,
    database: &Database,
    connections: i64,
    count: i64,
) -> Result<f64> {
    let mut sessions = Vec::new();
    for _ in 0..connections {
        sessions.push(context.connect(database.url()).await?);
    }
    let next = Arc::new(AtomicI64::new(1));
    let mut lanes: JoinSet<Result<()>> = JoinSet::new();
    let begun = Instant::now();
    for session in sessions {
        let next = Arc::clone(&next);
        lanes.spawn(async move {
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n > count {
                    return Ok(());
                }
                enqueue(&*session, &task(n), &TaskOptions::default(), None).await?;
            }
        });
    }
    while let Some(lane) = lanes.join_next().await {
        lane??;
    }
    Ok(begun.elapsed().as_secs_f64())
}

fn task(n: i64) -> NewTask {
    NewTask { statement: EFFECT.replace("%s", &n.to_string()), ..NewTask::default() }
}
