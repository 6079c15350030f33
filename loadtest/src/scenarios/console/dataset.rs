//! Fills a database for the console: live tasks in many queues, and a history of twenty days.

use std::sync::atomic::{AtomicI64, Ordering};

use anyhow::{Context, Result, ensure};

use crate::context::RunContext;
use crate::context::database::Database;
use crate::context::session::Session;
use crate::scenarios::throughput::history;

/// Number of days with history, including today.
const DAYS: i64 = 20;

/// Number of rows per statement.
const CHUNK: i64 = 250_000;

/// Inserts live tasks in forty queues and three priorities. One task in ten is scheduled, and every
/// second task has a name.
const LIVE: &str = "INSERT /* loadtest.console_live */ INTO mill.tasks (queue, priority, state, due_at, name, statement)
SELECT 'etl-' || n % 40, (ARRAY['low', 'normal', 'high'])[1 + n % 3]::mill.priority,
    CASE WHEN n % 10 = 0 THEN 'scheduled' ELSE 'pending' END::mill.state,
    CASE WHEN n % 10 = 0 THEN now() + interval '1 day' + n * interval '1 millisecond' ELSE now() END,
    CASE WHEN n % 2 = 0 THEN 'task ' || n % 500 END, format('INSERT INTO loadtest.effects (task) VALUES (%s)', n)
FROM generate_series($1::bigint, $2) AS n";

/// Today's date by the server's clock. It is read once at the start, because midnight may pass
/// during the fill.
const TODAY: &str =
    "SELECT /* loadtest.console_today */ to_char((now() AT TIME ZONE 'UTC')::date, 'YYYY-MM-DD')";

/// Creates the table of a past day without indexes. Filling the table first and building the
/// indexes afterwards takes a third of the time. `{day}` stands for the date.
const BEFORE: &str = "DO /* loadtest.console_before */ $$ BEGIN
    EXECUTE format('CREATE TABLE mill.%I (LIKE mill.attempts INCLUDING DEFAULTS)', 'attempts_' || to_char({day}, 'YYYYMMDD'));
END $$";

/// Creates the indexes that the parent defines on a new partition. They have the names that ATTACH
/// PARTITION would choose, so ATTACH PARTITION uses them. The result equals that of
/// `mill.prepare_history`.
const AFTER: &str = "DO /* loadtest.console_after */ $$
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
const STRANGE: &str = "SELECT /* loadtest.console_strange */ count(*) FROM pg_inherits h WHERE h.inhparent = 'mill.attempts'::regclass
    AND ARRAY(SELECT p.inhparent FROM pg_index i LEFT JOIN pg_inherits p ON p.inhrelid = i.indexrelid
            WHERE i.indrelid = h.inhrelid ORDER BY 1)
        IS DISTINCT FROM ARRAY(SELECT i.indexrelid FROM pg_index i WHERE i.indrelid = h.inhparent ORDER BY 1)";

/// Inserts the attempts numbered $1 to $2, evenly distributed over the day, or over the elapsed
/// part of today. One in fifty failed, with one of twenty messages.
const DAY: &str = "INSERT /* loadtest.console_day */ INTO mill.{table} (finished_at, task_id, enqueued_at, due_at, started_at, retry_interval,
    attempt, outcome, priority, mode, backoff, max_attempts, session_pid, final, jitter,
    at_most_once, external, queue, name, sqlstate, message, rows, statement)
SELECT at.finished, n, at.finished - interval '2 seconds', at.finished - interval '2 seconds',
    at.finished - interval '1 second', '10 seconds', 1,
    CASE WHEN n % 50 = 0 THEN 'failed' ELSE 'succeeded' END::mill.outcome, 'normal', 'transaction',
    'exponential', 1, 0, true, true, false, false, 'etl-' || n % 40,
    CASE WHEN n % 2 = 0 THEN 'task ' || n % 500 END, CASE WHEN n % 50 = 0 THEN '22012' END,
    CASE WHEN n % 50 = 0 THEN format('division by zero in %s', chr(97 + (n / 50 % 20)::int)) END, 1,
    format('INSERT INTO loadtest.effects (task) VALUES (%s)', n)
FROM (SELECT {day}::timestamp AT TIME ZONE 'UTC' AS first) AS day,
    generate_series($1::bigint, $2) AS n,
    LATERAL (SELECT day.first + least(interval '1 day', now() - day.first)
        * ((n - $1)::float8 / ($2 - $1 + 1)) AS finished) AS at";

/// Prevents the inserted tasks from running, and creates groups, limits and schedules to display.
const SETTINGS: &str = "DO /* loadtest.console_settings */ $$ BEGIN
    PERFORM mill.pause('etl-' || n) FROM generate_series(0, 39) AS n;
    PERFORM mill.set_group('group ' || n, 'a group', max_running => 5) FROM generate_series(1, 50) AS n;
    PERFORM mill.set_max_running('queue', 'narrow', 0);
    PERFORM mill.enqueue_many(array_fill('SELECT 1'::text, ARRAY[20000]), queue => 'narrow');
    PERFORM mill.set_job('job ' || n, jsonb_build_array(
        jsonb_build_object('name', 'first ' || n, 'statement', 'SELECT 1', 'queue', 'etl-1'),
        jsonb_build_object('name', 'second ' || n, 'statement', 'SELECT 1', 'queue', 'etl-1',
            'after', jsonb_build_array('first ' || n)))) FROM generate_series(1, 300) AS n;
    PERFORM mill.set_schedule('schedule ' || n, 'manual', jobs => ARRAY['job ' || n]) FROM generate_series(1, 200) AS n;
    PERFORM mill.start_run(ARRAY['job ' || n % 300 + 1]) FROM generate_series(1, 1000) AS n;
