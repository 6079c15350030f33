//! Checks whether the size of the history affects throughput. Compares a drain with an empty
//! history and the same drain with millions of finished tasks, spread over the past days.

use anyhow::Result;

use super::control_case::{ControlCase, compare};
use crate::context::RunContext;
use crate::context::database::Database;
use crate::report::number_format::short_count;
use crate::result::Scenario;

/// Number of days with history, including today.
const DAYS: i64 = 20;

/// Creates the partition of a day, equal to those that `mill.prepare_history` creates for future
/// days.
const PARTITION: &str = "DO /* loadtest.history_partition */ $$
DECLARE
    day date;
    partition_name text;
BEGIN
    SET LOCAL timezone = 'UTC';
    FOR ago IN 1..{days} LOOP
        day := current_date - ago;
        partition_name := 'attempts_' || to_char(day, 'YYYYMMDD');
        EXECUTE format('CREATE TABLE mill.%I (LIKE mill.attempts INCLUDING DEFAULTS)', partition_name);
        EXECUTE format('ALTER TABLE mill.attempts ATTACH PARTITION mill.%I FOR VALUES FROM (%L) TO (%L)',
            partition_name, day::timestamptz, (day + 1)::timestamptz);
    END LOOP;
END
$$";

/// Inserts finished tasks numbered $2 to $3, evenly distributed over the day that was $1 days ago,
/// or over the elapsed part of today.
const DAY: &str = "INSERT /* loadtest.history_day */ INTO mill.attempts (finished_at, task_id, enqueued_at, due_at, started_at, retry_interval,
    attempt, outcome, priority, mode, backoff, max_attempts, session_pid, final, jitter,
    at_most_once, external, queue, rows, statement)
SELECT at.finished, n, at.finished, at.finished, at.finished, '10 seconds', 1, 'succeeded', 'normal',
    'transaction', 'exponential', 3, 0, true, true, false, false, 'default', 1,
    format('INSERT INTO loadtest.effects (task) VALUES (%s)', n)
FROM (SELECT date_trunc('day', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC' - $1::int * interval '1 day'
        AS first) AS day,
    generate_series($2::bigint, $3) AS n,
    LATERAL (SELECT day.first + least(interval '1 day', now() - day.first)
        * ((n - $2)::float8 / ($3 - $2 + 1)) AS finished) AS at";

/// Lets the ids of the live tasks continue after those of history.
pub(crate) const AFTER: &str = "SELECT /* loadtest.history_ids */ setval('mill.tasks_id_seq', $1)";

pub(crate) async fn run(context: &RunContext) -> Result<Scenario> {
    let size = context.size(20_000_000, 500_000);
    let control_case = ControlCase {
        scenario: "history",
        without: "0 finished tasks on record".to_owned(),
        with: format!("{} finished tasks on record", short_count(size)),
        tasks: context.tasks(100_000, 20_000),
    };
    compare(context, &control_case, async |database| record(context, database, size).await).await
}

async fn record(context: &RunContext, database: &Database, size: i64) -> Result<()> {
    let session = &database.session;
    partitions(database, DAYS).await?;
    let of_day = size / DAYS;
    for (number, ago) in (0..DAYS).rev().enumerate() {
        let first = i64::try_from(number)? * of_day + 1;
        let days_ago = i32::try_from(ago)?;
        session.execute(DAY, &[&days_ago, &first, &(first + of_day - 1)]).await?;
        context.progress.state(&format!("{} of {DAYS} days", number + 1));
    }
    session.query_one(AFTER, &[&size]).await?;
    Ok(())
}

/// Creates the partitions of the last `days` days up to today.
pub(crate) async fn partitions(database: &Database, days: i64) -> Result<()> {
    database.session.batch_execute(&PARTITION.replace("{days}", &(days - 1).to_string())).await?;
    Ok(())
}
