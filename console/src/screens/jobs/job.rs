//! Job screen: tasks of a job with their dependencies, and actions on the job.

use askama::Template;
use axum::Router;
use axum::extract::Query;
use axum::response::Response;
use axum::routing::{get, post};
use deadpool_postgres::Transaction;
use jiff::Timestamp;
use queue::Labels;
use queue::insight::jobs::{self, JobDetail, JobTask};
use queue::insight::runs::{self, RunQuery, RunSummary};
use queue::job;
use queue::lineage::{self, LineageEdge};
use queue::run::Expected;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::escape::Markup;
use crate::http::app::App;
use crate::http::error::{HandlerResult, HttpError};
use crate::http::request::{FormRequest, RequestContext};
use crate::page::format;
use crate::page::graph::{GraphData, MAX_EDGES, MAX_NODES};
use crate::page::highlight;
use crate::page::layout::{Layout, render};

/// Number of recent runs shown.
const RUNS: i64 = 5;

pub(crate) fn routes() -> Router<App> {
    Router::new()
        .route("/jobs/detail", get(show))
        .route("/jobs/run", post(run))
        .route("/jobs/enable", post(enable))
        .route("/jobs/tasks/enable", post(enable_task))
}

#[derive(Debug, Default, Deserialize)]
struct JobParams {
    #[serde(default)]
    name: String,
}

/// A job and its edges.
#[derive(serde::Serialize, utoipa::ToSchema)]
pub(crate) struct JobPageData {
    #[serde(rename = "job")]
    pub(crate) shape: JobDetail,
    #[serde(rename = "edges")]
    pub(crate) links: Vec<LineageEdge>,
}

struct TaskRow {
    name: String,
    description: String,
    queue: String,
    priority: String,
    after: String,
    statement: Option<Markup>,
    enabled: bool,
}

#[derive(Template)]
#[template(path = "job.html")]
struct JobPage {
    page: Layout,
    name: String,
    enabled: bool,
    facts: Vec<(&'static str, String)>,
    labels: Labels,
    lines: Vec<TaskRow>,
    params: Vec<String>,
    left_out: i64,
    runs: Vec<RunSummary>,
    has_graph: bool,
    caveat: Option<String>,
}

impl JobPage {
    fn now(&self) -> Timestamp {
        self.page.viewer.now
    }

    /// Returns the URL of the graph data.
    fn source(&self) -> String {
        format!("{}/api/v1/jobs/graph?name={}", self.page.base, format::url_encode(&self.name))
    }
}

impl JobPageData {
    /// Returns the graph to draw.
    pub(crate) fn graph_data(&self) -> GraphData {
        let names = self.shape.tasks.iter().map(|task| task.name.as_str());
        let mut drawing = GraphData::from_links(names, &self.links, "");
        drawing.left_out = self.left_out();
        drawing
    }

    fn left_out(&self) -> i64 {
        self.shape.task_count - i64::try_from(self.shape.tasks.len()).unwrap_or(i64::MAX)
    }
}

/// Reads a job by its name; the name is case-insensitive.
pub(crate) async fn data(tx: &Transaction<'_>, name: &str) -> Result<JobPageData, HttpError> {
    let limit = i64::try_from(MAX_NODES).unwrap_or(i64::MAX);
    let shape = jobs::job_detail(&**tx, name.trim(), limit).await?.ok_or_else(|| none(name))?;
    let names: Vec<&str> = shape.tasks.iter().map(|task| task.name.as_str()).collect();
    let wanted = i64::try_from(MAX_EDGES + 1).unwrap_or(i64::MAX);
    let edges = jobs::edges(&**tx, &shape.name, &names, wanted).await?;
    Ok(JobPageData { links: lineage::merge_edges(&edges), shape })
}

fn none(name: &str) -> HttpError {
    HttpError::not_found(format!("there is no job {name}"))
}

async fn show(context: RequestContext, Query(params): Query<JobParams>) -> HandlerResult {
    let mut session = context.session().await?;
    let tx = session.begin_read().await?;
    let viewer = context.viewer(&tx).await?;
    let known = data(&tx, &params.name).await?;
    let query = RunQuery { job: Some(known.shape.name.clone()), ..RunQuery::default() };
    let runs = runs::page(&*tx, &query, RUNS).await?.runs;
    let (drawing, left_out) = (known.graph_data(), known.left_out());
    let JobPageData { shape, links } = known;
    let line = |task: JobTask| TaskRow {
        after: after(&links, &task.name),
        name: task.name,
        description: task.description.unwrap_or_default(),
        queue: task.queue,
        priority: task.priority.unwrap_or_default(),
        statement: task.statement.map(|sql| highlight::statement(&sql, None)),
        enabled: task.enabled,
    };
    let facts = [
        ("description", shape.description),
        ("category", shape.category),
        ("frequency", shape.frequency),
        ("priority", shape.priority),
    ];
    render(&JobPage {
        page: Layout::new(&context, shape.name.clone(), viewer),
        name: shape.name,
        enabled: shape.enabled,
        facts: facts.into_iter().filter_map(|(key, value)| Some((key, value?))).collect(),
        lines: shape.tasks.into_iter().map(line).collect(),
        labels: shape.labels,
        params: shape.params,
        left_out,
        runs,
        has_graph: drawing.has_edges(),
        caveat: drawing.caveat(),
    })
}

fn after(links: &[LineageEdge], task: &str) -> String {
    let parents = links.iter().filter(|link| link.child == task);
    let labels = parents.map(|link| match link.expected {
        Expected::Succeeded => link.parent.clone(),
        expected => format!("{} ({expected})", link.parent),
    });
    format::one_line(labels.collect::<Vec<_>>().join(", "), 200)
}

async fn run(form: FormRequest) -> Result<Response, HttpError> {
    let name = form.field("name").to_owned();
    let mut session = form.context.session().await?;
    let tx = form.begin(&mut session).await?;
    let known = data(&tx, &name).await?;
    let mut params = Map::new();
    for param in known.shape.params {
        let value = form.field(&format!("param:{param}"));
        if !value.is_empty() {
            // As on the command line: numbers, true and false keep their type, anything else is
            // text.
            let read = serde_json::from_str(value).ok().filter(|it: &Value| !it.is_string());
            params.insert(param, read.unwrap_or_else(|| value.into()));
        }
    }
    let started = queue::run::start(&*tx, &[known.shape.name], &params, &Labels::default()).await?;
    tx.commit().await?;
    session.notify_workers().await;
    Ok(form.redirect_back(&format!("/runs/{}", started.run)))
}

async fn enable(form: FormRequest) -> Result<Response, HttpError> {
    let name = form.field("name").to_owned();
    let mut session = form.context.session().await?;
    let tx = form.begin(&mut session).await?;
    if !job::enable(&*tx, &name, form.parsed("enabled")?).await? {
        return Err(none(&name));
    }
    tx.commit().await?;
    Ok(form.redirect_back(&format!("/jobs/detail?name={}", format::url_encode(&name))))
}

async fn enable_task(form: FormRequest) -> Result<Response, HttpError> {
    let (name, task) = (form.field("name").to_owned(), form.field("task").to_owned());
    let mut session = form.context.session().await?;
    let tx = form.begin(&mut session).await?;
    if !job::enable_task(&*tx, &name, &task, form.parsed("enabled")?).await? {
        return Err(HttpError::not_found(format!("job {name} has no task {task}")));
    }
    tx.commit().await?;
    Ok(form.redirect_back(&format!("/jobs/detail?name={}", format::url_encode(&name))))
}
