//! Critical path of a run: the chain of tasks that its end waited for. Pure.
//!
//! The path is found backwards from the task that ended last, or that is still running. Each task
//! follows the parent that released it. So the path explains the whole time from its first task to
//! its end, including the time in which its tasks waited in the queue, and in which their earlier
//! attempts failed. A path of the greatest sum of durations would leave this time out, and could
//! name tasks that nothing waited for.
//!
//! Of a restarted run, only the time since the last restart counts, as in the run's duration. Its
//! tasks may have ended days before.

use std::collections::HashMap;

use jiff::Timestamp;
use serde::Serialize;

use crate::operator::run::{Expected, JoinMode};
use crate::read::run_attempts::RunAttempt;
use crate::read::run_queries::{Edge, RunTask};

/// The chain of tasks that the end of a run waited for. The duration is the sum of the three other
/// times.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct CriticalPath {
    /// The [`RunTask::node`]s, in the order of execution.
    pub nodes: Vec<i64>,
    /// The names of the tasks, in the same order.
    pub tasks: Vec<String>,
    /// Seconds from the due time of the first task to the end of the last one.
    pub duration_seconds: f64,
    /// Seconds in which its tasks waited in the queue.
    pub waiting_seconds: f64,
    /// Seconds of earlier attempts of its tasks, and of the waits before their retries.
    pub retrying_seconds: f64,
    /// Seconds of the last attempts of its tasks.
    pub running_seconds: f64,
    /// The times of each task.
    #[serde(skip)]
    pub steps: Vec<PathStep>,
}

/// A task of the critical path. The three times add up to the time from the end of the previous
/// step to the end of this one.
#[derive(Clone, Debug)]
pub struct PathStep {
    /// Name of the task.
    pub name: String,
    /// Seconds in which the task waited in the queue.
    pub waiting_seconds: f64,
    /// Seconds of earlier attempts, and of the waits before their retries.
    pub retrying_seconds: f64,
    /// Seconds of the last attempt.
    pub running_seconds: f64,
}

impl CriticalPath {
    /// Returns the times of these [`critical_tasks`]. `attempts` are the attempts of the tasks,
    /// oldest first; without them, the time before the last attempt of a task counts as waiting.
    #[must_use]
    pub fn of(path: &[&RunTask], attempts: &[RunAttempt], restarted_at: Option<Timestamp>) -> Self {
        let mut released_at = None;
        let step = |task: &&RunTask| {
            let own = || {
                let of_task = |it: &&RunAttempt| Some(it.task_id) == task.task_id;
                let recent =
                    |it: &&RunAttempt| it.finished_at.is_none_or(|at| is_after(at, restarted_at));
                attempts.iter().filter(of_task).filter(recent)
            };
            // The transaction of the restart sets the due time to its own start.
            let due_at = || own().map(|it| it.due_at).min().max(restarted_at);
            let from = released_at.or_else(due_at).or(task.started_at);
            released_at = end(task);
            let all = from.zip(released_at).map_or(0.0, |(from, to)| seconds(from, to));
            let running_seconds = task.duration.map_or(0.0, |it| it.as_secs_f64()).min(all);
            let retrying_seconds = retrying(own(), task.started_at).min(all - running_seconds);
            let waiting_seconds = all - running_seconds - retrying_seconds;
            let name = task.name.clone();
            PathStep { name, waiting_seconds, retrying_seconds, running_seconds }
        };
        let steps: Vec<PathStep> = path.iter().map(step).collect();
        let sum = |seconds: fn(&PathStep) -> f64| steps.iter().map(seconds).sum::<f64>();
        let waiting_seconds = sum(|it| it.waiting_seconds);
        let retrying_seconds = sum(|it| it.retrying_seconds);
        let running_seconds = sum(|it| it.running_seconds);
        Self {
            nodes: path.iter().map(|task| task.node).collect(),
            tasks: path.iter().map(|task| task.name.clone()).collect(),
            duration_seconds: waiting_seconds + retrying_seconds + running_seconds,
            waiting_seconds,
            retrying_seconds,
            running_seconds,
            steps,
        }
    }
}

