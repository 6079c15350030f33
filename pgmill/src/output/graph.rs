//! Formats graphs for Mermaid and Graphviz. Names may contain any character.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;

use queue::run::Expected;

use crate::args::GraphFormat;

/// A node of a graph.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// Reference for edges; not shown.
    pub(crate) id: String,
    pub(crate) label: String,
    /// State that selects the fill colour.
    pub(crate) state: Option<String>,
}

/// A directed edge of a graph.
#[derive(Clone, Debug)]
pub(crate) struct Edge {
    /// [`Node::id`] of the parent.
    pub(crate) from: String,
    /// [`Node::id`] of the child.
    pub(crate) to: String,
    pub(crate) label: Option<String>,
}

impl Edge {
    /// Returns an edge, with the expected outcome of the parent as its label unless it is the default.
    pub(crate) fn new(from: &impl ToString, to: &impl ToString, expected: Expected) -> Self {
        let label = (expected != Expected::Succeeded).then(|| expected.to_string());
        Self { from: from.to_string(), to: to.to_string(), label }
    }
}

/// Formats a graph; `text` formats it as lines of text.
pub(crate) fn format(
    format: GraphFormat,
    (nodes, edges): (&[Node], &[Edge]),
    text: impl FnOnce() -> String,
) -> String {
    match format {
        GraphFormat::Text => text(),
        GraphFormat::Mermaid => mermaid(nodes, edges),
        GraphFormat::Dot => dot(nodes, edges),
    }
}

/// Fill colours by state, light enough for black text.
const COLOURS: [(&str, &str); 14] = [
    ("waiting", "#eeeeee"),
    ("scheduled", "#e3e8ef"),
    ("blocked", "#fde9c8"),
    ("pending", "#dbe9fb"),
    ("ready", "#dbe9fb"),
    ("needs_approval", "#fde9c8"),
    ("released", "#dbe9fb"),
    ("running", "#9ecbff"),
    ("succeeded", "#b7e4b0"),
    ("failed", "#f5a9a9"),
    ("cancelled", "#f3d08b"),
    ("upstream_failed", "#d9c2d9"),
    ("skipped", "#f7f7f7"),
    ("here", "#fff3a3"),
];

fn colour(state: &str) -> Option<&'static str> {
    COLOURS.iter().find(|(word, _)| *word == state).map(|(_, colour)| *colour)
}

/// Formats a Mermaid `flowchart` from left to right.
fn mermaid(nodes: &[Node], edges: &[Edge]) -> String {
    let mut text = "flowchart LR".to_owned();
    for (n, node) in nodes.iter().enumerate() {
        let _ = write!(text, "\n    n{n}[\"{}\"]", for_mermaid(&node.label));
        if let Some(state) = node.state.as_deref().filter(|state| colour(state).is_some()) {
            let _ = write!(text, ":::{state}");
        }
    }
    for (from, to, label) in numbered(nodes, edges) {
        let _ = match label {
            Some(label) => write!(text, "\n    n{from} -->|\"{}\"| n{to}", for_mermaid(label)),
            None => write!(text, "\n    n{from} --> n{to}"),
        };
    }
    let states: BTreeSet<&str> = nodes.iter().filter_map(|node| node.state.as_deref()).collect();
    for state in states {
        if let Some(fill) = colour(state) {
            let _ = write!(text, "\n    classDef {state} fill:{fill},color:#000");
        }
    }
    text
}

/// Formats a Graphviz `digraph` from left to right.
fn dot(nodes: &[Node], edges: &[Edge]) -> String {
    let mut text =
        "digraph {\n    rankdir=LR;\n    node [shape=box, style=\"rounded,filled\", fillcolor=white];"
            .to_owned();
    for (n, node) in nodes.iter().enumerate() {
        let _ = write!(text, "\n    n{n} [label=\"{}\"", for_dot(&node.label));
        if let Some(fill) = node.state.as_deref().and_then(colour) {
            let _ = write!(text, ", fillcolor=\"{fill}\"");
        }
        text.push_str("];");
    }
    for (from, to, label) in numbered(nodes, edges) {
        let _ = match label {
            Some(label) => write!(text, "\n    n{from} -> n{to} [label=\"{}\"];", for_dot(label)),
            None => write!(text, "\n    n{from} -> n{to};"),
        };
    }
    text.push_str("\n}");
    text
}

