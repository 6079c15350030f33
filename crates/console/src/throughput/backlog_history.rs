//! Number of waiting tasks at the end of each minute. It is the running sum of the changes that
//! [`queue::insight::backlog_history`] reads.
//!
//! A task that waits at the end of a minute either still waits, runs, or finished later. So the
//! number is known as soon as all later minutes have been read; therefore the newest minutes are
//! read first. The number is a lower bound (`at_least`) in two cases: where a later minute was
//! skipped, and from the minute in which counting the currently waiting tasks stopped at its limit.
//!
//! A wait consists of two changes: +1 in the minute in which it begins, and −1 in the minute in
//! which it ends. Changes from closed minutes are stored by the minute in which they happen, not by
//! the minute in which their attempt finished. Changes of evicted minutes are added to the oldest
//! minute that is kept; the +1 and the −1 of a wait that ended before that minute cancel out there.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use queue::insight::backlog_history::BacklogChange;

use super::minutes::{last_minutes, later};

/// Changes of the number of waiting tasks, by queue and minute.
type Changes = BTreeMap<String, BTreeMap<Timestamp, i64>>;

/// Number of waiting tasks at the end of a minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BacklogPoint {
    pub(crate) tasks: i64,
    /// Whether `tasks` is a lower bound.
    pub(crate) at_least: bool,
}

/// Queue and time range to return.
pub(crate) struct BacklogQuery<'a> {
    /// Empty for all queues.
    pub(crate) queue: &'a str,
    pub(crate) now: Timestamp,
    /// Number of minutes, including the current one.
    pub(crate) last: i64,
}

/// Changes read so far.
#[derive(Default)]
pub(crate) struct BacklogHistory {
    /// Changes by attempts that finished in closed minutes.
    closed: Changes,
    /// Changes by attempts that finished since then, and by live tasks.
    open: Changes,
    cut: BTreeMap<String, Timestamp>,
    cut_everywhere: bool,
    /// The first open minute, and the minute in which the last read took place.
    open_minutes: Option<(Timestamp, Timestamp)>,
}

fn add(changes: &mut Changes, moves: Vec<BacklogChange>) {
    for one in moves {
        *changes.entry(one.queue).or_default().entry(one.at).or_default() += one.change;
    }
}

impl BacklogHistory {
    /// Replaces the changes of open minutes and live tasks from the last read.
    pub(crate) fn replace_open(
        &mut self,
        open_minutes: (Timestamp, Timestamp),
        moves: Vec<BacklogChange>,
        (cut, cut_everywhere): (BTreeMap<String, Timestamp>, bool),
    ) {
        self.open.clear();
        add(&mut self.open, moves);
        (self.cut, self.cut_everywhere, self.open_minutes) =
            (cut, cut_everywhere, Some(open_minutes));
    }

    /// Adds changes of closed minutes.
    pub(crate) fn add_closed(&mut self, moves: Vec<BacklogChange>) {
        add(&mut self.closed, moves);
    }

    /// Merges all changes before `oldest` into that minute.
    pub(crate) fn evict(&mut self, oldest: Timestamp) {
        for changes in self.closed.values_mut() {
            let kept = changes.split_off(&oldest);
            let before: i64 = std::mem::replace(changes, kept).into_values().sum();
            *changes.entry(oldest).or_default() += before;
            changes.retain(|_, change| *change != 0);
        }
        self.closed.retain(|_, changes| !changes.is_empty());
    }

    /// Returns whether `current` was the first open minute at the last read.
    pub(crate) fn open_from(&self, current: Timestamp) -> bool {
        self.open_minutes.is_some_and(|(first, _)| first == current)
    }

    /// Returns whether `at` was an open minute at the last read.
    pub(crate) fn is_open(&self, at: Timestamp) -> bool {
        self.open_minutes.is_some_and(|(first, last)| first <= at && at <= last)
    }

    /// Returns the queues with changes.
    pub(crate) fn queues(&self) -> BTreeSet<String> {
        self.closed.keys().chain(self.open.keys()).cloned().collect()
    }

    /// Returns a point per minute, oldest first; `None` where the number is not known (yet).
    pub(crate) fn points(
        &self,
        query: &BacklogQuery<'_>,
        read: &BTreeSet<Timestamp>,
        skipped: &BTreeSet<Timestamp>,
    ) -> Vec<Option<BacklogPoint>> {
        let minutes: Vec<Timestamp> = last_minutes(query.now, query.last).collect();
        let Some((first_open, last_open)) = self.open_minutes else {
            return vec![None; minutes.len()];
        };
        let cut = match query.queue {
            "" => self.cut.values().min(),
            queue => self.cut.get(queue),
        };
        let known_from = known_from(first_open, read);
        let gap = skipped.last();
        let mut tasks = 0;
        let mut changes = self.changes(query.queue).into_iter().peekable();
        let waited = |at: Timestamp| {
            while let Some((_, change)) = changes.next_if(|(changed, _)| *changed <= at) {
                tasks += change;
            }
            let at_least = self.cut_everywhere
                || gap.is_some_and(|gap| *gap > at)
                || cut.is_some_and(|cut| *cut <= at);
            (known_from <= at && at <= last_open).then_some(BacklogPoint { tasks, at_least })
        };
        minutes.into_iter().map(waited).collect()
    }

