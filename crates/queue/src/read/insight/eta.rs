//! Expected ends of runs in progress, from the durations of the same tasks in earlier runs.
//!
//! The estimate is the longest chain of the remaining tasks: each takes its median duration, and a
//! running task the rest of it. Waits for readers, locks and permits are not known in advance, and
//! are not part of the estimate.

use std::collections::HashMap;

use conninfo::GenericClient;
use jiff::{SignedDuration, Timestamp};
use pgmill_client::RunId;

use crate::error::QueueError;
use crate::operator::run::{JoinMode, RunTaskState};
use crate::row::{column, from_row, query, rows};

/// Maximum number of tasks of a run whose end is estimated.
pub const MAX_TASKS: i64 = 2000;

/// Maximum number of tasks in all runs of a list. Each costs a lookup, and a list is read often.
pub const MAX_TASKS_OF_LIST: i64 = 500;

/// Number of earlier runs whose durations are read.
const HISTORY: i64 = 20;

const RUNS: &str = "SELECT /* queue.eta_runs */ r.id, r.tasks, now() AS now FROM mill.runs r
WHERE r.id = ANY ($1) AND r.state = 'running' AND r.cancelled_at IS NULL ORDER BY r.tasks, r.id";

const TASKS: &str = "SELECT /* queue.eta_tasks */ t.run_id, t.node, t.name, t.state::text, t.join_mode::text AS join,
    extract(epoch FROM t.expected_duration)::float8 AS declared_seconds,
    CASE WHEN q.state = 'running' THEN extract(epoch FROM now() - q.claimed_at)::float8 END AS elapsed_seconds
FROM mill.run_tasks t LEFT JOIN LATERAL (SELECT x.state, x.claimed_at FROM mill.tasks x
    WHERE t.state = 'released' AND x.id = t.task_id LIMIT 1) AS q ON true
WHERE t.run_id = ANY ($1)";

const EDGES: &str = "SELECT /* queue.eta_edges */ e.run_id, e.parent, e.child FROM mill.run_edges e WHERE e.run_id = ANY ($1)";

/// A task that did not run counts as 0, so a branch that is rarely taken adds nothing.
const DURATIONS: &str = "SELECT /* queue.eta_durations */ g.id AS run_id, t.name, percentile_cont(0.5) WITHIN GROUP (ORDER BY
    coalesce(extract(epoch FROM t.finished_at - t.started_at), 0)::float8) AS median_seconds
FROM mill.runs g CROSS JOIN LATERAL (SELECT o.id
        FROM (SELECT n.id, n.jobs, n.state, n.restarts FROM mill.runs n WHERE n.id < g.id
            ORDER BY n.id DESC LIMIT 1000) AS o
        WHERE o.jobs = g.jobs AND o.state = 'succeeded' AND o.restarts = 0 ORDER BY o.id DESC LIMIT $2) AS h
    JOIN mill.run_tasks t ON t.run_id = h.id
WHERE g.id = ANY ($1) GROUP BY g.id, t.name";

/// The expected end of a run in progress, or the reason why there is no estimate.
pub type Eta = Result<Timestamp, String>;

/// A task of a run in progress.
#[derive(Clone, Debug)]
struct Task {
    run_id: RunId,
    node: i64,
    name: String,
    state: RunTaskState,
    join: JoinMode,
    declared_seconds: Option<f64>,
    elapsed_seconds: Option<f64>,
}

from_row! { Task { run_id, node, name, state, join, declared_seconds, elapsed_seconds } }

impl Task {
    fn has_ended(&self) -> bool {
        !matches!(self.state, RunTaskState::Waiting | RunTaskState::Ready | RunTaskState::Released)
    }
}

