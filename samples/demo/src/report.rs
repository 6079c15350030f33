//! Prints the final report: a table of the tasks, and the totals compared with those of the
//! generated orders.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use queue::Outcome;

use crate::data::{BATCHES, Expected};
use crate::fleet::Fleet;
use crate::snapshot::{Attempt, Snapshot, Totals};
use crate::workload;

/// One comparison.
pub(crate) struct Check {
    what: &'static str,
    expected: String,
    found: String,
}

impl Check {
    fn new<E: Display, F: Display>(what: &'static str, (expected, found): (E, F)) -> Self {
        Self { what, expected: expected.to_string(), found: found.to_string() }
    }

    pub(crate) fn holds(&self) -> bool {
        self.expected == self.found
    }
}

/// Formats one row per task.
pub(crate) fn tasks(snapshot: &Snapshot, fleet: &Fleet) -> String {
    let mut table =
        table(&["id", "name", "mode", "attempts, on worker", "outcome", "wait", "duration"]);
    for attempts in by_task(snapshot) {
        let Some(last) = attempts.last() else { continue };
        let story: Vec<String> =
            attempts.iter().map(|attempt| outcome_text(attempt, fleet)).collect();
        table.add_row([
            last.task.to_string(),
            last.name.clone(),
            last.mode.clone(),
            story.join(", "),
            last.outcome.to_string(),
            format!("{:.2} s", last.wait.as_secs_f64()),
            format!("{:.2} s", last.run.as_secs_f64()),
        ]);
    }
    align_right(&mut table, &[0, 5, 6]);
    table.trim_fmt()
}

/// Compares the actual with the expected content.
pub(crate) fn checks(expected: &Expected, found: &Totals, snapshot: &Snapshot) -> Vec<Check> {
    let tasks = by_task(snapshot);
    let planned = tasks.iter().filter(|attempts| {
        let outcomes: Vec<Outcome> = attempts.iter().map(|attempt| attempt.outcome).collect();
        attempts.last().is_some_and(|last| workload::as_planned(&last.name, &outcomes))
    });
    let products: BTreeMap<String, (i64, i64)> = expected
        .products
        .iter()
        .map(|(name, (orders, cents))| {
            ((*name).to_owned(), (orders.cast_signed(), cents.cast_signed()))
        })
        .collect();
    let lost = snapshot.attempts.iter().any(|attempt| attempt.outcome == Outcome::Lost);
    let right = products.iter().filter(|(name, totals)| found.products.get(*name) == Some(totals));
    vec![
        Check::new("orders", (expected.orders, found.orders)),
        Check::new("cents of all orders", (expected.cents, found.cents)),
        Check::new("customers", (expected.customers, found.customers)),
        Check::new("cents spent by customers", (expected.cents, found.spent_cents)),
        Check::new("days", (expected.days, found.days)),
        Check::new("cents of all days", (expected.cents, found.cents_by_day)),
        Check::new("products", (products.len(), found.products.len())),
        Check::new("products with the right totals", (products.len(), right.count())),
        Check::new("exchange rates", (3, found.exchange_rates)),
        Check::new("staging tables left", (0, found.staging_tables)),
        Check::new("tasks", (workload::ALL, tasks.len())),
        Check::new("tasks that ended as expected", (workload::ALL, planned.count())),
        Check::new(
            "a worker was killed while running tasks",
            ("yes", if lost { "yes" } else { "no" }),
        ),
    ]
}

/// Formats the comparisons as a table.
pub(crate) fn verdicts(checks: &[Check]) -> String {
    let mut table = table(&["check", "expected", "found", ""]);
    for check in checks {
        let verdict = if check.holds() { "ok" } else { "WRONG" };
        table.add_row([check.what, &check.expected, &check.found, verdict]);
    }
    align_right(&mut table, &[1, 2]);
    table.trim_fmt()
}

/// Summarizes the demo.
pub(crate) fn summary(snapshot: &Snapshot, took: Duration) -> String {
    let lost = snapshot.attempts.iter().filter(|attempt| attempt.outcome == Outcome::Lost).count();
    format!(
        "The demo ran for {:.0} s and showed:\n\
         - {} tasks; other tasks enqueued {BATCHES} of these tasks inside their own transactions;\n\
         - {lost} tasks whose worker was killed with SIGKILL; another worker ran the tasks again, and no \
         row is missing or duplicated;\n\
         - a task that succeeded after a failed attempt, and a task that failed permanently;\n\
         - a CALL with COMMITs, and a VACUUM outside a transaction.\n\
         Cluster and workers are removed.",
        took.as_secs_f64(),
        workload::ALL,
    )
}

/// Groups the attempts by task, in order.
fn by_task(snapshot: &Snapshot) -> Vec<Vec<&Attempt>> {
    let mut tasks: BTreeMap<i64, Vec<&Attempt>> = BTreeMap::new();
    for attempt in &snapshot.attempts {
        tasks.entry(attempt.task).or_default().push(attempt);
    }
    tasks.into_values().collect()
}

/// Formats an outcome: `lost on 2`.
fn outcome_text(attempt: &Attempt, fleet: &Fleet) -> String {
    let worker = fleet.workers().iter().find(|worker| worker.pid == attempt.worker_pid);
    let number = worker.map_or_else(|| "?".to_owned(), |worker| worker.number.to_string());
    format!("{} on {number}", attempt.outcome)
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(header.iter().copied());
    table
}

fn align_right(table: &mut Table, columns: &[usize]) {
    for column in columns {
        if let Some(column) = table.column_mut(*column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}
