//! Runs, schedules, jobs and lineage as JSON.

use axum::extract::{Path, Query};
use axum::routing::{MethodRouter, get};
use serde::Deserialize;
use serde_json::json;

use super::json_of;
use crate::app::App;
use crate::screens::{Shown, flows};
use crate::trouble::Trouble;
use crate::visit::Visit;

/// The handler of a path, if it is one of these.
pub(super) fn handler(path: &str) -> Option<MethodRouter<App>> {
    Some(match path {
        "/runs" => get(runs),
        "/runs/{id}" => get(run),
        "/runs/{id}/graph" => get(run_graph),
        "/schedules" => get(schedules),
        "/schedules/one" => get(schedule),
        "/jobs" => get(jobs),
        "/jobs/one" => get(job),
        "/jobs/graph" => get(job_graph),
        "/lineage" => get(lineage),
        "/lineage/graph" => get(lineage_graph),
        _ => return None,
    })
}

/// Of what, and from where on.
#[derive(Debug, Default, Deserialize)]
struct Of {
    #[serde(default)]
    name: String,
    #[serde(default)]
    behind: String,
}

async fn runs(visit: Visit, Query(ask): Query<flows::RunAsk>) -> Shown {
    let mut session = visit.session().await?;
    let look = session.look().await?;
    Ok(json_of(&flows::runs(&look, &ask).await?))
}

async fn known(visit: &Visit, id: &str) -> Result<flows::KnownRun, Trouble> {
    let id = flows::run_id(id)?;
    let mut session = visit.session().await?;
    let look = session.look().await?;
    flows::run(&look, id).await?.ok_or_else(|| flows::no_such_run(id))
}

async fn run(visit: Visit, Path(id): Path<String>) -> Shown {
    Ok(json_of(&known(&visit, &id).await?))
}

async fn run_graph(visit: Visit, Path(id): Path<String>) -> Shown {
    Ok(json_of(&known(&visit, &id).await?.drawing()))
}

async fn schedules(visit: Visit, Query(of): Query<Of>) -> Shown {
    let mut session = visit.session().await?;
    let look = session.look().await?;
    Ok(json_of(&flows::schedules(&look, &of.behind).await?))
}

async fn schedule(visit: Visit, Query(of): Query<Of>) -> Shown {
    let mut session = visit.session().await?;
    let look = session.look().await?;
    Ok(json_of(&flows::schedule(&look, &of.name).await?))
}

async fn jobs(visit: Visit, Query(of): Query<Of>) -> Shown {
    let mut session = visit.session().await?;
    let look = session.look().await?;
    Ok(json_of(&flows::jobs(&look, &of.behind).await?))
}

async fn job(visit: Visit, Query(of): Query<Of>) -> Shown {
    let mut session = visit.session().await?;
    let look = session.look().await?;
    let job = flows::job(&look, &of.name).await?;
    Ok(json_of(&json!({ "job": job.shape, "edges": job.links })))
}

async fn job_graph(visit: Visit, Query(of): Query<Of>) -> Shown {
    let mut session = visit.session().await?;
    let look = session.look().await?;
    Ok(json_of(&flows::job(&look, &of.name).await?.drawing()))
}

/// The screen asks for a name where there is none; a program has one.
async fn around(visit: &Visit, name: &str) -> Result<flows::Lineage, Trouble> {
    if name.is_empty() {
        return Err(Trouble::bad("no task is named").hint("lineage?name=TASK"));
    }
    let mut session = visit.session().await?;
    let look = session.look().await?;
    flows::lineage(&look, name).await
}

async fn lineage(visit: Visit, Query(of): Query<Of>) -> Shown {
    let known = around(&visit, &of.name).await?;
    Ok(json_of(&json!({ "task": known.name, "tasks": known.names(), "edges": known.links })))
}

async fn lineage_graph(visit: Visit, Query(of): Query<Of>) -> Shown {
    Ok(json_of(&around(&visit, &of.name).await?.drawing()))
}
