//! Graphs of runs, given by their edges or drawn at random.

use queue::run::{Expected, JoinMode};
use rand::RngExt;
use rand::rngs::StdRng;

use super::model::{Added, Graph};
use super::tables::{Edge, Settings};

/// More than a small run needs in one pass, as in the product.
pub(crate) const AMPLE: Settings = Settings { max_count: 100, bug: None };

fn edges(edges: &[(usize, usize, Expected)]) -> Vec<Edge> {
    edges
        .iter()
        .map(|(parent, child, expected)| Edge {
            parent: *parent,
            child: *child,
            expected: *expected,
        })
        .collect()
}

pub(crate) fn graph(joins: &[JoinMode], of: &[(usize, usize, Expected)]) -> Graph {
    Graph {
        joins: joins.to_vec(),
        edges: edges(of),
        fails: Vec::new(),
        released: Vec::new(),
        added: None,
        restarts: 0,
        cancels: false,
        settings: AMPLE,
    }
}

/// A random graph, in which everything can occur.
pub(crate) fn random_graph(random: &mut StdRng) -> Graph {
    let count = random.random_range(2..8);
    let mut of = Vec::new();
    for child in 1..count {
        for parent in 0..child {
            if random.random_ratio(2, 5) {
                of.push((parent, child, Expected::ALL[random.random_range(0..4)]));
            }
        }
    }
    let joins: Vec<JoinMode> = (0..count)
        .map(|_| if random.random_ratio(1, 3) { JoinMode::Any } else { JoinMode::All })
        .collect();
    let after = vec![random.random_range(0..count)];
    let before = of.last().filter(|_| random.random()).map(|edge| edge.1).into_iter().collect();
    Graph {
        fails: (0..count).filter(|_| random.random_ratio(1, 2)).collect(),
        released: (0..count).filter(|_| random.random_ratio(1, 4)).collect(),
        added: Some(Added { by: random.random_ratio(3, 4).then_some(0), after, before }),
        restarts: 3,
        cancels: random.random_ratio(1, 3),
        settings: Settings { max_count: random.random_range(2..6), bug: None },
        ..graph(&joins, &of)
    }
}