/// Returns the edges with the positions of their nodes in place of the names, so that no name
/// becomes part of the syntax. Skips edges whose node is missing.
fn numbered<'a>(
    nodes: &[Node],
    edges: &'a [Edge],
) -> impl Iterator<Item = (usize, usize, Option<&'a str>)> {
    let places: HashMap<&str, usize> =
        nodes.iter().enumerate().map(|(n, node)| (node.id.as_str(), n)).collect();
    let placed: Vec<_> = edges
        .iter()
        .filter_map(|edge| {
            let (from, to) = (places.get(edge.from.as_str())?, places.get(edge.to.as_str())?);
            Some((*from, *to, edge.label.as_deref()))
        })
        .collect();
    placed.into_iter()
}

/// Escapes text for a double-quoted Mermaid string: special characters become `#number;`, which
/// Mermaid decodes after it has parsed quotes, markup and Markdown.
fn for_mermaid(text: &str) -> String {
    escaped(text, |c, out| match c {
        c if c.is_alphanumeric() || " _-.,/()=+".contains(c) => out.push(c),
        c => {
            let _ = write!(out, "#{};", u32::from(c));
        }
    })
}

/// Escapes text for a double-quoted Graphviz string, with backslash escapes and entities.
fn for_dot(text: &str) -> String {
    escaped(text, |c, out| match c {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("&#92;"),
        '&' => out.push_str("&amp;"),
        '<' => out.push_str("&lt;"),
        '>' => out.push_str("&gt;"),
        c => out.push(c),
    })
}

fn escaped(text: &str, one: impl Fn(char, &mut String)) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        one(if c.is_control() { ' ' } else { c }, &mut out);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph() -> (Vec<Node>, Vec<Edge>) {
        let node = |id: &str, label: &str, state: Option<&str>| Node {
            id: id.to_owned(),
            label: label.to_owned(),
            state: state.map(str::to_owned),
        };
        let edge = |from: &str, to: &str, label: Option<&str>| Edge {
            from: from.to_owned(),
            to: to.to_owned(),
            label: label.map(str::to_owned),
        };
        let nodes = vec![
            node("a", "raw", Some("succeeded")),
            node("b", "say \"hi\"];\n<b>#1\\", Some("end; evil")),
        ];
        let edges =
            vec![edge("a", "b", Some("fai\"led")), edge("a", "b", None), edge("a", "gone", None)];
        (nodes, edges)
    }

    #[test]
    fn mermaid_names_are_escaped() {
        let (nodes, edges) = graph();
        assert_eq!(
            mermaid(&nodes, &edges),
            "flowchart LR\n    n0[\"raw\"]:::succeeded\n    \
             n1[\"say #34;hi#34;#93;#59; #60;b#62;#35;1#92;\"]\n    \
             n0 -->|\"fai#34;led\"| n1\n    n0 --> n1\n    \
             classDef succeeded fill:#b7e4b0,color:#000"
        );
    }

    #[test]
    fn dot_names_are_escaped() {
        let (nodes, edges) = graph();
        let text = dot(&nodes, &edges);
        let lines: Vec<&str> = text.lines().skip(3).collect();
        assert_eq!(
            lines,
            [
                "    n0 [label=\"raw\", fillcolor=\"#b7e4b0\"];",
                "    n1 [label=\"say \\\"hi\\\"]; &lt;b&gt;#1&#92;\"];",
                "    n0 -> n1 [label=\"fai\\\"led\"];",
                "    n0 -> n1;",
                "}",
            ]
        );
    }
}
