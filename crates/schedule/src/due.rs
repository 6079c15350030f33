//! Decides which fires of a cadence are due now, and which were missed.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use crate::timing::cadence::Cadence;

/// Maximum delay of a fire that is on time.
pub const ON_TIME: Duration = Duration::from_secs(10);

/// Maximum number of late fires that are counted one by one.
const MAX_COUNTED: usize = 100_000;

/// If there are more late fires, counting resumes at this time before now.
const RESUME_WINDOW: SignedDuration = SignedDuration::from_hours(1);

/// Policy for late fires.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CatchUpPolicy {
    /// Number of late fires that are started; these are the newest ones.
    pub catch_up: usize,
    /// Maximum delay of a late fire that is started; `None` means unlimited.
    pub max_lateness: Option<Duration>,
}

/// Due and missed fires.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DueFires {
    /// Fires to start now, in ascending order.
    pub fires: Vec<Timestamp>,
    /// Number of missed fires.
    pub missed: u64,
    /// The first missed fire.
    pub missed_from: Option<Timestamp>,
    /// The last missed fire.
    pub missed_to: Option<Timestamp>,
    /// The first fire after now.
    pub next_fire_at: Option<Timestamp>,
    /// Whether there were too many fires to count. In that case the fires after the first 100,000
    /// and before the last hour are missed as well, but are not included in `missed`, and no fire
    /// before the last hour is started.
    pub uncounted: bool,
}

/// Evaluates the fires from `next_fire_at` to `now`, both inclusive. `next_fire_at` must be a fire
/// of the cadence.
#[must_use]
pub fn due(
    cadence: &Cadence,
    next_fire_at: Timestamp,
    now: Timestamp,
    policy: CatchUpPolicy,
) -> DueFires {
    let mut due = DueFires { next_fire_at: Some(next_fire_at), ..DueFires::default() };
    let resume_at = now.checked_sub(RESUME_WINDOW).unwrap_or(Timestamp::MIN);
    let (mut late, mut on_time) = (Vec::new(), Vec::new());
    while let Some(fire) = due.next_fire_at.filter(|fire| *fire <= now) {
        if late.len() >= MAX_COUNTED && !due.uncounted && fire < resume_at {
            due.uncounted = true;
            due.miss(&late);
            late.clear();
            due.next_fire_at = cadence.next_fire(before(resume_at));
            continue;
        }
        let list = if lateness(fire, now) <= ON_TIME { &mut on_time } else { &mut late };
        list.push(fire);
        due.next_fire_at = cadence.next_fire(fire);
    }
    let max_lateness = policy.max_lateness.unwrap_or(Duration::MAX);
    let too_late = late.partition_point(|fire| lateness(*fire, now) > max_lateness);
    let first_fired = late.len().saturating_sub(policy.catch_up).max(too_late);
    due.miss(&late[..first_fired]);
    due.fires = late.split_off(first_fired);
    due.fires.append(&mut on_time);
    due
}

impl DueFires {
    fn miss(&mut self, fires: &[Timestamp]) {
        self.missed += u64::try_from(fires.len()).unwrap_or(u64::MAX);
        self.missed_from = self.missed_from.or(fires.first().copied());
        self.missed_to = fires.last().copied().or(self.missed_to);
    }
}

/// Time from the fire to now; zero for a future fire.
fn lateness(fire: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(fire)).unwrap_or(Duration::ZERO)
}

