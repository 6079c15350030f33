//! Weights of the priorities, and the readers that are kept for reserved tasks.

use askama::Template;
use axum::Router;
use axum::response::Response;
use axum::routing::{get, post};
use queue::priority::{self, Weight};
use queue::{Priority, ReservedCapacity};

use super::Shown;
use super::fill::{Fleet, PriorityFill};
use crate::app::App;
use crate::page::{Page, show as answer};
use crate::trouble::Trouble;
use crate::visit::{Act, Visit};
use crate::words;

pub(crate) fn routes() -> Router<App> {
    Router::new()
        .route("/priorities", get(show))
        .route("/priorities/weights", post(weigh))
        .route("/priorities/reserve", post(reserve))
}

struct Line {
    fill: PriorityFill,
    weight: f64,
    /// Of the picks while all priorities have work, in percent.
    share: f64,
}

#[derive(Template)]
#[template(path = "priorities.html")]
struct Screen {
    page: Page,
    lines: Vec<Line>,
    reserved: ReservedCapacity,
    /// Readers that serve reserved tasks only, and all of them.
    kept: (i32, i32),
}

impl Screen {
    fn is_set(&self, capacity: &ReservedCapacity) -> bool {
        self.reserved == *capacity
    }

    fn capacities(&self) -> &'static [ReservedCapacity] {
        ReservedCapacity::ALL
    }
}

async fn show(visit: Visit) -> Shown {
    let mut session = visit.session().await?;
    let look = session.look().await?;
    let viewer = visit.viewer(&look).await?;
    let fleet = Fleet::look(&look, &visit.app.tally, viewer.now).await?;
    let weights = priority::weights(&*look).await?;
    let reserved = priority::reserved_capacity(&*look).await?;
    let all: f64 = weights.iter().map(|it| it.weight).sum();
    let weight = |of: Priority| {
        weights.iter().find(|it: &&Weight| it.priority == of).map_or(0.0, |it| it.weight)
    };
    let line = |fill: PriorityFill| {
        let weight = weight(fill.priority);
        Line { fill, weight, share: if all > 0.0 { weight / all * 100.0 } else { 0.0 } }
    };
    let alive = fleet.workers.iter().filter(|worker| worker.alive);
    let kept = alive.fold((0, 0), |sum, it| (sum.0 + it.reserved, sum.1 + it.readers));
    let lines = fleet.priorities().into_iter().map(line).collect();
    answer(&Screen { page: visit.page("Priorities", viewer), lines, reserved, kept })
}

async fn weigh(act: Act) -> Result<Response, Trouble> {
    let mut weights = [None; 5];
    for (weight, priority) in weights.iter_mut().zip(Priority::ALL) {
        *weight = act.optional(priority.as_str())?;
    }
    let mut session = act.visit.session().await?;
    let transaction = act.begin(&mut session).await?;
    priority::set_weights(&*transaction, &weights).await?;
    transaction.commit().await?;
    Ok(act.back("/priorities"))
}

async fn reserve(act: Act) -> Result<Response, Trouble> {
    let capacity: ReservedCapacity = act.parsed("capacity")?;
    let mut session = act.visit.session().await?;
    let transaction = act.begin(&mut session).await?;
    priority::reserve(&*transaction, capacity).await?;
    transaction.commit().await?;
    Ok(act.back("/priorities"))
}
