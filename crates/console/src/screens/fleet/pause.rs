//! Pause of the whole fleet: the banner of every page ends it, the screen Queues begins or plans it.

use std::time::Duration;

use axum::Router;
use axum::response::Response;
use axum::routing::post;
use jiff::SignedDuration;
use queue::maintenance::{self, PauseRequest};
use queue::task_queries;

use crate::http::app::App;
use crate::http::error::HttpError;
use crate::http::request::FormRequest;

/// Longest time between now and the start or the end of a pause, in minutes: a year.
const MAX_MINUTES: u32 = 365 * 24 * 60;

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/fleet/pause", post(pause)).route("/fleet/resume", post(resume))
}

/// Pauses the fleet, now or in some minutes. Without a length, the pause lasts until it is ended.
async fn pause(form: FormRequest) -> Result<Response, HttpError> {
    let minutes = |name| match form.optional::<u32>(name)? {
        Some(minutes) if minutes > MAX_MINUTES => {
            Err(HttpError::bad_request(format!("{name} is at most {MAX_MINUTES} minutes")))
        }
        minutes => Ok(minutes.map(|minutes| u64::from(minutes) * 60)),
    };
    let (length, start) = (minutes("length")?, minutes("start")?.filter(|wait| *wait > 0));
    let reason = Some(form.field("reason").to_owned()).filter(|reason| !reason.is_empty());
    let mut session = form.context.session().await?;
    let tx = form.begin(&mut session).await?;
    let from = match start {
        Some(wait) => {
            let wait = SignedDuration::from_secs(wait.cast_signed());
            Some(task_queries::now(&*tx).await? + wait)
        }
        None => None,
    };
    let length = length.map(Duration::from_secs);
    maintenance::pause_fleet(&*tx, &PauseRequest { from, until: None, length, reason }).await?;
    tx.commit().await?;
    Ok(form.redirect_back("/queues"))
}

/// Ends the pause in force; with `planned`, also removes the planned ones.
async fn resume(form: FormRequest) -> Result<Response, HttpError> {
    let planned = form.optional("planned")?.unwrap_or(false);
    let mut session = form.context.session().await?;
    let tx = form.begin(&mut session).await?;
    maintenance::resume_fleet(&*tx, planned).await?;
    tx.commit().await?;
    Ok(form.redirect_back("/queues"))
}
