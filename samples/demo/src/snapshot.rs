//! Reads the queue's views and the shop's tables. All queries of the demo are here.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use queue::row::{FromRow, column, duration, from_row};
use queue::{Outcome, QueueError};
use tokio_postgres::{Client, Row};

const READY: &str = "SELECT /* demo.ready */ count(*) FROM mill.workers";

const COUNTS: &str = "SELECT /* demo.counts */ coalesce(sum(s.pending), 0)::bigint AS pending, coalesce(sum(s.running), 0)::bigint AS running,
    coalesce(sum(s.scheduled), 0)::bigint AS scheduled
FROM mill.queue_status s";

const RUNNING: &str = "SELECT /* demo.running */ coalesce(r.name, '') AS name, r.worker_pid FROM mill.running r ORDER BY r.id";

const ATTEMPTS: &str = "SELECT /* demo.attempts */ h.task_id AS task, coalesce(h.name, '') AS name, h.mode::text, h.attempt AS number,
    h.final AS last, h.outcome::text, h.worker_pid, extract(epoch FROM h.wait_duration)::float8 AS wait,
    extract(epoch FROM h.duration)::float8 AS run, h.message
FROM mill.history h ORDER BY h.task_id, h.attempt";

const TOTALS: &str = "SELECT /* demo.totals */
    (SELECT count(*) FROM shop.orders) AS orders,
    (SELECT coalesce(sum(o.cents), 0)::bigint FROM shop.orders o) AS cents,
    (SELECT count(*) FROM shop.customers) AS customers,
    (SELECT coalesce(sum(c.spent_cents), 0)::bigint FROM shop.customers c) AS spent_cents,
    (SELECT count(*) FROM shop.sales_by_day) AS days,
    (SELECT coalesce(sum(d.cents), 0)::bigint FROM shop.sales_by_day d) AS cents_by_day,
    (SELECT count(*) FROM shop.exchange_rates) AS exchange_rates,
    (SELECT count(*) FROM pg_tables t WHERE t.schemaname = 'shop' AND t.tablename LIKE 'staging\\__%')
        AS staging_tables";

const PRODUCTS: &str =
    "SELECT /* demo.products */ p.product, p.orders, p.cents FROM shop.sales_by_product p";

/// State of the queue at one moment.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    pub(crate) pending: i64,
    pub(crate) running: i64,
    pub(crate) scheduled: i64,
    pub(crate) running_tasks: Vec<RunningTask>,
    /// Sorted by task and attempt number.
    pub(crate) attempts: Vec<Attempt>,
}

/// A running task.
#[derive(Debug)]
pub(crate) struct RunningTask {
    pub(crate) name: String,
    pub(crate) worker_pid: i32,
}

from_row! { RunningTask { name, worker_pid } }

/// A finished attempt.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub(crate) task: i64,
    pub(crate) name: String,
    pub(crate) mode: String,
    pub(crate) number: i32,
    pub(crate) last: bool,
    pub(crate) outcome: Outcome,
    pub(crate) worker_pid: i32,
    pub(crate) wait: Duration,
    pub(crate) run: Duration,
    pub(crate) message: Option<String>,
}

from_row! {
    row => Attempt {
        task, name, mode, number, last, outcome, worker_pid,
        wait: duration(column(row, "wait")?), run: duration(column(row, "run")?), message,
    }
}

/// Totals of the shop's tables.
#[derive(Debug)]
pub(crate) struct Totals {
    pub(crate) orders: i64,
    pub(crate) cents: i64,
    pub(crate) customers: i64,
    pub(crate) spent_cents: i64,
    pub(crate) days: i64,
    pub(crate) cents_by_day: i64,
    pub(crate) exchange_rates: i64,
    pub(crate) staging_tables: i64,
    /// Orders and cents by product.
    pub(crate) products: BTreeMap<String, (i64, i64)>,
}

impl Snapshot {
    pub(crate) async fn take(client: &Client) -> Result<Self> {
        let counts = &client.query_typed(COUNTS, &[]).await?[0];
        Ok(Self {
            pending: column(counts, "pending")?,
            running: column(counts, "running")?,
            scheduled: column(counts, "scheduled")?,
            running_tasks: all(client, RUNNING).await?,
            attempts: all(client, ATTEMPTS).await?,
        })
    }

    /// Returns the number of tasks that will not run again.
    pub(crate) fn ended(&self) -> usize {
        self.attempts.iter().filter(|attempt| attempt.last).count()
    }
}

from_row! {
    row => Totals {
        orders, cents, customers, spent_cents, days, cents_by_day, exchange_rates, staging_tables,
        products: BTreeMap::new(),
    }
}

impl Totals {
    pub(crate) async fn take(client: &Client) -> Result<Self> {
        let totals = Self::from_row(&client.query_typed(TOTALS, &[]).await?[0])?;
        let rows = client.query_typed(PRODUCTS, &[]).await?;
        let product = |row: &Row| Ok((row.try_get(0)?, (row.try_get(1)?, row.try_get(2)?)));
        Ok(Self { products: rows.iter().map(product).collect::<Result<_>>()?, ..totals })
    }
}

/// Returns the rows of a query.
async fn all<T: FromRow>(client: &Client, sql: &str) -> Result<Vec<T>, QueueError> {
    client.query_typed(sql, &[]).await?.iter().map(T::from_row).collect()
}

/// Returns the number of registered workers that are not known to be dead.
pub(crate) async fn workers_ready(client: &Client) -> Result<i64> {
    Ok(client.query_typed(READY, &[]).await?[0].try_get(0)?)
}
