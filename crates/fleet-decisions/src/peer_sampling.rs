//! Peer sampling: decides which polls of the queue also read the heartbeats of the other workers.
//! In a large fleet three of four polls do not, and only a sample of the workers confirms that a
//! session is absent. A dead worker is still found within the promised time. Pure.

use queue::reclaim::Peer;

/// Average number of workers that poll again at once after a poll shows a peer without its session.
/// The second poll confirms that the session is absent. All other workers wait for their next
/// regular poll.
const CONFIRMING_WORKERS: f64 = 32.0;

/// Average number of workers whose polls of their peers also look for claims of unregistered
/// workers. Such claims exist only after a crash of the server. To find them, a poll scans all
/// workers with claims, which costs three times as much as reading the list of registered workers.
const UNREGISTERED_SCANNERS: f64 = 16.0;

/// Decides when one worker polls its peers, and whether it includes unregistered ones.
#[derive(Debug, Default)]
pub struct PeerSampling {
    /// Number of peers in the last poll that read the peers.
    peer_count: usize,
    /// Number of polls to come that do not read the peers.
    polls_to_skip: usize,
    /// Whether the last result has to be confirmed soon.
    confirming: bool,
    /// Whether the last result included an unregistered worker.
    unregistered_found: bool,
}

impl PeerSampling {
    /// Returns whether the next poll includes the registered peers, and whether it includes
    /// unregistered ones; `draw`: random number from 0 to 1.
    #[must_use]
    pub fn include_peers(&self, draw: f64) -> (bool, bool) {
        let peers = self.polls_to_skip == 0;
        (peers, peers && (self.unregistered_found || self.sampled(UNREGISTERED_SCANNERS, draw)))
    }

    /// Records the result of a poll; `draw`: random number from 0 to 1.
    pub fn record(&mut self, peers: Option<&[Peer]>, draw: f64) {
        let Some(peers) = peers else {
            self.polls_to_skip = self.polls_to_skip.saturating_sub(1);
            return;
        };
        self.peer_count = peers.len();
        self.unregistered_found = peers.iter().any(|peer| peer.heartbeat.is_none());
        let gone = peers.iter().any(|peer| !peer.session_alive);
        // One observation is not enough to consider a worker dead, and the next regular poll would
        // come too late. So some workers poll again at once. If all workers did, the load would
        // again grow with the square of the number of workers.
        self.confirming = gone
            && (self.confirming
                || self.unregistered_found
                || self.sampled(CONFIRMING_WORKERS, draw));
        self.polls_to_skip = if self.confirming { 0 } else { (self.peer_count / 8).min(3) };
    }

    /// Returns the number of the other workers, as far as polls have shown it.
    #[must_use]
    pub fn peer_count(&self) -> usize {
        self.peer_count
    }

    /// Returns `true` with probability `many` / number of peers.
    fn sampled(&self, many: f64, draw: f64) -> bool {
        draw * f64::from(u32::try_from(self.peer_count).unwrap_or(u32::MAX)) < many
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
            heartbeat: Some(1),
            session_alive: n >= gone,
            heartbeat_age: Some(Duration::ZERO),
            last_heartbeat: None,
            heartbeat_interval: None,
        };
        (0..size).map(peer).collect()
    }

    /// Returns the number of polls until the next one that includes peers, counting that one.
    fn polls_until_next(peer_sampling: &mut PeerSampling) -> usize {
        (1..)
            .find(|_| {
                let (peers, _) = peer_sampling.include_peers(0.5);
                if !peers {
                    peer_sampling.record(None, 0.5);
                }
                peers
            })
            .unwrap_or(0)
    }

    #[test]
    fn a_larger_fleet_polls_each_peer_less_often() {
        for (size, polls) in [(1, 1), (7, 1), (8, 2), (24, 4), (1250, 4)] {
            let mut peer_sampling = PeerSampling::default();
            peer_sampling.record(Some(&fleet(size, 0)), 0.5);
            assert_eq!(polls_until_next(&mut peer_sampling), polls, "{size}");
        }
    }

    #[test]
    fn an_absent_session_is_polled_again_at_once() {
        let mut peer_sampling = PeerSampling::default();
        peer_sampling.record(Some(&fleet(31, 1)), 0.99);
        assert_eq!(polls_until_next(&mut peer_sampling), 1);
        peer_sampling.record(Some(&fleet(31, 0)), 0.0);
        assert_eq!(polls_until_next(&mut peer_sampling), 4, "the session is back");
    }

    #[test]
    fn in_a_large_fleet_a_sample_confirms_an_absence() {
        let mut drawn = PeerSampling::default();
        drawn.record(Some(&fleet(1000, 1)), 0.02);
        assert_eq!(polls_until_next(&mut drawn), 1);
        drawn.record(Some(&fleet(1000, 1)), 0.99);
        assert_eq!(polls_until_next(&mut drawn), 1, "one draw is enough");
        let mut other = PeerSampling::default();
        other.record(Some(&fleet(1000, 1)), 0.5);
        assert_eq!(polls_until_next(&mut other), 4);
    }

    #[test]
    fn unregistered_workers_are_scanned_for_by_a_sample() {
        let mut peer_sampling = PeerSampling::default();
        assert_eq!(peer_sampling.include_peers(0.99), (true, true), "the first poll includes all");
        peer_sampling.record(Some(&fleet(16, 0)), 0.5);
        peer_sampling.polls_to_skip = 0;
        assert!(peer_sampling.include_peers(0.99).1, "in a small fleet every worker scans");
        peer_sampling.record(Some(&fleet(1000, 0)), 0.5);
        peer_sampling.polls_to_skip = 0;
        assert!(peer_sampling.include_peers(0.01).1 && !peer_sampling.include_peers(0.02).1);
        let mut found = fleet(1000, 1);
        found[0].heartbeat = None;
        peer_sampling.record(Some(&found), 0.99);
        assert_eq!(peer_sampling.include_peers(0.99), (true, true));
    }
}
