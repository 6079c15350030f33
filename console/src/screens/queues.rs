//! Queues: how full they are, what limits them, shared commits, and pause and resume.

use std::time::Duration;

use askama::Template;
use axum::Router;
use axum::extract::Path;
use axum::response::Response;
use axum::routing::{get, post};
use queue::limit::{self, Rate};
use queue::{LimitKind, operate};

use super::Shown;
use super::fill::{Fleet, QueueFill};
use crate::app::App;
use crate::page::{Page, show as answer};
use crate::trouble::Trouble;
use crate::visit::{Act, Visit};
use crate::words;

pub(crate) fn routes() -> Router<App> {
    Router::new()
        .route("/queues", get(show))
        .route("/queues/{queue}/pause", post(pause))
        .route("/queues/{queue}/limit", post(set))
        .route("/queues/{queue}/commits", post(share_commits))
}

#[derive(Template)]
#[template(path = "queues.html")]
struct Screen {
    page: Page,
    queues: Vec<QueueFill>,
}

async fn show(visit: Visit) -> Shown {
    let mut session = visit.session().await?;
    let look = session.look().await?;
    let viewer = visit.viewer(&look).await?;
    let fleet = Fleet::look(&look, &visit.app.tally, viewer.now).await?;
    answer(&Screen { page: visit.page("Queues", viewer), queues: fleet.queues() })
}

async fn pause(Path(queue): Path<String>, act: Act) -> Result<Response, Trouble> {
    let paused: bool = act.parsed("paused")?;
    let mut session = act.visit.session().await?;
    let transaction = act.begin(&mut session).await?;
    if paused {
        operate::pause(&*transaction, &queue).await?;
    } else {
        operate::resume(&*transaction, &queue).await?;
    }
    transaction.commit().await?;
    Ok(act.back("/queues"))
}

/// Sets both limits; an empty field takes its limit away.
async fn set(Path(queue): Path<String>, act: Act) -> Result<Response, Trouble> {
    let most: Option<i32> = act.optional("max_running")?;
    let starts: Option<i32> = act.optional("rate_starts")?;
    let seconds: Option<u64> = act.optional("rate_seconds")?;
    let rate = match (starts, seconds) {
        (None, None) => None,
        (Some(starts), Some(seconds)) => {
            Some(Rate { starts, period: Duration::from_secs(seconds) })
        }
        _ => return Err(Trouble::bad("a rate has a number of starts and a number of seconds")),
    };
    let mut session = act.visit.session().await?;
    let transaction = act.begin(&mut session).await?;
    limit::set_max_running(&*transaction, LimitKind::Queue, &queue, most).await?;
    limit::set_rate(&*transaction, LimitKind::Queue, &queue, rate).await?;
    transaction.commit().await?;
    Ok(act.back("/queues"))
}

/// Sets the budget of shared commits; an empty field: each task commits alone.
async fn share_commits(Path(queue): Path<String>, act: Act) -> Result<Response, Trouble> {
    let budget: Option<u64> = act.optional("milliseconds")?;
    let mut session = act.visit.session().await?;
    let transaction = act.begin(&mut session).await?;
    operate::share_commits(&*transaction, &queue, budget.map(Duration::from_millis)).await?;
    transaction.commit().await?;
    Ok(act.back("/queues"))
}
