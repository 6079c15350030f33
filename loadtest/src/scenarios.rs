//! The scenarios: one file each, named as on the command line. `throughput` and `stability` are
//! groups of scenarios.
//!
//! | scenario | file |
//! |---|---|
//! | drains of a backlog, and things that must not slow them down | `throughput` |
//! | enqueueing with the library, compared with inserts, and with the program | `enqueue` |
//! | pick-up latency on an idle fleet, under load and at steady rates | `latency` |
//! | task graphs: a wide run and many small runs | `runs` |
//! | many schedules: ticks, fires at the same instant, delay of a fire | `schedules` |
//! | statements and WAL of an idle fleet | `idle` |
//! | cost per worker in fleets of up to 1,250 workers, and cost per task | `scale` |
//! | recovery time after a killed worker, a frozen worker, a database restart | `recovery` |
//! | memory of a worker: a long drain, a huge result, many notices | `memory` |
//! | response times of every screen and API path of the web console | `console` |
//! | mixed load at a steady rate, with a failover in the middle | `soak` |

mod console;
mod enqueue;
mod idle;
mod latency;
mod memory;
mod recovery;
mod runs;
mod scale;
mod schedules;
mod soak;
pub(crate) mod throughput;

use anyhow::Result;
use futures_util::future::LocalBoxFuture;

use crate::context::RunContext;
use crate::result::Scenario;

/// A scenario.
#[derive(Clone, Copy)]
pub(crate) struct ScenarioSpec {
    /// Name on the command line.
    pub(crate) name: &'static str,
    /// One-line description.
    pub(crate) title: &'static str,
    /// Measures the scenario.
    pub(crate) run: for<'a> fn(&'a RunContext) -> LocalBoxFuture<'a, Result<Scenario>>,
}

macro_rules! scenario {
    ($name:literal, $title:literal, $run:path) => {
        ScenarioSpec { name: $name, title: $title, run: |context| Box::pin($run(context)) }
    };
}

/// All scenarios.
pub(crate) const SCENARIOS: &[ScenarioSpec] = &[
    scenario!("drain", "a backlog of tasks, each one INSERT, exactly once", throughput::drain::run),
    scenario!("enqueue", "enqueueing: single tasks, bulk, the command-line program", enqueue::run),
    scenario!(
        "latency",
        "pick-up latency: from the commit of an enqueue to the start of its statement",
        latency::run
    ),
    scenario!(
        "backlog",
        "throughput with a small and with a large backlog",
        throughput::backlog::run
    ),
    scenario!(
        "history",
        "throughput with and without finished tasks in history",
        throughput::history::run
    ),
    scenario!("pinned", "throughput while an old snapshot stays open", throughput::pinned::run),
    scenario!(
        "scheduled",
        "throughput with and without scheduled tasks",
        throughput::unaffected::scheduled
    ),
    scenario!(
        "capped",
        "throughput with and without many tasks of a run at its limit",
        throughput::unaffected::capped
    ),
    scenario!(
        "targets",
        "throughput of tasks in another database, exactly once",
        throughput::targets::run
    ),
    scenario!(
        "tracing",
        "throughput with and without the export of traces",
        throughput::tracing::run
    ),
    scenario!("runs", "task graphs: one wide run compared with many small runs", runs::run),
    scenario!(
        "schedules",
        "many schedules: a tick with none due, all due at once, the delay of a fire",
        schedules::run
    ),
    scenario!("fleet", "1 to 64 worker processes on one backlog", throughput::fleet::run),
    scenario!("idle", "cost of an idle fleet", idle::run),
    scenario!("scale", "cost per worker with up to 1,250 workers, and cost per task", scale::run),
    scenario!(
        "recovery",
        "recovery time: a worker killed, a worker stopped, the database restarted",
        recovery::run
    ),
    scenario!(
        "memory",
        "memory of a worker: a long drain, a huge result, many notices",
        memory::run
    ),
    scenario!("console", "the web console with many live tasks and a long history", console::run),
    scenario!("soak", "a long mixed load: stability of rate, memory and table sizes", soak::run),
];
