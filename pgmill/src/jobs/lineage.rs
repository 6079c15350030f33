//! `pgmill lineage`: the upstream and downstream tasks of a task, as a tree or a graph.

use std::collections::{BTreeMap, BTreeSet};

use cli::{Exit, Failure};
use conninfo::Client;
use queue::job;
use queue::lineage::{self, LineageEdge};
use queue::run::Expected;
use serde_json::json;
use terminal::visible;

use crate::args::LineageArgs;
use crate::output::Output;
use crate::output::graph::{self, Edge, Node};

/// Prints the upstream and downstream tasks of a task.
///
/// # Errors
/// Fails if no job and no dependency has the task.
pub(crate) async fn run(client: &Client, out: &Output, args: &LineageArgs) -> Exit {
    if out.json && args.format.is_some() {
        return Err(Failure::usage("--json cannot be used with --format"));
    }
    // Neither flag means both directions.
    let (up, down) = (args.upstream || !args.downstream, args.downstream || !args.upstream);
    let edges = job::lineage(client, &args.name, up, down).await?;
    if edges.is_empty() && !lineage::task_exists(client, &args.name).await? {
        let message = format!("no job and no dependency has a task {}", args.name);
        return Err(Failure::not_found(message).hint("pgmill job show lists the tasks of a job."));
    }
    let edges = lineage::merge_edges(&edges);
    let names = lineage::task_names(&args.name, &edges);
    let node = |id: &&str| Node {
        id: (*id).to_owned(),
        label: (*id).to_owned(),
        state: (*id == args.name).then(|| "here".to_owned()),
    };
    let nodes: Vec<Node> = names.iter().map(node).collect();
    let arrows = edges.iter().map(|it| Edge::new(&it.parent, &it.child, it.expected));
    let arrows: Vec<Edge> = arrows.collect();
    let format = args.format.unwrap_or_default();
    let text = graph::format(format, (&nodes, &arrows), || text(&args.name, &edges, (up, down)));
    out.answer(json!({ "task": args.name, "nodes": names, "edges": edges }), text)
}

fn text(name: &str, edges: &[LineageEdge], (up, down): (bool, bool)) -> String {
    let mut lines = vec![visible(name)];
    for (wanted, heading, upwards) in [(up, "upstream", true), (down, "downstream", false)] {
        if !wanted {
            continue;
        }
        let below = tree(name, edges, upwards);
        if below.is_empty() {
            lines.push(format!("  {heading}: none"));
        } else {
            lines.push(format!("  {heading}:"));
            lines.extend(below);
        }
    }
    lines.join("\n")
}

/// Formats all tasks in one direction, one per line. A repeated task is marked and not expanded.
fn tree(name: &str, edges: &[LineageEdge], upwards: bool) -> Vec<String> {
    let mut next: BTreeMap<&str, Vec<&LineageEdge>> = BTreeMap::new();
    for edge in edges {
        next.entry(if upwards { &edge.child } else { &edge.parent }).or_default().push(edge);
    }
    let of = |node: &str| next.get(node).into_iter().flatten().rev().copied();
    let mut lines = Vec::new();
    let mut seen = BTreeSet::from([name]);
    // A stack instead of recursion: chains may be long.
    let mut left: Vec<(usize, &LineageEdge)> = of(name).map(|edge| (2, edge)).collect();
    while let Some((depth, edge)) = left.pop() {
        let node = if upwards { edge.parent.as_str() } else { edge.child.as_str() };
        let first = seen.insert(node);
        let ends = !next.contains_key(node);
        let again = if first || ends { "" } else { " (see above)" };
        lines.push(format!(
            "{:indent$}{}{again}",
            "",
            visible(&line(node, edge)),
            indent = depth * 2
        ));
        if first {
            left.extend(of(node).map(|edge| (depth + 1, edge)));
        }
    }
    lines
}

fn line(node: &str, edge: &LineageEdge) -> String {
    let expected = match edge.expected {
        Expected::Succeeded => String::new(),
        expected => format!(" {expected}"),
    };
    let everywhere = edge.everywhere.then_some("every job");
    let jobs: Vec<&str> = edge.jobs.iter().map(String::as_str).chain(everywhere).collect();
    format!("{node}{expected}  [{}]", jobs.join(", "))
}

#[cfg(test)]
mod tests {
    use queue::job::Dependency;

    use super::*;

    fn edge(parent: &str, child: &str, job: Option<&str>) -> Dependency {
        Dependency {
            child: child.to_owned(),
            parent: parent.to_owned(),
            expected: if child == "alert" { Expected::Failed } else { Expected::Succeeded },
            job: job.map(str::to_owned),
        }
    }

    #[test]
    fn a_repeated_task_is_marked_and_not_expanded() {
        let edges = [
            edge("raw", "a", Some("daily")),
            edge("raw", "a", None),
            edge("raw", "b", Some("daily")),
            edge("a", "mart", None),
            edge("b", "mart", None),
            edge("mart", "report", Some("sunday")),
            edge("mart", "alert", None),
        ];
        let shown = text("raw", &lineage::merge_edges(&edges), (true, true));
        assert_eq!(
            shown,
            "raw\n  upstream: none\n  downstream:\n    a  [daily, every job]\n      \
             mart  [every job]\n        alert failed  [every job]\n        report  [sunday]\n    \
             b  [daily]\n      mart  [every job] (see above)"
        );
    }

    #[test]
    fn a_cycle_ends() {
        let edges = [edge("a", "b", Some("x")), edge("b", "a", Some("y"))];
        let shown = text("a", &lineage::merge_edges(&edges), (false, true));
        assert_eq!(shown, "a\n  downstream:\n    b  [x]\n      a  [y] (see above)");
    }
}
