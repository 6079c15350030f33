//! Which looks take in the other workers, so that a fleet looks a few times a second at each of them, however
//! many there are, and whoever is gone is still found within the promised time. Pure.

use queue::reclaim::Peer;

/// So many workers follow up one that was seen without its session, in the time in which each looks at the others once.
const FOLLOWERS: f64 = 32.0;

/// So many look for claims of workers that are not on the list, likewise. There are none but after a crash of the
/// server, and the walk over all that hold claims costs thrice what the list does.
const WALKERS: f64 = 16.0;

/// When one worker looks at the others, and how far.
#[derive(Debug, Default)]
pub(crate) struct Glance {
    /// How many there were.
    peers: usize,
    /// Looks to come without them.
    without: usize,
    /// What was seen has to be seen once more, soon.
    follows: bool,
    /// Among it was a worker that is not on the list.
    unlisted: bool,
}

impl Glance {
    /// Whether the next look takes in the other workers, and among them those that are not on the list; `draw`: from 0 to 1.
    pub(crate) fn next(&self, draw: f64) -> (bool, bool) {
        let peers = self.without == 0;
        (peers, peers && (self.unlisted || self.drawn(WALKERS, draw)))
    }

    /// A look has had its answer; `draw`: from 0 to 1.
    pub(crate) fn saw(&mut self, peers: Option<&[Peer]>, draw: f64) {
        let Some(peers) = peers else {
            self.without = self.without.saturating_sub(1);
            return;
        };
        self.peers = peers.len();
        self.unlisted = peers.iter().any(|peer| peer.beat.is_none());
        let gone = peers.iter().any(|peer| !peer.present);
        // One look is not enough to call a worker dead, and the next one as usual would come too late. Everybody's
        // at once would be the square of the fleet again.
        self.follows = gone && (self.follows || self.unlisted || self.drawn(FOLLOWERS, draw));
        self.without = if self.follows { 0 } else { (self.peers / 8).min(3) };
    }

    /// With the chance that makes these many of all.
    fn drawn(&self, many: f64, draw: f64) -> bool {
        draw * f64::from(u32::try_from(self.peers).unwrap_or(u32::MAX)) < many
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use queue::WorkerId;

    use super::*;

    fn fleet(size: usize, gone: usize) -> Vec<Peer> {
        let peer = |n: usize| Peer {
            worker: WorkerId(uuid::Uuid::from_u128(n as u128)),
            beat: Some(1),
            present: n >= gone,
            beat_age: Some(Duration::ZERO),
            last_beat: None,
        };
        (0..size).map(peer).collect()
    }

    /// Looks until the next one at the others, that one included.
    fn pause(glance: &mut Glance) -> usize {
        (1..)
            .find(|_| {
                let (peers, _) = glance.next(0.5);
                if !peers {
                    glance.saw(None, 0.5);
                }
                peers
            })
            .unwrap_or(0)
    }

    #[test]
    fn a_larger_fleet_looks_less_often_at_each_other() {
        for (size, looks) in [(1, 1), (7, 1), (8, 2), (24, 4), (1250, 4)] {
            let mut glance = Glance::default();
            glance.saw(Some(&fleet(size, 0)), 0.5);
            assert_eq!(pause(&mut glance), looks, "{size}");
        }
    }

    #[test]
    fn who_saw_a_worker_without_its_session_looks_again_at_once() {
        let mut glance = Glance::default();
        glance.saw(Some(&fleet(31, 1)), 0.99);
        assert_eq!(pause(&mut glance), 1);
        glance.saw(Some(&fleet(31, 0)), 0.0);
        assert_eq!(pause(&mut glance), 4, "it is back");
    }

    #[test]
    fn of_a_large_fleet_some_follow_up_until_it_is_settled() {
        let mut drawn = Glance::default();
        drawn.saw(Some(&fleet(1000, 1)), 0.02);
        assert_eq!(pause(&mut drawn), 1);
        drawn.saw(Some(&fleet(1000, 1)), 0.99);
        assert_eq!(pause(&mut drawn), 1, "drawn once is enough");
        let mut other = Glance::default();
        other.saw(Some(&fleet(1000, 1)), 0.5);
        assert_eq!(pause(&mut other), 4);
    }

    #[test]
    fn unlisted_workers_are_looked_for_by_some_and_then_watched() {
        let mut glance = Glance::default();
        assert_eq!(glance.next(0.99), (true, true), "the first look sees all");
        glance.saw(Some(&fleet(16, 0)), 0.5);
        glance.without = 0;
        assert!(glance.next(0.99).1, "everybody does in a small fleet");
        glance.saw(Some(&fleet(1000, 0)), 0.5);
        glance.without = 0;
        assert!(glance.next(0.01).1 && !glance.next(0.02).1);
        let mut found = fleet(1000, 1);
        found[0].beat = None;
        glance.saw(Some(&found), 0.99);
        assert_eq!(glance.next(0.99), (true, true));
    }
}
