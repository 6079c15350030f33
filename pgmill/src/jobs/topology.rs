//! Topological levels of the nodes of a graph, or the path of a cycle.

use std::collections::{BTreeMap, BTreeSet};

/// Returns the level of each node: 0 without parents, else one more than the highest level of its
/// parents. Edges are (parent, child); edges to other nodes are ignored.
///
/// # Errors
/// Returns the path of a cycle: `a > b > a`.
pub(crate) fn levels<'a>(
    nodes: impl IntoIterator<Item = &'a str>,
    edges: &[(&'a str, &'a str)],
) -> Result<BTreeMap<&'a str, usize>, String> {
    let mut waits: BTreeMap<&str, usize> = nodes.into_iter().map(|node| (node, 0)).collect();
    let inside: BTreeSet<(&str, &str)> = edges
        .iter()
        .copied()
        .filter(|(parent, child)| waits.contains_key(parent) && waits.contains_key(child))
        .collect();
    let mut children: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (parent, child) in &inside {
        children.entry(parent).or_default().push(child);
        *waits.entry(child).or_default() += 1;
    }
    let mut levels = BTreeMap::new();
    let free = |(node, count): (&&'a str, &usize)| (*count == 0).then_some(*node);
    let mut ready: Vec<&str> = waits.iter().filter_map(free).collect();
    for level in 0.. {
        if ready.is_empty() {
            break;
        }
        let mut next = Vec::new();
        for node in ready {
            levels.insert(node, level);
            for child in children.get(node).into_iter().flatten() {
                let left = waits.entry(child).or_default();
                *left -= 1;
                if *left == 0 {
                    next.push(*child);
                }
            }
        }
        ready = next;
    }
    if levels.len() == waits.len() {
        return Ok(levels);
    }
    let stuck = |node: &str| !levels.contains_key(node);
    let around: Vec<(&str, &str)> =
        inside.into_iter().filter(|(parent, child)| stuck(parent) && stuck(child)).collect();
    Err(cycle_path(&around))
}

/// Returns the path of a cycle. Each edge must start at the end of another edge, so that a walk
/// from child to parent cannot end.
fn cycle_path(edges: &[(&str, &str)]) -> String {
    let mut parent_of: BTreeMap<&str, &str> = BTreeMap::new();
    for (parent, child) in edges {
        parent_of.entry(child).or_insert(parent);
    }
    // Walk from any child to its parents. After as many steps as there are children, the walk is in
    // the cycle.
    let Some(mut node) = edges.first().map(|(_, child)| *child) else { return String::new() };
    for _ in 0..parent_of.len() {
        node = parent_of.get(node).copied().unwrap_or(node);
    }
    let mut path = vec![node];
    let mut before = parent_of.get(node).copied().unwrap_or(node);
    while before != node {
        path.push(before);
        before = parent_of.get(before).copied().unwrap_or(node);
    }
    // Start with the smallest name, so that the path does not depend on the start of the walk.
    path.reverse();
    let first =
        path.iter().enumerate().min_by_key(|(_, name)| **name).map_or(0, |(place, _)| place);
    path.rotate_left(first);
    path.push(path[0]);
    path.join(" > ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_one_level_above_its_highest_parent() {
        let edges = [("a", "b"), ("b", "d"), ("a", "d"), ("c", "d"), ("x", "a"), ("a", "b")];
        let found = levels(["a", "b", "c", "d"], &edges).unwrap();
        assert_eq!(found, BTreeMap::from([("a", 0), ("b", 1), ("c", 0), ("d", 2)]));
    }

    #[test]
    fn a_cycle_is_shown_from_parent_to_child() {
        let edges = [("s", "b"), ("c", "a"), ("a", "b"), ("b", "c"), ("c", "z")];
        let nodes = ["a", "b", "c", "s", "z"];
        assert_eq!(levels(nodes, &edges), Err("a > b > c > a".to_owned()));
        assert_eq!(levels(["a"], &[("a", "a")]), Err("a > a".to_owned()));
    }
}
