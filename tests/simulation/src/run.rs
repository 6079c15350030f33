//! One simulation.

use std::collections::BTreeMap;

use crate::checks::DRAIN;
use crate::event::{Part, SECOND};
use crate::world::{Faults, Options, World};

/// The outcome of a simulation.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The violated invariant, with its virtual time.
    pub violation: Option<String>,
    /// Hash of all events: the same for the same options.
    pub trace_hash: u64,
    /// Number of events.
    pub events: u64,
    /// Virtual time, in seconds.
    pub seconds: f64,
    /// Number of faults.
    pub faults: usize,
    /// Number of tasks with a committed effect.
    pub tasks: usize,
    /// Number of tasks that were reclaimed.
    pub reclaims: u64,
    /// Times from the kill of a worker until one of its tasks was pending again, in milliseconds,
    /// in ascending order.
    pub recoveries_ms: Vec<u64>,
    /// Statements by kind.
    pub statements: BTreeMap<&'static str, u64>,
    /// Number of other workers that polls have read.
    pub peers_read: u64,
    /// Number of notifications that the server sent.
    pub notifications: u64,
    /// Most statements within a tenth of a second.
    pub peak: u64,
    /// Longest time for which a task waited while there were no faults, in milliseconds.
    pub longest_wait_ms: u64,
}

/// Simulates a fleet until the end of the faults, and then until it should have finished all tasks.
/// Calls `progress` with the virtual time in seconds.
pub fn simulate(options: Options, mut progress: impl FnMut(u64)) -> Summary {
    let mut world = World::new(options);
    let end = options.seconds * SECOND + if options.faults == Faults::All { DRAIN } else { 0 };
    let mut until = 0;
    while until < end && world.checks.violation.is_none() {
        until = (until + 60 * SECOND).min(end);
        world.run_until(until);
        world.check_claims();
        progress(until / SECOND);
    }
    if world.checks.violation.is_none() && options.faults == Faults::All {
        world.check_end();
    }
    let effects = &world.server.effects;
    let recoveries = world.checks.recoveries.iter();
    let mut recoveries_ms: Vec<u64> = recoveries.map(|recovery| recovery / 1000).collect();
    recoveries_ms.sort_unstable();
    Summary {
        trace_hash: world.trace_hash(),
        events: world.events.count(),
        seconds: world.now as f64 / SECOND as f64,
        faults: world.faults.len(),
        tasks: effects.iter().filter(|count| **count > 0).count(),
        reclaims: world.checks.reclaims,
        recoveries_ms,
        statements: world.checks.statements,
        peers_read: world.checks.peers_read,
        notifications: world.checks.notifications,
        peak: world.checks.peak,
        longest_wait_ms: world.checks.longest_wait / 1000,
        violation: world.checks.violation,
    }
}

/// Simulates a fleet. Returns all statements in their order: the part of the worker that sent it, and
/// its kind.
pub fn statements_in_order(options: Options) -> Vec<(&'static str, &'static str)> {
    let mut world = World::new(options);
    world.checks.order = Some(Vec::new());
    world.run_until(options.seconds * SECOND);
    let order = world.checks.order.unwrap_or_default().into_iter();
    order.map(|(part, statement)| (name(part), statement)).collect()
}

fn name(part: Part) -> &'static str {
    match part {
        Part::Heartbeat => "heartbeat",
        Part::Poll => "poll",
        Part::Claimer => "claimer",
        Part::Listener => "listener",
        Part::Scheduler => "scheduler",
        Part::Reclaimer => "reclaimer",
        Part::Reader(_) => "reader",
    }
}
