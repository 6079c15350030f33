//! Monitors the locks that running tasks hold, while faults are injected. The other invariants are
//! checked at the end, and see only what was committed.
//!
//! `chaos.work`, the body of tasks in transaction mode, takes an advisory lock for the task and one for
//! each limit that the task counts towards. The locks end with the transaction. Those of one moment
//! come from a single, consistent read of `pg_locks`.

use std::collections::BTreeMap;

use anyhow::Result;
use tokio_postgres::Client;

use crate::{EXAMPLES, Finding};

/// Returns the violations of this moment: the invariant and a sentence. The last row has no invariant and
/// the number of executions.
///
/// The first key of a lock says what it is for, the second key is the id of the task, or the hash of
/// the limit's name.
const POLL: &str = "/* checker.monitor */
WITH held AS MATERIALIZED (
    SELECT l.classid, l.objid, l.pid FROM pg_locks l JOIN pg_database d ON d.oid = l.database
    WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.granted AND d.datname = current_database())
SELECT 'one_execution', format('task %s is executed by the backends %s', h.objid, string_agg(h.pid::text, ', ')),
    0::bigint
FROM held h WHERE h.classid = 4711 GROUP BY h.objid HAVING count(*) > 1
UNION ALL
SELECT 'limits_kept_meanwhile', format('limit %s: %s executions at once, of %s', l.name, count(*), l.max_running), 0
FROM held h JOIN chaos.limits l ON hashtext(l.name) = h.objid::bigint::bit(32)::integer
WHERE h.classid = 4712 GROUP BY l.name, l.max_running HAVING count(*) > l.max_running
UNION ALL
SELECT '', '', count(*) FROM held h WHERE h.classid = 4711";

/// The invariants that are monitored.
pub const MONITORED: [&str; 2] = ["one_execution", "limits_kept_meanwhile"];

/// What was seen during a run.
#[derive(Debug, Default)]
pub struct Monitor {
    /// Number of polls.
    pub polls: u64,
    /// Sum of the executions of all polls.
    pub executions: u64,
    violations: BTreeMap<String, Vec<String>>,
}

impl Monitor {
    /// Polls once.
    ///
    /// # Errors
    /// Returns an error if the query fails.
    pub async fn poll(&mut self, client: &Client) -> Result<()> {
        for row in client.query_typed(POLL, &[]).await? {
            let (invariant, sentence): (String, String) = (row.try_get(0)?, row.try_get(1)?);
            if invariant.is_empty() {
                self.executions += row.try_get::<_, i64>(2)?.unsigned_abs();
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
