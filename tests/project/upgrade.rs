//! The schema is upgraded, and then the programs one by one, while the fleet works.
//!
//! The programs of these tests are the current ones; the next version of the schema is the fixture of `versions.rs`.

use queue::schema::{self, InstalledSchema, VERSION};
use queue::upgrade::{Migration, upgrade};
use tokio_postgres::Client;

use crate::harness::{Database, PrivateDatabase, Program, Worker, amount, eventually};
use crate::project::versions::{NEXT, next_schema};

/// Returns the number of workers.
fn fleet_size() -> usize {
    amount(5, 20)
}

/// A task that leaves an effect. One task in fifty runs so long that some are running during every
/// step.
const TASK: &str = "INSERT INTO effect SELECT current_setting('mill.task_id')::bigint;
    SELECT pg_sleep(CASE WHEN current_setting('mill.task_id')::bigint % 50 = 0 THEN 0.3 ELSE 0 END)";

async fn stage() -> PrivateDatabase {
    let private = PrivateDatabase::new(&[("max_connections", "600")]).await;
    private.database.execute("CREATE TABLE effect (task bigint)").await;
    private
}

fn worker(database: &Database) -> Worker {
    Worker::start(database, &["--readers", "2", "--poll-interval", "100ms"])
}

fn workers(database: &Database) -> Vec<Worker> {
    (0..fleet_size()).map(|_| worker(database)).collect()
}

/// Enqueues tasks with a single attempt. An attempt that does not succeed then ends its task, and
/// so becomes visible.
async fn submit(client: &Client, tasks: i32) {
    let sql =
        "SELECT count(mill.enqueue($1, max_attempts => 1)) FROM generate_series(1, $2::integer)";
    client.query(sql, &[&TASK, &tasks]).await.unwrap();
}

async fn ended(database: &Database) -> i64 {
    database.value("SELECT count(*) FROM mill.attempts").await
}

/// Waits until `tasks` more tasks have ended. Enqueues other tasks meanwhile.
async fn more(database: &Database, client: &Client, tasks: i64) {
    let before = ended(database).await;
    let refill: i32 = amount(150, 500);
    eventually(&format!("{tasks} more tasks end"), async || {
        let now = ended(database).await;
        if database.value::<i64>("SELECT count(*) FROM mill.tasks").await < i64::from(refill) {
            submit(client, refill).await;
        }
        now >= before + tasks
    })
    .await;
}

