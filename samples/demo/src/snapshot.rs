//! Reads the queue's views and the shop's tables. All queries of the demo are here.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, anyhow};
use queue::Outcome;
use tokio_postgres::{Client, Row};

const READY: &str = "SELECT /* demo.ready */ count(*) FROM mill.workers";

const COUNTS: &str = "SELECT /* demo.counts */ coalesce(sum(s.pending), 0)::bigint, coalesce(sum(s.running), 0)::bigint,
    coalesce(sum(s.scheduled), 0)::bigint
FROM mill.queue_status s";

const RUNNING: &str =
    "SELECT /* demo.running */ r.name, r.worker_pid FROM mill.running r ORDER BY r.id";

const ATTEMPTS: &str = "SELECT /* demo.attempts */ h.task_id, h.name, h.mode::text, h.attempt, h.final, h.outcome::text, h.worker_pid,
    extract(epoch FROM h.wait_duration)::float8, extract(epoch FROM h.duration)::float8, h.message
FROM mill.history h ORDER BY h.task_id, h.attempt";

const TOTALS: &str = "SELECT /* demo.totals */
    (SELECT count(*) FROM shop.orders),
    (SELECT sum(o.cents)::bigint FROM shop.orders o),
    (SELECT count(*) FROM shop.customers),
    (SELECT sum(c.spent_cents)::bigint FROM shop.customers c),
    (SELECT count(*) FROM shop.sales_by_day),
    (SELECT sum(d.cents)::bigint FROM shop.sales_by_day d),
    (SELECT count(*) FROM shop.exchange_rates),
    (SELECT count(*) FROM pg_tables t WHERE t.schemaname = 'shop' AND t.tablename LIKE 'staging\\__%')";

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
        let counts = client.query_typed(COUNTS, &[]).await?;
        let running_tasks = client.query_typed(RUNNING, &[]).await?;
        let attempts = client.query_typed(ATTEMPTS, &[]).await?;
        Ok(Self {
            pending: counts[0].try_get(0)?,
            running: counts[0].try_get(1)?,
            scheduled: counts[0].try_get(2)?,
            running_tasks: running_tasks.iter().map(RunningTask::read).collect::<Result<_>>()?,
            attempts: attempts.iter().map(Attempt::read).collect::<Result<_>>()?,
        })
    }

    /// Returns the number of tasks that will not run again.
    pub(crate) fn ended(&self) -> usize {
        self.attempts.iter().filter(|attempt| attempt.last).count()
    }
}

impl RunningTask {
    fn read(row: &Row) -> Result<Self> {
        let name: Option<String> = row.try_get(0)?;
        let name = name.unwrap_or_default();
        Ok(Self { name, worker_pid: row.try_get(1)? })
    }
}

impl Attempt {
    fn read(row: &Row) -> Result<Self> {
        let name: Option<String> = row.try_get(1)?;
        let seconds = |column: usize| -> Result<Duration> {
            Ok(Duration::try_from_secs_f64(row.try_get::<_, f64>(column)?).unwrap_or_default())
        };
        Ok(Self {
            task: row.try_get(0)?,
            name: name.unwrap_or_default(),
            mode: row.try_get(2)?,
            number: row.try_get(3)?,
            last: row.try_get(4)?,
            outcome: row.try_get::<_, &str>(5)?.parse().map_err(|error: String| anyhow!(error))?,
            worker_pid: row.try_get(6)?,
            wait: seconds(7)?,
            run: seconds(8)?,
            message: row.try_get(9)?,
        })
    }
}

impl Totals {
    pub(crate) async fn take(client: &Client) -> Result<Self> {
        let rows = client.query_typed(TOTALS, &[]).await?;
        let number = |column: usize| -> Result<i64> {
            Ok(rows[0].try_get::<_, Option<i64>>(column)?.unwrap_or(0))
        };
        let products = client.query_typed(PRODUCTS, &[]).await?;
        Ok(Self {
            orders: number(0)?,
            cents: number(1)?,
            customers: number(2)?,
            spent_cents: number(3)?,
            days: number(4)?,
            cents_by_day: number(5)?,
            exchange_rates: number(6)?,
            staging_tables: number(7)?,
            products: products
                .iter()
                .map(|row| Ok((row.try_get(0)?, (row.try_get(1)?, row.try_get(2)?))))
                .collect::<Result<_>>()?,
        })
    }
}

/// Returns the number of registered workers that are not known to be dead.
pub(crate) async fn workers_ready(client: &Client) -> Result<i64> {
    Ok(client.query_typed(READY, &[]).await?[0].try_get(0)?)
}
