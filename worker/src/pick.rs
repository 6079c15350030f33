//! In which order a claim looks at the lanes. Pure.

use queue::Priority;
use queue::claim::Lane;
use rand::seq::SliceRandom;
use rand::{Rng, RngExt};

/// Shares of the picks, in percent: a probability and not a rank, so that no priority starves.
fn weight(priority: Priority) -> f64 {
    match priority {
        Priority::Low => 5.0,
        Priority::Normal => 10.0,
        Priority::High => 15.0,
        Priority::Critical => 30.0,
        Priority::Reserved => 40.0,
    }
}

/// A weighted random permutation: each element draws the key −ln(u)/w and the smallest comes first
/// (Efraimidis and Spirakis, "Weighted random sampling with a reservoir", 2006). What has no work
/// drops out of the claim by itself, and the weights of the rest renormalise.
fn permutation(random: &mut impl Rng) -> Vec<Priority> {
    let mut keyed: Vec<(f64, Priority)> = Priority::ALL
        .iter()
        .map(|priority| (-(1.0 - random.random::<f64>()).ln() / weight(*priority), *priority))
        .collect();
    keyed.sort_by(|a, b| a.0.total_cmp(&b.0));
    keyed.into_iter().map(|(_, priority)| priority).collect()
}

/// The lanes in the order of one pick: priorities by weight, queues of one priority by chance.
pub(crate) fn order(lanes: &mut [Lane], random: &mut impl Rng) {
    let ranks = permutation(random);
    lanes.shuffle(random);
    lanes.sort_by_key(|lane| ranks.iter().position(|priority| *priority == lane.priority));
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;

    #[test]
    fn the_first_pick_has_the_weights_as_its_shares() {
        let mut random = StdRng::seed_from_u64(42);
        let draws = 200_000;
        let mut first = [0_u32; 5];
        for _ in 0..draws {
            let priority = permutation(&mut random)[0];
            first[Priority::ALL.iter().position(|p| *p == priority).unwrap()] += 1;
        }
        for (priority, count) in Priority::ALL.iter().zip(first) {
            let share = f64::from(count) * 100.0 / f64::from(draws);
            assert!((share - weight(*priority)).abs() < 0.5, "{priority}: {share} %");
        }
    }

    #[test]
    fn every_lane_stays_in_the_order() {
        let mut random = StdRng::seed_from_u64(1);
        let mut lanes: Vec<Lane> = ["a", "b", "c"]
            .iter()
            .flat_map(|queue| {
                Priority::ALL
                    .iter()
                    .map(|priority| Lane { queue: (*queue).to_owned(), priority: *priority })
            })
            .collect();
        order(&mut lanes, &mut random);
        assert_eq!(lanes.len(), 15);
        for pair in lanes.chunks(3) {
            assert!(pair.iter().all(|lane| lane.priority == pair[0].priority));
        }
    }
}
