//! Who is dead, by observation. Pure.
//!
//! No clock of another machine is compared with: a peer is judged by what this observer saw of it
//! during its own uninterrupted watching. After an outage in which nobody could beat the watching
//! begins anew, so that no storm of reclaims follows.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use queue::WorkerId;
use queue::reclaim::{DeadWorker, Peer};

/// A worker whose control session is gone gets this long from its last beat, in case it is
/// connecting again.
const SESSION_GRACE: Duration = Duration::from_secs(3);

/// Its session has to be seen absent for this long: one look may fall between the end of a session
/// and the next, or into a shutdown of the server that has ended the peer's session first.
const MIN_ABSENCE: Duration = Duration::from_secs(1);

/// After an outage all are connecting again, a crowded machine takes its time with that, and the
/// first to be back must not bury the others.
const OUTAGE_GRACE: Duration = Duration::from_secs(10);

/// The other workers at one moment.
#[derive(Clone, Debug)]
pub(crate) struct PeerSnapshot {
    pub(crate) peers: Vec<Peer>,
    pub(crate) continuity: PollContinuity,
}

/// How far what is seen can be relied on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PollContinuity {
    /// Since when every look has had an answer.
    pub(crate) unbroken_since: Instant,
    /// Whether a look before had none; else that is when the worker started.
    pub(crate) after_outage: bool,
}

impl PeerSnapshot {
    /// Before the first look.
    pub(crate) fn empty() -> Self {
        let continuity = PollContinuity { unbroken_since: Instant::now(), after_outage: false };
        Self { peers: Vec::new(), continuity }
    }
}

/// What one worker has seen of the others.
pub(crate) struct FailureDetector {
    orphan_timeout: Duration,
    longest_gap: Duration,
    last_poll: Option<Instant>,
    /// Anew after a gap; before one, as long as looks had answers.
    observing_since: Option<Instant>,
    suspicions: HashMap<WorkerId, Suspicion>,
}

struct Suspicion {
    heartbeat: Option<i64>,
    /// Since when the beat has not moved, and since when the session is absent, to this observer.
    still_since: Instant,
    absent_since: Option<Instant>,
}

impl FailureDetector {
    /// `longest_gap`: looks further apart than this do not connect.
    pub(crate) fn new(orphan_timeout: Duration, longest_gap: Duration) -> Self {
        Self {
            orphan_timeout,
            longest_gap,
            last_poll: None,
            observing_since: None,
            suspicions: HashMap::new(),
        }
    }

    /// Takes in one look at the peers and says which of them are dead.
    pub(crate) fn observe(&mut self, snapshot: &PeerSnapshot, now: Instant) -> Vec<DeadWorker> {
        let stopped = self.last_poll.is_some_and(|last| now - last > self.longest_gap);
        if stopped {
            // Its own process stood still; nobody knows what went on meanwhile.
            self.observing_since = Some(now);
        }
        let PollContinuity { unbroken_since, after_outage } = snapshot.continuity;
        let since = self.observing_since.map_or(unbroken_since, |since| since.max(unbroken_since));
        if self.last_poll.is_some_and(|last| since > last) {
            self.suspicions.clear();
        }
        self.last_poll = Some(now);
        let peers = &snapshot.peers;
        self.suspicions.retain(|worker, _| peers.iter().any(|peer| peer.worker == *worker));
        let outage = after_outage || self.observing_since.is_some();
        let grace = if outage { OUTAGE_GRACE } else { SESSION_GRACE };
        let connected = now.saturating_duration_since(since) >= grace;
        peers
            .iter()
            .filter(|peer| self.is_dead(peer, connected, now))
            .map(|peer| DeadWorker { worker: peer.worker, last_heartbeat: peer.last_heartbeat })
            .collect()
    }

