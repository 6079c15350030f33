//! Verifies every promise, from nothing but the effects of the tasks, the history and the queue.
//!
//! The checker is independent of pgmill's code: it reads the requests of the load with their
//! replies (`chaos.ops`), the rows written by the tasks' own SQL (`chaos.start`, `chaos.effect`),
//! and the final content of pgmill's tables. An operation whose reply was lost may have happened or
//! not; both are correct. Each promise is one query in `invariants.rs` that finds violations;
//! `tests/guarantees/checker_detection.rs` shows that each query detects one.

mod invariants;
mod monitor;
mod ops;

use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use serde::Serialize;
use tokio_postgres::Client;

pub use invariants::names;
pub use monitor::{MONITORED, Monitor};
pub use ops::{Answer, Op, OpKind, record};

/// SQL that creates the schema `chaos`, applied after pgmill's schema.
pub const INSTALL: &str = concat!(include_str!("tasks.sql"), include_str!("install.sql"));

/// Creates what tasks in a target write. [`merge`] copies it to the database of the queue.
pub const INSTALL_IN_TARGET: &str = include_str!("tasks.sql");

/// Maximum number of violations listed in a finding.
const EXAMPLES: usize = 20;

/// Expected state of the database.
#[derive(Clone, Debug)]
pub struct Expect {
    /// All requests have been processed: no task is live, no run is in progress.
    pub drained: bool,
    /// No worker is left, and none of the locks that its sessions hold.
    pub fleet_gone: bool,
    /// Time of the last healed fault, by the database's clock; `None` skips the check of the
    /// reclaim time.
    pub healed_at: Option<SystemTime>,
    /// The workers' `--orphan-timeout`.
    pub orphan_timeout: Duration,
    /// Time in addition to the orphan timeout until a dead worker's tasks must be reclaimed.
    pub bound: Duration,
    /// `mill.settings.max_crashes`.
    pub max_crashes: u32,
}

impl Default for Expect {
    fn default() -> Self {
        Self {
            drained: true,
            fleet_gone: false,
            healed_at: None,
            orphan_timeout: Duration::from_secs(30),
            bound: Duration::from_secs(10),
            max_crashes: 5,
        }
    }
}

/// Result of one invariant.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// Name of the invariant.
    pub invariant: &'static str,
    /// Number of violations; 0 means that the invariant holds.
    pub count: i64,
    /// Some of the violations, one sentence each.
    pub examples: Vec<String>,
}

/// Checks every invariant in one snapshot; returns one finding per invariant, in the order of
/// [`names`].
///
/// # Errors
/// Returns an error if a query fails or the schema `chaos` is missing. The session must not be in a
/// transaction, and must own the schema or be a superuser's.
pub async fn check(client: &Client, expect: &Expect) -> Result<Vec<Finding>> {
    // Without statistics of freshly filled tables, joins would take minutes.
    client
        .batch_execute("ANALYZE chaos.ops, chaos.start, chaos.effect, mill.tasks, mill.attempts")
        .await
        .context("schema chaos does not exist: run checker::INSTALL first")?;
    client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
    let found = findings(client, expect).await;
    client.batch_execute("ROLLBACK").await?;
    found
}

/// Copies what tasks wrote in another database to the database of the queue.
///
/// # Errors
/// Returns an error if a query fails.
pub async fn merge(from: &Client, to: &Client) -> Result<()> {
    for table in ["start", "effect"] {
        let read = format!("SELECT coalesce(jsonb_agg(e), '[]')::text FROM chaos.{table} e");
        let rows: String = from.query_one(&read, &[]).await?.get(0);
        let write = format!(
            "INSERT INTO chaos.{table}
             SELECT * FROM jsonb_populate_recordset(NULL::chaos.{table}, $1::text::jsonb)"
        );
        to.execute(&write, &[&rows]).await?;
    }
    Ok(())
}

async fn findings(client: &Client, expect: &Expect) -> Result<Vec<Finding>> {
    // The queries read these settings, so that psql can run each query unchanged.
    client
        .query(
            "SELECT set_config('checker.drained', $1::boolean::text, true),
                set_config('checker.fleet_gone', $2::boolean::text, true),
                set_config('checker.healed_at', coalesce($3::timestamptz, 'infinity')::text, true),
                set_config('checker.orphan_timeout', make_interval(secs => $4)::text, true),
                set_config('checker.bound', make_interval(secs => $5)::text, true),
                set_config('checker.max_crashes', $6::bigint::text, true)",
            &[
                &expect.drained,
                &expect.fleet_gone,
                &expect.healed_at,
                &expect.orphan_timeout.as_secs_f64(),
                &expect.bound.as_secs_f64(),
                &i64::from(expect.max_crashes),
            ],
        )
        .await?;
    let mut findings = Vec::new();
    for (invariant, query) in invariants::ALL {
        let sql = format!(
            "SELECT /* checker.{invariant} */ count(*), coalesce((array_agg(v ORDER BY v))[1:{EXAMPLES}], '{{}}')
            FROM ({query}) AS violation (v)"
        );
        let row = client.query_one(&sql, &[]).await.with_context(|| format!("in {invariant}"))?;
        findings.push(Finding { invariant, count: row.get(0), examples: row.get(1) });
    }
    Ok(findings)
}
