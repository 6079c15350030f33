//! Checks whether the size of the history affects throughput. Compares a drain with an empty
//! history and the same drain with millions of finished tasks, spread over the past days.

use std::sync::atomic::{AtomicI64, Ordering};

use anyhow::{Context, Result, ensure};

use super::with_and_without;
use crate::context::RunContext;
use crate::context::database::Database;
use crate::context::session::Session;
use crate::report::number_format::short_count;
use crate::result::Scenario;

/// Number of days with history, including today.
const DAYS: i64 = 20;

/// Today's date by the server's clock. It is read once at the start, because midnight may pass
/// during the fill.
const TODAY: &str =
    "SELECT /* loadtest.history_today */ to_char((now() AT TIME ZONE 'UTC')::date, 'YYYY-MM-DD')";

/// Creates the table of a past day without indexes. Filling the table first and building the
/// indexes afterwards takes a third of the time. `{day}` stands for the date.
const BEFORE: &str = "DO /* loadtest.history_before */ $$ BEGIN
    EXECUTE format('CREATE TABLE mill.%I (LIKE mill.attempts INCLUDING DEFAULTS)', 'attempts_' || to_char({day}, 'YYYYMMDD'));
END $$";

/// Creates the indexes that the parent defines on a new partition. They have the names that ATTACH
/// PARTITION would choose, so ATTACH PARTITION uses them. The result equals that of
/// `mill.prepare_history`.
const AFTER: &str = "DO /* loadtest.history_after */ $$
DECLARE
    part text := 'attempts_' || to_char({day}, 'YYYYMMDD');
    index text;
BEGIN
    SET LOCAL maintenance_work_mem = '256MB';
    FOR index IN SELECT pg_get_indexdef(i.indexrelid) FROM pg_index i WHERE i.indrelid = 'mill.attempts'::regclass LOOP
        EXECUTE regexp_replace(index, 'INDEX \\S+ ON ONLY mill\\.attempts ', format('INDEX ON mill.%I ', part));
    END LOOP;
    EXECUTE format('ALTER TABLE mill.attempts ATTACH PARTITION mill.%I FOR VALUES FROM (%L) TO (%L)',
        part, {day} || ' UTC', {day} + 1 || ' UTC');
END $$";

/// Partitions whose indexes differ from the parent's.
const STRANGE: &str = "SELECT /* loadtest.history_strange */ count(*) FROM pg_inherits h WHERE h.inhparent = 'mill.attempts'::regclass
    AND ARRAY(SELECT p.inhparent FROM pg_index i LEFT JOIN pg_inherits p ON p.inhrelid = i.indexrelid
            WHERE i.indrelid = h.inhrelid ORDER BY 1)
        IS DISTINCT FROM ARRAY(SELECT i.indexrelid FROM pg_index i WHERE i.indrelid = h.inhparent ORDER BY 1)";

/// Inserts the attempts numbered $1 to $2, evenly distributed over the day, or over the elapsed
/// part of today. One in fifty failed, with one of twenty messages.
const DAY: &str = "INSERT /* loadtest.history_day */ INTO mill.{table} (finished_at, task_id, enqueued_at, due_at,
    started_at, attempt, outcome, priority, session_pid, final, queue, name, sqlstate, message, rows, statement)
SELECT at.finished, n, at.finished - interval '2 seconds', at.finished - interval '2 seconds',
    at.finished - interval '1 second', 1,
    CASE WHEN n % 50 = 0 THEN 'failed' ELSE 'succeeded' END::mill.outcome, 'normal', 0, true, 'etl-' || n % 40,
    CASE WHEN n % 2 = 0 THEN 'task ' || n % 500 END, CASE WHEN n % 50 = 0 THEN '22012' END,
    CASE WHEN n % 50 = 0 THEN format('division by zero in %s', chr(97 + (n / 50 % 20)::int)) END, 1,
    format('INSERT INTO loadtest.effects (task) VALUES (%s)', n)
FROM (SELECT {day}::timestamp AT TIME ZONE 'UTC' AS first) AS day,
    generate_series($1::bigint, $2) AS n,
    LATERAL (SELECT day.first + least(interval '1 day', now() - day.first)
        * ((n - $1)::float8 / ($2 - $1 + 1)) AS finished) AS at";

/// Lets the ids of the live tasks continue after those of history.
const CONTINUE: &str = "SELECT /* loadtest.history_ids */ setval('mill.tasks_id_seq', $1)";

pub(crate) async fn run(context: &RunContext) -> Result<Scenario> {
    let size = context.size(20_000_000, 500_000);
    let with = format!("{} finished tasks on record", short_count(size));
    let names = ["0 finished tasks on record".to_owned(), with];
    let tasks = context.tasks(100_000, 20_000);
    with_and_without(context, tasks, names, async |database| record(context, database, size).await)
        .await
}

/// Inserts `ended` attempts, over two sessions.
pub(crate) async fn record(context: &RunContext, database: &Database, ended: i64) -> Result<()> {
    let session = &database.session;
    let today: String = session.query_typed(TODAY, &[]).await?[0].get(0);
    let other = context.connect(database.url()).await?;
    let done = AtomicI64::new(0);
    let fill = async |session: &Session, remainder: i64| {
        for ago in (0..DAYS).filter(|ago| ago % 2 == remainder) {
            let first = (DAYS - 1 - ago) * (ended / DAYS) + 1;
            let range = (first, first + ended / DAYS - 1);
            let day = format!("(date '{today}' - {ago})");
            fill_day(session, &day, (ago == 0, range))
                .await
                .context("could not insert a day of history")?;
            let done = done.fetch_add(1, Ordering::Relaxed) + 1;
            context.progress.state(&format!("{done} of {DAYS} days"));
        }
        anyhow::Ok(())
    };
    futures_util::try_join!(fill(session, 0), fill(&other, 1))?;
    let strange: i64 = session.query_typed(STRANGE, &[]).await?[0].get(0);
    ensure!(strange == 0, "the indexes of {strange} days of history differ from the schema");
    session.query_one(CONTINUE, &[&ended]).await?;
    Ok(())
}

/// Fills the day, an SQL expression, with these attempts.
async fn fill_day(
    session: &Session,
    day: &str,
    (today, (first, last)): (bool, (i64, i64)),
) -> Result<()> {
    let named = |sql: &str| sql.replace("{day}", day);
    if today {
        let fill = named(DAY).replace("{table}", "attempts");
        session.execute(&fill, &[&first, &last]).await?;
        return Ok(());
    }
    let name = format!("SELECT 'attempts_' || to_char({day}, 'YYYYMMDD')");
    let table: String = session.query_typed(&name, &[]).await?[0].get(0);
    session.batch_execute(&named(BEFORE)).await?;
    session.execute(&named(DAY).replace("{table}", &table), &[&first, &last]).await?;
    session.batch_execute(&named(AFTER)).await?;
    Ok(())
}