/// Returns the critical path in the order of execution. Only tasks that have started count, since
/// the restart if there was one.
///
/// The edges must not contain a cycle. Time and space are proportional to the number of edges.
#[must_use]
pub fn critical_tasks<'a>(
    tasks: &'a [RunTask],
    edges: &[Edge],
    restarted_at: Option<Timestamp>,
) -> Vec<&'a RunTask> {
    let by_node: HashMap<i64, &RunTask> = tasks.iter().map(|task| (task.node, task)).collect();
    let mut parents: HashMap<i64, Vec<(&RunTask, Expected)>> = HashMap::new();
    for edge in edges {
        if let Some(parent) = by_node.get(&edge.parent) {
            parents.entry(edge.child).or_default().push((parent, edge.expected));
        }
    }
    let mut path = Vec::new();
    let started = |task: &&RunTask| task.started_at.is_some_and(|at| is_after(at, restarted_at));
    let recent = |task: &&RunTask| task.finished_at.is_none_or(|at| is_after(at, restarted_at));
    let mut next = last(tasks.iter().filter(started));
    while let Some(task) = next {
        path.push(task);
        let parents = parents.get(&task.node).map_or(&[][..], Vec::as_slice);
        next = released_by(task, parents).filter(recent);
    }
    path.reverse();
    path
}

/// Returns whether the time is after the restart, if there was one.
fn is_after(at: Timestamp, restarted_at: Option<Timestamp>) -> bool {
    restarted_at.is_none_or(|restarted_at| at >= restarted_at)
}

/// Sums the durations of the attempts that ended before the last one started, and the times from
/// the end of each until the next attempt was due.
fn retrying<'a>(
    attempts: impl Iterator<Item = &'a RunAttempt>,
    last_start: Option<Timestamp>,
) -> f64 {
    let mut sum = 0.0;
    let mut last_end: Option<Timestamp> = None;
    for attempt in attempts {
        sum += last_end.map_or(0.0, |ended| seconds(ended, attempt.due_at));
        let earlier = attempt.finished_at.filter(|at| last_start.is_some_and(|start| *at <= start));
        sum += attempt.started_at.zip(earlier).map_or(0.0, |(from, to)| seconds(from, to));
        last_end = earlier;
    }
    sum
}

/// Returns the task with which the path ends: of the running tasks, the one that started first;
/// otherwise the task that ended last.
fn last<'a>(started: impl Iterator<Item = &'a RunTask> + Clone) -> Option<&'a RunTask> {
    let running = started.clone().filter(|task| task.finished_at.is_none());
    running
        .min_by_key(|task| (task.started_at, task.node))
        .or_else(|| started.max_by_key(|task| (task.finished_at, task.node)))
}

/// Returns the parent whose end released the task: the last one, or with [`JoinMode::Any`] the
/// first one. A parent that was run again after a restart may end after the task.
fn released_by<'a>(task: &RunTask, parents: &[(&'a RunTask, Expected)]) -> Option<&'a RunTask> {
    let started_at = task.started_at?;
    let ended = parents
        .iter()
        .filter(|(parent, expected)| satisfies(&parent.state, *expected))
        .filter(|(parent, _)| parent.finished_at.is_some_and(|at| at <= started_at))
        .map(|(parent, _)| *parent);
    match task.join {
        JoinMode::All => ended.max_by_key(|parent| (parent.finished_at, parent.node)),
        JoinMode::Any => ended.min_by_key(|parent| (parent.finished_at, parent.node)),
    }
}

/// Returns whether the state of a parent satisfies an edge, as `mill.satisfies` does.
fn satisfies(state: &str, expected: Expected) -> bool {
    use Expected::{Always, Failed, Finished, Succeeded};
    match state {
        "succeeded" => matches!(expected, Succeeded | Finished | Always),
        "failed" | "failed, ignored" => matches!(expected, Failed | Finished | Always),
        "cancelled" => matches!(expected, Finished | Always),
        "upstream_failed" | "skipped" => expected == Always,
        _ => false,
    }
}

