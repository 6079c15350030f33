//! Weighted random selection of lanes for claims. Pure.

use queue::Priority;
use queue::claim::Lane;
use rand::seq::SliceRandom;
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

/// Draws a lane for each of `tasks` tasks: first a priority among those of the lanes, by weight,
/// then one of the lanes of this priority, with equal probability. Returns the number of tasks of
/// each lane.
pub(crate) fn draw(
    lanes: &[Lane],
    weights: &Weights,
    tasks: usize,
    random: &mut impl Rng,
) -> Vec<usize> {
    let mut drawn = vec![0; lanes.len()];
    let mut classes: Vec<(f64, Vec<usize>)> = Vec::new();
    for priority in Priority::ALL {
        let members: Vec<usize> =
            (0..lanes.len()).filter(|n| lanes[*n].priority == *priority).collect();
        if !members.is_empty() {
            classes.push((weights.of(*priority), members));
        }
    }
    let total: f64 = classes.iter().map(|(weight, _)| weight).sum();
    for _ in 0..tasks {
        let mut point = random.random::<f64>() * total;
        // Takes the last class if all weights are zero, or after rounding errors.
        let chosen = classes.iter().position(|(weight, _)| {
            point -= weight;
            point < 0.0
        });
        let Some((_, members)) = chosen.map_or(classes.last(), |n| classes.get(n)) else { break };
        drawn[members[random.random_range(0..members.len())]] += 1;
    }
    drawn
}

/// Permutes the lanes at random, weighted by priority. Each priority draws the key −ln(u)/w, and
/// the smallest key comes first (Efraimidis and Spirakis, "Weighted random sampling with a
/// reservoir", 2006). Lanes of the same priority are in random order.
pub(crate) fn permute(lanes: &mut [Lane], weights: &Weights, random: &mut impl Rng) {
    let keys: Vec<f64> = Priority::ALL
        .iter()
        .map(|priority| -(1.0 - random.random::<f64>()).ln() / weights.of(*priority))
        .collect();
    let key = |lane: &Lane| {
        Priority::ALL.iter().position(|known| *known == lane.priority).map_or(f64::MAX, |n| keys[n])
    };
    lanes.shuffle(random);
    lanes.sort_by(|a, b| key(a).total_cmp(&key(b)));
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;

    fn lanes(queues: &[&str], priorities: &[Priority]) -> Vec<Lane> {
        let lane = |queue: &&str, priority: &Priority| Lane {
            run_as: String::new(),
            queue: (*queue).to_owned(),
            priority: *priority,
        };
        queues.iter().flat_map(|queue| priorities.iter().map(move |p| lane(queue, p))).collect()
    }

    #[expect(clippy::cast_precision_loss, reason = "counts of draws")]
    fn shares(lanes: &[Lane], draws: usize) -> Vec<f64> {
        let mut random = StdRng::seed_from_u64(42);
        let drawn = draw(lanes, &Weights::default(), draws, &mut random);
        drawn.iter().map(|count| *count as f64 * 100.0 / draws as f64).collect()
    }

    #[test]
    fn shares_of_the_draws_match_the_weights() {
        let found = shares(&lanes(&["a"], Priority::ALL), 200_000);
        for (found, wanted) in found.iter().zip([5.0, 10.0, 15.0, 30.0, 40.0]) {
            assert!((found - wanted).abs() < 0.5, "{found} % instead of {wanted} %");
        }
    }

    #[test]
    fn weights_of_the_remaining_priorities_are_renormalised() {
        let found = shares(&lanes(&["a"], &Priority::ALL[..3]), 200_000);
        for (found, wanted) in found.iter().zip([16.7, 33.3, 50.0]) {
            assert!((found - wanted).abs() < 0.5, "{found} % instead of {wanted} %");
        }
    }

    #[test]
    fn queues_of_one_priority_share_evenly_regardless_of_their_other_priorities() {
        let mut all = lanes(&["a"], Priority::ALL);
        all.extend(lanes(&["b"], &[Priority::Normal]));
        let found = shares(&all, 200_000);
        assert!((found[1] - 5.0).abs() < 0.5 && (found[5] - 5.0).abs() < 0.5, "{found:?}");
    }

    #[test]
    fn zero_weights_are_drawn_only_if_all_weights_are_zero() {
        let mut random = StdRng::seed_from_u64(1);
        let weights = Weights::new(vec![0.0, 10.0, 0.0, 0.0, 0.0]);
        let both = lanes(&["a"], &[Priority::Low, Priority::Normal]);
        assert_eq!(draw(&both, &weights, 1000, &mut random), [0, 1000]);
        let low = lanes(&["a"], &[Priority::Low]);
        assert_eq!(draw(&low, &weights, 10, &mut random), [10]);
        assert_eq!(draw(&[], &weights, 10, &mut random), [0; 0]);
        let mut permuted = both.clone();
        permuted.reverse();
        permute(&mut permuted, &weights, &mut random);
        assert_eq!(permuted[0].priority, Priority::Normal);
    }

    #[test]
    fn a_permutation_keeps_every_lane() {
        let mut random = StdRng::seed_from_u64(1);
        let mut all = lanes(&["a", "b", "c"], Priority::ALL);
        permute(&mut all, &Weights::default(), &mut random);
        assert_eq!(all.len(), 15);
        for chunk in all.chunks(3) {
            assert!(chunk.iter().all(|lane| lane.priority == chunk[0].priority));
        }
    }
}
