//! Weighted random selection of lanes for claims. Pure.

use std::collections::BTreeMap;

use queue::Priority;
use queue::claim::Lane;
use rand::seq::index::sample;
use rand::{Rng, RngExt};

/// Weights of the priorities. A weight is a probability, not a rank, so that no priority starves.
#[derive(Clone, Debug, PartialEq)]
pub struct Weights(Vec<f64>);

impl Default for Weights {
    /// Returns the weights of a new schema, used until the first poll.
    fn default() -> Self {
        Self(vec![5.0, 10.0, 15.0, 30.0, 40.0])
    }
}

impl Weights {
    /// Creates weights, given in the order of the priorities, lowest first.
    #[must_use]
    pub fn new(weights: Vec<f64>) -> Self {
        Self(weights)
    }

    fn of(&self, priority: Priority) -> f64 {
        let place = Priority::ALL.iter().position(|known| *known == priority);
        place.and_then(|place| self.0.get(place)).copied().unwrap_or(0.0)
    }
}

/// The lanes with work of one priority, at least one.
pub(crate) type Class<'a> = (Priority, &'a [Lane]);

/// Draws a lane for each of `tasks` tasks: first a priority among those of the lanes, by weight,
/// then one of the lanes of this priority, with equal probability. Returns the number of tasks of
/// each drawn lane. The cost depends on the number of tasks, not on that of the lanes.
pub(crate) fn draw<'a>(
    classes: &[Class<'a>],
    weights: &Weights,
    tasks: usize,
    random: &mut impl Rng,
) -> BTreeMap<&'a Lane, usize> {
    let mut drawn = BTreeMap::new();
    let total: f64 = classes.iter().map(|(priority, _)| weights.of(*priority)).sum();
    for _ in 0..tasks {
        let mut point = random.random::<f64>() * total;
        // Takes the last class if all weights are zero, or after rounding errors.
        let chosen = classes.iter().find(|(priority, _)| {
            point -= weights.of(*priority);
            point < 0.0
        });
        let Some((_, lanes)) = chosen.or(classes.last()) else { break };
        *drawn.entry(&lanes[random.random_range(0..lanes.len())]).or_default() += 1;
    }
    drawn
}

