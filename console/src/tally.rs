//! The last hours of history, read a minute at a time and kept.
//!
//! A minute that is over does not change. So each is read once, in the background and the newest
//! first, and a page never waits for history, however much of it there is. Nobody looks: nothing is read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use queue::QueueError;
use queue::insight::tally::{self, Minute};
use queue::insight::{viewer, waiting};
use tokio::sync::Notify;
use tokio_postgres::error::SqlState;

use crate::database::Database;
use crate::waits::{Waited, Waits, Wanted};

/// How much is kept.
pub(crate) const KEPT_MINUTES: i64 = 6 * HOUR_MINUTES;

/// "The last hour" of a screen.
pub(crate) const HOUR_MINUTES: i64 = 60;

/// Between looks at the current minute.
const PACE: Duration = Duration::from_secs(4);

/// Between looks at all that waits now, but for the one when a minute is over.
const WAITS_PACE: Duration = Duration::from_secs(15);

/// So long after the last visit, reading goes on.
const AUDIENCE: Duration = Duration::from_secs(60);

/// Read in one statement, if nothing is known about how much a minute holds.
const CHUNK_MINUTES: i64 = 5;

/// A minute that ended so long ago is over.
const LATE: SignedDuration = SignedDuration::from_secs(5);

#[derive(Default)]
struct Kept {
    minutes: BTreeMap<Timestamp, Vec<Minute>>,
    /// Minutes that are over and were read, or given up.
    read: BTreeSet<Timestamp>,
    /// Of these, those that hold more than could be read.
    left_out: BTreeSet<Timestamp>,
    waits: Waits,
    waits_read: Option<Instant>,
    visited: Option<Instant>,
}

/// What is kept.
pub(crate) struct Tally {
    kept: Mutex<Kept>,
    wake: Notify,
}

/// What was read of a span of minutes.
struct Span {
    from: Timestamp,
    to: Timestamp,
    minutes: Vec<Minute>,
    moves: Vec<waiting::Move>,
}

/// The minute that it is in.
pub(crate) fn minute_of(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second().div_euclid(60) * 60).unwrap_or(at)
}

/// So many minutes later.
pub(crate) fn later(at: Timestamp, minutes: i64) -> Timestamp {
    at + SignedDuration::from_mins(minutes)
}

/// The beginnings of the last so many minutes, the current one last.
pub(crate) fn last_minutes(now: Timestamp, minutes: i64) -> impl Iterator<Item = Timestamp> {
    let current = minute_of(now);
    (0..minutes).rev().map(move |back| later(current, -back))
}

