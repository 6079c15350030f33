//! API handlers that act on schedules, backfills and jobs.

use jiff::Timestamp;
use queue::job;
use queue::run::Started;
use schedule::backfill::{self, BackfillAction, BackfillOptions};
use schedule::{declare, queries};

use super::{Done, done, no_such};
use crate::api::prelude::*;

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

changes! {
    /// Starts a run of a schedule now
    ///
    /// Requires the scope `run`.
    Run "/api/v1/schedules/run" run_schedule(tx, body => RunScheduleRequest) -> Started {
        let RunScheduleRequest { name, force, params, fire_at } = body;
        let run = declare::run_now(tx, &name, force, &params, fire_at).await?;
        let run = run.ok_or_else(|| no_such("schedule", &name))?;
        Ok(Started { run, dropped: Vec::new() })
    }

    /// Enables or disables a schedule
    Operate "/api/v1/schedules/enable" enable_schedule(tx, body => EnableRequest) -> Done {
        let known = declare::enable(tx, &body.name, body.enabled).await?;
        enabled(known, &body, "schedule")
    }

    /// Enables or disables a job
    Operate "/api/v1/jobs/enable" enable_job(tx, body => EnableRequest) -> Done {
        let known = job::enable(tx, &body.name, body.enabled).await?;
        enabled(known, &body, "job")
    }

    /// Starts a run of a schedule for each of its instants in a period in the past
    ///
    /// Workers start the runs, in the order of the instants.
    Operate "/api/v1/schedules/backfill" backfill_schedule(tx, body => BackfillRequest) -> CreatedBackfill {
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
    }

    /// Pauses, resumes or cancels a backfill
    ///
    /// The result is `paused`, `resumed` or `cancelled`.
    Operate "/api/v1/backfills/{id}/change"
    change_backfill(tx, body => ChangeBackfillRequest, id = backfill_id[i64, Path, minimum = 1]) -> Done {
        let (action, result) = match body.action {
            BackfillChange::Pause => (BackfillAction::Pause, "paused"),
            BackfillChange::Resume => (BackfillAction::Resume, "resumed"),
            BackfillChange::Cancel => (BackfillAction::Cancel, "cancelled"),
        };
        HttpError::unless(backfill::change(tx, id.0, action).await?, || no_such("backfill", id.1))?;
        Ok(done(result))
    }
}

fn enabled(known: bool, body: &EnableRequest, kind: &str) -> Result<Done, HttpError> {
    HttpError::unless(known, || no_such(kind, &body.name))?;
    Ok(done(if body.enabled { "enabled" } else { "disabled" }))
}

/// Returns the identifier with its text.
fn backfill_id(text: &str) -> Result<(i64, &str), HttpError> {
    Ok((text.parse().map_err(|_| no_such("backfill", text))?, text))
}