/// Returns the first lanes of a random permutation that is weighted by priority, without those that
/// were drawn. Each priority draws the key −ln(u)/w, and the smallest key comes first (Efraimidis
/// and Spirakis, "Weighted random sampling with a reservoir", 2006). Lanes of the same priority are
/// in random order.
pub(crate) fn others<'a>(
    classes: &[Class<'a>],
    weights: &Weights,
    drawn: &BTreeMap<&Lane, usize>,
    max_count: usize,
    random: &mut impl Rng,
) -> Vec<&'a Lane> {
    let mut keyed: Vec<(f64, &'a [Lane])> = classes
        .iter()
        .map(|(priority, lanes)| {
            (-(1.0 - random.random::<f64>()).ln() / weights.of(*priority), *lanes)
        })
        .collect();
    keyed.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    let mut others = Vec::new();
    for (_, lanes) in keyed {
        let missing = max_count - others.len();
        // All drawn lanes may be in the sample, which is in random order.
        let sample = sample(random, lanes.len(), lanes.len().min(missing + drawn.len()));
        let rest = sample.into_iter().map(|n| &lanes[n]).filter(|lane| !drawn.contains_key(lane));
        others.extend(rest.take(missing));
    }
    others
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;

    /// A lane of each priority in each queue, as classes.
    struct Classes(Vec<(Priority, Vec<Lane>)>);

    impl Classes {
        fn new(of_each: &[(&[&str], &[Priority])]) -> Self {
            let mut classes = BTreeMap::<Priority, Vec<Lane>>::new();
            for (queues, priorities) in of_each {
                for (queue, priority) in
                    queues.iter().flat_map(|queue| priorities.iter().map(move |p| (queue, p)))
                {
                    let lane = Lane {
                        run_as: String::new(),
                        queue: (*queue).to_owned(),
                        priority: *priority,
                    };
                    classes.entry(*priority).or_default().push(lane);
                }
            }
            Self(classes.into_iter().collect())
        }

        fn get(&self) -> Vec<Class<'_>> {
            self.0.iter().map(|(priority, lanes)| (*priority, &lanes[..])).collect()
        }

        /// Returns the share of the draws of each lane that was drawn, in percent.
        #[expect(clippy::cast_precision_loss, reason = "counts of draws")]
        fn shares(&self, draws: usize) -> Vec<f64> {
            let mut random = StdRng::seed_from_u64(42);
            let drawn = draw(&self.get(), &Weights::default(), draws, &mut random);
            drawn.values().map(|count| *count as f64 * 100.0 / draws as f64).collect()
        }
    }

    #[test]
    fn shares_of_the_draws_match_the_weights() {
        let found = Classes::new(&[(&["a"], Priority::ALL)]).shares(200_000);
        assert_eq!(found.len(), 5);
        for (found, wanted) in found.iter().zip([5.0, 10.0, 15.0, 30.0, 40.0]) {
            assert!((found - wanted).abs() < 0.5, "{found} % instead of {wanted} %");
        }
    }

    #[test]
    fn weights_of_the_remaining_priorities_are_renormalised() {
        let found = Classes::new(&[(&["a"], &Priority::ALL[..3])]).shares(200_000);
        assert_eq!(found.len(), 3);
        for (found, wanted) in found.iter().zip([16.7, 33.3, 50.0]) {
            assert!((found - wanted).abs() < 0.5, "{found} % instead of {wanted} %");
        }
    }

    #[test]
    fn queues_of_one_priority_share_evenly_regardless_of_their_other_priorities() {
        let classes = Classes::new(&[(&["a"], Priority::ALL), (&["b"], &[Priority::Normal])]);
        let found = classes.shares(200_000);
        assert!((found[1] - 5.0).abs() < 0.5 && (found[5] - 5.0).abs() < 0.5, "{found:?}");
    }

    #[test]
    fn zero_weights_are_drawn_only_if_all_weights_are_zero() {
        let mut random = StdRng::seed_from_u64(1);
        let weights = Weights::new(vec![0.0, 10.0, 0.0, 0.0, 0.0]);
        let both = Classes::new(&[(&["a"], &[Priority::Low, Priority::Normal])]);
        let drawn = draw(&both.get(), &weights, 1000, &mut random);
        assert_eq!(drawn.into_iter().collect::<Vec<_>>(), [(&both.0[1].1[0], 1000)]);
        let low = Classes::new(&[(&["a"], &[Priority::Low])]);
        let drawn = draw(&low.get(), &weights, 10, &mut random);
        assert_eq!(drawn.into_iter().collect::<Vec<_>>(), [(&low.0[0].1[0], 10)]);
        assert!(draw(&[], &weights, 10, &mut random).is_empty());
        let first = others(&both.get(), &weights, &BTreeMap::new(), 1, &mut random);
        assert_eq!(first[0].priority, Priority::Normal);
    }

    #[test]
    fn the_other_lanes_are_all_but_the_drawn_ones_one_priority_after_another() {
        let mut random = StdRng::seed_from_u64(1);
        let classes = Classes::new(&[(&["a", "b", "c"], Priority::ALL)]);
        let drawn = BTreeMap::from([(&classes.0[2].1[1], 1)]);
        for max_count in [0, 5, 14, 100] {
            let others =
                others(&classes.get(), &Weights::default(), &drawn, max_count, &mut random);
            let distinct: BTreeSet<&Lane> = others.iter().copied().collect();
            assert_eq!((others.len(), distinct.len()), (max_count.min(14), max_count.min(14)));
            assert!(!others.contains(&&classes.0[2].1[1]));
            let mut priorities: Vec<Priority> = others.iter().map(|lane| lane.priority).collect();
            priorities.dedup();
            let distinct: BTreeSet<Priority> = priorities.iter().copied().collect();
            assert_eq!(priorities.len(), distinct.len(), "{priorities:?}");
        }
    }

    #[test]
    fn the_other_lanes_of_a_priority_are_in_random_order() {
        let mut random = StdRng::seed_from_u64(1);
        let classes = Classes::new(&[(&["a", "b", "c"], &[Priority::Normal])]);
        let mut firsts = BTreeMap::<Vec<&str>, usize>::new();
        for _ in 0..6000 {
            let none = BTreeMap::new();
            let two = others(&classes.get(), &Weights::default(), &none, 2, &mut random);
            *firsts.entry(two.iter().map(|lane| lane.queue.as_str()).collect()).or_default() += 1;
        }
        assert_eq!(firsts.len(), 6);
        assert!(firsts.values().all(|count| (900..1100).contains(count)), "{firsts:?}");
    }
}
