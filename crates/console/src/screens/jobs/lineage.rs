//! Lineage screen: upstream and downstream tasks of a task, across all jobs.

use std::collections::{BTreeSet, VecDeque};

use queue::job;
use queue::lineage::{self, LineageEdge};
use queue::run::Expected;

use crate::screens::prelude::*;

/// Names per page.
const PAGE_SIZE: usize = 200;

/// Maximum rows per direction.
const MAX_LINES: usize = 500;

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/lineage", get(show))
}

/// Query parameters of the screen.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct LineageParams {
    name: String,
    after: String,
}

/// A task and the edges around it.
pub(crate) struct LineageDetail {
    pub(crate) name: String,
    pub(crate) links: Vec<LineageEdge>,
}

/// An upstream or downstream task.
struct LineageRow {
    name: String,
    /// Number of edges to the selected task; 1 is a direct neighbour.
    distance: usize,
    /// The adjacent task on the path to the selected task.
    by: String,
    expected: Option<Expected>,
    declared_by: String,
}

#[derive(Template)]
#[template(path = "lineage.html")]
struct LineagePage {
    page: Layout,
    name: String,
    unknown: bool,
    upstream: Vec<LineageRow>,
    downstream: Vec<LineageRow>,
    left_out: usize,
    names: Vec<String>,
    next: Option<String>,
    has_graph: bool,
    caveat: Option<String>,
}

impl LineagePage {
    /// Returns both directions: heading, text for an empty list, tasks.
    fn directions(&self) -> [(&'static str, &'static str, &[LineageRow]); 2] {
        [
            ("Upstream: dependencies", "No dependencies.", &self.upstream),
            ("Downstream: dependents", "No dependents.", &self.downstream),
        ]
    }

    /// Returns the URL of the graph data.
    fn source(&self) -> String {
        format!("{}/api/v1/lineage/graph?name={}", self.page.base, format::url_encode(&self.name))
    }
}

impl LineageDetail {
    /// Returns the names of the task and of all related tasks.
    pub(crate) fn names(&self) -> BTreeSet<&str> {
        lineage::task_names(&self.name, &self.links)
    }

    /// Returns the graph to draw, limited to the nearest tasks.
    pub(crate) fn graph_data(&self) -> GraphData {
        let near = [false, true].map(|upwards| walk(&self.name, &self.links, upwards));
        let mut lines: Vec<&LineageRow> = near.iter().flatten().collect();
        lines.sort_by_key(|line| line.distance);
        let mut seen = BTreeSet::new();
        let names = std::iter::once(self.name.as_str())
            .chain(lines.into_iter().map(|line| line.name.as_str()))
            .filter(|name| seen.insert(*name));
        GraphData::from_links(names, &self.links, &self.name)
    }
}

/// Reads the lineage of a task; a task without neighbours has no links.
pub(crate) async fn data(tx: &Transaction<'_>, name: &str) -> Result<LineageDetail, HttpError> {
    let name = name.trim().to_owned();
    let edges =
        if name.is_empty() { Vec::new() } else { job::lineage(tx, &name, true, true).await? };
    if edges.is_empty() && !name.is_empty() && !lineage::task_exists(tx, &name).await? {
        return Err(no_such_task(&name));
    }
    Ok(LineageDetail { name, links: lineage::merge_edges(&edges) })
}

fn no_such_task(name: &str) -> HttpError {
    HttpError::not_found(format!("no job or dependency has a task {name}"))
}

async fn show(mut request: ReadRequest, Query(params): Query<LineageParams>) -> HandlerResult {
    let read = request.begin().await?;
    let known = data(&read.tx, &params.name).await?;
    let (mut names, mut next) = (Vec::new(), None);
    if known.name.is_empty() {
        names = lineage::tasks(&*read.tx, &params.after, (PAGE_SIZE + 1).value()).await?;
        if names.len() > PAGE_SIZE {
            names.truncate(PAGE_SIZE);
            next = names.last().cloned();
        }
    }
    let drawing = known.graph_data();
    let mut upstream = walk(&known.name, &known.links, true);
    let mut downstream = walk(&known.name, &known.links, false);
    let all = upstream.len() + downstream.len();
    upstream.truncate(MAX_LINES);
    downstream.truncate(MAX_LINES);
    let title = if known.name.is_empty() {
        "Lineage".to_owned()
    } else {
        format!("Lineage of {}", known.name)
    };
    render(&LineagePage {
        page: read.layout(title),
        unknown: known.links.is_empty(),
        left_out: all - upstream.len() - downstream.len(),
        upstream,
        downstream,
        names,
        next,
        has_graph: drawing.has_edges(),
        caveat: drawing.caveat(),
        name: known.name,
    })
}

/// Returns every task in one direction once, nearest first.
fn walk(name: &str, links: &[LineageEdge], upwards: bool) -> Vec<LineageRow> {
    let mut next: BTreeMap<&str, Vec<&LineageEdge>> = BTreeMap::new();
    for link in links {
        next.entry(if upwards { &link.child } else { &link.parent }).or_default().push(link);
    }
    let mut seen = BTreeSet::from([name]);
    let mut left = VecDeque::from([(name, 0)]);
    let mut lines = Vec::new();
    while let Some((at, distance)) = left.pop_front() {
        for link in next.get(at).into_iter().flatten() {
            let other = if upwards { link.parent.as_str() } else { link.child.as_str() };
            if seen.insert(other) {
                left.push_back((other, distance + 1));
                lines.push(LineageRow {
                    name: other.to_owned(),
                    distance: distance + 1,
                    by: at.to_owned(),
                    expected: Some(link.expected).filter(|it| *it != Expected::Succeeded),
                    declared_by: declared_by(link),
                });
            }
        }
    }
    lines
}

/// Returns the jobs that declare the edge.
pub(crate) fn declared_by(link: &LineageEdge) -> String {
    let everywhere = link.everywhere.then_some("every job");
    let jobs: Vec<&str> = link.jobs.iter().map(String::as_str).chain(everywhere).collect();
    format::one_line(jobs.join(", "), 120)
}