/// Returns the expected ends of these runs. Runs that are not in progress are left out. Estimates for
/// up to `max_tasks` tasks, in the smallest runs.
pub async fn etas(
    client: &impl GenericClient,
    runs: &[RunId],
    max_tasks: i64,
) -> Result<HashMap<RunId, Eta>, QueueError> {
    let ids: Vec<i64> = runs.iter().map(|run| run.0).collect();
    let (mut found, mut small, mut tasks, mut now) = (HashMap::new(), Vec::new(), 0, None);
    for row in query(client, RUNS, &[&ids]).await? {
        let run: RunId = column(&row, "id")?;
        now = Some(column(&row, "now")?);
        tasks += i64::from(column::<i32>(&row, "tasks")?);
        if tasks <= max_tasks {
            small.push(run.0);
        } else {
            found.insert(run, Err(format!("more than {max_tasks} tasks")));
        }
    }
    let Some(now) = now.filter(|_| !small.is_empty()) else { return Ok(found) };
    let mut tasks_of: HashMap<RunId, Vec<Task>> = HashMap::new();
    for task in rows::<Task>(client, TASKS, &[&small]).await? {
        tasks_of.entry(task.run_id).or_default().push(task);
    }
    let mut edges_of: HashMap<RunId, Vec<(i64, i64)>> = HashMap::new();
    for row in query(client, EDGES, &[&small]).await? {
        let edge = (column(&row, "parent")?, column(&row, "child")?);
        edges_of.entry(column(&row, "run_id")?).or_default().push(edge);
    }
    let mut medians: HashMap<(RunId, String), f64> = HashMap::new();
    for row in query(client, DURATIONS, &[&small, &HISTORY]).await? {
        let key = (column(&row, "run_id")?, column(&row, "name")?);
        medians.insert(key, column(&row, "median_seconds")?);
    }
    for (run, tasks) in tasks_of {
        let edges = edges_of.remove(&run).unwrap_or_default();
        let duration =
            |task: &Task| medians.get(&(run, task.name.clone())).copied().or(task.declared_seconds);
        let eta = remaining_seconds(&tasks, &edges, duration).and_then(|seconds| {
            let rest = SignedDuration::try_from_secs_f64(seconds).unwrap_or(SignedDuration::MAX);
            Timestamp::checked_add(now, rest).map_err(|error| error.to_string())
        });
        found.insert(run, eta);
    }
    Ok(found)
}

/// Returns the time until the last task is expected to end.
///
/// # Errors
/// Returns a sentence that names a task whose duration is unknown.
fn remaining_seconds(
    tasks: &[Task],
    edges: &[(i64, i64)],
    duration: impl Fn(&Task) -> Option<f64>,
) -> Result<f64, String> {
    let place: HashMap<i64, usize> =
        tasks.iter().enumerate().map(|(place, task)| (task.node, place)).collect();
    let mut children = vec![Vec::new(); tasks.len()];
    let mut parents = vec![Vec::new(); tasks.len()];
    let mut open = vec![0_usize; tasks.len()];
    for (parent, child) in edges {
        if let (Some(parent), Some(child)) = (place.get(parent), place.get(child)) {
            children[*parent].push(*child);
            parents[*child].push(*parent);
            open[*child] += 1;
        }
    }
    let mut ends = vec![0.0_f64; tasks.len()];
    let mut ready: Vec<usize> = (0..tasks.len()).filter(|at| open[*at] == 0).collect();
    while let Some(at) = ready.pop() {
        let task = &tasks[at];
        if !task.has_ended() {
            let seconds = duration(task)
                .ok_or_else(|| format!("no earlier run has ended task {}", task.name))?;
            let starts = parents[at].iter().map(|parent| ends[*parent]);
            let start = match task.join {
                JoinMode::All => starts.fold(0.0, f64::max),
                JoinMode::Any => starts.reduce(f64::min).unwrap_or(0.0),
            };
            ends[at] = match task.elapsed_seconds {
                Some(elapsed) => (seconds - elapsed).max(0.0),
                None => start + seconds,
            };
        }
        for child in &children[at] {
            open[*child] -= 1;
            if open[*child] == 0 {
                ready.push(*child);
            }
        }
    }
    Ok(ends.into_iter().fold(0.0, f64::max))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(node: i64, state: RunTaskState, elapsed_seconds: Option<f64>) -> Task {
        let name = format!("t{node}");
        let (run_id, join) = (RunId(1), JoinMode::All);
        Task { run_id, node, name, state, join, declared_seconds: None, elapsed_seconds }
    }

    #[test]
    fn the_longest_chain_of_remaining_tasks_counts() {
        let tasks = [
            task(1, RunTaskState::Succeeded, None),
            task(2, RunTaskState::Released, Some(4.0)),
            task(3, RunTaskState::Released, None),
            task(4, RunTaskState::Waiting, None),
        ];
        let edges = [(1, 2), (1, 3), (2, 4), (3, 4)];
        let all = |_: &Task| Some(10.0);
        assert_eq!(remaining_seconds(&tasks, &edges, all), Ok(20.0));
        let any = [&tasks[..3], &[Task { join: JoinMode::Any, ..tasks[3].clone() }]].concat();
        assert_eq!(remaining_seconds(&any, &edges, all), Ok(16.0));
        assert_eq!(remaining_seconds(&tasks[..2], &edges, |_| Some(3.0)), Ok(0.0));
        let unknown = remaining_seconds(&tasks, &edges, |it| (it.node != 4).then_some(1.0));
        assert_eq!(unknown, Err("no earlier run has ended task t4".to_owned()));
    }
}