/// Returns the end of the last attempt; for a running attempt, the time at which it was read.
fn end(task: &RunTask) -> Option<Timestamp> {
    let running = || task.started_at?.checked_add(task.duration?).ok();
    task.finished_at.or_else(running)
}

fn seconds(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64().max(0.0)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use pgmill_client::StoredOptions;
    use pgmill_client::TaskId;
    use pgmill_client::{Outcome, Priority};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    /// Returns a task with this last attempt. Its id is its number.
    fn task(node: i64, attempt: Option<(i64, i64)>) -> RunTask {
        RunTask {
            node,
            name: format!("t{node}"),
            job: None,
            task_id: Some(TaskId(node)),
            state: if attempt.is_some() { "succeeded" } else { "waiting" }.to_owned(),
            started_at: attempt.map(|(from, _)| at(from)),
            finished_at: attempt.map(|(_, to)| at(to)),
            duration: attempt.map(|(from, to)| Duration::from_secs((to - from).cast_unsigned())),
            attempts: 1,
            rows: None,
            queue: "default".to_owned(),
            priority: Priority::Normal,
            group: None,
            pid: None,
            join: JoinMode::All,
            approval: None,
            message: None,
            result: None,
            options: StoredOptions::default(),
        }
    }

    fn attempt(task: i64, due: i64, started: i64, finished: i64) -> RunAttempt {
        RunAttempt {
            task_id: TaskId(task),
            outcome: Some(Outcome::Failed),
            due_at: at(due),
            started_at: Some(at(started)),
            finished_at: Some(at(finished)),
        }
    }

    fn edges(pairs: &[(i64, i64)]) -> Vec<Edge> {
        let edge = |&(parent, child)| Edge { parent, child, expected: Expected::Succeeded };
        pairs.iter().map(edge).collect()
    }

    fn path(tasks: &[RunTask], pairs: &[(i64, i64)]) -> Vec<i64> {
        let path = critical_tasks(tasks, &edges(pairs), None);
        path.iter().map(|task| task.node).collect()
    }

    fn steps(
        tasks: &[RunTask],
        pairs: &[(i64, i64)],
        attempts: &[RunAttempt],
        restarted_at: Option<Timestamp>,
    ) -> Vec<(i64, [f64; 3])> {
        let tasks = critical_tasks(tasks, &edges(pairs), restarted_at);
        let path = CriticalPath::of(&tasks, attempts, restarted_at);
        let times = |it: &PathStep| [it.waiting_seconds, it.retrying_seconds, it.running_seconds];
        let times: Vec<_> = path.steps.iter().map(times).collect();
        assert_eq!(path.duration_seconds, times.as_flattened().iter().sum::<f64>());
        path.nodes.into_iter().zip(times).collect()
    }

    #[test]
    fn the_path_follows_the_parent_that_ended_last() {
        // Task 3 runs longer than task 2, but ends earlier, because it started earlier.
        let tasks = [
            task(1, Some((0, 1))),
            task(2, Some((20, 22))),
            task(3, Some((1, 10))),
            task(4, Some((23, 25))),
        ];
        let diamond = [(1, 2), (1, 3), (2, 4), (3, 4)];
        assert_eq!(path(&tasks, &diamond), [1, 2, 4]);
        assert_eq!(
            steps(&tasks, &diamond, &[], None),
            [(1, [0.0, 0.0, 1.0]), (2, [19.0, 0.0, 2.0]), (4, [1.0, 0.0, 2.0])]
        );
    }

    #[test]
    fn the_path_ends_with_the_task_that_ended_last() {
        let tasks = [task(1, Some((0, 90))), task(2, Some((100, 101)))];
        assert_eq!(path(&tasks, &[]), [2]);
        // A task that waited for a reader from the start of the run.
        let attempts = [attempt(1, 0, 0, 90), attempt(2, 0, 100, 101)];
        assert_eq!(steps(&tasks, &[], &attempts, None), [(2, [100.0, 0.0, 1.0])]);
    }

    #[test]
    fn a_task_that_joins_any_parent_follows_the_first_one() {
        let mut tasks = vec![
            task(1, Some((0, 2))),
            task(2, Some((0, 5))),
            task(3, Some((0, 1))),
            task(4, Some((6, 9))),
        ];
        let all = [(1, 4), (2, 4), (3, 4)];
        assert_eq!(path(&tasks, &all), [2, 4]);
        tasks[3].join = JoinMode::Any;
        assert_eq!(path(&tasks, &all), [3, 4]);
        // A parent that does not satisfy its edge releases nothing.
        tasks[2].state = "failed".to_owned();
        assert_eq!(path(&tasks, &all), [1, 4]);
        // Nor does a parent that ends after the start of the task.
        tasks[0].finished_at = Some(at(7));
        assert_eq!(path(&tasks, &all), [2, 4]);
    }

    #[test]
    fn earlier_attempts_and_the_waits_before_retries_count() {
        // Attempts of task 2: due at 1, 13 and 24; the second one waits for a second in the queue.
        let tasks = [task(1, Some((0, 1))), task(2, Some((26, 30)))];
        let attempts = [
            attempt(1, 0, 0, 1),
            attempt(2, 1, 2, 3),
            attempt(2, 13, 14, 14),
            attempt(2, 24, 26, 30),
        ];
        // It waits 1 + 1 + 2 s, runs 1 + 0 s in vain, and is not due for 10 + 10 s.
        let expected = [(1, [0.0, 0.0, 1.0]), (2, [4.0, 21.0, 4.0])];
        assert_eq!(steps(&tasks, &[(1, 2)], &attempts, None), expected);
    }

    #[test]
    fn only_the_time_since_a_restart_counts() {
        // All three tasks ran, task 2 in two attempts. The restart at 1000 ran tasks 2 and 3 again.
        let attempts = [
            attempt(1, 0, 0, 1),
            attempt(2, 1, 2, 3),
            attempt(2, 13, 14, 15),
            attempt(2, 999, 1002, 1004),
            attempt(3, 15, 16, 17),
            attempt(3, 1004, 1005, 1008),
        ];
        let chain = [(1, 2), (2, 3)];
        let tasks =
            [task(1, Some((0, 1))), task(2, Some((1002, 1004))), task(3, Some((1005, 1008)))];
        let expected = [(2, [2.0, 0.0, 2.0]), (3, [1.0, 0.0, 3.0])];
        assert_eq!(steps(&tasks, &chain, &attempts, Some(at(1000))), expected);
        // A task that ended before the restart is not the last task of the path.
        let tasks = [task(1, Some((1002, 1004))), task(2, Some((0, 9))), task(3, None)];
        let path = steps(&tasks, &chain, &[attempt(1, 999, 1002, 1004)], Some(at(1000)));
        assert_eq!(path, [(1, [2.0, 0.0, 2.0])]);
    }

    #[test]
    fn the_path_of_a_run_in_progress_ends_with_a_running_task() {
        let mut tasks =
            [task(1, Some((0, 1))), task(2, Some((2, 9))), task(3, Some((1, 50))), task(4, None)];
        tasks[1].finished_at = None;
        tasks[1].state = "running".to_owned();
        assert_eq!(path(&tasks, &[(1, 2), (1, 3), (2, 4)]), [1, 2]);
    }

    #[test]
    fn tasks_that_have_not_started_are_excluded() {
        let tasks = [task(1, Some((0, 3))), task(2, None), task(3, Some((0, 1))), task(4, None)];
        assert_eq!(path(&tasks, &[(1, 2), (3, 4)]), [1]);
        assert!(path(&[task(1, None)], &[]).is_empty());
        assert!(path(&[], &[]).is_empty());
    }
}
