//! Cache of the throughput and backlog history of the last hours, read minute by minute.
//!
//! A minute is closed a few seconds after its end. The data of a closed minute does not change. So
//! each closed minute is read once, in the background and newest first, and no page waits for
//! history, however large the history is. While the console is not in use, nothing is read.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use queue::QueueError;
use queue::insight::throughput::{self, MinuteStats};
use queue::insight::{backlog_history, viewer};
use tokio::sync::{Notify, watch};
use tokio::time::timeout;
use tokio_postgres::error::SqlState;

use super::backlog_history::{BacklogHistory, BacklogPoint, BacklogQuery};
use super::minutes::{HOUR_MINUTES, later, minute_of};
use crate::database::Database;

/// Minutes kept in the cache.
pub(crate) const RETAINED_MINUTES: i64 = 6 * HOUR_MINUTES;

/// Interval between reads of the current minute.
const POLL_INTERVAL: Duration = Duration::from_secs(4);

/// Interval between reads of the currently waiting tasks, apart from the read after the end of each
/// minute.
const BACKLOG_POLL_INTERVAL: Duration = Duration::from_secs(15);

/// Reading continues for this long after the last request.
const IDLE_AFTER: Duration = Duration::from_secs(60);

/// Number of minutes that one statement reads, as long as no statement has timed out.
const CHUNK_MINUTES: i64 = 5;

/// The data of the current minute counts as known for this long after its last read.
const CURRENT_FOR: Duration = Duration::from_secs(3 * POLL_INTERVAL.as_secs());

/// Time limit of [`ThroughputCache::until_known`]. Reading five minutes takes a fraction of it,
/// unless the database is overloaded.
const FIRST_READ_LIMIT: Duration = Duration::from_millis(700);

/// A minute is closed this long after its end.
const COMMIT_LAG: SignedDuration = SignedDuration::from_secs(5);

#[derive(Default)]
struct CacheState {
    minutes: BTreeMap<Timestamp, Vec<MinuteStats>>,
    /// Closed minutes that were read or skipped.
    read: BTreeSet<Timestamp>,
    /// Skipped minutes: they had more attempts than could be read within the timeout.
    skipped: BTreeSet<Timestamp>,
    /// The first open minute at the last read, and the time of this read.
    open: Option<(Timestamp, Instant)>,
    backlog: BacklogHistory,
    backlog_read_at: Option<Instant>,
    last_used: Option<Instant>,
}

/// Cached history with a background reader.
pub(crate) struct ThroughputCache {
    state: Mutex<CacheState>,
    wake: Notify,
    /// Changes after each read.
    reads: watch::Sender<()>,
}

/// Data read for a range of minutes.
struct MinuteSpan {
    from: Timestamp,
    to: Timestamp,
    minutes: Vec<MinuteStats>,
    moves: Vec<backlog_history::BacklogChange>,
}

impl ThroughputCache {
    pub(crate) fn new() -> Self {
        let state = CacheState { last_used: Some(Instant::now()), ..CacheState::default() };
        Self { state: Mutex::new(state), wake: Notify::new(), reads: watch::Sender::new(()) }
    }

    pub(crate) fn mark_used(&self) {
        let before = self.state.lock().last_used.replace(Instant::now());
        if before.is_none_or(|before| before.elapsed() > IDLE_AFTER) {
            self.wake.notify_one();
        }
    }

    /// Returns the statistics of the last `last` minutes by minute and queue, oldest first.
    pub(crate) fn minutes(&self, now: Timestamp, last: i64) -> Vec<MinuteStats> {
        let oldest = later(minute_of(now), 1 - last);
        self.state
            .lock()
            .minutes
            .range(oldest..)
            .flat_map(|(_, minutes)| minutes)
            .cloned()
            .collect()
    }

    /// Returns how many of the last `last` closed minutes have been read.
    pub(crate) fn read_minutes(&self, now: Timestamp, last: i64) -> i64 {
        // The minute before the current one may not be closed yet.
        let oldest = later(minute_of(now - COMMIT_LAG), -last);
        i64::try_from(self.state.lock().read.range(oldest..).count()).unwrap_or(last).min(last)
    }

    /// Returns whether all attempts that finished in the last `last` complete minutes are known. After
    /// an idle time, the newest of these minutes have not been read, or only in part.
    pub(crate) fn knows(&self, now: Timestamp, last: i64) -> bool {
        let state = self.state.lock();
        let open_from = state.open.filter(|(_, read)| read.elapsed() < CURRENT_FOR);
        let known = |back: i64| {
            let at = later(minute_of(now), -back);
            let over = state.read.contains(&at) && !state.skipped.contains(&at);
            over || open_from.is_some_and(|(first, _)| first <= at)
        };
        (1..=last).all(known)
    }

    /// Waits until [`Self::knows`] is true, at most [`FIRST_READ_LIMIT`].
    pub(crate) async fn until_known(&self, now: Timestamp, last: i64) {
        let mut reads = self.reads.subscribe();
        let known = async { while !self.knows(now, last) && reads.changed().await.is_ok() {} };
        drop(timeout(FIRST_READ_LIMIT, known).await);
    }

    /// Returns for each minute whether all attempts that have finished in it so far are known.
    pub(crate) fn complete(&self, minutes: impl Iterator<Item = Timestamp>) -> Vec<bool> {
        let state = self.state.lock();
        let over = |at| state.read.contains(&at) && !state.skipped.contains(&at);
        minutes.map(|at| over(at) || state.backlog.is_open(at)).collect()
    }

    /// Returns the number of waiting tasks at the end of each of the last minutes.
    pub(crate) fn backlog(&self, query: &BacklogQuery<'_>) -> Vec<Option<BacklogPoint>> {
        let state = self.state.lock();
        state.backlog.points(query, &state.read, &state.skipped)
    }

