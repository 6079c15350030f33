//! The graph of a project: which node uses which, and which tests hold back which nodes.

use std::collections::{BTreeMap, BTreeSet};

use super::manifest::{Manifest, Node};

/// The nodes of a project that a selection can name, with their edges. A node is a number, its
/// position among the sorted unique ids.
pub(super) struct Graph<'a> {
    pub(super) nodes: Vec<&'a Node>,
    /// Nodes that each node uses directly.
    pub(super) parents: Vec<Vec<usize>>,
    /// Nodes that use each node directly.
    pub(super) children: Vec<Vec<usize>>,
    /// Sources that each node reads directly, by unique id.
    pub(super) sources: Vec<Vec<&'a str>>,
    /// A possible order of execution.
    order: Vec<usize>,
}

/// Types of nodes of the graph. Operations are not a part of it: they run before and after it.
const TYPES: [&str; 4] = ["model", "seed", "snapshot", "test"];

impl<'a> Graph<'a> {
    /// Builds the graph.
    ///
    /// # Errors
    /// Returns the unique ids of nodes that use each other in a circle.
    pub(super) fn of(manifest: &'a Manifest) -> Result<Self, Vec<&'a str>> {
        let nodes: Vec<&Node> = manifest
            .nodes
            .values()
            .filter(|node| TYPES.contains(&node.resource_type.as_str()))
            .collect();
        let numbers: BTreeMap<&str, usize> =
            nodes.iter().enumerate().map(|(n, node)| (node.unique_id.as_str(), n)).collect();
        let mut children = vec![Vec::new(); nodes.len()];
        let mut parents = Vec::with_capacity(nodes.len());
        for (n, node) in nodes.iter().enumerate() {
            let used: BTreeSet<usize> = node
                .depends_on
                .nodes
                .iter()
                .filter_map(|id| numbers.get(id.as_str()).copied())
                .collect();
            used.iter().for_each(|parent| children[*parent].push(n));
            parents.push(used.into_iter().collect::<Vec<_>>());
        }
        let sources = nodes
            .iter()
            .map(|node| {
                let used = node.depends_on.nodes.iter().map(String::as_str);
                used.filter(|id| id.starts_with("source.")).collect()
            })
            .collect();
        let order = order(&parents, &children);
        if order.len() < nodes.len() {
            let placed: BTreeSet<usize> = order.into_iter().collect();
            let rest = (0..nodes.len()).filter(|n| !placed.contains(n));
            return Err(rest.map(|n| nodes[n].unique_id.as_str()).collect());
        }
        Ok(Self { nodes, parents, children, sources, order })
    }

    /// Returns the nodes from which each node can be reached, in both cases without itself: of the
    /// parents (`up`) or of the children.
    pub(super) fn reach(&self, from: &BTreeSet<usize>, up: bool, steps: usize) -> BTreeSet<usize> {
        let edges = if up { &self.parents } else { &self.children };
        let mut found = from.clone();
        let mut edge: Vec<usize> = from.iter().copied().collect();
        for _ in 0..steps {
            edge = edge
                .iter()
                .flat_map(|n| &edges[*n])
                .copied()
                .filter(|next| found.insert(*next))
                .collect();
            if edge.is_empty() {
                break;
            }
        }
        found
    }

    /// Returns, for each node, the nearest nodes of `kept` that it depends on: a node that is not
    /// kept passes its own dependencies on.
    pub(super) fn nearest(&self, kept: &[bool]) -> Vec<BTreeSet<usize>> {
        let mut nearest: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); self.nodes.len()];
        for n in &self.order {
            let mut found = BTreeSet::new();
            for parent in &self.parents[*n] {
                if kept[*parent] {
                    found.insert(*parent);
                } else {
                    found.extend(nearest[*parent].iter().copied());
                }
            }
            nearest[*n] = found;
        }
        nearest
    }

    /// Returns, for each node, the tests that have to succeed before it runs, as in `dbt build`: the
    /// tests of which it needs every node. `edges` are those of [`Self::nearest`]. A test that a
    /// node before it already waits for is left out.
    pub(super) fn tests_before(
        &self,
        edges: &[BTreeSet<usize>],
        kept: &[bool],
    ) -> Vec<BTreeSet<usize>> {
        let mut before = vec![BTreeSet::new(); self.nodes.len()];
        let is_test = |n: usize| self.nodes[n].resource_type == "test";
        let tests: Vec<usize> = (0..self.nodes.len()).filter(|n| kept[*n] && is_test(*n)).collect();
        let tested: BTreeSet<usize> = tests.iter().flat_map(|n| &edges[*n]).copied().collect();
        let slots: BTreeMap<usize, usize> =
            tested.iter().enumerate().map(|(slot, n)| (*n, slot)).collect();
        let ancestors = self.ancestors(edges, &slots);
        for n in self.order.iter().copied().filter(|n| kept[*n] && !is_test(*n)) {
            for test in &tests {
                let needs =
                    |of: usize| edges[*test].iter().all(|used| ancestors[of].has(slots[used]));
                let tested = !edges[*test].is_empty();
                if tested && needs(n) && !edges[n].iter().any(|parent| needs(*parent)) {
                    before[n].insert(*test);
                }
            }
        }
        before
    }

    /// Returns, for each node, the slots of the nodes that it depends on, directly or not.
    fn ancestors(&self, edges: &[BTreeSet<usize>], slots: &BTreeMap<usize, usize>) -> Vec<Bits> {
        let mut ancestors = vec![Bits::default(); self.nodes.len()];
        for n in &self.order {
            let mut bits = Bits::new(slots.len());
            for parent in &edges[*n] {
                bits.add(&ancestors[*parent]);
                if let Some(slot) = slots.get(parent) {
                    bits.set(*slot);
                }
            }
            ancestors[*n] = bits;
        }
        ancestors
    }
}

/// Orders the nodes so that each comes after its parents. Nodes on a circle and after it are left
/// out.
fn order(parents: &[Vec<usize>], children: &[Vec<usize>]) -> Vec<usize> {
    let mut waiting: Vec<usize> = parents.iter().map(Vec::len).collect();
    let mut order: Vec<usize> = (0..parents.len()).filter(|n| waiting[*n] == 0).collect();
    let mut next = 0;
    while let Some(n) = order.get(next).copied() {
        next += 1;
        for child in &children[n] {
            waiting[*child] -= 1;
            if waiting[*child] == 0 {
                order.push(*child);
            }
        }
    }
    order
}

/// A set of small numbers.
#[derive(Clone, Default)]
struct Bits(Vec<u64>);

impl Bits {
    fn new(size: usize) -> Self {
        Self(vec![0; size.div_ceil(64)])
    }

    fn set(&mut self, n: usize) {
        self.0[n / 64] |= 1 << (n % 64);
    }

    fn has(&self, n: usize) -> bool {
        self.0[n / 64] & (1 << (n % 64)) != 0
    }

    fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(bits, more)| *bits |= more);
    }
}
