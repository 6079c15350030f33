//! Who is dead, by observation. Pure.
//!
//! No clock of another machine is compared with: a peer is judged by what this observer saw of it
//! during its own uninterrupted watching. After an outage in which nobody could beat the watching
//! begins anew, so that no storm of reclaims follows.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use queue::WorkerId;
use queue::reclaim::{Dead, Peer};

/// A worker whose control session is gone gets this long from its last beat, in case it is
/// connecting again.
const GRACE: Duration = Duration::from_secs(3);

/// Its session has to be seen absent for this long: one look may fall between the end of a session
/// and the next, or into a shutdown of the server that has ended the peer's session first.
const ABSENCE: Duration = Duration::from_secs(1);

/// After an outage all are connecting again, a crowded machine takes its time with that, and the
/// first to be back must not bury the others.
const OUTAGE_GRACE: Duration = Duration::from_secs(10);

/// The other workers at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Sight {
    pub(crate) peers: Vec<Peer>,
    pub(crate) trust: Trust,
}

/// How far what is seen can be relied on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trust {
    /// Since when every look has had an answer.
    pub(crate) unbroken_since: Instant,
    /// Whether a look before had none; else that is when the worker started.
    pub(crate) after_outage: bool,
}

impl Sight {
    /// Before the first look.
    pub(crate) fn nobody() -> Self {
        let trust = Trust { unbroken_since: Instant::now(), after_outage: false };
        Self { peers: Vec::new(), trust }
    }
}

/// What one worker has seen of the others.
pub(crate) struct Watch {
    orphan_timeout: Duration,
    longest_gap: Duration,
    last_look: Option<Instant>,
    /// Anew after a gap; before one, as long as looks had answers.
    watching_since: Option<Instant>,
    seen: HashMap<WorkerId, Seen>,
}

struct Seen {
    beat: Option<i64>,
    /// Since when the beat has not moved, and since when the session is absent, to this observer.
    still_since: Instant,
    absent_since: Option<Instant>,
}

impl Watch {
    /// `longest_gap`: looks further apart than this do not connect.
    pub(crate) fn new(orphan_timeout: Duration, longest_gap: Duration) -> Self {
        Self {
            orphan_timeout,
            longest_gap,
            last_look: None,
            watching_since: None,
            seen: HashMap::new(),
        }
    }

    /// Takes in one look at the peers and says which of them are dead.
    pub(crate) fn look(&mut self, sight: &Sight, now: Instant) -> Vec<Dead> {
        let stopped = self.last_look.is_some_and(|last| now - last > self.longest_gap);
        if stopped {
            // Its own process stood still; nobody knows what went on meanwhile.
            self.watching_since = Some(now);
        }
        let Trust { unbroken_since, after_outage } = sight.trust;
        let since = self.watching_since.map_or(unbroken_since, |since| since.max(unbroken_since));
        if self.last_look.is_some_and(|last| since > last) {
            self.seen.clear();
        }
        self.last_look = Some(now);
        let peers = &sight.peers;
        self.seen.retain(|worker, _| peers.iter().any(|peer| peer.worker == *worker));
        let outage = after_outage || self.watching_since.is_some();
        let grace = if outage { OUTAGE_GRACE } else { GRACE };
        let connected = now.saturating_duration_since(since) >= grace;
        peers
            .iter()
            .filter(|peer| self.dead(peer, connected, now))
            .map(|peer| Dead { worker: peer.worker, last_beat: peer.last_beat })
            .collect()
    }

