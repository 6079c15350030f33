//! Failure detector: decides from observations which workers are dead. Pure.
//!
//! It does not compare clocks of different machines. A worker judges a peer by what the worker
//! itself observed while it polled without interruption, and could send heartbeats. After an outage
//! in which no worker could send heartbeats, observation starts over. The server may answer polls
//! meanwhile, for example while it is read-only. Otherwise each worker would find all others dead and
//! reclaim their tasks.

use std::time::{Duration, Instant};

use queue::WorkerId;
use queue::reclaim::{DeadWorker, Peer};

use crate::timing::{MIN_ABSENCE, MIN_MISSED_HEARTBEATS, OUTAGE_GRACE, SESSION_GRACE};

/// Snapshot of the other workers.
#[derive(Clone, Debug)]
pub struct PeerSnapshot {
    /// The workers that the poll has found.
    pub peers: Vec<Peer>,
    /// How long polls had succeeded before.
    pub continuity: PollContinuity,
}

/// How long polls have succeeded without a gap, and this worker has been registered. The reliability
/// of observations depends on this.
#[derive(Clone, Copy, Debug)]
pub struct PollContinuity {
    /// Time since which every poll has had an answer, and found this worker registered.
    pub unbroken_since: Instant,
    /// Whether there was an outage before. If not, `unbroken_since` is the start of the worker.
    pub after_outage: bool,
    /// Number of control sessions that the worker has lost.
    lost_sessions: u64,
    /// Whether a poll has had a current answer.
    answered: bool,
}

impl PeerSnapshot {
    /// Returns the snapshot before the first poll.
    #[must_use]
    pub fn empty(now: Instant) -> Self {
        Self { peers: Vec::new(), continuity: PollContinuity::begin(now) }
    }
}

impl PollContinuity {
    /// Begins with the start of the worker.
    #[must_use]
    pub fn begin(now: Instant) -> Self {
        Self { unbroken_since: now, after_outage: false, lost_sessions: 0, answered: false }
    }

    /// Begins again after a poll without an answer.
    pub fn begin_again(&mut self, now: Instant) {
        (self.unbroken_since, self.after_outage) = (now, true);
    }

    /// Records the answer to a poll. Begins again if the first answers are outdated: the worker has
    /// started at a stalled server, and the others may have lost their sessions.
    pub fn record_answer(&mut self, current: bool, now: Instant) {
        self.answered |= current;
        if !self.answered {
            self.begin_again(now);
        }
    }

    /// Records whether this worker is registered at a poll, and how many control sessions it has lost
    /// so far. Begins again if it cannot send heartbeats, because the others may not be able to
    /// either: a server that refuses writes answers polls. Begins again after a lost session: a
    /// server that restarts between two polls ends the sessions of all workers, but leaves no poll
    /// without an answer.
    pub fn record_registration(&mut self, registered: bool, lost_sessions: u64, now: Instant) {
        if !registered || self.lost_sessions != lost_sessions {
            self.lost_sessions = lost_sessions;
            self.begin_again(now);
        }
    }
}

/// Observations of the other workers by this worker.
#[derive(Debug)]
pub struct FailureDetector {
    orphan_timeout: Duration,
    longest_gap: Duration,
    last_poll: Option<Instant>,
    /// Time since which this worker observes, after its last gap; `None` if there was no gap.
    observing_since: Option<Instant>,
    /// One for each peer of the last snapshot, ordered by worker.
    suspicions: Vec<Suspicion>,
}

#[derive(Debug)]
struct Suspicion {
    worker: WorkerId,
    heartbeat: Option<i64>,
    /// Whether the age of the heartbeat is known.
    dated: bool,
    /// Time of the first poll that showed the current heartbeat.
    still_since: Instant,
    /// Time of the first poll that showed no session; `None` while there is a session.
    absent_since: Option<Instant>,
}

impl FailureDetector {
    /// Creates a detector. If two polls are further apart than `longest_gap`, observation starts
    /// over.
    #[must_use]
    pub fn new(orphan_timeout: Duration, longest_gap: Duration) -> Self {
        Self {
            orphan_timeout,
            longest_gap,
            last_poll: None,
            observing_since: None,
            suspicions: Vec::new(),
        }
    }