impl Tally {
    pub(crate) fn new() -> Self {
        let kept = Kept { visited: Some(Instant::now()), ..Kept::default() };
        Self { kept: Mutex::new(kept), wake: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn somebody_looks(&self) {
        let before = self.lock().visited.replace(Instant::now());
        if before.is_none_or(|before| before.elapsed() > AUDIENCE) {
            self.wake.notify_one();
        }
    }

    /// Of the last so many minutes, minutes and queues, the oldest first.
    pub(crate) fn minutes(&self, now: Timestamp, last: i64) -> Vec<Minute> {
        let oldest = later(minute_of(now), 1 - last);
        self.lock().minutes.range(oldest..).flat_map(|(_, minutes)| minutes).cloned().collect()
    }

    /// How many of so many minutes that are over have been read.
    pub(crate) fn read_minutes(&self, now: Timestamp, last: i64) -> i64 {
        // The minute before the current one may not be over yet.
        let oldest = later(minute_of(now - LATE), -last);
        i64::try_from(self.lock().read.range(oldest..).count()).unwrap_or(last).min(last)
    }

    /// Of these minutes: those of which is known what ended in them, as far as they are over.
    pub(crate) fn known(&self, minutes: impl Iterator<Item = Timestamp>) -> Vec<bool> {
        let kept = self.lock();
        let over = |at| kept.read.contains(&at) && !kept.left_out.contains(&at);
        minutes.map(|at| over(at) || kept.waits.is_current(at)).collect()
    }

    /// How many tasks waited at the end of each of the last so many minutes.
    pub(crate) fn waited(&self, wanted: &Wanted<'_>) -> Vec<Option<Waited>> {
        let kept = self.lock();
        kept.waits.waited(wanted, &kept.read, &kept.left_out)
    }

    /// By how many tasks a minute what waits in each queue has grown, or shrunk, over so many minutes
    /// that are over. A queue of which that is not known, or known as a bound only, is left out.
    pub(crate) fn growth(&self, now: Timestamp, over: i64) -> BTreeMap<String, f64> {
        let kept = self.lock();
        let of_queue = |queue: String| {
            // From the end of the minute before these to that of the last one, behind which is the current one.
            let wanted = Wanted { queue: &queue, now, last: over + 2 };
            let waited = kept.waits.waited(&wanted, &kept.read, &kept.left_out);
            let exact = |it: &Waited| (!it.at_least).then_some(it.tasks);
            let first = waited.first()?.as_ref().and_then(exact)?;
            let last = waited[waited.len() - 2].as_ref().and_then(exact)?;
            #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
            let rate = (last - first) as f64 / over as f64;
            Some((queue, rate))
        };
        kept.waits.queues().into_iter().filter_map(of_queue).collect()
    }

    /// Reads for as long as it is polled.
    pub(crate) async fn keep(&self, database: &Database) {
        let mut chunk = CHUNK_MINUTES;
        loop {
            let idle = self.lock().visited.is_none_or(|visited| visited.elapsed() > AUDIENCE);
            if idle {
                self.wake.notified().await;
            }
            match self.advance(database, chunk).await {
                Ok(true) => {
                    chunk = CHUNK_MINUTES;
                    tokio::time::sleep(PACE).await;
                }
                Ok(false) => {}
                Err(error) if error.sqlstate() == Some(&SqlState::QUERY_CANCELED) && chunk > 1 => {
                    chunk = 1;
                }
                Err(error) => {
                    tracing::warn!("the last hours cannot be read: {error}");
                    tokio::time::sleep(PACE).await;
                }
            }
        }
    }

    /// Reads the current minute, what waits now, and what is unread of the newest minutes; `true`:
    /// nothing is left.
    ///
    /// All in one snapshot and put in at once: a task that ends meanwhile is either live or history.
    async fn advance(&self, database: &Database, chunk: i64) -> Result<bool, QueueError> {
        let mut session = database.session().await?;
        let look = session.still_look().await?;
        let now = viewer::viewer(&*look).await?.now;
        // An attempt may commit some seconds after it says that it ended.
        let current = minute_of(now - LATE);
        let oldest = later(current, -KEPT_MINUTES);
        let newest = (current, later(current, 2));
        let minutes = tally::minutes(&*look, newest).await?;
        let waits = if self.waits_are_old(current) {
            let moved = waiting::moved(&*look, newest, oldest).await?;
            Some((moved, waiting::live(&*look, oldest).await?))
        } else {
            None
        };
        let unread = self.unread(current, chunk);
        let over = match unread {
            Some(span) => Some(Span::read(&look, span, oldest).await),
            None => None,
        };
        let mut kept = self.lock();
        kept.put(newest.0..newest.1, minutes);
        if let Some((moved, live)) = waits {
            let moves = moved.into_iter().chain(live.moves).collect();
            kept.waits.renew((current, minute_of(now)), moves, (live.cut, live.cut_everywhere));
            kept.waits_read = Some(Instant::now());
        }
        kept.forget(oldest);
        match (over, unread) {
            (None, _) | (_, None) => Ok(true),
            (Some(Ok(over)), _) => {
                kept.settle(over);
                Ok(false)
            }
            (Some(Err(error)), Some((from, _))) => {
                if chunk > 1 || error.sqlstate() != Some(&SqlState::QUERY_CANCELED) {
                    return Err(error);
                }
                // More than a look can read in its time: it is left out, and the plot has a gap there.
                kept.read.insert(from);
                kept.left_out.insert(from);
                Ok(false)
            }
        }
    }

    /// What was read of it last goes up to the minute that is current, and begins where what is settled ends.
    fn waits_are_old(&self, current: Timestamp) -> bool {
        let kept = self.lock();
        !kept.waits.begins_at(current)
            || kept.waits_read.is_none_or(|read| read.elapsed() > WAITS_PACE)
    }

    /// The newest minutes that are over and unread.
    fn unread(&self, current: Timestamp, chunk: i64) -> Option<(Timestamp, Timestamp)> {
        let kept = self.lock();
        let back = (1..=KEPT_MINUTES).find(|back| !kept.read.contains(&later(current, -back)))?;
        let more = (1..chunk).take_while(|more| {
            back + more <= KEPT_MINUTES && !kept.read.contains(&later(current, -(back + more)))
        });
        let oldest = back + i64::try_from(more.count()).unwrap_or(0);
        Some((later(current, -oldest), later(current, 1 - back)))
    }
}

impl Span {
    async fn read(
        look: &deadpool_postgres::Transaction<'_>,
        (from, to): (Timestamp, Timestamp),
        oldest: Timestamp,
    ) -> Result<Self, QueueError> {
        let minutes = tally::minutes(&**look, (from, to)).await?;
        let moves = waiting::moved(&**look, (from, to), oldest).await?;
        Ok(Self { from, to, minutes, moves })
    }
}

impl Kept {
    fn put(&mut self, span: std::ops::Range<Timestamp>, minutes: Vec<Minute>) {
        self.minutes.retain(|at, _| !span.contains(at));
        for minute in minutes {
            self.minutes.entry(minute.at).or_default().push(minute);
        }
    }

    /// Minutes that are over.
    fn settle(&mut self, over: Span) {
        self.waits.settle(over.moves);
        let all = (over.to.as_second() - over.from.as_second()) / 60;
        self.read.extend((0..all).map(|minute| later(over.from, minute)));
        self.put(over.from..over.to, over.minutes);
    }

    fn forget(&mut self, oldest: Timestamp) {
        self.minutes.retain(|at, _| *at >= oldest);
        self.read.retain(|at| *at >= oldest);
        self.left_out.retain(|at| *at >= oldest);
        self.waits.forget(oldest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_unread_minutes_come_first() {
        let tally = Tally::new();
        let current: Timestamp = "2026-12-01T03:00:00Z".parse().unwrap();
        let read = |from: Timestamp, to: Timestamp| {
            let all = (to.as_second() - from.as_second()) / 60;
            tally.lock().read.extend((0..all).map(|minute| later(from, minute)));
            all
        };
        assert_eq!(tally.unread(current, 5), Some((later(current, -5), current)));
        tally.lock().read.insert(later(current, -3));
        assert_eq!(tally.unread(current, 5), Some((later(current, -2), current)));
        let mut all = 1;
        while let Some((from, to)) = tally.unread(current, 5) {
            all += read(from, to);
        }
        assert_eq!(all, KEPT_MINUTES);
        assert_eq!(tally.read_minutes(current, HOUR_MINUTES), HOUR_MINUTES);
    }

    #[test]
    fn what_is_read_of_the_last_hour_is_not_what_was_read_before_it() {
        let tally = Tally::new();
        let now: Timestamp = "2026-12-01T03:00:30Z".parse().unwrap();
        tally.lock().read.extend((61..=360).map(|back| later(minute_of(now), -back)));
        assert_eq!(tally.read_minutes(now, HOUR_MINUTES), 0);
        assert_eq!(tally.read_minutes(now, KEPT_MINUTES), 300);
    }
}
