//! A queue restored from a backup continues, and its effects agree with its history.

use std::path::PathBuf;
use std::process::Command;

use cluster::ARCHIVING;
use queue::drift;

use super::worker;
use crate::harness::private::server_programs;
use crate::harness::{Database, PrivateDatabase, Program, Worker, amount, eventually};

const EFFECT: &str = "INSERT INTO effect SELECT current_setting('mill.task_id')::bigint";
const WAITS_FOR_LOCK: &str = "INSERT INTO effect SELECT current_setting('mill.task_id')::bigint;
    SELECT pg_advisory_xact_lock_shared(1)";

/// Number of tasks that are recorded as succeeded and have no effect, or that have an effect and
/// are not recorded as succeeded.
const TORN: &str =
    "SELECT count(*) FROM (SELECT task_id FROM mill.attempts WHERE outcome = 'succeeded'
        AND statement LIKE 'INSERT INTO effect%') AS a FULL JOIN effect e ON e.task = a.task_id
    WHERE a.task_id IS NULL OR e.task IS NULL";

/// Number of tasks that have ended before the backup.
fn tasks_before() -> i64 {
    amount(40, 200)
}

/// Number of tasks that come after the backup.
fn tasks_after() -> i64 {
    amount(600, 3000)
}

async fn count(database: &Database, what: &str) -> i64 {
    database.value(&format!("SELECT count(*) FROM {what}")).await
}

/// Creates a queue with ended tasks, a running task, a task whose effect is outside the database,
/// and pending tasks.
async fn at_work(database: &Database, outside: &str) -> Worker {
    database
        .execute(
            "GRANT pg_execute_server_program TO mill_test_tasks;
             CREATE TABLE effect (task bigint); SELECT pg_advisory_lock(1)",
        )
        .await;
    let worker = worker(database, "4", "2s", &[]);
    database.enqueue_many(tasks_before().try_into().unwrap(), EFFECT).await;
    database.until_empty().await;
    let held = database.enqueue(WAITS_FOR_LOCK, "").await;
    database.until_waiting_for_lock(held).await;
    let program = format!("COPY (SELECT 1) TO PROGRAM 'cat >> {outside}'");
    database
        .enqueue(
            &program,
            ", queue => 'outside', external => true, due_at => now() + interval '1 day'",
        )
        .await;
    worker
}

#[tokio::test(flavor = "multi_thread")]
async fn a_point_in_time_recovery_has_the_effects_and_history_of_that_point() {
    let private = PrivateDatabase::new(&[ARCHIVING, &[("fsync", "off")]].concat()).await;
    let database = &private.database;
    let outside = private.cluster.directory().join("data/outside");
    let mut first = at_work(database, &outside.display().to_string()).await;
    let backup = private.cluster.backup().unwrap();
    // These tasks come after the backup, so only the WAL contains them. At any recovery point, some
    // of them have ended and some have not.
    database.enqueue_many(tasks_after().try_into().unwrap(), EFFECT).await;
    let some = tasks_before() + tasks_after() / 10;
    eventually("some tasks have ended", async || count(database, "mill.attempts").await > some)
        .await;
    database.execute("SELECT pg_create_restore_point('here')").await;
    // Changes that the recovery must undo.
    database
        .execute(
            "UPDATE mill.tasks SET due_at = now(), state = 'pending' WHERE state = 'scheduled'",
        )
        .await;
    database.execute("SELECT pg_advisory_unlock(1)").await;
    database.until_empty().await;
    assert_eq!(std::fs::read_to_string(&outside).unwrap(), "1\n");
    until_kept(database).await;
    assert!(first.terminate().await.success());

    let copy = backup.recover("here").unwrap();
    let recovered = database.in_copy(copy.url("postgres")).await;
    eventually("the task runs", async || {
        !recovered.value::<bool>("SELECT pg_is_in_recovery()").await
    })
    .await;
    let (effects, waiting) =
        (count(&recovered, "effect").await, count(&recovered, "mill.tasks").await);
    println!("recovered: {effects} effects, {waiting} tasks");
    let all = tasks_before() + tasks_after();
    assert!((some..=all).contains(&effects), "{effects}");
    assert_eq!(effects + waiting, all + 2);
    assert_eq!(recovered.value::<i64>(TORN).await, 0);
    assert_eq!(count(&recovered, "mill.workers").await, 0);
    assert!(count(&recovered, "mill.tasks WHERE state = 'running'").await >= 1);
    check_and_resume(&recovered).await;
    // An effect outside the database happens again.
    assert_eq!(std::fs::read_to_string(&outside).unwrap(), "1\n1\n");
}

/// Waits until all WAL that has been written so far is archived.
async fn until_kept(database: &Database) {
    let file = "SELECT pg_walfile_name(pg_current_wal_lsn())";
    let file: String = database.value(file).await;
    database.execute("SELECT pg_switch_wal()").await;
    let archived = format!("SELECT last_archived_wal >= '{file}' FROM pg_stat_archiver");
    eventually("the WAL is archived", async || {
        database.value::<Option<bool>>(&archived).await == Some(true)
    })
    .await;
}