    /// Records a snapshot of the peers and returns the dead ones.
    pub fn observe(&mut self, snapshot: &PeerSnapshot, now: Instant) -> Vec<DeadWorker> {
        let stopped = self.last_poll.is_some_and(|last| now - last > self.longest_gap);
        if stopped {
            // This process was stopped, so it does not know what happened in the meantime.
            self.observing_since = Some(now);
        }
        let PollContinuity { unbroken_since, after_outage, .. } = snapshot.continuity;
        let since = self.observing_since.map_or(unbroken_since, |since| since.max(unbroken_since));
        if self.last_poll.is_some_and(|last| since > last) {
            self.suspicions.clear();
        }
        self.last_poll = Some(now);
        let outage = after_outage || self.observing_since.is_some();
        let grace = if outage { OUTAGE_GRACE } else { SESSION_GRACE };
        let connected = now.saturating_duration_since(since) >= grace;
        let mut peers: Vec<&Peer> = snapshot.peers.iter().collect();
        peers.sort_by_key(|peer| peer.worker);
        // A merge of two ordered lists: a search for each peer costs several times as much, which
        // counts in a large fleet.
        let suspicions = Vec::with_capacity(peers.len());
        let known = std::mem::replace(&mut self.suspicions, suspicions);
        let mut known = known.into_iter().peekable();
        let mut dead = Vec::new();
        for peer in peers {
            while known.next_if(|suspicion| suspicion.worker < peer.worker).is_some() {}
            let known = known.next_if(|suspicion| suspicion.worker == peer.worker);
            let mut suspicion = known.unwrap_or_else(|| Suspicion::new(peer, now));
            suspicion.observe(peer, now);
            if suspicion.is_dead(peer, self.orphan_timeout, connected, now) {
                dead.push(DeadWorker { worker: peer.worker, last_heartbeat: peer.last_heartbeat });
            }
            self.suspicions.push(suspicion);
        }
        dead
    }
}

impl Suspicion {
    fn new(peer: &Peer, now: Instant) -> Self {
        let Peer { worker, heartbeat, heartbeat_age, .. } = *peer;
        let dated = heartbeat_age.is_some();
        Self { worker, heartbeat, dated, still_since: now, absent_since: None }
    }

    fn observe(&mut self, peer: &Peer, now: Instant) {
        let undated = peer.heartbeat.is_some() && peer.heartbeat_age.is_none();
        if undated && (self.dated || self.heartbeat != peer.heartbeat) {
            // The database's clock was set back. No age tells whether the worker has registered
            // again since the observations so far, so the observation starts over.
            *self = Self::new(peer, now);
        }
        self.dated = peer.heartbeat_age.is_some();
        if self.heartbeat != peer.heartbeat {
            self.heartbeat = peer.heartbeat;
            self.still_since = now;
        }
        self.absent_since = if peer.session_alive { None } else { self.absent_since.or(Some(now)) };
    }

