//! Selection of nodes as in dbt: `--select` and `--exclude`.

use std::collections::BTreeSet;

use clap::ValueEnum;
use clap::builder::PossibleValue;
use cli::Failure;
use serde_json::Value;

use super::graph::Graph;
use super::manifest::{Manifest, Node};
use crate::args::ResourceType;

/// Methods of a selector.
const METHODS: &str = "fqn:, tag:, path:, file:, package:, source:, resource_type:, test_type:, \
                       group:, config.KEY:";

/// Maximum number of steps along the edges.
const ALL: usize = usize::MAX;

/// One part of a selector: `2+tag:nightly+`, for example.
#[derive(Debug, PartialEq)]
struct Selector<'t> {
    method: &'t str,
    value: &'t str,
    /// Steps to ancestors and to descendants.
    up: usize,
    down: usize,
    /// `@`: descendants, and all their ancestors.
    with_ancestors_of_descendants: bool,
}

impl<'t> Selector<'t> {
    fn parse(text: &'t str) -> Result<Self, Failure> {
        let (at, rest) = match text.strip_prefix('@') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (up, rest) = match rest[digits..].strip_prefix('+') {
            Some(after) => (steps(&rest[..digits]), after),
            None => (0, rest),
        };
        let end = rest.trim_end_matches(|c: char| c.is_ascii_digit());
        let (down, rest) = match end.strip_suffix('+') {
            Some(before) => (steps(&rest[end.len()..]), before),
            None => (0, rest),
        };
        let (method, value) = match rest.split_once(':') {
            Some((method, value)) => (method, value),
            None if rest.contains('/') => ("path", rest),
            None if rest.ends_with(".sql") || rest.ends_with(".csv") => ("file", rest),
            None => ("fqn", rest),
        };
        let known = METHODS.split(", ").any(|it| it.trim_end_matches(':') == method);
        if !known && !method.starts_with("config.") {
            let message = format!("selector \"{text}\": method \"{method}\" is not supported");
            return Err(Failure::usage(message).hint(format!("pgmill knows: {METHODS}.")));
        }
        if value.is_empty() || (at && (up > 0 || down > 0)) {
            return Err(Failure::usage(format!("\"{text}\" is not a selector")));
        }
        Ok(Self { method, value, up, down, with_ancestors_of_descendants: at })
    }

    fn matches(&self, node: &Node) -> bool {
        let value = self.value;
        match self.method {
            "fqn" => matches_fqn(value, node),
            "tag" => node.tags.iter().any(|tag| wildcard(value, tag)),
            "path" => {
                let path = node.original_file_path.as_str();
                let folder = value.trim_end_matches('/');
                let inside = path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'));
                inside || wildcard(folder, path)
            }
            "file" => {
                let name = node.original_file_path.rsplit('/').next().unwrap_or_default();
                let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
                wildcard(value, name) || wildcard(value, stem)
            }
            "package" => wildcard(value, &node.package_name),
            "resource_type" => value == node.resource_type,
            "group" => node.group.as_deref().is_some_and(|group| wildcard(value, group)),
            "test_type" => {
                let generic = node.test_metadata.is_some();
                let kind = if generic { "generic" } else { "singular" };
                node.resource_type == "test" && (value == kind || value == "data")
            }
            method => method.strip_prefix("config.").is_some_and(|key| {
                let pointer = format!("/{}", key.replace('.', "/"));
                let config = Value::Object(node.config.clone());
                config.pointer(&pointer).is_some_and(|found| has_value(found, value))
            }),
        }
    }
}

/// Reads the number of steps; without one, the steps are not limited.
fn steps(digits: &str) -> usize {
    digits.parse().unwrap_or(ALL)
}

fn has_value(found: &Value, value: &str) -> bool {
    match found {
        Value::String(text) => wildcard(value, text),
        Value::Array(list) => list.iter().any(|it| has_value(it, value)),
        Value::Object(map) => map.contains_key(value),
        Value::Bool(yes) => value == if *yes { "true" } else { "false" },
        Value::Number(number) => value.parse::<f64>().ok() == number.as_f64(),
        Value::Null => value == "null",
    }
}

/// A name, a versioned name, or the beginning of the path of a node in its project.
fn matches_fqn(value: &str, node: &Node) -> bool {
    if wildcard(value, &node.name) || wildcard(value, &node.versioned_name()) {
        return true;
    }
    let parts: Vec<&str> = value.split('.').collect();
    let begins = |fqn: &[String]| {
        parts.len() <= fqn.len() && parts.iter().zip(fqn).all(|(part, name)| wildcard(part, name))
    };
    begins(&node.fqn) || begins(node.fqn.get(1..).unwrap_or_default())
}

