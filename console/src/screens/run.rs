//! One run: its tasks and what each waits for, the picture of them, when they ran, and earlier runs.

use std::collections::{HashMap, HashSet};

use askama::Template;
use axum::Router;
use axum::extract::Path;
use axum::routing::get;
use deadpool_postgres::Transaction;
use queue::QueueError;
use queue::critical_path::critical_path;
use queue::graph::{self, Edge, Run, RunTask};
use queue::insight::runs;
use queue::run::{Expected, RunId, RunState};
use serde::Serialize;

use super::gantt::{self, Bar};
use super::graph::{Drawing, MOST_EDGES, MOST_NODES};
use super::grid::{self, Grid};
use super::{Shown, run_acts};
use crate::app::App;
use crate::page::{Page, show as answer};
use crate::trouble::Trouble;
use crate::visit::Visit;
use crate::words;

/// Parents that a row names.
const PARENTS_NAMED: usize = 5;

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/runs/{id}", get(page)).merge(run_acts::routes())
}

/// A run as far as a page shows it.
#[derive(Serialize)]
pub(crate) struct Known {
    pub(crate) run: Run,
    /// Of a large run those that run, failed or are in trouble come first.
    pub(crate) tasks: Vec<RunTask>,
    pub(crate) edges: Vec<Edge>,
    /// Tasks that are not among them.
    pub(crate) left_out: i64,
    /// There are more edges than are looked at, so that none is given.
    pub(crate) too_many_edges: bool,
    /// `None`: not every task and edge was looked at.
    pub(crate) critical_path: Option<CriticalPath>,
}

/// The chain of tasks that the duration comes from.
#[derive(Serialize)]
pub(crate) struct CriticalPath {
    pub(crate) nodes: Vec<i64>,
    pub(crate) tasks: Vec<String>,
    pub(crate) seconds: f64,
}

struct Row {
    task: RunTask,
    after: String,
    critical: bool,
}

#[derive(Template)]
#[template(path = "run.html")]
struct Screen {
    page: Page,
    run: Run,
    rows: Vec<Row>,
    left_out: i64,
    critical: Option<CriticalPath>,
    bars: Vec<Bar>,
    grid: Option<Grid>,
    draws: bool,
    caveat: Option<String>,
}

impl Screen {
    /// Where its picture comes from.
    fn source(&self) -> String {
        format!("{}/api/v1/runs/{}/graph", self.page.base, self.run.id)
    }

    fn live(&self) -> bool {
        self.run.state == RunState::Running
    }

    fn can_retry(&self, task: &RunTask) -> bool {
        let ended_badly = matches!(task.state.as_str(), "failed" | "failed, ignored" | "cancelled");
        self.page.viewer.may_act && self.live() && self.run.cancelled_by.is_none() && ended_badly
    }

    fn params(&self) -> Option<String> {
        let given = self.run.params.as_object().is_some_and(|it| !it.is_empty());
        given.then(|| self.run.params.to_string())
    }

    /// How many there are in which state, and the word for it.
    fn counts(&self) -> Vec<(&'static str, i64)> {
        let it = &self.run.count;
        let all = [
            ("waiting", it.waiting),
            ("released", it.released),
            ("succeeded", it.succeeded),
            ("failed", it.failed),
            ("ignored", it.ignored),
            ("cancelled", it.cancelled),
            ("impossible", it.impossible),
        ];
        all.into_iter().filter(|(_, count)| *count > 0).collect()
    }
}

/// Reads it; `None`: there is no such run.
pub(crate) async fn data(look: &Transaction<'_>, id: RunId) -> Result<Option<Known>, QueueError> {
    let Some(run) = graph::run(&**look, id).await? else { return Ok(None) };
    let most = i64::try_from(MOST_NODES).unwrap_or(i64::MAX);
    let nodes = runs::nodes(&**look, id, most).await?;
    let mut tasks = graph::tasks_at(&**look, id, &nodes).await?;
    let left_out = run.count.tasks - i64::try_from(tasks.len()).unwrap_or(i64::MAX);
    if left_out > 0 {
        let place: HashMap<i64, usize> = nodes.iter().copied().zip(0..).collect();
        tasks.sort_by_key(|task| place.get(&task.node).copied());
    } else {
        // What has not begun comes last.
        tasks.sort_by_key(|task| (task.started_at.is_none(), task.started_at, task.node));
    }
    let wanted = i64::try_from(MOST_EDGES + 1).unwrap_or(i64::MAX);
    let mut edges = graph::edges_among(&**look, id, &nodes, wanted).await?;
    let too_many_edges = edges.len() > MOST_EDGES;
    if too_many_edges {
        edges.clear();
    }
    let path = (left_out <= 0 && !too_many_edges).then(|| {
        let (path, seconds) = critical_path(&tasks, &edges);
        CriticalPath {
            nodes: path.iter().map(|task| task.node).collect(),
            tasks: path.iter().map(|task| task.name.clone()).collect(),
            seconds,
        }
    });
    let left_out = left_out.max(0);
    Ok(Some(Known { run, tasks, edges, left_out, too_many_edges, critical_path: path }))
}

impl Known {
    /// As it is drawn.
    pub(crate) fn drawing(&self) -> Drawing {
        let critical = self.critical_path.as_ref().map_or(&[][..], |it| &it.nodes);
        let mut drawing = Drawing::of_run(&self.tasks, &self.edges, critical);
        drawing.left_out = self.left_out;
        drawing.too_many_edges = self.too_many_edges;
        drawing
    }
}

async fn page(visit: Visit, Path(id): Path<String>) -> Shown {
    let id = run_id(&id)?;
    let mut session = visit.session().await?;
    let look = session.look().await?;
    let viewer = visit.viewer(&look).await?;
    let known = data(&look, id).await?.ok_or_else(|| no_such_run(id))?;
    let grid = grid::grid(&look, id, &known.tasks).await?;
    let drawing = known.drawing();
    let Known { run, tasks, edges, left_out, critical_path: critical, .. } = known;
    let on_it: HashSet<i64> = critical.iter().flat_map(|it| it.nodes.iter().copied()).collect();
    let bars = gantt::bars(&run, &tasks, &on_it, viewer.now);
    let after = parents(&tasks, &edges);
    let row = |task: RunTask| Row {
        after: after.get(&task.node).cloned().unwrap_or_default(),
        critical: on_it.contains(&task.node),
        task,
    };
    let title = format!("Run {id}");
    answer(&Screen {
        rows: tasks.into_iter().map(row).collect(),
        page: visit.page(title, viewer),
        run,
        left_out,
        critical: critical.filter(|it| it.nodes.len() > 1),
        bars,
        grid,
        draws: drawing.worth_it(),
        caveat: drawing.caveat(),
    })
}

/// What each task waits for, in words.
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
    let told = |(child, names): (i64, Vec<String>)| {
        let more = names.len().saturating_sub(PARENTS_NAMED);
        let shown = names[..names.len() - more].join(", ");
        (child, if more > 0 { format!("{shown} and {more} more") } else { shown })
    };
    parents.into_iter().map(told).collect()
}

/// The id in a path.
pub(crate) fn run_id(text: &str) -> Result<RunId, Trouble> {
    text.parse().map(RunId).map_err(|_| Trouble::not_found(format!("\"{text}\" is no run's id")))
}

/// There is none.
pub(crate) fn no_such_run(id: RunId) -> Trouble {
    Trouble::not_found(format!("there is no run {id}"))
        .hint("it may have ended before the history that is kept")
}
