//! The last hours of history, read a minute at a time and kept.
//!
//! A minute that is over does not change. So each is read once, in the background and the newest
//! first, and a page never waits for history, however much of it there is. Nobody looks: nothing is read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use queue::QueueError;
use queue::insight::throughput::{self, MinuteStats};
use queue::insight::{backlog_history, viewer};
use tokio::sync::Notify;
use tokio_postgres::error::SqlState;

use crate::backlog_history::{BacklogHistory, BacklogPoint, BacklogQuery};
use crate::database::Database;

/// How much is kept.
pub(crate) const RETAINED_MINUTES: i64 = 6 * HOUR_MINUTES;

/// "The last hour" of a screen.
pub(crate) const HOUR_MINUTES: i64 = 60;

/// Between looks at the current minute.
const POLL_INTERVAL: Duration = Duration::from_secs(4);

/// Between looks at all that waits now, but for the one when a minute is over.
const BACKLOG_POLL_INTERVAL: Duration = Duration::from_secs(15);

/// So long after the last visit, reading goes on.
const IDLE_AFTER: Duration = Duration::from_secs(60);

/// Read in one statement, if nothing is known about how much a minute holds.
const CHUNK_MINUTES: i64 = 5;

/// A minute that ended so long ago is over.
const COMMIT_LAG: SignedDuration = SignedDuration::from_secs(5);

#[derive(Default)]
struct CacheState {
    minutes: BTreeMap<Timestamp, Vec<MinuteStats>>,
    /// Minutes that are over and were read, or given up.
    read: BTreeSet<Timestamp>,
    /// Of these, those that hold more than could be read.
    skipped: BTreeSet<Timestamp>,
    backlog: BacklogHistory,
    backlog_read_at: Option<Instant>,
    last_used: Option<Instant>,
}

/// What is kept.
pub(crate) struct ThroughputCache {
    state: Mutex<CacheState>,
    wake: Notify,
}