END $$";

/// Inserts one object of each kind, into the empty database as well as into the full one: a job, a
/// task and a schedule of the same name, a waiting run, a waiting task, and a failed task.
const ONE: &str = "DO /* loadtest.console_one */ $$ BEGIN
    PERFORM mill.pause('etl-1');
    PERFORM mill.set_job('it', jsonb_build_array(jsonb_build_object('name', 'it', 'statement', 'SELECT 1', 'queue', 'etl-1')));
    PERFORM mill.set_schedule('it', 'manual', jobs => ARRAY['it']);
    PERFORM mill.start_run(ARRAY['it']);
    PERFORM mill.enqueue('SELECT 1', name => 'task 78', queue => 'etl-1');
    INSERT INTO mill.attempts (finished_at, task_id, enqueued_at, due_at, started_at, retry_interval, attempt, outcome, priority,
        mode, backoff, max_attempts, final, jitter, at_most_once, external, queue, name, sqlstate, message, statement)
    VALUES (now(), nextval('mill.tasks_id_seq'), now(), now(), now(), '10 seconds', 1, 'failed', 'normal', 'transaction', 'exponential', 1,
        true, true, false, false, 'etl-3', 'task 78', '22012', 'division by zero', 'SELECT 1');
END $$";

const RUN_FOREVER: &str = "SELECT /* loadtest.console_run_forever */ mill.enqueue('SELECT pg_sleep(7200)', name => 'long ' || n, queue => 'held')
FROM generate_series(1, $1::int) AS n";

const RUNNING_FOREVER: &str = "SELECT /* loadtest.console_running_forever */ count(*) FROM mill.tasks t WHERE t.queue = 'held' AND t.state = 'running'";

/// Inserts the live tasks and the attempts.
pub(super) async fn fill(
    context: &RunContext,
    database: &Database,
    (live, ended): (i64, i64),
) -> Result<()> {
    let session = &database.session;
    context.progress.stage("console: filling history");
    let today: String = session.query_typed(TODAY, &[]).await?[0].get(0);
    let other = context.connect(database.url()).await?;
    let done = AtomicI64::new(0);
    let days = |remainder: i64| {
        (0..DAYS).filter(move |ago| ago % 2 == remainder).map(|ago| Day {
            sql: format!("(date '{today}' - {ago})"),
            today: ago == 0,
            first: (DAYS - 1 - ago) * (ended / DAYS) + 1,
            last: (DAYS - ago) * (ended / DAYS),
        })
    };
    let of_one = async |session: &Session, days: &mut dyn Iterator<Item = Day>| {
        for day in days {
            day.fill(session).await.context("could not insert a day of history")?;
            let done = done.fetch_add(1, Ordering::Relaxed) + 1;
            context.progress.state(&format!("{done} of {DAYS} days"));
        }
        anyhow::Ok(())
    };
    let (mut even, mut odd) = (days(0), days(1));
    futures_util::try_join!(of_one(session, &mut even), of_one(&other, &mut odd))?;
    let strange: i64 = session.query_typed(STRANGE, &[]).await?[0].get(0);
    ensure!(strange == 0, "the indexes of {strange} days of history differ from the schema");
    session.query_one(history::AFTER, &[&ended]).await?;
    context.progress.stage("console: filling live tasks");
    session.batch_execute(SETTINGS).await.context("could not configure queues and groups")?;
    let mut from = 1;
    while from <= live {
        let to = live.min(from + CHUNK - 1);
        session.execute(LIVE, &[&from, &to]).await.context("could not insert live tasks")?;
        context.progress.state(&format!("{to} of {live}"));
        from = to + 1;
    }
    Ok(())
}

/// A day of history.
struct Day {
    /// Date as an SQL literal.
    sql: String,
    today: bool,
    first: i64,
    last: i64,
}

impl Day {
    async fn fill(&self, session: &Session) -> Result<()> {
        let named = |sql: &str| sql.replace("{day}", &self.sql);
        if self.today {
            let fill = named(DAY).replace("{table}", "attempts");
            session.execute(&fill, &[&self.first, &self.last]).await?;
            return Ok(());
        }
        let name = format!("SELECT 'attempts_' || to_char({}, 'YYYYMMDD')", self.sql);
        let table: String = session.query_typed(&name, &[]).await?[0].get(0);
        session.batch_execute(&named(BEFORE)).await?;
        let fill = named(DAY).replace("{table}", &table);
        session.execute(&fill, &[&self.first, &self.last]).await?;
        session.batch_execute(&named(AFTER)).await?;
        Ok(())
    }
}

/// Inserts one object of each kind.
pub(super) async fn insert_examples(database: &Database) -> Result<()> {
    database.session.batch_execute(ONE).await.context("could not insert the examples")
}

/// Gives every reader a task that does not end.
pub(super) async fn occupy_readers(database: &Database, readers: u32) -> Result<()> {
    let readers = i32::try_from(readers)?;
    database.session.execute(RUN_FOREVER, &[&readers]).await?;
    while database.session.query_typed(RUNNING_FOREVER, &[]).await?[0].get::<_, i64>(0)
        < i64::from(readers)
    {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    Ok(())
}