/// Asserts that every task has ended in its first attempt, with its effect once.
async fn nothing_was_lost(database: &Database) {
    database.until_empty().await;
    let odd = "SELECT coalesce(string_agg(DISTINCT concat_ws(' ', outcome, attempt, sqlstate, message), '; '), '')
        FROM mill.attempts WHERE outcome <> 'succeeded' OR attempt <> 1";
    assert_eq!(database.value::<String>(odd).await, "");
    let counts = "SELECT ARRAY[(SELECT count(*) FROM mill.attempts), (SELECT count(DISTINCT task_id) FROM mill.attempts),
        (SELECT max(task_id) FROM mill.attempts), (SELECT count(*) FROM effect), (SELECT count(DISTINCT task) FROM effect)]";
    let counts: Vec<i64> = database.value(counts).await;
    assert!(counts.iter().all(|count| *count == counts[0]), "{counts:?}");
    println!("{} tasks, each once", counts[0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_fleet_keeps_working_while_the_schema_is_upgraded() {
    let private = stage().await;
    let database = &private.database;
    let schema = next_schema();
    let (producer, holder, operator) =
        (database.connect().await, database.connect().await, database.connect().await);
    let mut fleet = workers(database);
    more(database, &producer, amount(150, 500)).await;
    // Open a transaction that has read the tables.
    holder.batch_execute("BEGIN; LOCK TABLE mill.tasks IN ACCESS SHARE MODE").await.unwrap();
    let waiting = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted
        AND relation = 'mill.tasks'::regclass AND mode = 'AccessExclusiveLock')";
    let meanwhile = async {
        for _ in 0..3 {
            eventually("the migration waits", async || database.value(waiting).await).await;
            eventually("the migration gives way", async || !database.value::<bool>(waiting).await)
                .await;
            more(database, &producer, amount(50, 100)).await;
        }
        holder.batch_execute("ROLLBACK").await.unwrap();
    };
    let (done, ()) = tokio::join!(upgrade(&operator, &[NEXT], &schema), meanwhile);
    let done = done.unwrap();
    assert_eq!(done.applied, [NEXT.name]);
    assert!(done.lock_retries >= 3, "{done:?}");
    println!("released its lock request {} times", done.lock_retries);
    let found = schema::installed(database.client()).await.unwrap();
    assert_eq!(
        found,
        Some(InstalledSchema { version: NEXT.version, min_compatible_version: VERSION })
    );
    more(database, &producer, amount(150, 500)).await;
    // Start a program of the previous version now.
    let one_more = worker(database);
    one_more.until_logged("ready").await;
    fleet.push(one_more);
    more(database, &producer, amount(150, 500)).await;
    nothing_was_lost(database).await;
    let ended = fleet.iter_mut().filter_map(Worker::ended_already).count();
    assert_eq!(ended, 0, "workers ended");
    operators_continue(database).await;
}

/// Checks the output of the command-line programs with the newer schema.
async fn operators_continue(database: &Database) {
    let pgmill = |arguments| Program::pgmill(database, arguments);
    let printed = Program::init(database).succeeds().await;
    assert!(
        printed.contains("version 2 is already installed, and supports this program"),
        "{printed}"
    );
    let (_, printed, _) = pgmill(&["doctor"]).run().await;
    assert!(
        printed.contains("2, and this program was built for 1, which the schema supports"),
        "{printed}"
    );
    let older = format!("{} workers older than schema version 2", fleet_size() + 1);
    assert!(printed.contains(&older), "{printed}");
    let printed = pgmill(&["worker", "list"]).succeeds().await;
    assert!(printed.lines().next().unwrap().contains("SCHEMA"), "{printed}");
    pgmill(&["status"]).succeeds().await;
    Program::enqueue(database, &["--wait", "SELECT 1"]).succeeds().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_are_replaced_one_after_the_other_under_load() {
    let private = stage().await;
    let database = &private.database;
    let producer = database.connect().await;
    let mut fleet = workers(database);
    more(database, &producer, amount(150, 300)).await;
    for one in &mut fleet {
        assert!(one.terminate().await.success(), "{}", one.log());
        *one = worker(database);
        more(database, &producer, amount(30, 50)).await;
    }
    nothing_was_lost(database).await;
    let started: i64 = database.value("SELECT count(*) FROM mill.worker_starts").await;
    assert_eq!(usize::try_from(started), Ok(2 * fleet_size()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_is_applied_once_and_atomically() {
    let database = Database::new().await;
    let (one, other) = (database.connect().await, database.connect().await);
    let broken = Migration { sql: "CREATE TABLE mill.half (); SELECT 1 / 0;", ..NEXT };
    let error = upgrade(&one, &[broken], "").await.unwrap_err();
    assert!(error.to_string().contains("division by zero"), "{error}");
    assert!(database.value::<bool>("SELECT to_regclass('mill.half') IS NULL").await);
    let gap = Migration { version: VERSION + 2, ..NEXT };
    let error = upgrade(&one, &[gap], "").await.unwrap_err();
    assert!(error.to_string().contains("no migration leads from schema version 1 to 2"), "{error}");
    // Each of the two migrations would succeed even if it were applied twice, so count the
    // applications.
    let last = Migration {
        version: VERSION + 2,
        min_compatible_version: NEXT.version,
        name: "003_last.sql",
        sql: "INSERT INTO public.applied VALUES (3)",
    };
    let next = Migration { sql: "INSERT INTO public.applied VALUES (2)", ..NEXT };
    database
        .execute("CREATE TABLE applied (version int); GRANT INSERT ON applied TO mill_owner")
        .await;
    // Wait until both programs have read the version, before either of them continues.
    database.execute("BEGIN; LOCK TABLE mill.schema_version IN ROW EXCLUSIVE MODE").await;
    let go = async {
        let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'relation'
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        eventually("both wait", async || database.value::<i64>(waiting).await == 2).await;
        database.execute("COMMIT").await;
    };
    let (migrations, again) = ([next, last], [next, last]);
    let (a, b, ()) = tokio::join!(upgrade(&one, &migrations, ""), upgrade(&other, &again, ""), go);
    let mut applied = [a.unwrap().applied, b.unwrap().applied].concat();
    applied.sort_unstable();
    assert_eq!(applied, [next.name, last.name]);
    let effects = "SELECT string_agg(version::text, ' ' ORDER BY version) FROM applied";
    assert_eq!(database.value::<String>(effects).await, "2 3");
    let found = schema::installed(database.client()).await.unwrap();
    assert_eq!(
        found,
        Some(InstalledSchema { version: last.version, min_compatible_version: NEXT.version })
    );
    let error = schema::check_version(database.client()).await.unwrap_err();
    assert!(error.to_string().contains("has schema version 3"), "{error}");
    let hint = error.hint().unwrap();
    assert!(hint.contains("built for schema version 2 or later"), "{hint}");
}
