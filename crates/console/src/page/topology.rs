//! Order of tasks in which each task follows its parents.

use std::collections::{BTreeSet, HashMap, HashSet};

/// Sorts names so that each name follows its parents. Among names whose parents are listed, the
/// first of `names` comes first. Edges are pairs of parent and child; edges to other names have no
/// effect. The names of a cycle, which a job cannot have, come last.
pub(crate) fn topological_order<'a>(
    names: &[&'a str],
    edges: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Vec<&'a str> {
    let places: HashMap<&str, usize> = names.iter().copied().zip(0..).collect();
    let place = |name: &str| places.get(name).copied();
    let edges: HashSet<(usize, usize)> = edges
        .into_iter()
        .filter_map(|(parent, child)| Some((place(parent)?, place(child)?)))
        .collect();
    let mut waits = vec![0_usize; names.len()];
    let mut children: HashMap<usize, Vec<usize>> = HashMap::new();
    for (parent, child) in edges {
        waits[child] += 1;
        children.entry(parent).or_default().push(child);
    }
    let mut ready: BTreeSet<usize> = (0..names.len()).filter(|node| waits[*node] == 0).collect();
    let mut order = Vec::with_capacity(names.len());
    while let Some(node) = ready.pop_first() {
        order.push(names[node]);
        for child in children.get(&node).into_iter().flatten() {
            waits[*child] -= 1;
            if waits[*child] == 0 {
                ready.insert(*child);
            }
        }
    }
    let listed: HashSet<&str> = order.iter().copied().collect();
    order.extend(names.iter().filter(|name| !listed.contains(*name)));
    order
}

#[cfg(test)]
mod tests {
    use super::topological_order;

    #[test]
    fn each_task_follows_its_parents() {
        let names = ["alert", "extract", "load", "mart", "other"];
        let edges = [("extract", "load"), ("load", "mart"), ("mart", "alert"), ("x", "other")];
        let order = topological_order(&names, edges);
        assert_eq!(order, ["extract", "load", "mart", "alert", "other"]);
        let cycle = topological_order(&["a", "b", "c"], [("a", "b"), ("b", "a")]);
        assert_eq!(cycle, ["c", "a", "b"]);
    }
}
