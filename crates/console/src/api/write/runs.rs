//! API handlers that start, cancel and repeat runs, and that approve and reject tasks of runs.

use queue::run::{self, RestartOptions, RunOptions, Started};
use queue::{Labels, Traceparent};

use super::{Done, done, found, seconds};
use crate::api::prelude::*;
use crate::screens::runs::actions::require_run;
use crate::screens::runs::run::{no_such_run, run_id};

/// Jobs to start as one run.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct StartRunRequest {
    #[schema(min_items = 1)]
    jobs: Vec<String>,
    /// Values of the parameters of the jobs.
    #[serde(default)]
    #[schema(value_type = Object)]
    params: Map<String, Value>,
    #[serde(default)]
    tags: Vec<String>,
    #[serde(default)]
    #[schema(value_type = Object)]
    metadata: Map<String, Value>,
    /// Time after which the run is cancelled, instead of that of the jobs.
    run_timeout_seconds: Option<f64>,
    /// Trace context of the caller, for all tasks of the run.
    traceparent: Option<Traceparent>,
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
struct CancelRunRequest {
    /// Whether to cancel its running tasks, too.
    kill: bool,
}

/// Which tasks of a run to run again; without any of the first three, those that failed and those
/// that never ran.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
struct RestartRunRequest {
    failed: bool,
    never_run: bool,
    downstream: bool,
    /// Whether to restart even a run that was cancelled.
    force: bool,
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
struct RerunRequest {
    /// The tasks; all tasks if empty.
    tasks: Vec<String>,
    /// Whether to run only these tasks, and not the tasks after them.
    only: bool,
}

#[derive(Serialize, ToSchema)]
struct TasksOfRun {
    /// Names of the tasks that run again.
    tasks: Vec<String>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ApproveRequest {
    /// Name of the task.
    task: String,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct RejectRequest {
    /// Name of the task.
    task: String,
    /// Shown as the message of the task.
    reason: Option<String>,
}

changes! {
    /// Starts one run of jobs
    ///
    /// Requires the scope `run`.
    Run "/api/v1/runs" start_run(tx, body => StartRunRequest) -> Started {
        let labels = Labels { tags: body.tags, metadata: body.metadata };
        let run_timeout = seconds("run_timeout_seconds", body.run_timeout_seconds)?;
        let options = RunOptions { labels, run_timeout, traceparent: body.traceparent };
        Ok(run::start(tx, &body.jobs, &body.params, &options).await?)
    }

    /// Cancels a run
    ///
    /// The result is `cancelling`, or the state of a run that has ended.
    Operate "/api/v1/runs/{id}/cancel"
    cancel_run(tx, body => CancelRunRequest, id = run_id[i64, Path, minimum = 1]) -> Done {
        found(run::cancel(tx, id, body.kill).await?, || no_such_run(id))
    }

    /// Runs those tasks of an ended run again that did not succeed
    Operate "/api/v1/runs/{id}/restart"
    restart_run(tx, body => RestartRunRequest, id = run_id[i64, Path, minimum = 1]) -> TasksOfRun {
        require_run(tx, id).await?;
        let RestartRunRequest { failed, never_run, downstream, force } = body;
        let unspecified = !(failed || never_run || downstream);
        let options = RestartOptions {
            failed: failed || unspecified,
            never_run: never_run || unspecified,
            downstream,
            force,
        };
        Ok(TasksOfRun { tasks: run::restart(tx, id, options).await? })
    }

    /// Runs tasks of a run again, whatever their outcome was
    Operate "/api/v1/runs/{id}/rerun"
    rerun_run(tx, body => RerunRequest, id = run_id[i64, Path, minimum = 1]) -> TasksOfRun {
        require_run(tx, id).await?;
        Ok(TasksOfRun { tasks: run::rerun(tx, id, &body.tasks, !body.only).await? })
    }

    /// Approves a task of a run that waits for approval
    Operate "/api/v1/runs/{id}/approve"
    approve_task(tx, body => ApproveRequest, id = run_id[i64, Path, minimum = 1]) -> Done {
        require_run(tx, id).await?;
        run::approve(tx, id, &body.task).await?;
        Ok(done("approved"))
    }

    /// Rejects a task of a run that waits for approval: it is cancelled
    Operate "/api/v1/runs/{id}/reject"
    reject_task(tx, body => RejectRequest, id = run_id[i64, Path, minimum = 1]) -> Done {
        require_run(tx, id).await?;
        run::reject(tx, id, &body.task, body.reason.as_deref()).await?;
        Ok(done("rejected"))
    }
}
