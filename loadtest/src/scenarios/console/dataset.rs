//! Fills a database for the console: live tasks in many queues, and a history of twenty days.

use anyhow::{Context, Result};

use crate::context::RunContext;
use crate::context::database::{Database, chunks};
use crate::fleet::Fleet;
use crate::scenarios::throughput::history;

/// Inserts live tasks in forty queues and three priorities. One task in ten is scheduled, and every
/// second task has a name.
const LIVE: &str = "INSERT /* loadtest.console_live */ INTO mill.tasks (queue, priority, state, due_at, name, statement)
SELECT 'etl-' || n % 40, (ARRAY['low', 'normal', 'high'])[1 + n % 3]::mill.priority,
    CASE WHEN n % 10 = 0 THEN 'scheduled' ELSE 'pending' END::mill.state,
    CASE WHEN n % 10 = 0 THEN now() + interval '1 day' + n * interval '1 millisecond' ELSE now() END,
    CASE WHEN n % 2 = 0 THEN 'task ' || n % 500 END, format('INSERT INTO loadtest.effects (task) VALUES (%s)', n)
FROM generate_series($1::bigint, $2) AS n";

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
    PERFORM mill.set_job('it', jsonb_build_array(jsonb_build_object('name', 'it', 'statement', 'SELECT 1', 'queue',
        'etl-1')));
    PERFORM mill.set_schedule('it', 'manual', jobs => ARRAY['it']);
    PERFORM mill.start_run(ARRAY['it']);
    PERFORM mill.enqueue('SELECT 1', name => 'task 78', queue => 'etl-1');
    INSERT INTO mill.attempts (finished_at, task_id, enqueued_at, due_at, started_at, attempt, outcome, priority,
        final, queue, name, sqlstate, message, statement)
    VALUES (now(), nextval('mill.tasks_id_seq'), now(), now(), now(), 1, 'failed', 'normal', true, 'etl-3',
        'task 78', '22012', 'division by zero', 'SELECT 1');
END $$";

const RUN_FOREVER: &str =
    "SELECT /* loadtest.console_run_forever */ mill.enqueue('SELECT pg_sleep(7200)',
    name => 'long ' || n, queue => 'held')
FROM generate_series(1, $1::int) AS n";

const RUNNING_FOREVER: &str = "SELECT /* loadtest.console_running_forever */ count(*) = $1 FROM mill.tasks t WHERE t.queue = 'held' AND t.state = 'running'";

/// Inserts the live tasks and the attempts.
pub(super) async fn fill(
    context: &RunContext,
    database: &Database,
    (live, ended): (i64, i64),
) -> Result<()> {
    let session = &database.session;
    context.progress.stage("console: filling history");
    history::record(context, database, ended).await?;
    context.progress.stage("console: filling live tasks");
    session.batch_execute(SETTINGS).await.context("could not configure queues and groups")?;
    for (from, to) in chunks(1, live) {
        session.execute(LIVE, &[&from, &to]).await.context("could not insert live tasks")?;
        context.progress.state(&format!("{to} of {live}"));
    }
    Ok(())
}

/// Inserts one object of each kind.
pub(super) async fn insert_examples(database: &Database) -> Result<()> {
    database.session.batch_execute(ONE).await.context("could not insert the examples")
}

/// Gives every reader a task that does not end.
pub(super) async fn occupy_readers(
    database: &Database,
    fleet: &mut Fleet<'_>,
    readers: u32,
) -> Result<()> {
    database.session.execute(RUN_FOREVER, &[&i32::try_from(readers)?]).await?;
    fleet.until(RUNNING_FOREVER, &[&i64::from(readers)]).await
}
