//! Critical path of a run: the chain of tasks that determines its duration. Pure.

use std::collections::HashMap;

use crate::read::run_queries::{Edge, RunTask};

/// Returns the chain of parents and children whose durations have the greatest sum, in the order of
/// execution, and that sum in seconds. Only tasks that have started count. An edge counts even if
/// the task did not wait for that parent (join mode `any`).
///
/// The edges must not contain a cycle. Time and space are proportional to the number of edges
/// (Kelley and Walker, Critical-path planning and scheduling, 1959).
#[must_use]
pub fn critical_path<'a>(tasks: &'a [RunTask], edges: &[Edge]) -> (Vec<&'a RunTask>, f64) {
    let index: HashMap<i64, usize> =
        tasks.iter().enumerate().map(|(n, task)| (task.node, n)).collect();
    let mut children = vec![Vec::new(); tasks.len()];
    let mut waits = vec![0_usize; tasks.len()];
    for edge in edges {
        if let (Some(parent), Some(child)) = (index.get(&edge.parent), index.get(&edge.child)) {
            children[*parent].push(*child);
            waits[*child] += 1;
        }
    }
    let own = |n: usize| tasks[n].duration.map_or(0.0, |duration| duration.as_secs_f64());
    let mut longest: Vec<f64> = (0..tasks.len()).map(own).collect();
    let mut before: Vec<Option<usize>> = vec![None; tasks.len()];
    let mut ready: Vec<usize> = (0..tasks.len()).filter(|n| waits[*n] == 0).collect();
    while let Some(n) = ready.pop() {
        for &child in &children[n] {
            if tasks[child].duration.is_some() && longest[n] + own(child) > longest[child] {
                longest[child] = longest[n] + own(child);
                before[child] = Some(n);
            }
            waits[child] -= 1;
            if waits[child] == 0 {
                ready.push(child);
            }
        }
    }
    let started = (0..tasks.len()).filter(|n| tasks[*n].duration.is_some());
    let Some(last) = started.max_by(|a, b| longest[*a].total_cmp(&longest[*b])) else {
        return (Vec::new(), 0.0);
    };
    let mut path = Vec::new();
    let mut at = Some(last);
    while let Some(n) = at {
        // A parent that has not started took no time, and is not part of the chain.
        if tasks[n].duration.is_some() {
            path.push(&tasks[n]);
        }
        at = before[n];
    }
    path.reverse();
    (path, longest[last])
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::labels::StoredOptions;
    use crate::operator::run::{Expected, JoinMode};
    use crate::task::Priority;

    fn task(node: i64, seconds: Option<u64>) -> RunTask {
        RunTask {
            node,
            name: format!("t{node}"),
            job: None,
            task_id: None,
            state: "succeeded".to_owned(),
            started_at: None,
            finished_at: None,
            duration: seconds.map(Duration::from_secs),
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

    fn edges(pairs: &[(i64, i64)]) -> Vec<Edge> {
        let edge = |&(parent, child)| Edge { parent, child, expected: Expected::Succeeded };
        pairs.iter().map(edge).collect()
    }

    fn path(tasks: &[RunTask], pairs: &[(i64, i64)]) -> (Vec<i64>, f64) {
        let (path, seconds) = critical_path(tasks, &edges(pairs));
        (path.iter().map(|task| task.node).collect(), seconds)
    }

    #[test]
    fn the_longer_branch_of_a_diamond_is_taken() {
        let tasks = [task(1, Some(1)), task(2, Some(5)), task(3, Some(9)), task(4, Some(2))];
        let (nodes, seconds) = path(&tasks, &[(1, 2), (1, 3), (2, 4), (3, 4)]);
        assert_eq!(nodes, [1, 3, 4]);
        assert!((seconds - 12.0).abs() < 1e-9, "{seconds}");
    }

    #[test]
    fn tasks_that_have_not_started_are_excluded() {
        let tasks = [task(1, Some(3)), task(2, None), task(3, Some(1)), task(4, None)];
        assert_eq!(path(&tasks, &[(1, 2), (3, 4)]).0, [1]);
        assert_eq!(path(&[task(1, None)], &[]), (vec![], 0.0));
        assert_eq!(path(&[], &[]), (vec![], 0.0));
    }
}
