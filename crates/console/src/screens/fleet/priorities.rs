//! Priorities screen: weights, and readers reserved for tasks of priority `reserved`.

use queue::priority::{self, Weight};
use queue::{Priority, ReservedCapacity};

use super::queue_stats::{FleetSnapshot, PriorityStats};
use crate::screens::prelude::*;

pub(crate) fn routes() -> Router<App> {
    Router::new()
        .route("/priorities", get(show))
        .route("/priorities/weights", post(set_weights))
        .route("/priorities/reserve", post(set_reserved_capacity))
}

struct PriorityRow {
    stats: PriorityStats,
    weight: f64,
    /// Share of claims in percent while all priorities have pending tasks.
    share: f64,
}

#[derive(Template)]
#[template(path = "priorities.html")]
struct PrioritiesPage {
    page: Layout,
    lines: Vec<PriorityRow>,
    reserved: ReservedCapacity,
    /// The number of readers that run only tasks of priority `reserved`, and the number of all
    /// readers.
    reserved_readers: (i32, i32),
}

async fn show(mut request: ReadRequest) -> HandlerResult {
    let read = request.begin().await?;
    let fleet = FleetSnapshot::of(&read).await?;
    let weights = priority::weights(&*read.tx).await?;
    let reserved = priority::reserved_capacity(&*read.tx).await?;
    let all: f64 = weights.iter().map(|it| it.weight).sum();
    let weight = |of: Priority| {
        weights.iter().find(|it: &&Weight| it.priority == of).map_or(0.0, |it| it.weight)
    };
    let line = |stats: PriorityStats| {
        let weight = weight(stats.priority);
        PriorityRow { stats, weight, share: if all > 0.0 { weight / all * 100.0 } else { 0.0 } }
    };
    let alive = fleet.workers.iter().filter(|worker| worker.alive);
    let reserved_readers = alive.fold((0, 0), |sum, it| (sum.0 + it.reserved, sum.1 + it.readers));
    let lines = fleet.priorities().into_iter().map(line).collect();
    render(&PrioritiesPage { page: read.layout("Priorities"), lines, reserved, reserved_readers })
}

async fn set_weights(form: FormRequest) -> HandlerResult {
    let mut weights = [None; 5];
    for (weight, priority) in weights.iter_mut().zip(Priority::ALL) {
        *weight = form.optional(priority.as_str())?;
    }
    form.change("/priorities", async |tx| Ok(priority::set_weights(tx, &weights).await?)).await
}

async fn set_reserved_capacity(form: FormRequest) -> HandlerResult {
    let capacity = form.parsed("capacity")?;
    form.change("/priorities", async |tx| Ok(priority::set_reserved_capacity(tx, capacity).await?))
        .await
}
