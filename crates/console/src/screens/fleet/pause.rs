//! Pause of the whole fleet: the banner of every page ends it, the screen Queues begins or plans it.

use queue::maintenance::{self, PauseRequest};
use queue::task_queries;

use crate::screens::prelude::*;

/// Longest time between now and the start or the end of a pause, in minutes: a year.
const MAX_MINUTES: u32 = 365 * 24 * 60;

pub(crate) fn routes() -> Router<App> {
    Router::new()
        .route("/fleet/pause", post(pause_fleet))
        .route("/fleet/resume", post(resume_fleet))
}

/// Pauses the fleet, now or in some minutes. Without a length, the pause lasts until it is ended.
async fn pause_fleet(form: FormRequest) -> HandlerResult {
    let minutes = |name| match form.optional::<u32>(name)? {
        Some(minutes) if minutes > MAX_MINUTES => {
            Err(HttpError::bad_request(format!("{name} is at most {MAX_MINUTES} minutes")))
        }
        minutes => Ok(minutes.map(|minutes| Duration::from_secs(u64::from(minutes) * 60))),
    };
    let (length, start) = (minutes("length")?, minutes("start")?.filter(|wait| !wait.is_zero()));
    let reason = form.text("reason");
    form.change("/queues", async |tx| {
        let from = match start {
            Some(wait) => Some(task_queries::now(tx).await? + wait),
            None => None,
        };
        let pause = PauseRequest { from, until: None, length, reason };
        Ok(maintenance::pause_fleet(tx, &pause).await?)
    })
    .await
}

/// Ends the pause in force; with `planned`, also removes the planned ones.
async fn resume_fleet(form: FormRequest) -> HandlerResult {
    let planned = form.optional("planned")?.unwrap_or(false);
    form.change("/queues", async |tx| Ok(maintenance::resume_fleet(tx, planned).await?)).await
}
