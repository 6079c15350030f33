//! What a picture of a graph is drawn from: `static/graph.js` asks for it as JSON.

use std::collections::{HashMap, HashSet};

use queue::graph::{Edge as RunEdge, RunTask};
use queue::lineage::Link;
use queue::run::Expected;
use serde::Serialize;
use terminal::visible;

use crate::words;

/// Boxes of a picture: laying out more takes a browser seconds, and nobody reads it.
pub(crate) const MOST_NODES: usize = 300;

/// Arrows of a picture.
pub(crate) const MOST_EDGES: usize = 2000;

/// A graph as it is drawn.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Drawing {
    nodes: Vec<Node>,
    edges: Vec<Arrow>,
    /// Tasks that are not drawn.
    pub(crate) left_out: i64,
    /// There are too many edges to draw any.
    pub(crate) too_many_edges: bool,
}

#[derive(Clone, Debug, Serialize)]
struct Node {
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
struct Arrow {
    from: String,
    to: String,
    /// What it expects, unless that is success.
    label: Option<String>,
    critical: bool,
}

impl Drawing {
    /// Tasks of a run, and the chain among them that its duration comes from.
    pub(crate) fn of_run(tasks: &[RunTask], edges: &[RunEdge], critical: &[i64]) -> Self {
        let on_it: HashSet<i64> = critical.iter().copied().collect();
        let steps: HashSet<(i64, i64)> = critical.windows(2).map(|it| (it[0], it[1])).collect();
        let node = |task: &RunTask| Node {
            id: task.node.to_string(),
            label: visible(&task.name),
            state: task.state.clone(),
            note: task.duration.map(|it| words::span(it.as_secs_f64())),
            critical: on_it.contains(&task.node),
            path: task.task_id.map(|id| format!("/tasks/{id}")),
        };
        let arrow = |edge: &RunEdge| Arrow {
            from: edge.parent.to_string(),
            to: edge.child.to_string(),
            label: unless_success(edge.expected),
            critical: steps.contains(&(edge.parent, edge.child)),
        };
        Self {
            nodes: tasks.iter().map(node).collect(),
            edges: edges.iter().map(arrow).collect(),
            ..Self::default()
        }
    }

    /// Tasks by name; `here` is the one that was asked about.
    pub(crate) fn of_names<'a>(
        names: impl IntoIterator<Item = &'a str>,
        links: &[Link],
        here: &str,
    ) -> Self {
        let names: Vec<&str> = names.into_iter().collect();
        let shown = &names[..names.len().min(MOST_NODES)];
        let node = |name: &&str| Node {
            id: (*name).to_owned(),
            label: visible(name),
            state: if *name == here { "here".to_owned() } else { String::new() },
            note: None,
            critical: false,
            path: Some(format!("/lineage?name={}", words::encoded(name))),
        };
        let places: HashMap<&str, ()> = shown.iter().map(|name| (*name, ())).collect();
        let arrow = |link: &Link| Arrow {
            from: link.parent.clone(),
            to: link.child.clone(),
            label: unless_success(link.expected),
            critical: false,
        };
        let drawn = |it: &&Link| {
            places.contains_key(it.parent.as_str()) && places.contains_key(it.child.as_str())
        };
        let edges: Vec<Arrow> = links.iter().filter(drawn).map(arrow).collect();
        let too_many_edges = edges.len() > MOST_EDGES;
        Self {
            nodes: shown.iter().map(node).collect(),
            edges: if too_many_edges { Vec::new() } else { edges },
            left_out: i64::try_from(names.len() - shown.len()).unwrap_or(i64::MAX),
            too_many_edges,
        }
    }

    /// Whether there is anything that a list does not tell as well.
    pub(crate) fn worth_it(&self) -> bool {
        !self.edges.is_empty()
    }

    /// What to know about the picture.
    pub(crate) fn caveat(&self) -> Option<String> {
        if self.too_many_edges {
            return Some(format!("more than {MOST_EDGES} edges: they are not drawn"));
        }
        let tasks = words::counted(self.left_out, "more task");
        (self.left_out > 0).then(|| format!("{tasks} not drawn"))
    }
}

fn unless_success(expected: Expected) -> Option<String> {
    (expected != Expected::Succeeded).then(|| expected.to_string())
}
