//! Compares the effects of the tasks with the expected effects.

use anyhow::Result;
use tokio_postgres::GenericClient;

use crate::result::Check;

/// Tasks are numbered; each task inserts one row with its number.
const NUMBERED: &str = "SELECT /* loadtest.effects */ count(*), count(DISTINCT e.task) FILTER (WHERE e.task BETWEEN $1 AND $2),
    count(*) FILTER (WHERE e.task NOT BETWEEN $1 AND $2)
FROM loadtest.effects e";

/// Counts by which every task that succeeded must have exactly one effect, and must no longer be in
/// the queue. Rows of synthetic history name no worker, and are excluded.
const SUCCEEDED: &str =
    "SELECT /* loadtest.effects_of_successes */ (SELECT count(*) FROM loadtest.effects),
    (SELECT count(DISTINCT e.task) FROM loadtest.effects e),
    (SELECT count(*) FROM mill.attempts a
        WHERE a.outcome = 'succeeded' AND a.worker_id IS NOT NULL),
    (SELECT count(*) FROM mill.attempts a JOIN mill.tasks t ON t.id = a.task_id
        WHERE a.final AND a.worker_id IS NOT NULL)";

const ONCE: &str = "every effect exactly once";

/// Checks that each task numbered `first` to `last` has had its effect exactly once.
///
/// # Errors
/// Returns an error if the query fails or the connection is lost.
pub async fn all(client: &impl GenericClient, first: i64, last: i64) -> Result<Check> {
    let row = client.query_one(NUMBERED, &[&first, &last]).await?;
    let (effects, distinct, strange): (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
    let tasks = last - first + 1;
    let (missing, doubled) = (tasks - distinct, effects - strange - distinct);
    Ok(Check {
        what: ONCE.to_owned(),
        passed: (missing, doubled, strange) == (0, 0, 0),
        detail: format!(
            "{tasks} tasks, {effects} effects: {missing} missing, {doubled} doubled, {strange} \
             without a task"
        ),
    })
}

/// Checks that the effects match the tasks that succeeded, if only some of the tasks ran.
///
/// # Errors
/// Returns an error if the query fails or the connection is lost.
pub async fn of_successes(client: &impl GenericClient) -> Result<Check> {
    let row = client.query_one(SUCCEEDED, &[]).await?;
    let (effects, distinct, succeeded): (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
    let still_there: i64 = row.get(3);
    Ok(Check {
        what: ONCE.to_owned(),
        passed: effects == distinct && effects == succeeded && still_there == 0,
        detail: format!(
            "{succeeded} tasks succeeded, {effects} effects, {} doubled, {still_there} finished \
             but still in the queue",
            effects - distinct
        ),
    })
}
