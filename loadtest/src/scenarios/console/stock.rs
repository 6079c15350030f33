//! What the console has to look through: live tasks in many queues, and history over twenty days.

use anyhow::{Context, Result};

use crate::bench::Bench;
use crate::database::Database;
use crate::scenarios::history;

/// Days with history, today among them.
const DAYS: i64 = 20;

/// Rows in one statement.
const CHUNK: i64 = 250_000;

/// Forty queues, three priorities, one in ten due later, half of them with a name.
const LIVE: &str = "/* loadtest.console_live */
INSERT INTO mill.tasks (queue, priority, state, due_at, name, statement)
SELECT 'etl-' || n % 40, (ARRAY['low', 'normal', 'high'])[1 + n % 3]::mill.priority,
    CASE WHEN n % 10 = 0 THEN 'scheduled' ELSE 'pending' END::mill.state,
    CASE WHEN n % 10 = 0 THEN now() + interval '1 day' + n * interval '1 millisecond' ELSE now() END,
    CASE WHEN n % 2 = 0 THEN 'task ' || n % 500 END, format('INSERT INTO loadtest.effects (task) VALUES (%s)', n)
FROM generate_series($1::bigint, $2) AS n";

/// Attempts numbered $2 to $3, evenly over the day $1 days ago, or over what there is of today. One in
/// fifty failed, in one of twenty ways.
const DAY: &str = "/* loadtest.console_day */
INSERT INTO mill.attempts (finished_at, task_id, enqueued_at, due_at, started_at, retry_interval,
    attempt, outcome, priority, mode, backoff, max_attempts, session_pid, final, jitter,
    at_most_once, external, queue, name, sqlstate, message, rows, statement)
SELECT at.finished, n, at.finished - interval '2 seconds', at.finished - interval '2 seconds',
    at.finished - interval '1 second', '10 seconds', 1,
    CASE WHEN n % 50 = 0 THEN 'failed' ELSE 'succeeded' END::mill.outcome, 'normal', 'transaction',
    'exponential', 1, 0, true, true, false, false, 'etl-' || n % 40,
    CASE WHEN n % 2 = 0 THEN 'task ' || n % 500 END, CASE WHEN n % 50 = 0 THEN '22012' END,
    CASE WHEN n % 50 = 0 THEN format('division by zero in %s', chr(97 + (n / 50 % 20)::int)) END, 1,
    format('INSERT INTO loadtest.effects (task) VALUES (%s)', n)
FROM (SELECT date_trunc('day', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC' - $1::int * interval '1 day'
        AS first) AS day,
    generate_series($2::bigint, $3) AS n,
    LATERAL (SELECT day.first + least(interval '1 day', now() - day.first)
        * ((n - $2)::float8 / ($3 - $2 + 1)) AS finished) AS at";

/// Nothing of the fill is to be run; groups, limits and schedules are there to be shown.
const SETTINGS: &str = "/* loadtest.console_settings */
DO $$ BEGIN
    PERFORM mill.pause('etl-' || n) FROM generate_series(0, 39) AS n;
    PERFORM mill.set_group('group ' || n, 'a group', max_concurrency => 5) FROM generate_series(1, 50) AS n;
    PERFORM mill.set_max_running('queue', 'narrow', 0);
    PERFORM mill.enqueue_many(array_fill('SELECT 1'::text, ARRAY[20000]), queue => 'narrow');
END $$";

const HOLD: &str = "/* loadtest.console_hold */
SELECT mill.enqueue('SELECT pg_sleep(7200)', name => 'long ' || n, queue => 'held')
FROM generate_series(1, $1::int) AS n";

const HELD: &str = "/* loadtest.console_held */
SELECT count(*) FROM mill.tasks t WHERE t.queue = 'held' AND t.state = 'running'";

/// Puts in so many live tasks and so many attempts.
pub(super) async fn fill(
    bench: &Bench,
    database: &Database,
    (live, ended): (i64, i64),
) -> Result<()> {
    let session = &database.session;
    bench.progress.stage("console: filling history");
    history::partitions(database, DAYS).await?;
    let of_day = ended / DAYS;
    for (number, ago) in (0..DAYS).rev().enumerate() {
        let first = i64::try_from(number)? * of_day + 1;
        let days_ago = i32::try_from(ago)?;
        session.execute(DAY, &[&days_ago, &first, &(first + of_day - 1)]).await?;
        bench.progress.state(&format!("{} of {DAYS} days", number + 1));
    }
    session.query_one(history::AFTER, &[&ended]).await?;
    bench.progress.stage("console: filling live tasks");
    session.batch_execute(SETTINGS).await.context("could not set queues and groups")?;
    let mut from = 1;
    while from <= live {
        let to = live.min(from + CHUNK - 1);
        session.execute(LIVE, &[&from, &to]).await.context("could not fill")?;
        bench.progress.state(&format!("{to} of {live}"));
        from = to + 1;
    }
    Ok(())
}

/// Every reader has a task that does not end.
pub(super) async fn hold(database: &Database, readers: u32) -> Result<()> {
    let readers = i32::try_from(readers)?;
    database.session.execute(HOLD, &[&readers]).await?;
    while database.session.query_typed(HELD, &[]).await?[0].get::<_, i64>(0) < i64::from(readers) {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    Ok(())
}