    fn dead(&mut self, peer: &Peer, connected: bool, now: Instant) -> bool {
        let seen = self.seen.entry(peer.worker).or_insert(Seen {
            beat: peer.beat,
            still_since: now,
            absent_since: None,
        });
        if seen.beat != peer.beat {
            seen.beat = peer.beat;
            seen.still_since = now;
        }
        seen.absent_since = if peer.present { None } else { seen.absent_since.or(Some(now)) };
        // A worker that registered again counts its beats from the start, and may have come to the
        // same number: the age tells.
        let silent = now.duration_since(seen.still_since) >= self.orphan_timeout
            && peer.beat_age.is_none_or(|age| age >= self.orphan_timeout);
        let gone = match (seen.absent_since, peer.beat_age) {
            // Its last beat tells how long it may have been gone: seconds of one server's clock.
            (Some(since), Some(age)) => {
                age >= GRACE && now.duration_since(since) >= ABSENCE && connected
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

    fn peer(beat: Option<i64>, present: bool, age: u64) -> Peer {
        let worker = WorkerId(uuid::Uuid::from_u128(7));
        let beat_age = beat.map(|_| Duration::from_secs(age));
        Peer { worker, beat, present, beat_age, last_beat: None }
    }

    fn sight(peer: Peer, unbroken_since: Instant, after_outage: bool) -> Sight {
        Sight { peers: vec![peer], trust: Trust { unbroken_since, after_outage } }
    }

    /// Looks once a second and says after how many seconds the peer was called dead.
    fn dies_after(seconds: u64, at: impl Fn(u64) -> Peer) -> Option<u64> {
        let mut watch = Watch::new(ORPHAN, GAP);
        let begin = Instant::now();
        (0..seconds).find(|n| {
            !watch.look(&sight(at(*n), begin, false), begin + Duration::from_secs(*n)).is_empty()
        })
    }

    #[test]
    fn a_beating_worker_lives() {
        assert_eq!(dies_after(300, |n| peer(Some(n.cast_signed() / 5), true, n % 5)), None);
    }

    #[test]
    fn a_stopped_worker_is_dead_after_the_orphan_timeout() {
        assert_eq!(dies_after(300, |n| peer(Some(1), true, n)), Some(30));
    }

    #[test]
    fn a_worker_that_registered_again_lives_even_if_its_counter_stands_where_it_stood() {
        assert_eq!(dies_after(50, |n| peer(Some(1), true, if n < 30 { n } else { 0 })), None);
    }

    #[test]
    fn a_killed_worker_is_dead_once_its_beat_is_past_the_grace() {
        assert_eq!(dies_after(300, |n| peer(Some(1), false, n)), Some(3));
    }

    #[test]
    fn one_look_between_two_sessions_of_a_worker_buries_nobody() {
        assert_eq!(dies_after(300, |n| peer(Some(n.cast_signed() / 5), n % 10 != 4, n % 5)), None);
    }

    #[test]
    fn claims_of_an_unregistered_worker_get_the_grace_from_the_first_look_on() {
        assert_eq!(dies_after(300, |_| peer(None, false, 0)), Some(10));
    }

    #[test]
    fn after_a_gap_the_watching_begins_anew() {
        let mut watch = Watch::new(ORPHAN, GAP);
        let begin = Instant::now();
        let still = sight(peer(Some(1), true, 0), begin, false);
        assert!(watch.look(&still, begin).is_empty());
        assert!(watch.look(&still, begin + Duration::from_secs(100)).is_empty());
        assert!(watch.look(&still, begin + Duration::from_secs(104)).is_empty());
    }

    #[test]
    fn after_an_outage_nobody_is_dead_who_may_be_connecting_still() {
        let mut watch = Watch::new(ORPHAN, GAP);
        let begin = Instant::now();
        let after = |seconds| begin + Duration::from_secs(seconds);
        assert!(watch.look(&sight(peer(Some(1), true, 2), begin, false), begin).is_empty());
        // No look had an answer up to the second second. The last beat is five seconds old.
        for now in 2..12 {
            let absent = sight(peer(Some(1), false, 3 + now), after(2), true);
            assert!(watch.look(&absent, after(now)).is_empty(), "{now}");
        }
        let absent = sight(peer(Some(1), false, 15), after(2), true);
        assert_eq!(watch.look(&absent, after(12)).len(), 1);
    }
}
