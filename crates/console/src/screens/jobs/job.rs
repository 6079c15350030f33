//! Job screen: the last runs of a job as a grid, durations, schedules, tasks and dependencies.

use queue::insight::jobs::{self, JobDetail, JobTask};
use queue::insight::runs;
use queue::job::Dependency;
use queue::lineage::{self, LineageEdge};
use queue::run::Expected;
use schedule::page::{self, PageFrom, ScheduleSummary};

use super::durations::{DurationPlot, Durations};
use crate::page::graph::{MAX_EDGES, MAX_NODES};
use crate::page::topology::topological_order;
use crate::screens::prelude::*;
use crate::screens::runs::grid::{self, RunGrid};
use crate::screens::schedules::list::{RECENT, local_time};

/// Numbers of runs that the plot of durations offers.
const RUN_CHOICES: [i64; 2] = [30, 90];

/// Maximum number of schedules shown.
const SCHEDULES: i64 = 20;

/// Maximum number of dependencies on tasks of other jobs shown.
const OUTSIDE_EDGES: i64 = 100;

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/jobs/detail", get(show))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct JobParams {
    name: String,
    /// The task of the plot of durations; empty: the whole runs.
    task: String,
    /// Number of runs in the plot.
    runs: String,
}

impl JobParams {
    fn runs(&self) -> i64 {
        let wanted = self.runs.parse().ok();
        wanted.filter(|runs| RUN_CHOICES.contains(runs)).unwrap_or(RUN_CHOICES[0])
    }
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
    task: JobTask,
    after: String,
    statement: Option<Markup>,
}

#[derive(Template)]
#[template(path = "job.html")]
struct JobPage {
    page: Layout,
    /// The job, without its tasks.
    job: JobDetail,
    lines: Vec<TaskRow>,
    left_out: i64,
    grid: Option<RunGrid>,
    durations: Durations,
    /// The task and the number of runs of the plot of durations.
    plotted: (String, i64),
    schedules: Vec<ScheduleSummary>,
    outside: Vec<Dependency>,
    has_graph: bool,
    caveat: Option<String>,
}

impl JobPage {
    fn plot(&self) -> DurationPlot<'_> {
        DurationPlot { base: &self.page.base, zone: &self.page.zone, durations: &self.durations }
    }

    fn next_fire(&self, it: &ScheduleSummary) -> String {
        let at = it.status.next_fire_at;
        at.map(|at| local_time(&it.status.timing, at)).unwrap_or_default()
    }

    /// Returns the URL of the graph data.
    fn source(&self) -> String {
        format!("{}/api/v1/jobs/graph?name={}", self.page.base, format::url_encode(&self.job.name))
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
        self.shape.task_count - self.shape.tasks.len().value()
    }
}

/// Reads a job by its name; the name is case-insensitive.
pub(crate) async fn data(tx: &Transaction<'_>, name: &str) -> Result<JobPageData, HttpError> {
    let shape = jobs::job_detail(tx, name.trim(), MAX_NODES.value()).await?;
    let shape = shape.ok_or_else(|| no_such_job(name))?;
    let names: Vec<&str> = shape.tasks.iter().map(|task| task.name.as_str()).collect();
    let edges = jobs::edges(tx, &shape.name, &names, (MAX_EDGES + 1).value()).await?;
    Ok(JobPageData { links: lineage::merge_edges(&edges), shape })
}

/// Returns the error for a missing job.
pub(crate) fn no_such_job(name: &str) -> HttpError {
    HttpError::not_found(format!("there is no job {name}"))
}

async fn show(mut request: ReadRequest, Query(params): Query<JobParams>) -> HandlerResult {
    let read = request.begin().await?;
    let known = data(&read.tx, &params.name).await?;
    let recent = runs::runs_of_job(&*read.tx, &known.shape.name, params.runs()).await?;
    let durations = Durations::read(&read.tx, &recent, params.task.trim()).await?;
    let grid = read_grid(&read.tx, &known, recent).await?;
    let from = PageFrom::Job(&known.shape.name, SCHEDULES);
    let schedules = page::page(&*read.tx, from, RECENT).await?.schedules;
    let names: Vec<&str> = known.shape.tasks.iter().map(|task| task.name.as_str()).collect();
    let outside = jobs::outside_edges(&*read.tx, &names, OUTSIDE_EDGES).await?;
    let (drawing, left_out) = (known.graph_data(), known.left_out());
    let JobPageData { shape: mut job, links } = known;
    let line = |task: JobTask| TaskRow {
        after: after(&links, &task.name),
        statement: task.statement.as_deref().map(|sql| highlight::statement(sql, None)),
        task,
    };
    render(&JobPage {
        page: read.layout(job.name.clone()),
        lines: std::mem::take(&mut job.tasks).into_iter().map(line).collect(),
        job,
        left_out,
        grid,
        durations,
        plotted: (params.task.trim().to_owned(), params.runs()),
        schedules,
        outside,
        has_graph: drawing.has_edges(),
        caveat: drawing.caveat(),
    })
}

/// Reads the grid of the last runs; `None` if the job has no run.
async fn read_grid(
    tx: &Transaction<'_>,
    known: &JobPageData,
    mut runs: Vec<runs::ComparedRun>,
) -> Result<Option<RunGrid>, HttpError> {
    runs.truncate(usize::try_from(grid::COLUMNS).unwrap_or(usize::MAX));
    if runs.is_empty() {
        return Ok(None);
    }
    let names: Vec<&str> = known.shape.tasks.iter().map(|task| task.name.as_str()).collect();
    let edges = known.links.iter().map(|link| (link.parent.as_str(), link.child.as_str()));
    let names = topological_order(&names, edges);
    Ok(Some(RunGrid::read(tx, runs, &names, &HashSet::new()).await?))
}

fn after(links: &[LineageEdge], task: &str) -> String {
    let parents = links.iter().filter(|link| link.child == task);
    let labels = parents.map(|link| match link.expected {
        Expected::Succeeded => link.parent.clone(),
        expected => format!("{} ({expected})", link.parent),
    });
    format::one_line(labels.collect::<Vec<_>>().join(", "), 200)
}
