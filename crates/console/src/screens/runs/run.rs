//! Run screen: tasks with their dependencies, graph, timeline, and comparison with earlier runs.

use queue::critical_path::{CriticalPath, critical_tasks};
use queue::insight::eta::{MAX_TASKS, etas};
use queue::insight::runs;
use queue::run::{Expected, RunState};
use queue::run_attempts::{RunAttempt, run_attempts};
use queue::run_queries::{self, Edge, Run, RunTask};

use super::gantt::{self, Gantt};
use super::grid::{COLUMNS, RunGrid};
use crate::page::graph::{MAX_EDGES, MAX_NODES};
use crate::page::topology::topological_order;
use crate::screens::prelude::*;

/// Maximum number of attempts read. Of further attempts, the chart and the critical path show
/// nothing.
const MAX_ATTEMPTS: i64 = 5000;

/// Maximum number of parents named in a row.
const PARENTS_NAMED: usize = 5;

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/runs/{id}", get(show))
}

/// A run with the tasks and edges shown.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct RunDetail {
    pub(crate) run: Run,
    /// Why the expected end of a run in progress is unknown.
    pub(crate) no_eta: Option<String>,
    /// Tasks; in a large run, tasks that need approval, running, failed and upstream_failed tasks
    /// come first.
    pub(crate) tasks: Vec<RunTask>,
    pub(crate) edges: Vec<Edge>,
    /// Number of tasks not in `tasks`.
    pub(crate) left_out: i64,
    /// Whether `edges` is empty because there are too many.
    pub(crate) too_many_edges: bool,
    /// `None` unless all tasks and edges were read.
    pub(crate) critical_path: Option<CriticalPath>,
    #[serde(skip)]
    attempts: Vec<RunAttempt>,
}

/// Query parameters of the page.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RunParams {
    /// Not empty: the form to restart the run is open.
    restart: String,
}

struct TaskRow {
    task: RunTask,
    after: String,
    critical: bool,
}

#[derive(Template)]
#[template(path = "run.html")]
struct RunPage {
    page: Layout,
    run: Run,
    no_eta: Option<String>,
    rows: Vec<TaskRow>,
    left_out: i64,
    critical: Option<CriticalPath>,
    gantt: Option<Gantt>,
    grid: Option<RunGrid>,
    has_graph: bool,
    caveat: Option<String>,
    restart_open: bool,
}

impl RunPage {
    /// Returns the URL of the graph data.
    fn source(&self) -> String {
        format!("{}/api/v1/runs/{}/graph", self.page.base, self.run.id)
    }

    fn live(&self) -> bool {
        self.run.state == RunState::Running
    }

    fn succeeded(&self) -> bool {
        self.run.state == RunState::Succeeded
    }

    fn can_retry(&self, task: &RunTask) -> bool {
        let retryable = matches!(task.state.as_str(), "failed" | "failed, ignored" | "cancelled");
        self.page.viewer.may_act && self.live() && !self.run.is_cancelled() && retryable
    }

    fn params(&self) -> Option<String> {
        let given = self.run.params.as_object().is_some_and(|it| !it.is_empty());
        given.then(|| self.run.params.to_string())
    }

    /// Returns the non-zero task counts by state.
    fn counts(&self) -> Vec<(&'static str, i64)> {
        let it = &self.run.count;
        let all = [
            ("waiting", it.waiting - it.needs_approval),
            ("needs_approval", it.needs_approval),
            ("queued or running", it.released),
            ("succeeded", it.succeeded),
            ("failed", it.failed),
            ("ignored", it.ignored),
            ("cancelled", it.cancelled),
            ("upstream_failed", it.upstream_failed),
            ("skipped", it.skipped),
        ];
        all.into_iter().filter(|(_, count)| *count > 0).collect()
    }
}

/// Reads a run.
pub(crate) async fn data(tx: &Transaction<'_>, id: RunId) -> Result<RunDetail, HttpError> {
    let mut run = run_queries::run(tx, id).await?.ok_or_else(|| no_such_run(id))?;
    let eta = etas(tx, &[id], MAX_TASKS).await?.remove(&id);
    run.eta_at = eta.as_ref().and_then(|eta| eta.clone().ok());
    let no_eta = eta.and_then(Result::err);
    let nodes = runs::nodes(tx, id, MAX_NODES.value()).await?;
    let mut tasks = run_queries::tasks_at(tx, id, &nodes).await?;
    let left_out = run.count.tasks - tasks.len().value();
    if left_out > 0 {
        let place: HashMap<i64, usize> = nodes.iter().copied().zip(0..).collect();
        tasks.sort_by_key(|task| place.get(&task.node).copied());
    } else {
        // Tasks that have not started come last.
        tasks.sort_by_key(|task| (task.started_at.is_none(), task.started_at, task.node));
    }
    let mut edges = run_queries::edges_among(tx, id, &nodes, (MAX_EDGES + 1).value()).await?;
    let too_many_edges = edges.len() > MAX_EDGES;
    if too_many_edges {
        edges.clear();
    }
    let attempts = run_attempts(tx, &run, &tasks, MAX_ATTEMPTS).await?;
    let complete = left_out <= 0 && !too_many_edges;
    let critical_path = complete.then(|| {
        let path = critical_tasks(&tasks, &edges, run.restarted_at);
        CriticalPath::of(&path, &attempts, run.restarted_at)
    });
    let left_out = left_out.max(0);
    Ok(RunDetail { run, no_eta, tasks, edges, left_out, too_many_edges, critical_path, attempts })
}

