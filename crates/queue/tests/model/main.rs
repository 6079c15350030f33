//! Model check: every order in which a small fleet can run, fail, lose and reclaim its tasks.
//!
//! Needs no database. The model simplifies `schema.sql` and the worker, and uses the pure parts of
//! the product: the states with their transitions, the outcomes, and the decision after an error.
//! Workers die, stop and return, are cut off, and receive cancels; the server crashes and loses
//! claims. All of this may happen any number of times and at any moment. Planted bugs show that the
//! rules detect them.
//!
//! `cargo test -p queue --test model -- --nocapture` prints states and traces.

#![expect(clippy::expect_used, reason = "cannot fail in a small model")]

mod explore;
mod model;
mod steps;
mod transitions;
mod world;

use std::cell::RefCell;
use std::collections::BTreeSet;

use queue::retry::MAX_FREE_ATTEMPTS;
use queue::{Mode, State};

use explore::{Violation, explore};
use model::{Bug, Model, Size};
use world::Fault;

/// Number of attempts that are not counted. Tasks begin near this bound, so that the model stays small.
#[expect(clippy::cast_possible_truncation, reason = "a small number")]
const FREE: u8 = MAX_FREE_ATTEMPTS as u8;

/// Two tasks and two workers, with crashes of all kinds.
const SMALL: Size = Size {
    workers: 2,
    tasks: 2,
    mode: Mode::Transaction,
    at_most_once: false,
    max_attempts: 1,
    max_crashes: 2,
    transient_failures: FREE,
    faults: &[],
    stops: false,
    again: 0,
    planted: None,
};

fn every_size() -> Vec<(&'static str, Size)> {
    let all = &[
        Fault::Error,
        Fault::Serialization,
        Fault::Fatal,
        Fault::Snooze,
        Fault::ConnectionLost,
        Fault::Timeout,
        Fault::Cancelled,
        Fault::Interrupted,
    ];
    let one = Size {
        tasks: 1,
        max_attempts: 2,
        transient_failures: FREE - 1,
        faults: all,
        stops: true,
        ..SMALL
    };
    let some = &[Fault::Error, Fault::ConnectionLost];
    let three = Size { workers: 3, transient_failures: FREE, faults: some, ..one };
    let again = Size { again: 1, faults: some, transient_failures: FREE, ..one };
    let stopped = &[
        Fault::Error,
        Fault::ConnectionLost,
        Fault::Timeout,
        Fault::Cancelled,
        Fault::Interrupted,
    ];
    let apart = Mode::Autocommit;
    vec![
        ("two workers, two tasks", SMALL),
        ("two workers, one task with every fault", one),
        ("two workers, one task that is run again", again),
        ("three workers, one task", three),
        ("two workers, two tasks in autocommit mode", Size { mode: apart, ..SMALL }),
        ("two workers, one task in autocommit mode", Size { mode: apart, faults: stopped, ..one }),
        (
            "two workers, one at-most-once task",
            Size { mode: apart, at_most_once: true, max_attempts: 1, again: 1, ..one },
        ),
    ]
}

#[test]
fn the_rules_always_hold_and_every_task_can_end() {
    let used: BTreeSet<_> = std::thread::scope(|scope| {
        let sizes = every_size();
        let all: Vec<_> = sizes
            .into_iter()
            .map(|(name, size)| scope.spawn(move || hold_in(name, size)))
            .collect();
        all.into_iter().flat_map(|one| one.join().expect("its message is printed")).collect()
    });
    let every = State::ALL.iter().map(|state| Some(*state)).chain([None]);
    let limited = |state: Option<State>| state == Some(State::Blocked);
    let allowed = State::ALL.iter().flat_map(|from| every.clone().map(|to| (*from, to)));
    let allowed = allowed.filter(|(from, to)| from.can_transition_to(*to));
    // The model has no operator, who gives a pending task a later due time.
    let changed = |from: State, to| from == State::Pending && to == Some(State::Scheduled);
    let modelled =
        allowed.filter(|(from, to)| !limited(Some(*from)) && !limited(*to) && !changed(*from, *to));
    assert_eq!(used, modelled.collect::<BTreeSet<_>>(), "transitions without limits and changes");
}

/// Checks the rules; returns the transitions that were used.
fn hold_in(name: &str, size: Size) -> BTreeSet<(State, Option<State>)> {
    let model = Model { size, used: RefCell::default() };
    let timer = std::time::Instant::now();
    let explored = explore(&model).unwrap_or_else(|violation| panic!("{name}: {violation}"));
    println!("{name}: {} states, {} steps, {:?}", explored.states, explored.steps, timer.elapsed());
    model.used.into_inner()
}

/// Returns the shortest path to the rule that the bug violates.
fn found(bug: Bug, size: Size) -> Violation {
    let size = Size { planted: Some(bug), ..size };
    let model = Model { size, used: RefCell::default() };
    let violation = explore(&model).expect_err("it breaks a rule");
    println!("{bug:?}: {violation}");
    violation
}

/// One task, and workers that stop and return.
const ONE: Size = Size { tasks: 1, stops: true, ..SMALL };

#[test]
fn fencing_by_task_id_alone_is_detected() {
    let violation = found(Bug::FinishById, ONE);
    assert_eq!(violation.rule, "a stale claim changed the task");
}

#[test]
fn fencing_by_attempt_number_is_detected_when_a_crash_reissues_the_number() {
    // The claim was not on disk, so its attempt number is assigned again.
    let violation = found(Bug::FenceByAttempt, ONE);
    assert_eq!(violation.rule, "a stale claim changed the task");
    assert!(violation.trace.contains(&"ServerCrashes".to_owned()), "{violation}");
}

#[test]
fn a_reclaim_that_leaves_the_backend_is_detected() {
    for mode in [Mode::Autocommit, Mode::Transaction] {
        let violation = found(Bug::ReclaimWithoutEnding, Size { mode, ..ONE });
        assert_eq!(violation.rule, "two backends run one task");
    }
}

#[test]
fn a_completion_in_a_second_transaction_is_detected() {
    let violation = found(Bug::TwoTransactions, ONE);
    assert_eq!(violation.rule, "effects and success do not match");
}

#[test]
fn a_heartbeat_that_revives_a_reclaimed_claim_is_detected() {
    let violation = found(Bug::HeartbeatRevives, ONE);
    assert_eq!(violation.rule, "two backends run one task");
}

#[test]
fn a_crash_that_is_not_counted_is_detected() {
    let violation = found(Bug::CrashNotCounted, ONE);
    assert_eq!(violation.rule, "a task exceeds its maximum attempts");
}

#[test]
fn an_asynchronous_completion_is_detected() {
    let violation = found(Bug::AsynchronousCompletion, ONE);
    assert_eq!(violation.rule, "an ended task changed");
}