    fn is_dead(
        &self,
        peer: &Peer,
        orphan_timeout: Duration,
        connected: bool,
        now: Instant,
    ) -> bool {
        // The peer may have other settings than this worker.
        let interval = peer.heartbeat_interval.unwrap_or_default();
        let orphan_timeout = orphan_timeout.max(MIN_MISSED_HEARTBEATS * interval);
        // When a worker registers again, its heartbeat counter starts over and may reach the same
        // number. The age then shows that there was a new heartbeat. While the age is unknown, the
        // worker has not registered again: the heartbeat would have a time by the new clock.
        let silent = now.duration_since(self.still_since) >= orphan_timeout
            && peer.heartbeat_age.is_none_or(|age| age >= orphan_timeout);
        let gone = match (self.absent_since, peer.heartbeat_age) {
            // The session cannot have been absent for longer than the age of the last heartbeat, by
            // the server's clock.
            (Some(since), Some(age)) => {
                age >= SESSION_GRACE && now.duration_since(since) >= MIN_ABSENCE && connected
            }
            // The server crashed or failed over, or its clock was set back. The worker has not
            // registered since, but may still do so.
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
        let heartbeat_interval = heartbeat.map(|_| Duration::from_secs(5));
        Peer {
            worker,
            heartbeat,
            session_alive,
            heartbeat_age,
            last_heartbeat: None,
            heartbeat_interval,
        }
    }

    fn snapshot(peer: Peer, unbroken_since: Instant, after_outage: bool) -> PeerSnapshot {
        PeerSnapshot {
            peers: vec![peer],
            continuity: PollContinuity {
                unbroken_since,
                after_outage,
                lost_sessions: 0,
                answered: true,
            },
        }
    }

    /// Polls once a second and returns the second in which the peer is declared dead.
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
    fn a_worker_with_rare_heartbeats_lives_and_is_dead_after_three_missed_ones() {
        let rare = |heartbeat, age| Peer {
            heartbeat_interval: Some(Duration::from_secs(60)),
            ..peer(Some(heartbeat), true, age)
        };
        let lives = declared_dead_after(1000, |n| rare(n.cast_signed() / 60, n % 60));
        assert_eq!(lives, None);
        assert_eq!(declared_dead_after(1000, |n| rare(1, n)), Some(180));
    }

    #[test]
    fn a_worker_that_registered_again_lives_even_if_its_counter_is_unchanged() {
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
        // No poll had an answer before second 2. The last heartbeat is five seconds old.
        for now in 2..12 {
            let absent = snapshot(peer(Some(1), false, 3 + now), after(2), true);
            assert!(detector.observe(&absent, after(now)).is_empty(), "{now}");
        }
        let absent = snapshot(peer(Some(1), false, 15), after(2), true);
        assert_eq!(detector.observe(&absent, after(12)).len(), 1);
    }

    /// A peer whose last heartbeat is in the future by the server's clock.
    fn undated(heartbeat: i64, session_alive: bool) -> Peer {
        Peer { heartbeat_age: None, ..peer(Some(heartbeat), session_alive, 0) }
    }

    #[test]
    fn a_worker_that_died_before_the_clock_was_set_back_is_dead_after_a_grace_of_its_own() {
        let killed = |n| if n < 2 { peer(Some(1), n < 1, n) } else { undated(1, false) };
        assert_eq!(declared_dead_after(300, killed), Some(12));
        let stopped = |n| if n < 2 { peer(Some(1), true, n) } else { undated(1, true) };
        assert_eq!(declared_dead_after(300, stopped), Some(32));
    }

    #[test]
    fn a_living_worker_is_not_dead_after_the_clock_was_set_back() {
        // The next heartbeat has a time by the new clock.
        let lives = |n: u64| {
            let heartbeat = n.cast_signed() / 5;
            let seen = peer(Some(heartbeat), true, n % 5);
            if (102..105).contains(&n) { undated(heartbeat, true) } else { seen }
        };
        assert_eq!(declared_dead_after(300, lives), None);
        // Before, polls saw no session, or the number of an earlier registration.
        let flaps = |n: u64| match n {
            0..40 => peer(Some(0), false, n % 2),
            40..44 => undated(0, false),
            _ => peer(Some(0), true, n % 5),
        };
        assert_eq!(declared_dead_after(300, flaps), None);
    }

    #[test]
    fn a_worker_that_cannot_send_heartbeats_finds_no_other_dead() {
        let mut detector = FailureDetector::new(ORPHAN, GAP);
        let begin = Instant::now();
        let after = |seconds| begin + Duration::from_secs(seconds);
        let mut continuity = PollContinuity::begin(begin);
        for now in 0..100 {
            continuity.record_registration(now < 2, 0, after(now));
            let snapshot = PeerSnapshot { peers: vec![peer(Some(1), true, now)], continuity };
            assert!(detector.observe(&snapshot, after(now)).is_empty(), "{now}");
        }
    }

    #[test]
    fn a_start_at_a_stalled_server_counts_as_an_outage() {
        let mut detector = FailureDetector::new(ORPHAN, GAP);
        let begin = Instant::now();
        let after = |seconds| begin + Duration::from_secs(seconds);
        let mut continuity = PollContinuity::begin(begin);
        // The first answer takes until second 5.
        continuity.record_answer(false, after(5));
        for now in 6..15 {
            continuity.record_answer(true, after(now));
            let snapshot = PeerSnapshot { peers: vec![peer(Some(1), false, now)], continuity };
            assert!(detector.observe(&snapshot, after(now)).is_empty(), "{now}");
        }
        let absent = PeerSnapshot { peers: vec![peer(Some(1), false, 16)], continuity };
        assert_eq!(detector.observe(&absent, after(16)).len(), 1);
    }

    #[test]
    fn a_restart_between_two_polls_counts_as_an_outage() {
        let mut detector = FailureDetector::new(ORPHAN, GAP);
        let begin = Instant::now();
        let after = |seconds| begin + Duration::from_secs(seconds);
        let mut continuity = PollContinuity::begin(begin);
        // Every poll has an answer, but this worker has lost a session before second 2, too.
        for now in 0..12 {
            continuity.record_registration(true, u64::from(now >= 2), after(now));
            let absent = peer(Some(1), now < 2, 2 + now);
            let snapshot = PeerSnapshot { peers: vec![absent], continuity };
            assert!(detector.observe(&snapshot, after(now)).is_empty(), "{now}");
        }
        let absent = PeerSnapshot { peers: vec![peer(Some(1), false, 14)], continuity };
        assert_eq!(detector.observe(&absent, after(12)).len(), 1);
    }
}