/// Compares a text with a pattern that may contain `*` and `?`.
fn wildcard(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t, mut retry) = (0, 0, None);
    while t < text.len() {
        if p < pattern.len() && pattern[p] == '*' {
            retry = Some((p, t));
            p += 1;
        } else if p < pattern.len() && (pattern[p] == '?' || pattern[p] == text[t]) {
            (p, t) = (p + 1, t + 1);
        } else if let Some((star, from)) = retry {
            retry = Some((star, from + 1));
            (p, t) = (star + 1, from + 1);
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

/// Returns, for each node of the graph, whether it is selected.
///
/// # Errors
/// Fails for a selector that is malformed or not supported, or that matches nothing.
pub(super) fn select(
    manifest: &Manifest,
    graph: &Graph<'_>,
    select: &[String],
    exclude: &[String],
    types: &[ResourceType],
) -> Result<Vec<bool>, Failure> {
    let mut chosen: BTreeSet<usize> = (0..graph.nodes.len()).collect();
    if !select.is_empty() {
        chosen = union(manifest, graph, select)?;
    }
    let excluded = union(manifest, graph, exclude)?;
    let types: Vec<PossibleValue> = types.iter().filter_map(ValueEnum::to_possible_value).collect();
    let typed = |node: &Node| {
        types.is_empty() || types.iter().any(|it| it.get_name() == node.resource_type)
    };
    Ok((0..graph.nodes.len())
        .map(|n| chosen.contains(&n) && !excluded.contains(&n) && typed(graph.nodes[n]))
        .collect())
}

/// Returns the nodes that any of the selectors selects, and the tests of these nodes.
fn union(
    manifest: &Manifest,
    graph: &Graph<'_>,
    texts: &[String],
) -> Result<BTreeSet<usize>, Failure> {
    let mut found = BTreeSet::new();
    for text in texts.iter().flat_map(|text| text.split_whitespace()) {
        let mut parts = text.split(',').map(|part| {
            let selector = Selector::parse(part)?;
            Ok::<_, Failure>(with_tests(graph, nodes_of(manifest, graph, &selector)))
        });
        let mut all = parts.next().unwrap_or_else(|| Ok(BTreeSet::new()))?;
        for part in parts {
            let part = part?;
            all.retain(|n| part.contains(n));
        }
        if all.is_empty() {
            return Err(Failure::usage(format!("selector \"{text}\" matches no node")));
        }
        found.extend(all);
    }
    Ok(found)
}

fn nodes_of(manifest: &Manifest, graph: &Graph<'_>, selector: &Selector<'_>) -> BTreeSet<usize> {
    if selector.method == "source" {
        return readers_of(manifest, graph, selector);
    }
    let matched: BTreeSet<usize> =
        (0..graph.nodes.len()).filter(|n| selector.matches(graph.nodes[*n])).collect();
    if selector.with_ancestors_of_descendants {
        return graph.reach(&graph.reach(&matched, false, ALL), true, ALL);
    }
    let up = graph.reach(&matched, true, selector.up);
    let down = graph.reach(&matched, false, selector.down);
    up.into_iter().chain(down).collect()
}

/// Returns the nodes that read the source, if the selector asks for descendants, and its tests.
fn readers_of(manifest: &Manifest, graph: &Graph<'_>, selector: &Selector<'_>) -> BTreeSet<usize> {
    let parts: Vec<&str> = selector.value.split('.').collect();
    let named = |id: &&str| {
        let Some(source) = manifest.sources.get(*id) else { return false };
        let (package, of, name) = (&source.package_name, &source.source_name, &source.name);
        match parts[..] {
            [only] => wildcard(only, of),
            [first, second] => wildcard(first, of) && wildcard(second, name),
            [first, second, third] => {
                wildcard(first, package) && wildcard(second, of) && wildcard(third, name)
            }
            _ => false,
        }
    };
    let reads = |n: &usize| graph.sources[*n].iter().any(&named);
    let readers: BTreeSet<usize> = (0..graph.nodes.len()).filter(reads).collect();
    let is_test = |n: &usize| graph.nodes[*n].resource_type == "test";
    match selector.down.checked_sub(1) {
        None if selector.with_ancestors_of_descendants => {
            graph.reach(&graph.reach(&readers, false, ALL), true, ALL)
        }
        None => readers.into_iter().filter(is_test).collect(),
        Some(more) => graph.reach(&readers, false, more),
    }
}

/// Adds the tests that use at least one of the nodes.
fn with_tests(graph: &Graph<'_>, mut nodes: BTreeSet<usize>) -> BTreeSet<usize> {
    let tests: Vec<usize> = nodes
        .iter()
        .flat_map(|n| &graph.children[*n])
        .copied()
        .filter(|child| graph.nodes[*child].resource_type == "test")
        .collect();
    nodes.extend(tests);
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selector_has_a_method_a_value_and_steps() {
        let parse = |text| Selector::parse(text).unwrap();
        let plain = |method, value, up, down| Selector {
            method,
            value,
            up,
            down,
            with_ancestors_of_descendants: false,
        };
        assert_eq!(parse("orders"), plain("fqn", "orders", 0, 0));
        assert_eq!(parse("+orders"), plain("fqn", "orders", ALL, 0));
        assert_eq!(parse("2+orders+1"), plain("fqn", "orders", 2, 1));
        assert_eq!(parse("tag:a+"), plain("tag", "a", 0, ALL));
        assert_eq!(parse("models/marts/"), plain("path", "models/marts/", 0, 0));
        assert_eq!(parse("orders2"), plain("fqn", "orders2", 0, 0));
        assert!(parse("@orders").with_ancestors_of_descendants);
        for wrong in ["state:modified", "result:error", "", "+", "@+a", "tag:", "x:y"] {
            assert!(Selector::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn wildcards_match_any_text() {
        for (pattern, text, expected) in [
            ("stg_*", "stg_orders", true),
            ("*orders", "stg_orders", true),
            ("*o*e*", "orders", true),
            ("o?ders", "orders", true),
            ("stg_*", "orders", false),
            ("orders", "orders2", false),
            ("*", "", true),
            ("", "a", false),
        ] {
            assert_eq!(wildcard(pattern, text), expected, "{pattern} {text}");
        }
    }
}