/// Follows the documented procedure: pause, start a worker, check, resume.
async fn check_and_resume(recovered: &Database) {
    let pgmill = |arguments: &[&str]| Program::pgmill(recovered, arguments);
    for queue in ["default", "outside"] {
        pgmill(&["queue", "pause", queue, "--create"]).succeeds().await;
    }
    let mut second = worker(recovered, "4", "2s", &[]);
    eventually("the running tasks are reclaimed", async || {
        count(recovered, "mill.tasks WHERE state = 'running'").await == 0
    })
    .await;
    let lost = "SELECT count(*) FROM mill.attempts WHERE outcome = 'lost'";
    let lost: i64 = recovered.value(lost).await;
    assert!(lost >= 1, "the held task");
    recovered
        .execute("UPDATE mill.tasks SET due_at = now(), state = 'pending' WHERE state = 'scheduled' AND queue = 'outside'")
        .await;
    for queue in ["default", "outside"] {
        pgmill(&["queue", "resume", queue]).succeeds().await;
    }
    recovered.until_empty().await;
    assert_eq!(recovered.value::<i64>(TORN).await, 0);
    let all = tasks_before() + tasks_after() + 1;
    assert_eq!(count(recovered, "effect").await, all);
    assert_eq!(recovered.value::<i64>("SELECT count(DISTINCT task) FROM effect").await, all);
    assert!(second.terminate().await.success());
}

/// Returns a client program of the server's version, if it is installed.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    let found = server_programs().map(|folder| folder.join(name));
    let found = found.filter(|path| path.is_file()).unwrap_or_else(|| PathBuf::from(name));
    let there = Command::new(&found).arg("--version").output().is_ok();
    if !there {
        println!("skipped: {name} is not installed");
    }
    there.then_some(found)
}

/// Dumps one database and restores it into another. Returns `false` if pg_dump or pg_restore is
/// missing.
pub(crate) fn dumped_and_restored(from: &Database, to: &Database) -> bool {
    let (Some(dump), Some(restore)) = (program("pg_dump"), program("pg_restore")) else {
        return false;
    };
    let file = std::env::temp_dir().join(format!("pgmill-dump-{}", to.name()));
    let run = |command: &mut Command| {
        let output = command.output().unwrap();
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), printed)
    };
    let (done, printed) = run(Command::new(dump).args(["-Fc", "-f"]).arg(&file).arg(from.url()));
    if printed.contains("server version mismatch") {
        println!("skipped: pg_dump is older than the server");
        return false;
    }
    assert!(done, "{printed}");
    let (done, printed) =
        run(Command::new(restore).args(["--exit-on-error", "-d", &to.url()]).arg(&file));
    assert!(done, "{printed}");
    std::fs::remove_file(file).unwrap();
    true
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dumped_queue_continues_where_it_was_restored() {
    let older = PrivateDatabase::before_upgrade(&[("fsync", "off")]).await;
    let database = &older.database;
    let mut first = at_work(database, "/dev/null").await;
    database.execute("SELECT mill.pause('default'), mill.pause('narrow'), mill.set_max_running('queue', 'narrow', 1)").await;
    database.enqueue_many(50, EFFECT).await;
    database.enqueue(EFFECT, ", queue => 'narrow', key => 'once'").await;
    Program::enqueue(database, &["--in", "1h", EFFECT]).succeeds().await;
    let (ended, live) =
        (count(database, "mill.attempts").await, count(database, "mill.tasks").await);
    let last: i64 = database.value("SELECT max(id) FROM mill.tasks").await;
    let fresh = Database::empty().await;
    if !dumped_and_restored(database, &fresh) {
        return;
    }
    assert_eq!(count(&fresh, "mill.attempts").await, ended);
    assert_eq!(count(&fresh, "mill.tasks").await, live);
    let differences = drift::differences(&mut fresh.connect().await).await.unwrap().unwrap();
    assert!(differences.is_empty(), "{differences:?}");
    assert_eq!(fresh.value::<i64>(TORN).await, 0);
    let again = fresh.enqueue(EFFECT, ", queue => 'narrow', key => 'once'").await;
    assert!(again <= last, "the key is known");
    assert!(fresh.enqueue(EFFECT, "").await > last);
    let _second = worker(&fresh, "4", "2s", &[]);
    for queue in ["default", "narrow"] {
        Program::pgmill(&fresh, &["queue", "resume", queue]).succeeds().await;
    }
    eventually("all due tasks have ended", async || {
        count(&fresh, "mill.tasks WHERE state <> 'scheduled'").await == 0
    })
    .await;
    assert_eq!(fresh.value::<i64>(TORN).await, 0);
    // The attempt of the task that was running during the dump.
    assert_eq!(count(&fresh, "mill.attempts WHERE outcome = 'lost'").await, 1);
    assert_eq!(count(&fresh, "effect").await, tasks_before() + 1 + 50 + 1 + 1);
    // The original database is unchanged.
    assert_eq!(count(database, "mill.tasks").await, live);
    database.execute("SELECT pg_advisory_unlock(1)").await;
    assert!(first.terminate().await.success());
}