/// What was read of a span of minutes.
struct MinuteSpan {
    from: Timestamp,
    to: Timestamp,
    minutes: Vec<MinuteStats>,
    moves: Vec<backlog_history::BacklogChange>,
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

impl ThroughputCache {
    pub(crate) fn new() -> Self {
        let state = CacheState { last_used: Some(Instant::now()), ..CacheState::default() };
        Self { state: Mutex::new(state), wake: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, CacheState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn mark_used(&self) {
        let before = self.lock().last_used.replace(Instant::now());
        if before.is_none_or(|before| before.elapsed() > IDLE_AFTER) {
            self.wake.notify_one();
        }
    }

    /// Of the last so many minutes, minutes and queues, the oldest first.
    pub(crate) fn minutes(&self, now: Timestamp, last: i64) -> Vec<MinuteStats> {
        let oldest = later(minute_of(now), 1 - last);
        self.lock().minutes.range(oldest..).flat_map(|(_, minutes)| minutes).cloned().collect()
    }

    /// How many of so many minutes that are over have been read.
    pub(crate) fn read_minutes(&self, now: Timestamp, last: i64) -> i64 {
        // The minute before the current one may not be over yet.
        let oldest = later(minute_of(now - COMMIT_LAG), -last);
        i64::try_from(self.lock().read.range(oldest..).count()).unwrap_or(last).min(last)
    }

    /// Of these minutes: those of which is known what ended in them, as far as they are over.
    pub(crate) fn complete(&self, minutes: impl Iterator<Item = Timestamp>) -> Vec<bool> {
        let state = self.lock();
        let over = |at| state.read.contains(&at) && !state.skipped.contains(&at);
        minutes.map(|at| over(at) || state.backlog.is_open(at)).collect()
    }

    /// How many tasks waited at the end of each of the last so many minutes.
    pub(crate) fn backlog(&self, query: &BacklogQuery<'_>) -> Vec<Option<BacklogPoint>> {
        let state = self.lock();
        state.backlog.points(query, &state.read, &state.skipped)
    }

    /// By how many tasks a minute what waits in each queue has grown, or shrunk, over so many minutes
    /// that are over. A queue of which that is not known, or known as a bound only, is left out.
    pub(crate) fn growth(&self, now: Timestamp, over: i64) -> BTreeMap<String, f64> {
        let state = self.lock();
        let of_queue = |queue: String| {
            // From the end of the minute before these to that of the last one, behind which is the current one.
            let query = BacklogQuery { queue: &queue, now, last: over + 2 };
            let waited = state.backlog.points(&query, &state.read, &state.skipped);
            let exact = |it: &BacklogPoint| (!it.at_least).then_some(it.tasks);
            let first = waited.first()?.as_ref().and_then(exact)?;
            let last = waited[waited.len() - 2].as_ref().and_then(exact)?;
            #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
            let rate = (last - first) as f64 / over as f64;
            Some((queue, rate))
        };
        state.backlog.queues().into_iter().filter_map(of_queue).collect()
    }

    /// Reads for as long as it is polled.
    pub(crate) async fn run(&self, database: &Database) {
        let mut chunk = CHUNK_MINUTES;
        loop {
            let idle =
                self.lock().last_used.is_none_or(|last_used| last_used.elapsed() > IDLE_AFTER);
            if idle {
                self.wake.notified().await;
            }
            match self.refresh(database, chunk).await {
                Ok(true) => {
                    chunk = CHUNK_MINUTES;
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
                Ok(false) => {}
                Err(error) if error.sqlstate() == Some(&SqlState::QUERY_CANCELED) && chunk > 1 => {
                    chunk = 1;
                }
                Err(error) => {
                    tracing::warn!("the last hours cannot be read: {error}");
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
            }
        }
    }

    /// Reads the current minute, what waits now, and what is unread of the newest minutes; `true`:
    /// nothing is left.
    ///
    /// All in one snapshot and put in at once: a task that ends meanwhile is either live or history.
    async fn refresh(&self, database: &Database, chunk: i64) -> Result<bool, QueueError> {
        let mut session = database.session().await?;
        let tx = session.begin_snapshot().await?;
        let now = viewer::viewer(&*tx).await?.now;
        // An attempt may commit some seconds after it says that it ended.
        let current = minute_of(now - COMMIT_LAG);
        let oldest = later(current, -RETAINED_MINUTES);
        let newest = (current, later(current, 2));
        let minutes = throughput::minutes(&*tx, newest).await?;
        let backlog = if self.backlog_is_stale(current) {
            let moved = backlog_history::ended_changes(&*tx, newest, oldest).await?;
            Some((moved, backlog_history::live_changes(&*tx, oldest).await?))
        } else {
            None
        };
        let unread = self.next_unread(current, chunk);
        let over = match unread {
            Some(span) => Some(MinuteSpan::read(&tx, span, oldest).await),
            None => None,
        };
        let mut state = self.lock();
        state.replace(newest.0..newest.1, minutes);
        if let Some((moved, live)) = backlog {
            let moves = moved.into_iter().chain(live.changes).collect();
            state.backlog.replace_open(
                (current, minute_of(now)),
                moves,
                (live.cut, live.cut_everywhere),
            );
            state.backlog_read_at = Some(Instant::now());
        }
        state.evict(oldest);
        match (over, unread) {
            (None, _) | (_, None) => Ok(true),
            (Some(Ok(over)), _) => {
                state.add_closed(over);
                Ok(false)
            }
            (Some(Err(error)), Some((from, _))) => {
                if chunk > 1 || error.sqlstate() != Some(&SqlState::QUERY_CANCELED) {
                    return Err(error);
                }
                // More than a look can read in its time: it is left out, and the plot has a gap there.
                state.read.insert(from);
                state.skipped.insert(from);
                Ok(false)
            }
        }
    }

    /// What was read of it last goes up to the minute that is current, and begins where what is settled ends.
    fn backlog_is_stale(&self, current: Timestamp) -> bool {
        let state = self.lock();
        !state.backlog.open_from(current)
            || state.backlog_read_at.is_none_or(|read| read.elapsed() > BACKLOG_POLL_INTERVAL)
    }

    /// The newest minutes that are over and unread.
    fn next_unread(&self, current: Timestamp, chunk: i64) -> Option<(Timestamp, Timestamp)> {
        let state = self.lock();
        let back =
            (1..=RETAINED_MINUTES).find(|back| !state.read.contains(&later(current, -back)))?;
        let more = (1..chunk).take_while(|more| {
            back + more <= RETAINED_MINUTES && !state.read.contains(&later(current, -(back + more)))
        });
        let oldest = back + i64::try_from(more.count()).unwrap_or(0);
        Some((later(current, -oldest), later(current, 1 - back)))
    }
}

impl MinuteSpan {
    async fn read(
        tx: &deadpool_postgres::Transaction<'_>,
        (from, to): (Timestamp, Timestamp),
        oldest: Timestamp,
    ) -> Result<Self, QueueError> {
        let minutes = throughput::minutes(&**tx, (from, to)).await?;
        let moves = backlog_history::ended_changes(&**tx, (from, to), oldest).await?;
        Ok(Self { from, to, minutes, moves })
    }
}

impl CacheState {
    fn replace(&mut self, span: std::ops::Range<Timestamp>, minutes: Vec<MinuteStats>) {
        self.minutes.retain(|at, _| !span.contains(at));
        for minute in minutes {
            self.minutes.entry(minute.at).or_default().push(minute);
        }
    }

    /// Minutes that are over.
    fn add_closed(&mut self, over: MinuteSpan) {
        self.backlog.add_closed(over.moves);
        let all = (over.to.as_second() - over.from.as_second()) / 60;
        self.read.extend((0..all).map(|minute| later(over.from, minute)));
        self.replace(over.from..over.to, over.minutes);
    }

    fn evict(&mut self, oldest: Timestamp) {
        self.minutes.retain(|at, _| *at >= oldest);
        self.read.retain(|at| *at >= oldest);
        self.skipped.retain(|at| *at >= oldest);
        self.backlog.evict(oldest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_unread_minutes_come_first() {
        let cache = ThroughputCache::new();
        let current: Timestamp = "2026-12-01T03:00:00Z".parse().unwrap();
        let read = |from: Timestamp, to: Timestamp| {
            let all = (to.as_second() - from.as_second()) / 60;
            cache.lock().read.extend((0..all).map(|minute| later(from, minute)));
            all
        };
        assert_eq!(cache.next_unread(current, 5), Some((later(current, -5), current)));
        cache.lock().read.insert(later(current, -3));
        assert_eq!(cache.next_unread(current, 5), Some((later(current, -2), current)));
        let mut all = 1;
        while let Some((from, to)) = cache.next_unread(current, 5) {
            all += read(from, to);
        }
        assert_eq!(all, RETAINED_MINUTES);
        assert_eq!(cache.read_minutes(current, HOUR_MINUTES), HOUR_MINUTES);
    }

    #[test]
    fn what_is_read_of_the_last_hour_is_not_what_was_read_before_it() {
        let cache = ThroughputCache::new();
        let now: Timestamp = "2026-12-01T03:00:30Z".parse().unwrap();
        cache.lock().read.extend((61..=360).map(|back| later(minute_of(now), -back)));
        assert_eq!(cache.read_minutes(now, HOUR_MINUTES), 0);
        assert_eq!(cache.read_minutes(now, RETAINED_MINUTES), 300);
    }
}