pub(crate) fn before(instant: Timestamp) -> Timestamp {
    instant.checked_sub(SignedDuration::from_nanos(1)).unwrap_or(instant)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timing::Timing;
    use proptest::prelude::*;

    fn cadence(text: &str) -> Cadence {
        Timing::parse(text).unwrap().cadence().unwrap().clone()
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn hours(due: &DueFires) -> Vec<String> {
        due.fires.iter().map(|fire| fire.strftime("%H:%M").to_string()).collect()
    }

    #[test]
    fn future_fires_are_not_due() {
        let (daily, fire) = (cadence("daily(09:00)"), at("2026-03-02T09:00:00Z"));
        let due = due(&daily, fire, at("2026-03-02T08:59:59.999Z"), CatchUpPolicy::default());
        assert_eq!(due, DueFires { next_fire_at: Some(fire), ..DueFires::default() });
    }

    #[test]
    fn fires_on_time_need_no_catch_up() {
        let (every, fire) = (cadence("every(4 s)"), at("2026-03-02T09:00:00Z"));
        let policy = CatchUpPolicy { catch_up: 0, max_lateness: Some(Duration::ZERO) };
        let due = due(&every, fire, at("2026-03-02T09:00:14Z"), policy);
        assert_eq!(
            due.fires,
            [at("2026-03-02T09:00:04Z"), at("2026-03-02T09:00:08Z"), at("2026-03-02T09:00:12Z")]
        );
        assert_eq!((due.missed, due.missed_from, due.missed_to), (1, Some(fire), Some(fire)));
        assert_eq!(due.next_fire_at, Some(at("2026-03-02T09:00:16Z")));
    }

    #[test]
    fn the_newest_late_fires_are_caught_up() {
        let (every, fire) = (cadence("every(1 hour)"), at("2026-03-02T01:00:00Z"));
        let now = at("2026-03-02T09:30:00Z");
        let three = CatchUpPolicy { catch_up: 3, max_lateness: None };
        let three = due(&every, fire, now, three);
        assert_eq!(hours(&three), ["07:00", "08:00", "09:00"]);
        assert_eq!((three.missed, three.missed_from), (6, Some(fire)));
        assert_eq!(three.missed_to, Some(at("2026-03-02T06:00:00Z")));
        let limited = CatchUpPolicy { catch_up: 3, max_lateness: Some(Duration::from_secs(5400)) };
        assert_eq!(hours(&due(&every, fire, now, limited)), ["08:00", "09:00"]);
        let none = due(&every, fire, now, CatchUpPolicy::default());
        assert_eq!((hours(&none).len(), none.missed), (0, 9));
    }

    #[test]
    fn there_is_no_next_fire_after_the_last() {
        let (once, fire) = (cadence("once(2026-03-02 09:00)"), at("2026-03-02T09:00:00Z"));
        let policy = CatchUpPolicy { catch_up: 1, max_lateness: None };
        let due = due(&once, fire, at("2026-04-02T09:00:00Z"), policy);
        assert_eq!((due.fires.as_slice(), due.next_fire_at, due.missed), (&[fire][..], None, 0));
    }

    #[test]
    fn years_of_seconds_are_not_counted_one_by_one() {
        let (every, fire) = (cadence("every(1 s)"), at("2020-01-01T00:00:00Z"));
        let now = at("2026-03-02T09:00:00Z");
        let policy = CatchUpPolicy { catch_up: usize::MAX, max_lateness: None };
        let found = due(&every, fire, now, policy);
        assert!(found.uncounted);
        assert_eq!((found.missed, found.missed_from), (100_000, Some(fire)));
        assert_eq!(found.missed_to, Some(at("2020-01-02T03:46:39Z")));
        assert_eq!((found.fires.len(), found.fires[0]), (3601, at("2026-03-02T08:00:00Z")));
        assert_eq!(found.next_fire_at, Some(at("2026-03-02T09:00:01Z")));
        let few = CatchUpPolicy { catch_up: 2, max_lateness: None };
        let found = due(&every, fire, now, few);
        assert_eq!((found.missed, found.fires.len()), (100_000 + 3601 - 11 - 2, 13));
    }

    #[test]
    fn fires_that_end_in_the_last_hour_are_counted() {
        let (every, now) = (cadence("every(1 s)"), at("2026-03-02T09:00:00Z"));
        let fire = now - SignedDuration::from_secs(100_500);
        let policy = CatchUpPolicy { catch_up: 1000, max_lateness: None };
        let found = due(&every, fire, now, policy);
        assert_eq!((found.missed, found.fires.len()), (100_501 - 1011, 1011));
        assert!(!found.uncounted);
    }

    proptest! {
        // There are at most as many fires as are counted.
        #[test]
        fn each_fire_is_started_or_missed(
            step in 1_u32..5000, late in 0_i64..100_000, catch_up in 0_usize..9, seconds in 0_u64..9000,
        ) {
            let every = cadence(&format!("every({step} s)"));
            let fire = every.next_fire(at("2026-03-02T09:00:00.5Z")).unwrap();
            let now = fire + SignedDuration::from_secs(late);
            let max_lateness = (seconds > 100).then(|| Duration::from_secs(seconds));
            let due = due(&every, fire, now, CatchUpPolicy { catch_up, max_lateness });
            let all: Vec<Timestamp> =
                std::iter::successors(Some(fire), |fire| every.next_fire(*fire))
                    .take_while(|fire| *fire <= now).collect();
            prop_assert_eq!(all.len(), due.fires.len() + usize::try_from(due.missed).unwrap());
            prop_assert!(all.ends_with(&due.fires));
            prop_assert_eq!(due.next_fire_at, every.next_fire(now));
            prop_assert!(!due.uncounted);
            let late = due.fires.iter().filter(|fire| lateness(**fire, now) > ON_TIME).count();
            prop_assert!(late <= catch_up);
            prop_assert_eq!(due.missed_from, (due.missed > 0).then_some(fire));
        }
    }
}
