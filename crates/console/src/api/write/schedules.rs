//! API handlers that act on schedules, backfills and jobs.

use axum::extract::Path;
use jiff::Timestamp;
use queue::job;
use queue::run::Started;
use schedule::backfill::{self, BackfillAction, BackfillOptions};
use schedule::{declare, queries};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Done, done, no_such};
use crate::error::{HandlerResult, HttpError};
use crate::http::api_request::ApiRequest;
use crate::http::app::App;
use crate::options::rights::Scope;

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct RunScheduleRequest {
    /// The schedule.
    name: String,
    /// Whether to start a run while another one is in progress, or again for the same instant.
    #[serde(default)]
    force: bool,
    /// Parameters, in addition to those of the schedule.
    #[serde(default)]
    #[schema(value_type = Object)]
    params: Map<String, Value>,
    /// Instant in the past for which the run is; by default the current time.
    fire_at: Option<Timestamp>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct EnableRequest {
    /// The schedule or the job.
    name: String,
    enabled: bool,
}

/// A period in the past, for whose instants a schedule starts runs.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct BackfillRequest {
    /// The schedule.
    name: String,
    /// Start of the period, inclusive.
    from: Timestamp,
    /// End of the period, inclusive.
    to: Timestamp,
    /// Maximum number of runs in progress.
    #[serde(default = "one")]
    #[schema(default = 1, minimum = 1)]
    max_running: i32,
    /// Whether to start instants again that have a run already.
    #[serde(default)]
    again: bool,
    /// Parameters, in addition to those of the schedule.
    #[serde(default)]
    #[schema(value_type = Object)]
    params: Map<String, Value>,
}

fn one() -> i32 {
    1
}

/// A backfill that was created.
#[derive(Serialize, ToSchema)]
struct CreatedBackfill {
    id: i64,
    /// Number of instants in the period.
    instants: usize,
    /// Number of these instants that have a run already and are skipped.
    skipped: usize,
}

/// A change of a backfill.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum BackfillChange {
    Pause,
    Resume,
    Cancel,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ChangeBackfillRequest {
    action: BackfillChange,
}

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(run_schedule))
        .routes(routes!(enable_schedule))
        .routes(routes!(backfill_schedule))
        .routes(routes!(change_backfill))
        .routes(routes!(enable_job))
}

/// Starts a run of a schedule now
///
/// Requires the scope `run`.
#[utoipa::path(post, path = "/api/v1/schedules/run", request_body = RunScheduleRequest, responses((status = 200, body = Started)))]
async fn run_schedule(call: ApiRequest<RunScheduleRequest>) -> HandlerResult {
    call.execute(Scope::Run, async |tx, body| {
        let RunScheduleRequest { name, force, params, fire_at } = body;
        let run = declare::run_now(tx, &name, force, &params, fire_at).await?;
        let run = run.ok_or_else(|| no_such("schedule", &name))?;
        Ok(Started { run, dropped: Vec::new() })
    })
    .await
}

/// Enables or disables a schedule
#[utoipa::path(post, path = "/api/v1/schedules/enable", request_body = EnableRequest, responses((status = 200, body = Done)))]
async fn enable_schedule(call: ApiRequest<EnableRequest>) -> HandlerResult {
    call.execute(Scope::Operate, async |tx, body| {
        let known = declare::enable(tx, &body.name, body.enabled).await?;
        enabled(known, &body, "schedule")
    })
    .await
}

/// Enables or disables a job
#[utoipa::path(post, path = "/api/v1/jobs/enable", request_body = EnableRequest, responses((status = 200, body = Done)))]
async fn enable_job(call: ApiRequest<EnableRequest>) -> HandlerResult {
    call.execute(Scope::Operate, async |tx, body| {
        let known = job::enable(tx, &body.name, body.enabled).await?;
        enabled(known, &body, "job")
    })
    .await
}

/// Starts a run of a schedule for each of its instants in a period in the past
///
/// Workers start the runs, in the order of the instants.
#[utoipa::path(post, path = "/api/v1/schedules/backfill", request_body = BackfillRequest, responses((status = 200, body = CreatedBackfill)))]
async fn backfill_schedule(call: ApiRequest<BackfillRequest>) -> HandlerResult {
    call.execute(Scope::Operate, async |tx, body| {
        let BackfillRequest { name, from, to, max_running, again, params } = body;
        let options = BackfillOptions { from, to, max_running, again, params };
        let known = queries::status(tx, &name).await?;
        let known = known.ok_or_else(|| no_such("schedule", &name))?;
        let id = backfill::create(tx, &name, &options).await?;
        let id = id.ok_or_else(|| no_such("schedule", &name))?;
        let found = backfill::preview(tx, &name, &known.timing, &options).await?;
        if found.instants == 0 {
            return Err(HttpError::bad_request("the schedule has no instant in this period"));
        }
        let (instants, skipped) = (found.instants, found.skipped.len());
        Ok(CreatedBackfill { id, instants, skipped })
    })
    .await
}

/// Pauses, resumes or cancels a backfill
///
/// The result is `paused`, `resumed` or `cancelled`.
#[utoipa::path(post, path = "/api/v1/backfills/{id}/change", params(("id" = i64, Path, minimum = 1)), request_body = ChangeBackfillRequest, responses((status = 200, body = Done)))]
async fn change_backfill(
    Path(id): Path<String>,
    call: ApiRequest<ChangeBackfillRequest>,
) -> HandlerResult {
    let number: i64 = id.parse().map_err(|_| no_such("backfill", &id))?;
    call.execute(Scope::Operate, async |tx, body| {
        let (action, result) = match body.action {
            BackfillChange::Pause => (BackfillAction::Pause, "paused"),
            BackfillChange::Resume => (BackfillAction::Resume, "resumed"),
            BackfillChange::Cancel => (BackfillAction::Cancel, "cancelled"),
        };
        if !backfill::change(tx, number, action).await? {
            return Err(no_such("backfill", &id));
        }
        Ok(done(result))
    })
    .await
}

fn enabled(known: bool, body: &EnableRequest, kind: &str) -> Result<Done, HttpError> {
    if !known {
        return Err(no_such(kind, &body.name));
    }
    Ok(done(if body.enabled { "enabled" } else { "disabled" }))
}
