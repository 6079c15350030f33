//! API handlers that change something, one transaction per request.
//!
//! | task | file |
//! |---|---|
//! | enqueuing, changing, cancelling and retrying tasks | `tasks` |
//! | starting, cancelling, restarting and rerunning runs; approving and rejecting their tasks | `runs` |
//! | running, enabling and backfilling schedules; enabling jobs | `schedules` |
//! | pausing and purging queues, draining workers, setting and removing subscriptions | `fleet` |
//!
//! The database checks the privileges of the user's role.

mod fleet;
mod runs;
mod schedules;
mod tasks;

use std::time::Duration;

use super::prelude::*;

/// A request without fields.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct EmptyRequest {}

/// What a request has changed, or the state that it has found.
#[derive(Serialize, ToSchema)]
struct Done {
    result: String,
}

pub(super) fn routes() -> OpenApiRouter<App> {
    tasks::described()
        .merge(runs::described())
        .merge(schedules::described())
        .merge(fleet::described())
}

fn seconds(name: &str, value: Option<f64>) -> Result<Option<Duration>, HttpError> {
    let read = |value| {
        Duration::try_from_secs_f64(value)
            .map_err(|_| HttpError::bad_request(format!("invalid {name}: {value}")))
    };
    value.map(read).transpose()
}

fn no_such(kind: &str, name: &str) -> HttpError {
    HttpError::not_found(format!("there is no {kind} {name}"))
}

fn done(result: &str) -> Done {
    Done { result: result.to_owned() }
}

fn found(result: String, none: impl FnOnce() -> HttpError) -> Result<Done, HttpError> {
    if result == "not found" { Err(none()) } else { Ok(Done { result }) }
}
