//! The scenarios: one file each, named as on the command line.

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