    fn is_dead(&mut self, peer: &Peer, connected: bool, now: Instant) -> bool {
        let suspicion = self.suspicions.entry(peer.worker).or_insert(Suspicion {
            heartbeat: peer.heartbeat,
            still_since: now,
            absent_since: None,
        });
        if suspicion.heartbeat != peer.heartbeat {
            suspicion.heartbeat = peer.heartbeat;
            suspicion.still_since = now;
        }
        suspicion.absent_since =
            if peer.session_alive { None } else { suspicion.absent_since.or(Some(now)) };
        // A worker that registered again counts its beats from the start, and may have come to the
        // same number: the age tells.
        let silent = now.duration_since(suspicion.still_since) >= self.orphan_timeout
            && peer.heartbeat_age.is_none_or(|age| age >= self.orphan_timeout);
        let gone = match (suspicion.absent_since, peer.heartbeat_age) {
            // Its last beat tells how long it may have been gone: seconds of one server's clock.
            (Some(since), Some(age)) => {
                age >= SESSION_GRACE && now.duration_since(since) >= MIN_ABSENCE && connected
            }
            // The server crashed or another one took over, and it has not registered since: it may still
            // be on its way.
            (Some(since), None) => now.duration_since(since) >= OUTAGE_GRACE,
            (None, _) => false,
        };
        silent || gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORPHAN: Duration = Duration::from_secs(30);
    const GAP: Duration = Duration::from_secs(5);

    fn peer(heartbeat: Option<i64>, session_alive: bool, age: u64) -> Peer {
        let worker = WorkerId(uuid::Uuid::from_u128(7));
        let heartbeat_age = heartbeat.map(|_| Duration::from_secs(age));
        Peer { worker, heartbeat, session_alive, heartbeat_age, last_heartbeat: None }
    }

    fn snapshot(peer: Peer, unbroken_since: Instant, after_outage: bool) -> PeerSnapshot {
        PeerSnapshot {
            peers: vec![peer],
            continuity: PollContinuity { unbroken_since, after_outage },
        }
    }

    /// Looks once a second and says after how many seconds the peer was called dead.
    fn declared_dead_after(seconds: u64, at: impl Fn(u64) -> Peer) -> Option<u64> {
        let mut detector = FailureDetector::new(ORPHAN, GAP);
        let begin = Instant::now();
        (0..seconds).find(|n| {
            !detector
                .observe(&snapshot(at(*n), begin, false), begin + Duration::from_secs(*n))
                .is_empty()
        })
    }

    #[test]
    fn a_worker_with_heartbeats_lives() {
        assert_eq!(
            declared_dead_after(300, |n| peer(Some(n.cast_signed() / 5), true, n % 5)),
            None
        );
    }

    #[test]
    fn a_stopped_worker_is_dead_after_the_orphan_timeout() {
        assert_eq!(declared_dead_after(300, |n| peer(Some(1), true, n)), Some(30));
    }

    #[test]
    fn a_worker_that_registered_again_lives_even_if_its_counter_stands_where_it_stood() {
        assert_eq!(
            declared_dead_after(50, |n| peer(Some(1), true, if n < 30 { n } else { 0 })),
            None
        );
    }

    #[test]
    fn a_killed_worker_is_dead_once_its_heartbeat_is_past_the_grace() {
        assert_eq!(declared_dead_after(300, |n| peer(Some(1), false, n)), Some(3));
    }

    #[test]
    fn one_poll_between_two_sessions_of_a_worker_reclaims_nothing() {
        assert_eq!(
            declared_dead_after(300, |n| peer(Some(n.cast_signed() / 5), n % 10 != 4, n % 5)),
            None
        );
    }

    #[test]
    fn claims_of_an_unregistered_worker_get_the_grace_from_the_first_poll_on() {
        assert_eq!(declared_dead_after(300, |_| peer(None, false, 0)), Some(10));
    }

    #[test]
    fn after_a_gap_observation_starts_over() {
        let mut detector = FailureDetector::new(ORPHAN, GAP);
        let begin = Instant::now();
        let still = snapshot(peer(Some(1), true, 0), begin, false);
        assert!(detector.observe(&still, begin).is_empty());
        assert!(detector.observe(&still, begin + Duration::from_secs(100)).is_empty());
        assert!(detector.observe(&still, begin + Duration::from_secs(104)).is_empty());
    }

    #[test]
    fn after_an_outage_a_peer_that_may_be_reconnecting_is_not_dead() {
        let mut detector = FailureDetector::new(ORPHAN, GAP);
        let begin = Instant::now();
        let after = |seconds| begin + Duration::from_secs(seconds);
        assert!(
            detector.observe(&snapshot(peer(Some(1), true, 2), begin, false), begin).is_empty()
        );
        // No look had an answer up to the second second. The last beat is five seconds old.
        for now in 2..12 {
            let absent = snapshot(peer(Some(1), false, 3 + now), after(2), true);
            assert!(detector.observe(&absent, after(now)).is_empty(), "{now}");
        }
        let absent = snapshot(peer(Some(1), false, 15), after(2), true);
        assert_eq!(detector.observe(&absent, after(12)).len(), 1);
    }
}
