//! What a picture of a graph is drawn from: `static/graph.js` asks for it as JSON.

use std::collections::{HashMap, HashSet};

use queue::lineage::LineageEdge;
use queue::run::Expected;
use queue::run_queries::{Edge as RunEdge, RunTask};
use serde::Serialize;
use terminal::visible;

use crate::format;

/// Boxes of a picture: laying out more takes a browser seconds, and nobody reads it.
pub(crate) const MAX_NODES: usize = 300;

/// Arrows of a picture.
pub(crate) const MAX_EDGES: usize = 2000;

/// A graph as it is drawn.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct GraphData {
    nodes: Vec<GraphNode>,
    edges: Vec<GraphEdge>,
    /// Tasks that are not drawn.
    pub(crate) left_out: i64,
    /// There are too many edges to draw any.
    pub(crate) too_many_edges: bool,
}

#[derive(Clone, Debug, Serialize)]
struct GraphNode {
    id: String,
    label: String,
    state: String,
    /// A second line.
    note: Option<String>,
    critical: bool,
    /// A path of this console.
    path: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
struct GraphEdge {
    from: String,
    to: String,
    /// What it expects, unless that is success.
    label: Option<String>,
    critical: bool,
}

impl GraphData {
    /// Tasks of a run, and the chain among them that its duration comes from.
    pub(crate) fn from_run(tasks: &[RunTask], edges: &[RunEdge], critical: &[i64]) -> Self {
        let on_it: HashSet<i64> = critical.iter().copied().collect();
        let steps: HashSet<(i64, i64)> = critical.windows(2).map(|it| (it[0], it[1])).collect();
        let node = |task: &RunTask| GraphNode {
            id: task.node.to_string(),
            label: visible(&task.name),
            state: task.state.clone(),
            note: task.duration.map(|it| format::span(it.as_secs_f64())),
            critical: on_it.contains(&task.node),
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

    /// Tasks by name; `here` is the one that was asked about.
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

    /// Whether there is anything that a list does not tell as well.
    pub(crate) fn has_edges(&self) -> bool {
        !self.edges.is_empty()
    }

    /// What to know about the picture.
    pub(crate) fn caveat(&self) -> Option<String> {
        if self.too_many_edges {
            return Some(format!("more than {MAX_EDGES} edges: they are not drawn"));
        }
        let tasks = format::counted(self.left_out, "more task");
        (self.left_out > 0).then(|| format!("{tasks} not drawn"))
    }
}

fn edge_label(expected: Expected) -> Option<String> {
    (expected != Expected::Succeeded).then(|| expected.to_string())
}
