//! The last hour of history, read a minute at a time and kept.
//!
//! A minute that is over does not change. So each is read once, in the background and the newest
//! first, and a page never waits for history, however much of it there is. Nobody looks: nothing is read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use queue::QueueError;
use queue::insight::tally::{self, Minute};
use tokio::sync::Notify;
use tokio_postgres::error::SqlState;

use crate::database::Database;

/// How much is kept.
pub(crate) const KEPT_MINUTES: i64 = 60;

/// Between looks at the current minute.
const PACE: Duration = Duration::from_secs(4);

/// So long after the last visit, reading goes on.
const AUDIENCE: Duration = Duration::from_secs(60);

/// Read in one statement, if nothing is known about how much a minute holds.
const CHUNK_MINUTES: i64 = 5;

/// A minute that ended so long ago is over.
const LATE: SignedDuration = SignedDuration::from_secs(5);

#[derive(Default)]
struct Kept {
    minutes: BTreeMap<Timestamp, Vec<Minute>>,
    /// Minutes that are over and were read.
    read: BTreeSet<Timestamp>,
    visited: Option<Instant>,
}

/// What is kept.
pub(crate) struct Tally {
    kept: Mutex<Kept>,
    wake: Notify,
}

fn minute_of(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second().div_euclid(60) * 60).unwrap_or(at)
}

fn later(at: Timestamp, minutes: i64) -> Timestamp {
    at + SignedDuration::from_mins(minutes)
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

    /// Minutes and queues of the last hour, the oldest first.
    pub(crate) fn minutes(&self) -> Vec<Minute> {
        self.lock().minutes.values().flatten().cloned().collect()
    }

    /// How many of the last 60 minutes have been read.
    pub(crate) fn read_minutes(&self) -> i64 {
        i64::try_from(self.lock().read.len()).unwrap_or(KEPT_MINUTES).min(KEPT_MINUTES)
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
                    tracing::warn!("the last hour cannot be read: {error}");
                    tokio::time::sleep(PACE).await;
                }
            }
        }
    }

    /// Reads the current minute and what is unread of the newest minutes; `true`: nothing is left.
    async fn advance(&self, database: &Database, chunk: i64) -> Result<bool, QueueError> {
        let mut session = database.session().await?;
        let look = session.look().await?;
        let viewer = queue::insight::viewer::viewer(&*look).await?;
        // An attempt may commit some seconds after it says that it ended.
        let current = minute_of(viewer.now - LATE);
        self.read(&look, (current, later(current, 2)), false).await?;
        let Some((from, to)) = self.unread(current, chunk) else { return Ok(true) };
        let read = self.read(&look, (from, to), true).await;
        if chunk == 1
            && read.as_ref().is_err_and(|error| error.sqlstate() == Some(&SqlState::QUERY_CANCELED))
        {
            // More than a look can read in its time: it is left out, and the plot has a gap there.
            self.lock().read.insert(from);
            return Ok(false);
        }
        read.map(|()| false)
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

    async fn read(
        &self,
        look: &deadpool_postgres::Transaction<'_>,
        (from, to): (Timestamp, Timestamp),
        over: bool,
    ) -> Result<(), QueueError> {
        let minutes = tally::minutes(&**look, (from, to)).await?;
        let mut kept = self.lock();
        let oldest = later(if over { to } else { from }, -KEPT_MINUTES - 1);
        kept.minutes.retain(|at, _| *at > oldest && !(from..to).contains(at));
        for minute in minutes {
            kept.minutes.entry(minute.at).or_default().push(minute);
        }
        if over {
            let all = (to.as_second() - from.as_second()) / 60;
            kept.read.extend((0..all).map(|minute| later(from, minute)));
        } else {
            kept.read.retain(|at| *at >= later(from, -KEPT_MINUTES));
        }
        Ok(())
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
    }
}
