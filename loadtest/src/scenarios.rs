//! The scenarios: one file each, named as on the command line. `throughput` and `stability` are
//! groups of scenarios.
//!
//! | scenario | file |
//! |---|---|
//! | names on the command line, and one-line descriptions | `kind` |
//! | drains of a backlog, and things that must not slow them down | `throughput` |
//! | enqueueing with the library, compared with inserts, and with the program | `enqueue` |
//! | pick-up latency on an idle fleet, under load and at steady rates | `latency` |
//! | task graphs: a wide run, many small runs, a chain | `runs` |
//! | many schedules: ticks, fires at the same instant, delay of a fire | `schedules` |
//! | statements, WAL and processor time of an idle fleet | `idle` |
//! | cost per worker in fleets of up to 1,250 workers, and cost per task | `scale` |
//! | faults, memory, and a long mixed load | `stability` |
//! | response times of every screen and API path of the web console | `console` |

mod console;
mod enqueue;
mod idle;
pub(crate) mod kind;
mod latency;
mod runs;
mod scale;
mod schedules;
mod stability;
pub(crate) mod throughput;

use anyhow::Result;

use crate::context::RunContext;
use crate::result::Scenario;

use kind::Kind;

/// Measures a scenario.
pub(crate) async fn run(kind: Kind, context: &RunContext) -> Result<Scenario> {
    let scenario = match kind {
        Kind::Drain => throughput::drain::run(context).await,
        Kind::Noop => throughput::noop::run(context).await,
        Kind::Enqueue => enqueue::run(context).await,
        Kind::Latency => latency::run(context).await,
        Kind::Backlog => throughput::backlog::run(context).await,
        Kind::History => throughput::history::run(context).await,
        Kind::Pinned => throughput::pinned::run(context).await,
        Kind::Scheduled => throughput::scheduled::run(context).await,
        Kind::Capped => throughput::capped::run(context).await,
        Kind::Targets => throughput::targets::run(context).await,
        Kind::Tracing => throughput::tracing::run(context).await,
        Kind::Runs => runs::run(context).await,
        Kind::Schedules => schedules::run(context).await,
        Kind::Fleet => throughput::fleet::run(context).await,
        Kind::Idle => idle::run(context).await,
        Kind::Scale => scale::run(context).await,
        Kind::Recovery => stability::recovery::run(context).await,
        Kind::Memory => stability::memory::run(context).await,
        Kind::Console => console::run(context).await,
        Kind::Soak => stability::soak::run(context).await,
    }?;
    Ok(Scenario { name: kind.name().to_owned(), title: kind.title().to_owned(), ..scenario })
}
