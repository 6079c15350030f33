//! Critical path of a run: the chain of tasks that its end waited for. Pure.
//!
//! The path is found backwards from the task that ended last, or that is still running. Each task
//! follows the parent that released it. So the path explains the whole time from its first task to
//! its end, including the time in which its tasks waited in the queue, and in which their earlier
//! attempts failed. A path of the greatest sum of durations would leave this time out, and could
//! name tasks that nothing waited for.

use std::collections::HashMap;

use jiff::Timestamp;

use crate::operator::run::{Expected, JoinMode};
use crate::read::run_attempts::RunAttempt;
use crate::read::run_queries::{Edge, RunTask};

/// A task of the critical path. The three times add up to the time from the end of the previous
/// step to the end of this one.
#[derive(Clone, Debug)]
pub struct PathStep<'a> {
    /// The task.
    pub task: &'a RunTask,
    /// Seconds in which the task waited in the queue.
    pub waiting_seconds: f64,
    /// Seconds of earlier attempts, and of the waits before their retries.
    pub retrying_seconds: f64,
    /// Seconds of the last attempt.
    pub running_seconds: f64,
}

/// Returns the critical path in the order of execution, and the seconds from the start of its first
/// task to the end of its last one. Only tasks that have started count.
///
/// The edges must not contain a cycle. Time and space are proportional to the number of edges.
#[must_use]
pub fn critical_path<'a>(tasks: &'a [RunTask], edges: &[Edge]) -> (Vec<&'a RunTask>, f64) {
    let path = path(tasks, edges);
    let ends =
        path.first().and_then(|task| task.started_at).zip(path.last().and_then(|it| end(it)));
    (path, ends.map_or(0.0, |(from, to)| seconds(from, to)))
}

/// Returns the critical path with the times of its steps. `attempts` are the attempts of the tasks,
/// oldest first; without them, the time before the last attempt of a task counts as waiting.
#[must_use]
pub fn critical_steps<'a>(
    tasks: &'a [RunTask],
    edges: &[Edge],
    attempts: &[RunAttempt],
) -> Vec<PathStep<'a>> {
    let mut released_at = None;
    let step = |task: &'a RunTask| {
        let own = || attempts.iter().filter(|it| Some(it.task_id) == task.task_id);
        let from = released_at.or_else(|| own().map(|it| it.due_at).min()).or(task.started_at);
        released_at = end(task);
        let all = from.zip(released_at).map_or(0.0, |(from, to)| seconds(from, to));
        let running_seconds = task.duration.map_or(0.0, |it| it.as_secs_f64()).min(all);
        let retrying_seconds = retrying(own(), task.started_at).min(all - running_seconds);
        let waiting_seconds = all - running_seconds - retrying_seconds;
        PathStep { task, waiting_seconds, retrying_seconds, running_seconds }
    };
    path(tasks, edges).into_iter().map(step).collect()
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

fn path<'a>(tasks: &'a [RunTask], edges: &[Edge]) -> Vec<&'a RunTask> {
    let by_node: HashMap<i64, &RunTask> = tasks.iter().map(|task| (task.node, task)).collect();
    let mut parents: HashMap<i64, Vec<(&RunTask, Expected)>> = HashMap::new();
    for edge in edges {
        if let Some(parent) = by_node.get(&edge.parent) {
            parents.entry(edge.child).or_default().push((parent, edge.expected));
        }
    }
    let mut path = Vec::new();
    let mut next = last(tasks);
    while let Some(task) = next {
        path.push(task);
        next = released_by(task, parents.get(&task.node).map_or(&[], Vec::as_slice));
    }
    path.reverse();
    path
}

/// Returns the task with which the path ends: of the running tasks, the one that started first;
/// otherwise the task that ended last.
fn last(tasks: &[RunTask]) -> Option<&RunTask> {
    let started = || tasks.iter().filter(|task| task.started_at.is_some());
    let running = started().filter(|task| task.finished_at.is_none());
    running
        .min_by_key(|task| (task.started_at, task.node))
        .or_else(|| started().max_by_key(|task| (task.finished_at, task.node)))
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
    use crate::id::TaskId;
    use crate::labels::StoredOptions;
    use crate::task::{Outcome, Priority};

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

    fn path(tasks: &[RunTask], pairs: &[(i64, i64)]) -> (Vec<i64>, f64) {
        let (path, seconds) = critical_path(tasks, &edges(pairs));
        (path.iter().map(|task| task.node).collect(), seconds)
    }

    fn steps(
        tasks: &[RunTask],
        pairs: &[(i64, i64)],
        attempts: &[RunAttempt],
    ) -> Vec<(i64, [f64; 3])> {
        let times =
            |it: &PathStep<'_>| [it.waiting_seconds, it.retrying_seconds, it.running_seconds];
        let steps = critical_steps(tasks, &edges(pairs), attempts);
        steps.iter().map(|it| (it.task.node, times(it))).collect()
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
        assert_eq!(path(&tasks, &diamond), (vec![1, 2, 4], 25.0));
        assert_eq!(
            steps(&tasks, &diamond, &[]),
            [(1, [0.0, 0.0, 1.0]), (2, [19.0, 0.0, 2.0]), (4, [1.0, 0.0, 2.0])]
        );
    }

    #[test]
    fn the_path_ends_with_the_task_that_ended_last() {
        let tasks = [task(1, Some((0, 90))), task(2, Some((100, 101)))];
        assert_eq!(path(&tasks, &[]), (vec![2], 1.0));
        // A task that waited for a reader from the start of the run.
        let attempts = [attempt(1, 0, 0, 90), attempt(2, 0, 100, 101)];
        assert_eq!(steps(&tasks, &[], &attempts), [(2, [100.0, 0.0, 1.0])]);
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
        assert_eq!(path(&tasks, &all).0, [2, 4]);
        tasks[3].join = JoinMode::Any;
        assert_eq!(path(&tasks, &all).0, [3, 4]);
        // A parent that does not satisfy its edge releases nothing.
        tasks[2].state = "failed".to_owned();
        assert_eq!(path(&tasks, &all).0, [1, 4]);
        // Nor does a parent that ends after the start of the task.
        tasks[0].finished_at = Some(at(7));
        assert_eq!(path(&tasks, &all).0, [2, 4]);
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
        assert_eq!(steps(&tasks, &[(1, 2)], &attempts), expected);
    }

    #[test]
    fn the_path_of_a_run_in_progress_ends_with_a_running_task() {
        let mut tasks =
            [task(1, Some((0, 1))), task(2, Some((2, 9))), task(3, Some((1, 50))), task(4, None)];
        tasks[1].finished_at = None;
        tasks[1].state = "running".to_owned();
        assert_eq!(path(&tasks, &[(1, 2), (1, 3), (2, 4)]), (vec![1, 2], 9.0));
    }

    #[test]
    fn tasks_that_have_not_started_are_excluded() {
        let tasks = [task(1, Some((0, 3))), task(2, None), task(3, Some((0, 1))), task(4, None)];
        assert_eq!(path(&tasks, &[(1, 2), (3, 4)]).0, [1]);
        assert_eq!(path(&[task(1, None)], &[]), (vec![], 0.0));
        assert_eq!(path(&[], &[]), (vec![], 0.0));
    }
}