    /// Sums the changes of one queue, or of all queues if `queue` is empty.
    fn changes(&self, queue: &str) -> BTreeMap<Timestamp, i64> {
        let mut sum = BTreeMap::new();
        for part in [&self.closed, &self.open] {
            let of_queue: Vec<&BTreeMap<Timestamp, i64>> = match queue {
                "" => part.values().collect(),
                queue => part.get(queue).into_iter().collect(),
            };
            for (at, change) in of_queue.into_iter().flatten() {
                *sum.entry(*at).or_default() += change;
            }
        }
        sum
    }
}

/// Returns the minute after which all minutes have been read.
fn known_from(first_open: Timestamp, read: &BTreeSet<Timestamp>) -> Timestamp {
    let mut from = later(first_open, -1);
    while read.contains(&from) {
        from = later(from, -1);
    }
    from
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minute(number: i64) -> Timestamp {
        Timestamp::from_second(number * 60).unwrap()
    }

    fn a_move(queue: &str, at: i64, change: i64) -> BacklogChange {
        BacklogChange { queue: queue.to_owned(), at: minute(at), change }
    }

    fn minutes(numbers: &[i64]) -> BTreeSet<Timestamp> {
        numbers.iter().copied().map(minute).collect()
    }

    fn shown(waits: &BacklogHistory, queue: &str, read: &[i64], skipped: &[i64]) -> Vec<String> {
        let query = BacklogQuery { queue, now: minute(10), last: 5 };
        let waited = waits.points(&query, &minutes(read), &minutes(skipped));
        let shown = |it: &Option<BacklogPoint>| match it {
            None => "?".to_owned(),
            Some(it) => format!("{}{}", it.tasks, if it.at_least { "+" } else { "" }),
        };
        waited.iter().map(shown).collect()
    }

    #[test]
    fn points_are_known_where_all_later_minutes_were_read() {
        let mut waits = BacklogHistory::default();
        assert_eq!(shown(&waits, "", &[], &[]), ["?"; 5]);
        // Queue a: two tasks wait from minute 3 on, one of them until minute 8. Queue b: four tasks
        // wait from minute 7 on; one leaves in minute 9, and one arrives in minute 10.
        waits.add_closed(vec![a_move("a", 3, 1), a_move("a", 8, -1), a_move("b", 7, 4)]);
        let live = vec![a_move("a", 3, 1), a_move("b", 9, -1), a_move("b", 10, 1)];
        waits.replace_open((minute(10), minute(10)), live, (BTreeMap::new(), false));
        assert_eq!(shown(&waits, "", &[9, 8, 7, 6], &[]), ["2", "6", "5", "4", "5"]);
        assert_eq!(shown(&waits, "a", &[9, 8, 7, 6], &[]), ["2", "2", "1", "1", "1"]);
        assert_eq!(shown(&waits, "a", &[9, 8, 6], &[]), ["?", "2", "1", "1", "1"]);
        assert_eq!(shown(&waits, "a", &[9, 8, 7, 6], &[8]), ["2+", "2+", "1", "1", "1"]);
        let before = shown(&waits, "", &[9, 8, 7, 6], &[]);
        waits.evict(minute(6));
        assert_eq!(shown(&waits, "", &[9, 8, 7, 6], &[]), before);
        waits.evict(minute(20));
        assert_eq!(waits.queues().len(), 2, "changes of live tasks stay");
    }

    #[test]
    fn a_truncated_count_is_a_lower_bound() {
        let mut waits = BacklogHistory::default();
        let moves = || vec![a_move("a", 7, 5), a_move("b", 8, 1)];
        let cut = BTreeMap::from([("a".to_owned(), minute(8))]);
        waits.replace_open((minute(9), minute(10)), moves(), (cut, false));
        let read = [8, 7, 6, 5];
        assert_eq!(shown(&waits, "a", &read, &[]), ["0", "5", "5+", "5+", "5+"]);
        assert_eq!(shown(&waits, "b", &read, &[]), ["0", "0", "1", "1", "1"]);
        assert_eq!(shown(&waits, "", &read, &[]), ["0", "5", "6+", "6+", "6+"]);
        waits.replace_open((minute(9), minute(10)), moves(), (BTreeMap::new(), true));
        assert_eq!(shown(&waits, "b", &read, &[]), ["0+", "0+", "1+", "1+", "1+"]);
    }
}
