//! `pgmill run graph`: the tasks and edges of one run as text, Mermaid or DOT.

use std::collections::{HashMap, HashSet};

use cli::Exit;
use conninfo::Client;
use queue::run::Expected;
use queue::run_queries::{self, Edge, RunTask};
use serde_json::json;
use terminal::visible;

use crate::args::RunGraph;
use crate::output::{Output, graph};
use crate::runs::list::find;

/// Prints the graph of one run.
///
/// # Errors
/// Fails if there is no such run.
pub(super) async fn draw(client: &Client, out: &Output, args: &RunGraph) -> Exit {
    find(client, args.run).await?;
    let tasks = run_queries::tasks(client, args.run).await?;
    let edges = run_queries::edges(client, args.run).await?;
    let boxes: Vec<graph::Node> = tasks
        .iter()
        .map(|task| graph::Node {
            id: task.node.to_string(),
            label: format!("{}\n{}", task.name, task.state),
            state: task.state.split(',').next().map(str::to_owned),
        })
        .collect();
    let arrows = edges.iter().map(|it| graph::Edge::new(&it.parent, &it.child, it.expected));
    let arrows: Vec<_> = arrows.collect();
    let text = graph::format(args.format, (&boxes, &arrows), || lines(&tasks, &edges));
    out.answer(json!({ "tasks": tasks, "edges": edges }), text)
}

/// Formats `[a succeeded] >>> [b running]` for each edge, then the tasks without edges.
fn lines(tasks: &[RunTask], edges: &[Edge]) -> String {
    let by_node: HashMap<i64, String> = tasks
        .iter()
        .map(|task| (task.node, format!("[{} {}]", visible(&task.name), task.state)))
        .collect();
    let shown = |node: i64| by_node.get(&node).cloned().unwrap_or_default();
    let edge = |edge: &Edge| {
        let arrow = match edge.expected {
            Expected::Succeeded => ">>>".to_owned(),
            other => format!("> {other} >"),
        };
        format!("{} {arrow} {}", shown(edge.parent), shown(edge.child))
    };
    let joined: HashSet<i64> = edges.iter().flat_map(|edge| [edge.parent, edge.child]).collect();
    let alone = tasks.iter().filter(|task| !joined.contains(&task.node));
    edges.iter().map(edge).chain(alone.map(|task| shown(task.node))).collect::<Vec<_>>().join("\n")
}
