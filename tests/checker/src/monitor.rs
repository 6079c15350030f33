//! Monitors the locks that running tasks hold, while faults are injected. The other invariants are
//! checked at the end, and see only what was committed.
//!
//! `chaos.work`, the body of tasks in transaction mode, takes an advisory lock for the task and one for
//! each limit that the task counts towards. The locks end with the transaction. Those of one moment
//! come from a single, consistent read of `pg_locks`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Result;
use tokio_postgres::Client;

use crate::{EXAMPLES, Finding};

/// Returns the violations of this moment: the invariant and a sentence. One row has no invariant, the
/// number of executions, and the server's time.
///
/// The first key of a lock says what it is for, the second key is the id of the task, or the hash of
/// the limit's name.
const POLL: &str = "WITH /* checker.monitor */ held AS MATERIALIZED (
    SELECT l.classid, l.objid, l.pid FROM pg_locks l JOIN pg_database d ON d.oid = l.database
    WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.granted AND d.datname = current_database())
SELECT 'one_execution', format('task %s is executed by the backends %s', h.objid, string_agg(h.pid::text, ', ')),
    0::bigint, NULL::timestamptz
FROM held h WHERE h.classid = 4711 GROUP BY h.objid HAVING count(*) > 1
UNION ALL
SELECT 'limits_kept_meanwhile', format('limit %s: %s executions at once, of %s', l.name, count(*), l.max_running), 0,
    NULL
FROM held h JOIN chaos.limits l ON hashtext(l.name) = h.objid::bigint::bit(32)::integer
WHERE h.classid = 4712 GROUP BY l.name, l.max_running HAVING count(*) > l.max_running
UNION ALL
SELECT '', '', count(*), clock_timestamp() FROM held h WHERE h.classid = 4711";

/// The invariants that are monitored.
pub const MONITORED: [&str; 2] = ["one_execution", "limits_kept_meanwhile"];

/// Shortest set-back of the server's clock that is reported, per second since the last poll: a clock
/// that is slewed may be this much slower than the monotonic clock.
const SLEW: f64 = 0.001;

/// What was seen during a run.
#[derive(Debug, Default)]
pub struct Monitor {
    /// Number of polls.
    pub polls: u64,
    /// Sum of the executions of all polls.
    pub executions: u64,
    /// Sum of the times by which the server's clock was set back between two polls. Zero unless
    /// something sets the clock.
    pub clock_set_back: Duration,
    last_reading: Option<ClockReading>,
    violations: BTreeMap<String, Vec<String>>,
}

impl Monitor {
    /// Polls once.
    ///
    /// # Errors
    /// Returns an error if the query fails.
    pub async fn poll(&mut self, client: &Client) -> Result<()> {
        let sent = Instant::now();
        let rows = client.query_typed(POLL, &[]).await?;
        let received = Instant::now();
        for row in rows {
            let (invariant, sentence): (String, String) = (row.try_get(0)?, row.try_get(1)?);
            if invariant.is_empty() {
                self.executions += row.try_get::<_, i64>(2)?.unsigned_abs();
                let reading = ClockReading { sent, server: row.try_get(3)?, received };
                let last = self.last_reading.replace(reading);
                self.clock_set_back += last.map_or(Duration::ZERO, |it| it.set_back(&reading));
            } else {
                self.violations.entry(invariant).or_default().push(sentence);
            }
        }
        self.polls += 1;
        Ok(())
    }

    /// Adds what another monitor saw.
    pub fn merge(&mut self, other: Self) {
        self.polls += other.polls;
        self.executions += other.executions;
        self.clock_set_back = self.clock_set_back.max(other.clock_set_back);
        for (invariant, sentences) in other.violations {
            self.violations.entry(invariant).or_default().extend(sentences);
        }
    }

    /// Returns one finding per monitored invariant.
    #[must_use]
    pub fn findings(&self) -> Vec<Finding> {
        let finding = |invariant: &'static str| {
            let seen = self.violations.get(invariant).map(Vec::as_slice).unwrap_or_default();
            let examples = seen.iter().take(EXAMPLES).cloned().collect();
            Finding { invariant, count: i64::try_from(seen.len()).unwrap_or(i64::MAX), examples }
        };
        MONITORED.map(finding).into()
    }
}

/// A time that the server read from its clock, between two times of the monotonic clock.
#[derive(Clone, Copy, Debug)]
struct ClockReading {
    sent: Instant,
    server: SystemTime,
    received: Instant,
}

impl ClockReading {
    /// Returns by how much the server's clock was set back, at least, between this reading and a
    /// later one: it then advanced by less than the time that certainly passed.
    fn set_back(&self, later: &Self) -> Duration {
        let passed = later.sent.saturating_duration_since(self.received);
        let earliest = self.server + passed.mul_f64(1.0 - SLEW);
        earliest.duration_since(later.server).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_advances_less_than_time_passes_was_set_back() {
        let (begun, server) = (Instant::now(), SystemTime::UNIX_EPOCH);
        let ms = Duration::from_millis;
        let reading = |sent, at, received| ClockReading {
            sent: begun + ms(sent),
            server: server + ms(at),
            received: begun + ms(received),
        };
        let first = reading(0, 1000, 10);
        // The first time may be as late as the answer, and the second as early as the question.
        for (later, expected) in [
            (reading(10, 1000, 30), 0),
            (reading(110, 1100, 120), 0),
            (reading(110, 5000, 120), 0),
            (reading(1010, 1999, 1020), 0),
            (reading(10, 973, 20), 27),
            (reading(1010, 1900, 1020), 99),
        ] {
            assert_eq!(first.set_back(&later), ms(expected), "{later:?}");
        }
    }
}