    /// Returns the growth of the backlog of each queue in tasks per minute (negative if it shrinks)
    /// over the last `over` closed minutes. Omits queues with an unknown backlog or only a lower
    /// bound.
    pub(crate) fn growth(&self, now: Timestamp, over: i64) -> BTreeMap<String, f64> {
        let state = self.state.lock();
        let of_queue = |queue: String| {
            // The growth counts from the end of the minute before the range to the end of its last
            // minute. The last point belongs to the current minute, and is not used.
            let query = BacklogQuery { queue: &queue, now, last: over + 2 };
            let waited = state.backlog.points(&query, &state.read, &state.skipped);
            let exact = |it: &BacklogPoint| (!it.at_least).then_some(it.tasks);
            let first = waited.first()?.as_ref().and_then(exact)?;
            let last = waited[waited.len() - 2].as_ref().and_then(exact)?;
            #[expect(clippy::cast_precision_loss, reason = "displayed rounded")]
            let rate = (last - first) as f64 / over as f64;
            Some((queue, rate))
        };
        state.backlog.queues().into_iter().filter_map(of_queue).collect()
    }

    /// Runs the background reader until the future is dropped.
    pub(crate) async fn run(&self, database: &Database) {
        let mut chunk = CHUNK_MINUTES;
        loop {
            let idle = self
                .state
                .lock()
                .last_used
                .is_none_or(|last_used| last_used.elapsed() > IDLE_AFTER);
            if idle {
                self.wake.notified().await;
            }
            let refreshed = self.refresh(database, chunk).await;
            self.reads.send_replace(());
            match refreshed {
                Ok(true) => {
                    chunk = CHUNK_MINUTES;
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
                Ok(false) => {}
                Err(error) if error.sqlstate() == Some(&SqlState::QUERY_CANCELED) && chunk > 1 => {
                    chunk = 1;
                }
                Err(error) => {
                    tracing::warn!("could not read the throughput history: {error}");
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
            }
        }
    }

    /// Reads the current minute, the currently waiting tasks, and the newest unread minutes.
    /// Returns `true` if no unread minute is left.
    ///
    /// All statements share one snapshot, and all results are stored at once, so that a task that
    /// finishes during the read counts either as live or as history.
    async fn refresh(&self, database: &Database, chunk: i64) -> Result<bool, QueueError> {
        let mut session = database.session().await?;
        let tx = session.begin_snapshot().await?;
        let now = viewer::viewer(&*tx).await?.now;
        // An attempt may commit some seconds after its recorded finish time.
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
        let mut state = self.state.lock();
        state.replace(newest.0..newest.1, minutes);
        state.open = Some((current, Instant::now()));
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
                // The minute has more attempts than can be read within the timeout: skip the
                // minute, which leaves a gap in the plot.
                state.read.insert(from);
                state.skipped.insert(from);
                Ok(false)
            }
        }
    }

    /// Returns whether the backlog must be read again: a minute was closed since the last read, or
    /// the last read is too old.
    fn backlog_is_stale(&self, current: Timestamp) -> bool {
        let state = self.state.lock();
        !state.backlog.open_from(current)
            || state.backlog_read_at.is_none_or(|read| read.elapsed() > BACKLOG_POLL_INTERVAL)
    }

    /// Returns the range of the newest closed minutes that are unread.
    fn next_unread(&self, current: Timestamp, chunk: i64) -> Option<(Timestamp, Timestamp)> {
        let state = self.state.lock();
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

    /// Stores a range of closed minutes.
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
            cache.state.lock().read.extend((0..all).map(|minute| later(from, minute)));
            all
        };
        assert_eq!(cache.next_unread(current, 5), Some((later(current, -5), current)));
        cache.state.lock().read.insert(later(current, -3));
        assert_eq!(cache.next_unread(current, 5), Some((later(current, -2), current)));
        let mut all = 1;
        while let Some((from, to)) = cache.next_unread(current, 5) {
            all += read(from, to);
        }
        assert_eq!(all, RETAINED_MINUTES);
        assert_eq!(cache.read_minutes(current, HOUR_MINUTES), HOUR_MINUTES);
    }

    #[test]
    fn minutes_that_were_open_at_a_read_long_ago_are_unknown() {
        let cache = ThroughputCache::new();
        let now: Timestamp = "2026-12-01T03:10:20Z".parse().unwrap();
        let minute = |back: i64| later(minute_of(now), -back);
        let ago = |seconds| Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap();
        assert!(!cache.knows(now, 5), "nothing was read");
        cache.state.lock().read.extend((2..=6).map(minute));
        assert!(!cache.knows(now, 5), "the newest minute was not read");
        cache.state.lock().open = Some((minute(1), ago(3600)));
        assert!(!cache.knows(now, 5), "the newest minute was read before its end");
        cache.state.lock().open = Some((minute(1), ago(0)));
        assert!(cache.knows(now, 5), "the newest minute ended seconds ago, and was just read");
        cache.state.lock().skipped.insert(minute(4));
        assert!(!cache.knows(now, 5), "a minute was skipped");
    }

    #[test]
    fn minutes_before_the_last_hour_do_not_count_as_read_minutes_of_it() {
        let cache = ThroughputCache::new();
        let now: Timestamp = "2026-12-01T03:00:30Z".parse().unwrap();
        cache.state.lock().read.extend((61..=360).map(|back| later(minute_of(now), -back)));
        assert_eq!(cache.read_minutes(now, HOUR_MINUTES), 0);
        assert_eq!(cache.read_minutes(now, RETAINED_MINUTES), 300);
    }
}