impl RunDetail {
    /// Returns the graph to draw.
    pub(crate) fn graph_data(&self) -> GraphData {
        let critical = self.critical_path.as_ref().map_or(&[][..], |it| &it.nodes);
        let mut drawing = GraphData::from_run(&self.tasks, &self.edges, critical);
        drawing.left_out = self.left_out;
        drawing.too_many_edges = self.too_many_edges;
        drawing
    }
}

async fn show(
    mut request: ReadRequest,
    Path(id): Path<String>,
    Query(params): Query<RunParams>,
) -> HandlerResult {
    let id = run_id(&id)?;
    let read = request.begin().await?;
    let known = data(&read.tx, id).await?;
    let grid = read_grid(&read.tx, &known).await?;
    let drawing = known.graph_data();
    let RunDetail {
        run, no_eta, tasks, edges, left_out, critical_path: critical, attempts, ..
    } = known;
    let on_path: HashSet<i64> = critical.iter().flat_map(|it| it.nodes.iter().copied()).collect();
    let gantt = gantt::chart(&tasks, &attempts, run.restarted_at, &on_path, read.viewer.now);
    let after = parents(&tasks, &edges);
    let row = |task: RunTask| TaskRow {
        after: after.get(&task.node).cloned().unwrap_or_default(),
        critical: on_path.contains(&task.node),
        task,
    };
    let title = format!("Run {id}");
    render(&RunPage {
        rows: tasks.into_iter().map(row).collect(),
        page: read.layout(title),
        run,
        no_eta,
        left_out,
        critical: critical.filter(|it| it.nodes.len() > 1),
        gantt,
        grid,
        has_graph: drawing.has_edges(),
        caveat: drawing.caveat(),
        restart_open: !params.restart.is_empty(),
    })
}

/// Reads the grid of a run and of earlier runs of its jobs; `None` if there is no earlier run.
async fn read_grid(tx: &Transaction<'_>, known: &RunDetail) -> Result<Option<RunGrid>, QueueError> {
    let runs = runs::compared_runs(tx, known.run.id, COLUMNS).await?;
    if runs.len() < 2 {
        return Ok(None);
    }
    let of_node: HashMap<i64, &str> =
        known.tasks.iter().map(|task| (task.node, task.name.as_str())).collect();
    let mut names: Vec<&str> = of_node.values().copied().collect();
    names.sort_unstable();
    let name = |node: &i64| of_node.get(node).copied();
    let edge = |edge: &Edge| Some((name(&edge.parent)?, name(&edge.child)?));
    let names = topological_order(&names, known.edges.iter().filter_map(edge));
    let unsuccessful =
        |task: &&RunTask| matches!(task.state.as_str(), "failed" | "upstream_failed");
    let first = known.tasks.iter().filter(unsuccessful).map(|task| task.name.as_str()).collect();
    let grid = RunGrid::read(tx, runs, &names, &first).await?;
    Ok(Some(grid.of_run(known.run.id)))
}

/// Returns the dependencies of each task as text.
fn parents(tasks: &[RunTask], edges: &[Edge]) -> HashMap<i64, String> {
    let names: HashMap<i64, &str> =
        tasks.iter().map(|task| (task.node, task.name.as_str())).collect();
    let mut parents: HashMap<i64, Vec<String>> = HashMap::new();
    for edge in edges {
        let Some(name) = names.get(&edge.parent) else { continue };
        parents.entry(edge.child).or_default().push(match edge.expected {
            Expected::Succeeded => (*name).to_owned(),
            expected => format!("{name} ({expected})"),
        });
    }
    let label = |(child, names): (i64, Vec<String>)| {
        let more = names.len().saturating_sub(PARENTS_NAMED);
        let shown = names[..names.len() - more].join(", ");
        (child, if more > 0 { format!("{shown} and {more} more") } else { shown })
    };
    parents.into_iter().map(label).collect()
}

/// Parses a run id.
pub(crate) fn run_id(text: &str) -> Result<RunId, HttpError> {
    text.parse().map(RunId).map_err(|_| HttpError::not_found(format!("invalid run id \"{text}\"")))
}

/// Returns the error for a missing run.
pub(crate) fn no_such_run(id: RunId) -> HttpError {
    HttpError::not_found(format!("there is no run {id}"))
        .hint("the run may be older than the retained history")
}
