//! Model check of runs: every order in which tasks of a run end, are added, attempted again and
//! cancelled, while workers advance the run and crash, and operators cancel, restart, rerun and retry.
//!
//! Needs no database. States, edges, joins and the options of a restart are the product's types.
//! Planted bugs show that the rules detect them. Random walks cover larger graphs;
//! `cargo test -p queue --test run_model -- --ignored --nocapture` walks for minutes and prints the seed
//! of each graph.

#![expect(clippy::expect_used, reason = "cannot fail in a small model")]

mod control;
#[path = "../model/explore.rs"]
mod explore;
mod model;
mod random;
mod tables;
#[path = "../model/walk.rs"]
mod walk;

use queue::run::{Expected, JoinMode};
use rand::SeedableRng;
use rand::rngs::StdRng;

use explore::{Violation, explore};
use model::{Added, Graph};
use random::{AMPLE, graph, random_graph};
use tables::{Bug, Settings};
use walk::walk;

use Expected::{Always, Failed, Finished, Succeeded};
use JoinMode::{All, Any};

/// Two parents whose children expect different ends, and a child of both children.
fn branches() -> Graph {
    let of = [(0, 2, Succeeded), (1, 2, Failed), (0, 3, Failed), (2, 4, Always), (3, 4, Finished)];
    Graph { fails: vec![0, 1], ..graph(&[All, All, All, Any, All], &of) }
}

/// A chain with a task that runs in any case.
fn cleanup() -> Graph {
    let of = [(0, 1, Succeeded), (1, 2, Always)];
    Graph {
        fails: vec![0],
        released: vec![0],
        cancels: true,
        restarts: 1,
        ..graph(&[All, All, All], &of)
    }
}

/// A running task adds a task after its sibling, and before a task that waits for both.
fn growing(join: JoinMode) -> Graph {
    let added = Added { by: Some(0), after: vec![1], before: vec![2] };
    let of = [(0, 2, Succeeded)];
    Graph { fails: vec![0, 1], added: Some(added), ..graph(&[All, All, join], &of) }
}

/// A failure after which more tasks are ready than a bounded pass releases.
fn more_than_a_pass() -> Graph {
    let of = [(0, 1, Succeeded), (0, 2, Always), (1, 3, Always), (1, 4, Always), (1, 5, Always)];
    let settings = Settings { max_count: 3, ..AMPLE };
    Graph { fails: vec![0], restarts: 1, settings, ..graph(&[All; 6], &of) }
}

/// Two parents with a common parent and a common child, which needs one of them.
fn diamond() -> Graph {
    let of = [(0, 1, Succeeded), (0, 2, Finished), (1, 3, Succeeded), (2, 3, Succeeded)];
    Graph { fails: vec![1], restarts: 1, ..graph(&[All, All, All, Any], &of) }
}

/// Another session adds a parent of a task whose other parent may have ended.
fn from_outside() -> Graph {
    let added = Added { by: None, after: vec![], before: vec![1] };
    let of = [(0, 1, Succeeded)];
    Graph { added: Some(added), ..graph(&[All, All], &of) }
}

/// With a task that depends on none.
fn with_another(graph: Graph) -> Graph {
    Graph { joins: [graph.joins, vec![All]].concat(), ..graph }
}

/// With a pass that is bounded to two events, edges and tasks.
fn few(graph: Graph) -> Graph {
    Graph { settings: Settings { max_count: 2, ..AMPLE }, ..graph }
}

fn every_graph() -> Vec<(&'static str, Graph)> {
    vec![
        ("branches", branches()),
        ("branches, two per pass", few(branches())),
        ("a chain with cancel and restart", cleanup()),
        ("a chain with cancel and restart, two per pass", few(cleanup())),
        ("a diamond with restart", diamond()),
        ("a diamond with restart, two per pass", few(diamond())),
        ("a task that is added", Graph { restarts: 1, ..growing(All) }),
        ("a task that is added, for a child of any parent", growing(Any)),
        ("a task that is added, with cancel", Graph { cancels: true, ..growing(All) }),
        ("a task that another session adds, two per pass", few(from_outside())),
    ]
}

#[test]
fn the_rules_always_hold_and_every_run_can_end() {
    std::thread::scope(|scope| {
        for (name, graph) in every_graph() {
            scope.spawn(move || {
                let timer = std::time::Instant::now();
                let found =
                    explore(&graph).unwrap_or_else(|violation| panic!("{name}: {violation}"));
                println!(
                    "{name}: {} states, {} steps, {:?}",
                    found.states,
                    found.steps,
                    timer.elapsed()
                );
            });
        }
    });
}

fn found(bug: Bug, graph: &Graph) -> Violation {
    let settings = Settings { bug: Some(bug), ..graph.settings };
    let violation = explore(&Graph { settings, ..graph.clone() }).expect_err("it breaks a rule");
    println!("{bug:?}: {violation}");
    violation
}

#[test]
fn planted_bugs_are_found() {
    const STUCK: &str = "no end is reachable from this state";
    const EARLY: &str = "a task entered the queue before its parents ended";
    const GIVEN_UP: &str = "a task was given up although it could run";
    const CHECK: &str = "a run ended before its tasks (every_task_counts)";
    const OPEN: &str = "the number of open tasks is wrong";
    for (bug, graph, rule) in [
        (Bug::EventsDeletedFirst, cleanup(), STUCK),
        (Bug::NoLock, cleanup(), "a task entered the queue twice"),
        (Bug::PropagatesTwice, few(branches()), EARLY),
        (Bug::FirstParentSuffices, branches(), EARLY),
        (Bug::AlwaysNeedsParent, cleanup(), GIVEN_UP),
        (Bug::RestartKeepsCounters, Graph { cancels: false, ..cleanup() }, STUCK),
        (Bug::RestartKeepsReady, more_than_a_pass(), EARLY),
        (Bug::AddedNotCounted, growing(All), OPEN),
        (Bug::PropagatesToUncounted, growing(All), CHECK),
        (Bug::PropagatesToUncounted, with_another(growing(Any)), GIVEN_UP),
        (Bug::RestartCountsUncounted, Graph { restarts: 1, ..growing(All) }, OPEN),
        (Bug::CancelsUncounted, Graph { cancels: true, ..growing(All) }, CHECK),
        (Bug::SearchEndsAtBound, few(diamond()), STUCK),
        (Bug::AddedParentNotCounted, few(from_outside()), EARLY),
        (Bug::EndsWithoutEvents, branches(), CHECK),
        (Bug::CancelLeavesWaiting, cleanup(), STUCK),
        (Bug::ReleasesInCancelledRun, cleanup(), "a task of a cancelled run started"),
        (Bug::NoEventForRest, few(branches()), STUCK),
    ] {
        assert_eq!(found(bug, &graph).rule, rule, "{bug:?}");
    }
}

/// Walks through random graphs, from this seed on.
fn walks(first: u64, graphs: u64, count: usize) {
    for seed in first..first + graphs {
        let mut random = StdRng::seed_from_u64(seed);
        let graph = random_graph(&mut random);
        if let Err(violation) = walk(&graph, &mut random, count) {
            panic!("seed {seed}: {violation}{graph:#?}");
        }
    }
}

#[test]
fn the_rules_hold_on_random_walks_through_larger_runs() {
    walks(1, 1000, 300);
}

#[test]
#[ignore = "walks for minutes, from a random seed"]
fn the_rules_hold_on_long_walks() {
    let first = u64::from(rand::random::<u32>());
    println!("seeds from {first}");
    walks(first, 5_000, 1000);
}
