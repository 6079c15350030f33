//! Graph data, fetched as JSON and drawn by `static/graph.js`.

use std::collections::{HashMap, HashSet};

use queue::lineage::LineageEdge;
use queue::run::Expected;
use queue::run_queries::{Edge as RunEdge, RunTask};
use serde::Serialize;
use terminal::visible;

use super::format;

/// Maximum number of nodes in a graph. A browser needs three seconds to lay out as many with twice
/// as many edges, which it does once, and longer for more.
pub(crate) const MAX_NODES: usize = 500;

/// Maximum number of edges in a graph.
pub(crate) const MAX_EDGES: usize = 2000;

/// A graph to draw.
#[derive(Clone, Debug, Default, Serialize, utoipa::ToSchema)]
pub(crate) struct GraphData {
    nodes: Vec<GraphNode>,
    edges: Vec<GraphEdge>,
    /// Number of tasks that are not drawn.
    pub(crate) left_out: i64,
    /// Whether edges are omitted because there are too many.
    pub(crate) too_many_edges: bool,
}

#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
struct GraphNode {
    id: String,
    label: String,
    state: String,
    /// Second line of the box.
    note: Option<String>,
    critical: bool,
    /// Path of the linked screen.
    path: Option<String>,
}

#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
struct GraphEdge {
    from: String,
    to: String,
    /// The expected outcome, unless it is success.
    label: Option<String>,
    critical: bool,
}

impl GraphData {
    /// Builds the graph of a run; `critical` has the nodes of the critical path.
    pub(crate) fn from_run(tasks: &[RunTask], edges: &[RunEdge], critical: &[i64]) -> Self {
        let on_path: HashSet<i64> = critical.iter().copied().collect();
        let steps: HashSet<(i64, i64)> = critical.windows(2).map(|it| (it[0], it[1])).collect();
        let node = |task: &RunTask| GraphNode {
            id: task.node.to_string(),
            label: visible(&task.name),
            state: task.state.clone(),
            note: task.duration.map(|it| format::span(it.as_secs_f64())),
            critical: on_path.contains(&task.node),
            path: task.task_id.map(|id| format!("/tasks/{id}")),
        };
        let arrow = |edge: &RunEdge| GraphEdge {
            from: edge.parent.to_string(),
            to: edge.child.to_string(),
            label: edge_label(edge.expected),
            critical: steps.contains(&(edge.parent, edge.child)),
        };
        Self {
            nodes: tasks.iter().map(node).collect(),
            edges: edges.iter().map(arrow).collect(),
            ..Self::default()
        }
    }

    /// Builds the graph of tasks by name; `here` is the selected task.
    pub(crate) fn from_links<'a>(
        names: impl IntoIterator<Item = &'a str>,
        links: &[LineageEdge],
        here: &str,
    ) -> Self {
        let names: Vec<&str> = names.into_iter().collect();
        let shown = &names[..names.len().min(MAX_NODES)];
        let node = |name: &&str| GraphNode {
            id: (*name).to_owned(),
            label: visible(name),
            state: if *name == here { "current".to_owned() } else { String::new() },
            note: None,
            critical: false,
            path: Some(format!("/lineage?name={}", format::url_encode(name))),
        };
        let places: HashMap<&str, ()> = shown.iter().map(|name| (*name, ())).collect();
        let arrow = |link: &LineageEdge| GraphEdge {
            from: link.parent.clone(),
            to: link.child.clone(),
            label: edge_label(link.expected),
            critical: false,
        };
        let drawn = |it: &&LineageEdge| {
            places.contains_key(it.parent.as_str()) && places.contains_key(it.child.as_str())
        };
        let edges: Vec<GraphEdge> = links.iter().filter(drawn).map(arrow).collect();
        let too_many_edges = edges.len() > MAX_EDGES;
        Self {
            nodes: shown.iter().map(node).collect(),
            edges: if too_many_edges { Vec::new() } else { edges },
            left_out: i64::try_from(names.len() - shown.len()).unwrap_or(i64::MAX),
            too_many_edges,
        }
    }

    /// Returns whether the graph has edges. A graph without edges shows no more than a list.
    pub(crate) fn has_edges(&self) -> bool {
        !self.edges.is_empty()
    }

    /// Returns a note on omitted tasks or edges.
    pub(crate) fn caveat(&self) -> Option<String> {
        if self.too_many_edges {
            return Some(format!("more than {MAX_EDGES} edges, not drawn"));
        }
        let tasks = format::counted(self.left_out, "more task");
        (self.left_out > 0).then(|| format!("{tasks} not drawn"))
    }
}

fn edge_label(expected: Expected) -> Option<String> {
    (expected != Expected::Succeeded).then(|| expected.to_string())
}
