//! The tasks, and the expected outcome of each.

use std::time::Duration;

use anyhow::Result;
use queue::enqueue::{NewTask, TaskOptions, enqueue, enqueue_many, notify};
use queue::{Backoff, Mode, Outcome};
use serde_json::json;
use tokio_postgres::Client;

use crate::data::BATCHES;
use crate::shop::Shop;

/// Number of tasks in the first phase: a load per batch, the merge that each load enqueues, and the
/// exchange rates.
pub(crate) const FIRST_PHASE: usize = 2 * BATCHES as usize + 1;
/// Number of tasks in both phases.
pub(crate) const ALL: usize = FIRST_PHASE + 5;

const LOAD: &str = include_str!("../sql/load.sql");
const MERGE: &str = include_str!("../sql/merge.sql");
const EXCHANGE_RATES: &str = include_str!("../sql/exchange_rates.sql");
const SALES_BY_DAY: &str = include_str!("../sql/sales_by_day.sql");

/// Fails once, then succeeds.
pub(crate) const FLAKY: &str = "exchange rates";
/// Fails permanently: product 1 already exists.
pub(crate) const DOOMED: &str = "add product 1 again";

/// Enqueues the loads of all batches; each load enqueues its merge.
pub(crate) async fn enqueue_loads(client: &Client, shop: &Shop) -> Result<()> {
    let loads: Vec<NewTask> = (1..=BATCHES)
        .map(|batch| named(&format!("load batch {batch}"), &load(batch, shop)))
        .collect();
    enqueue_many(client, &loads, &in_queue("load")).await?;
    let again = retried(2, Duration::from_millis(1500));
    enqueue(client, &named(FLAKY, EXCHANGE_RATES), &again, None).await?;
    notify(client).await?;
    Ok(())
}

/// Enqueues the reports on the complete orders.
pub(crate) async fn enqueue_reports(client: &Client) -> Result<()> {
    let reports = [
        named("sales by product", "REFRESH MATERIALIZED VIEW shop.sales_by_product"),
        named("sales by day", SALES_BY_DAY),
    ];
    enqueue_many(client, &reports, &in_queue("report")).await?;
    let autocommit = TaskOptions { mode: Some(Mode::Autocommit), ..in_queue("report") };
    let call = NewTask {
        params: Some(vec![json!(500)]),
        ..named("sum up customers", "CALL shop.sum_up_customers($1)")
    };
    enqueue(client, &call, &autocommit, None).await?;
    let doomed = "INSERT INTO shop.products (id, name) VALUES (1, 'pencil, new')";
    let twice = retried(2, Duration::from_millis(500));
    enqueue(client, &named(DOOMED, doomed), &twice, None).await?;
    let vacuum = named("vacuum orders", "VACUUM (ANALYZE) shop.orders");
    enqueue(client, &vacuum, &autocommit, None).await?;
    notify(client).await?;
    Ok(())
}

/// Returns whether a task ended as expected. `lost` means that its worker was killed.
pub(crate) fn as_planned(name: &str, outcomes: &[Outcome]) -> bool {
    let own: Vec<Outcome> =
        outcomes.iter().copied().filter(|outcome| *outcome != Outcome::Lost).collect();
    match name {
        FLAKY => own == [Outcome::Failed, Outcome::Succeeded],
        DOOMED => own == [Outcome::Failed, Outcome::Failed],
        _ => own == [Outcome::Succeeded],
    }
}

fn load(batch: u32, shop: &Shop) -> String {
    let file = shop.batch_file(batch).to_string_lossy().replace('\'', "''");
    // Every other load is slow: when the first four are finished, the other four are still running.
    let seconds = if batch.is_multiple_of(2) { "3" } else { "1" };
    LOAD.replace("{merge}", MERGE)
        .replace("{batch}", &batch.to_string())
        .replace("{seconds}", seconds)
        .replace("{file}", &file)
}

fn named(name: &str, statement: &str) -> NewTask {
    NewTask { statement: statement.to_owned(), name: Some(name.to_owned()), params: None }
}

fn in_queue(queue: &str) -> TaskOptions {
    TaskOptions { queue: Some(queue.to_owned()), ..TaskOptions::default() }
}

fn retried(max_attempts: i32, interval: Duration) -> TaskOptions {
    TaskOptions {
        max_attempts: Some(max_attempts),
        retry_interval: Some(interval),
        backoff: Some(Backoff::Fixed),
        jitter: Some(false),
        ..TaskOptions::default()
    }
}

#[cfg(test)]
mod tests {
    use Outcome::{Failed, Lost, Succeeded};

    use super::*;

    #[test]
    fn a_lost_attempt_changes_nothing_about_the_plan() {
        assert!(as_planned("load batch 1", &[Succeeded]));
        assert!(as_planned("load batch 1", &[Lost, Lost, Succeeded]));
        assert!(as_planned(FLAKY, &[Failed, Lost, Succeeded]));
        assert!(as_planned(DOOMED, &[Failed, Failed]));
    }

    #[test]
    fn other_outcomes_are_not_as_planned() {
        assert!(!as_planned("load batch 1", &[Lost]));
        assert!(!as_planned("load batch 1", &[Failed, Succeeded]));
        assert!(!as_planned("load batch 1", &[Succeeded, Succeeded]));
        assert!(!as_planned(FLAKY, &[Succeeded]));
        assert!(!as_planned(DOOMED, &[Succeeded]));
    }
}
