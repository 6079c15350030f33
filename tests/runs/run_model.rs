//! Random runs compared with a simple model: both have the same final states, although workers are
//! killed meanwhile.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};

use crate::harness::{Database, Fleet, amount, eventually};
use crate::runs::run::{assert_in_order, job, start, states};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Nature {
    Succeeds,
    Fails,
    /// The task waits in a paused queue until it is cancelled.
    IsCancelled,
    /// The task needs approval, and is rejected.
    IsRejected,
}

#[derive(Clone, Debug)]
struct Node {
    nature: Nature,
    ignored: bool,
    any: bool,
    /// Whether the task needs approval, which it gets unless it is rejected.
    asks: bool,
    /// Earlier nodes with their expected outcomes.
    parents: Vec<(usize, &'static str)>,
}

fn node(n: usize) -> impl Strategy<Value = Node> {
    let nature = prop_oneof![
        6 => Just(Nature::Succeeds),
        3 => Just(Nature::Fails),
        1 => Just(Nature::IsCancelled),
        1 => Just(Nature::IsRejected),
    ];
    let expected = prop_oneof![3 => Just("succeeded"), 1 => Just("failed"), 2 => Just("finished"), 1 => Just("always")];
    let parents = proptest::collection::btree_map(0..n.max(1), expected, 0..=n.min(4));
    (nature, any::<bool>(), any::<bool>(), proptest::bool::weighted(0.1), parents).prop_map(
        move |(nature, ignored, any, asks, parents)| Node {
            nature,
            asks: asks || nature == Nature::IsRejected,
            ignored,
            any,
            parents: if n == 0 { Vec::new() } else { parents.into_iter().collect() },
        },
    )
}

fn graph() -> impl Strategy<Value = Vec<Node>> {
    (1..=60_usize).prop_flat_map(|size| (0..size).map(node).collect::<Vec<_>>())
}

/// Returns the outcome that each node must have, in order, and that of the run. If two parents end in
/// different ways that each prevent a node from running, the first one decides whether the node is
/// `upstream_failed` or `skipped`; the model does not know which one was first, and takes the
/// outcome from `found`.
fn model(graph: &[Node], found: &[String]) -> (Vec<&'static str>, &'static str) {
    let mut ends: Vec<&'static str> = Vec::new();
    for (node, found) in graph.iter().zip(found) {
        let is_satisfied = |(parent, expected): &(usize, &'static str)| match *expected {
            "always" => true,
            "finished" => !["upstream_failed", "skipped"].contains(&ends[*parent]),
            expected => ends[*parent] == expected,
        };
        let unsatisfied = node.parents.iter().filter(|edge| !is_satisfied(edge));
        let (not_taken, failures): (Vec<_>, Vec<_>) = unsatisfied
            .map(|(parent, _)| ends[*parent])
            .partition(|end| ["succeeded", "skipped"].contains(end));
        let runs = if node.any && !node.parents.is_empty() {
            node.parents.iter().any(is_satisfied)
        } else {
            node.parents.iter().all(is_satisfied)
        };
        ends.push(match node.nature {
            _ if !runs && failures.is_empty() => "skipped",
            _ if !runs && (node.any || not_taken.is_empty()) => "upstream_failed",
            _ if !runs && found == "skipped" => "skipped",
            _ if !runs => "upstream_failed",
            Nature::Succeeds => "succeeded",
            Nature::Fails => "failed",
            Nature::IsCancelled | Nature::IsRejected => "cancelled",
        });
    }
    let failed = graph.iter().zip(&ends).any(|(node, end)| *end == "failed" && !node.ignored);
    let state = if failed {
        "failed"
    } else if ends.contains(&"cancelled") {
        "cancelled"
    } else {
        "succeeded"
    };
    (ends, state)
}

fn document(graph: &[Node]) -> Value {
    let task = |(n, node): (usize, &Node)| {
        let after: Vec<Value> = node
            .parents
            .iter()
            .map(
                |(parent, expected)| json!({"task": format!("t{parent:02}"), "expected": expected}),
            )
            .collect();
        json!({
            "name": format!("t{n:02}"),
            "statement": if node.nature == Nature::Fails { "SELECT 1/0" } else { "SELECT 1" },
            "max_attempts": 1,
            "queue": if node.nature == Nature::IsCancelled { "held" } else { "default" },
            "ignore_failure": node.ignored,
            "approval": node.asks,
            "approval_note": match (node.asks, node.nature) {
                (false, _) => None,
                (true, Nature::IsRejected) => Some("reject"),
                (true, _) => Some("approve"),
            },
            "join": if node.any { "any" } else { "all" },
            "after": after,
        })
    };
    graph.iter().enumerate().map(task).collect()
}

/// Cancels the tasks in the paused queue, and decides on those that need approval.
async fn decide(database: &Database) {
    database
        .execute(
            "SELECT mill.cancel(id) FROM mill.tasks WHERE queue = 'held';
             SELECT mill.reject(run_id, task) FROM mill.approvals_needed WHERE note = 'reject';
             SELECT mill.approve(run_id, task) FROM mill.approvals_needed WHERE note = 'approve'",
        )
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn random_runs_end_as_the_model_says_though_workers_are_killed() {
    let (runs, steps, min_kills) = amount((10, 5, 2), (150, 10, 4));
    let database = Database::new().await;
    database.execute("SELECT mill.pause('held'); UPDATE mill.settings SET max_crashes = 100").await;
    let mut runner = TestRunner::default();
    let mut graphs = Vec::new();
    for n in 0..runs {
        let graph = graph().new_tree(&mut runner).unwrap().current();
        job(&database, &format!("job {n}"), document(&graph)).await;
        graphs.push((start(&database, &format!("job {n}")).await, graph));
    }
    let flags = [
        "--readers",
        "8",
        "--poll-interval",
        "50ms",
        "--heartbeat-interval",
        "500ms",
        "--orphan-timeout",
        "5s",
    ];
    let mut fleet = Fleet::start(&database, 2, &flags);
    // The runs that have not ended, and their tasks.
    let open = "SELECT coalesce(sum(open + 1), 0)::bigint FROM mill.runs WHERE state = 'running'";
    let mut left: i64 = database.value(open).await;
    let (step, mut kills) = (left / steps, 0);
    while left > 0 {
        let next = (left - step).max(0);
        eventually("more tasks end", async || {
            decide(&database).await;
            left = database.value(open).await;
            left <= next
        })
        .await;
        fleet.replace(kills % 2);
        kills += 1;
    }
    assert!(kills >= min_kills, "{kills} kills");
    for (run, graph) in &graphs {
        let found = states(&database, *run).await;
        let ends_found: Vec<String> = found
            .split(", t")
            .map(|task| task.split_whitespace().nth(1).unwrap_or_default().replace(',', ""))
            .collect();
        let (ends, state) = model(graph, &ends_found);
        let expected: Vec<String> = ends
            .iter()
            .zip(graph)
            .enumerate()
            .map(|(n, (end, node))| {
                format!(
                    "t{n:02} {end}{}",
                    if *end == "failed" && node.ignored { ", ignored" } else { "" }
                )
            })
            .collect();
        assert_eq!(found, expected.join(", "), "run {run}: {graph:#?}");
        let ended: String =
            database.value(&format!("SELECT state::text FROM mill.runs WHERE id = {run}")).await;
        assert_eq!(ended, state, "run {run}: {graph:#?}");
    }
    assert_in_order(&database).await;
    let undecided = "SELECT count(*) FROM mill.run_tasks WHERE approval AND approved IS NULL AND task_id IS NOT NULL";
    assert_eq!(database.value::<i64>(undecided).await, 0, "tasks that started without approval");
    let twice: i64 = database
        .value(
            "SELECT count(*) FROM (SELECT FROM mill.attempts WHERE final GROUP BY run_id, node
             HAVING count(*) > 1) AS twice",
        )
        .await;
    assert_eq!(twice, 0, "tasks that ended more than once");
}
