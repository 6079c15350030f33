//! Says from the effects, the history and the queue alone whether a promise was broken.
//!
//! It asks nothing of the product's code: it reads what the load asked for and was answered
//! (`chaos.ops`), what the tasks' own SQL left behind (`chaos.start`, `chaos.effect`), and the
//! product's tables as they stand at the end. An operation whose answer was lost may have happened or
//! not, and neither is wrong. Each promise is one query in `invariants.rs` that finds what breaks it;
//! `tests/checker_detection.rs` shows that each of them bites.

mod invariants;
mod ops;

use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use serde::Serialize;
use tokio_postgres::Client;

pub use invariants::names;
pub use ops::{Answer, Op, OpKind, record};

/// SQL that creates the schema `chaos`, after the product's own schema.
pub const INSTALL: &str = include_str!("install.sql");

/// How many offenders a finding names.
const EXAMPLES: i64 = 20;

/// What the database should look like.
#[derive(Clone, Debug)]
pub struct Expect {
    /// Everything that was asked for has had its time: no task is live, no run goes on.
    pub drained: bool,
    /// No worker is left: none of its sessions' locks is, either.
    pub fleet_gone: bool,
    /// Since when nothing has been broken any more, by the database's clock; `None` asks nothing of
    /// how long the tasks of the dead took to come back.
    pub healed_at: Option<SystemTime>,
    /// The workers' `--orphan-timeout`.
    pub orphan_timeout: Duration,
    /// On top of it, until a dead worker's tasks have to be back.
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

/// What became of one invariant.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// Its name.
    pub invariant: &'static str,
    /// How often it is broken; 0: it holds.
    pub count: i64,
    /// Some of the offenders, a sentence each.
    pub examples: Vec<String>,
}

/// Asks for every invariant in one snapshot; one finding for each, in the order of [`names`].
///
/// # Errors
/// Database trouble; no schema `chaos`. The session must be outside of a transaction, and own the
/// schema or be a superuser's.
pub async fn check(client: &Client, expect: &Expect) -> Result<Vec<Finding>> {
    // Without statistics of tables that were filled a moment ago, joins would take minutes.
    client
        .batch_execute("ANALYZE chaos.ops, chaos.start, chaos.effect, mill.tasks, mill.attempts")
        .await
        .context("the schema chaos is not there: run checker::INSTALL first")?;
    client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
    let found = findings(client, expect).await;
    client.batch_execute("ROLLBACK").await?;
    found
}

async fn findings(client: &Client, expect: &Expect) -> Result<Vec<Finding>> {
    // The queries read these settings, so that each is a query that psql runs as it stands.
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
            "/* checker.{invariant} */
            SELECT count(*), coalesce((array_agg(v ORDER BY v))[1:{EXAMPLES}], '{{}}')
            FROM ({query}) AS violation (v)"
        );
        let row = client.query_one(&sql, &[]).await.with_context(|| format!("in {invariant}"))?;
        findings.push(Finding { invariant, count: row.get(0), examples: row.get(1) });
    }
    Ok(findings)
}
