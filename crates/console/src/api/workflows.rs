//! API handlers for runs, schedules, jobs and lineage.

use queue::insight::jobs::versions::JobVersion;
use queue::lineage::LineageEdge;
use tokio_postgres::Transaction;

use super::prelude::*;
use crate::page::graph::GraphData;
use crate::screens::jobs::lineage::LineageDetail;
use crate::screens::jobs::list::JobsParams;
use crate::screens::runs::list::RunsParams;
use crate::screens::runs::run::{RunDetail, run_id};
use crate::screens::schedules::list::SchedulesParams;
use crate::screens::{jobs, runs, schedules};

/// Parameter of one object.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(default)]
struct NameParams {
    /// name of the object
    #[param(required = true, min_length = 1, example = "nightly")]
    name: String,
}

/// A task with its upstream and downstream tasks.
#[derive(Serialize, ToSchema)]
struct Lineage {
    task: String,
    tasks: Vec<String>,
    edges: Vec<LineageEdge>,
}

reads! {
    /// Runs, newest first, 50 per page; a page searches up to 10,000 runs
    "/api/v1/runs" runs(tx = transaction, params: Query<RunsParams>) [RunsParams]
        -> [queue::insight::runs::RunPage] = runs::list::data(&tx, &params).await?;

    /// One run with up to 500 of its tasks
    ///
    /// Of a larger run, running, failed and upstream_failed tasks come first.
    "/api/v1/runs/{id}" run(tx = transaction, id: Path<String>) [("id" = i64, Path, minimum = 1)] -> [RunDetail] =
        runs::run::data(&tx, run_id(&id)?).await?;

    /// Graph of a run
    "/api/v1/runs/{id}/graph" run_graph(tx = transaction, id: Path<String>) [("id" = i64, Path, minimum = 1)]
        -> [GraphData] = runs::run::data(&tx, run_id(&id)?).await?.graph_data();

    /// Schedules by name, each with its recent runs, 100 per page
    "/api/v1/schedules" schedules(tx = transaction, params: Query<SchedulesParams>) [SchedulesParams]
        -> [schedules::list::Listing] = schedules::list::data(&tx, &params).await?;

    /// One schedule with its next fires, runs and log
    "/api/v1/schedules/detail" schedule(tx = transaction, params: Query<NameParams>) [NameParams]
        -> [schedules::schedule::ScheduleDetail] = schedules::schedule::data(&tx, &params.name).await?;

    /// Jobs by name, each with its newest run, 100 per page
    "/api/v1/jobs" jobs(tx = transaction, params: Query<JobsParams>) [JobsParams]
        -> [queue::insight::jobs::JobPage] = jobs::list::data(&tx, &params.after).await?;

    /// One job with up to 500 of its tasks and the dependencies between them
    "/api/v1/jobs/detail" job(tx = transaction, params: Query<NameParams>) [NameParams]
        -> [jobs::job::JobPageData] = jobs::job::data(&tx, &params.name).await?;

    /// Graph of a job
    "/api/v1/jobs/graph" job_graph(tx = transaction, params: Query<NameParams>) [NameParams] -> [GraphData] =
        jobs::job::data(&tx, &params.name).await?.graph_data();

    /// Versions of a job with their definitions, newest first, up to 50
    "/api/v1/jobs/versions" versions(tx = transaction, params: Query<NameParams>) [NameParams] -> [Vec<JobVersion>] =
        jobs::versions::data(&tx, &params.name).await?;

    /// Upstream and downstream tasks of a task, across all jobs
    "/api/v1/lineage" lineage(tx = transaction, params: Query<NameParams>) [NameParams] -> [Lineage] = {
        let known = read_lineage(&tx, &params.name).await?;
        let tasks = known.names().into_iter().map(str::to_owned).collect();
        Lineage { tasks, task: known.name, edges: known.links }
    };

    /// Graph of the upstream and downstream tasks of a task
    "/api/v1/lineage/graph" lineage_graph(tx = transaction, params: Query<NameParams>) [NameParams] -> [GraphData] =
        read_lineage(&tx, &params.name).await?.graph_data();
}

async fn read_lineage(tx: &Transaction<'_>, name: &str) -> Result<LineageDetail, HttpError> {
    if name.is_empty() {
        return Err(HttpError::bad_request("parameter name is missing").hint("lineage?name=TASK"));
    }
    jobs::lineage::data(tx, name).await
}
