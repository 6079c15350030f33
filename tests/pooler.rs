//! What may go through a connection pooler goes, and what may not says so at the start.

use std::process::Command;

use crate::harness::{Database, Pooler, Program, Worker, open_url};

/// As pgbouncer's own documentation has it for drivers that send settings.
const IGNORING: &str = "ignore_startup_parameters = extra_float_digits, options\n\
                        default_pool_size = 3";

const HINT: &str = "hint: connect the worker to PostgreSQL directly";

/// Everything that a person and an application do.
async fn people_at_work(database: &Database, url: &str) {
    let run =
        async |arguments: &[&str]| Program::pgmill(database, arguments).at(url).succeeds().await;
    run(&["init"]).await;
    let _worker = Worker::start(database, &["--readers", "4"]);
    let enqueue = async |arguments: &[&str]| {
        Program::enqueue(database, arguments).at(url).succeeds().await.trim().to_owned()
    };
    // At once, so that transactions of one session meet backends of others.
    let many = (0..12).map(|n| {
        let value = n.to_string();
        async move {
            let arguments = ["--wait", "--param", &value, "SELECT $1::int + 1"];
            Program::enqueue(database, &arguments).at(url).succeeds().await
        }
    });
    let shown = futures_util::future::join_all(many).await;
    assert!(shown[6].contains('7'), "{shown:?}");
    let later = enqueue(&["--in", "1h", "--key", "once", "SELECT 1"]).await;
    assert_eq!(enqueue(&["--in", "1h", "--key", "once", "SELECT 1"]).await, later);

    assert!(run(&["task", "list"]).await.contains(&later));
    run(&["task", "show", &later]).await;
    run(&["why", &later]).await;
    run(&["status"]).await;
    run(&["history"]).await;
    run(&["queue", "pause", "etl"]).await;
    run(&["queue", "resume", "etl"]).await;
    run(&["task", "cancel", &later]).await;
    assert_eq!(database.outcome(later.parse().unwrap()).await, "cancelled");
    run(&["task", "retry", &later]).await;
    let folder = std::env::temp_dir();
    let file = folder.join(format!("pgmill-pooler-{}-{later}.toml", database.name()));
    std::fs::write(&file, "[job.a.task.a]\nstatement = \"SELECT 1\"\n").unwrap();
    run(&["apply", file.to_str().unwrap()]).await;
    std::fs::remove_file(&file).unwrap();
    enqueue(&["--wait", "--job", "a"]).await;
    run(&["schedule", "sync"]).await;

    application(database, url).await;
}

/// `mill.enqueue` in somebody's own transaction, by the simple protocol and with parameters.
async fn application(database: &Database, url: &str) {
    let mut client = open_url(url).await;
    let transaction = client.transaction().await.unwrap();
    transaction.batch_execute("SELECT mill.enqueue('SELECT 1')").await.unwrap();
    let types = [(
        &"SELECT 2" as &(dyn tokio_postgres::types::ToSql + Sync),
        tokio_postgres::types::Type::TEXT,
    )];
    let rows = transaction.query_typed("SELECT mill.enqueue($1)", &types).await.unwrap();
    let id: i64 = rows[0].get(0);
    assert_eq!(
        database.value::<i64>("SELECT count(*) FROM mill.tasks WHERE statement = 'SELECT 2'").await,
        0
    );
    transaction.commit().await.unwrap();
    assert_eq!(database.outcome(id).await, "succeeded");

    let psql = Command::new("psql")
        .args(["-X", "-A", "-t", "-c", "SELECT mill.enqueue('SELECT 3')", url])
        .output();
    let Ok(psql) = psql else { return println!("skipped: there is no psql") };
    let id = String::from_utf8(psql.stdout).unwrap();
    assert_eq!(database.outcome(id.trim().parse().unwrap()).await, "succeeded");
}

#[tokio::test]
async fn people_and_applications_may_pool_transactions() {
    let database = Database::new().await;
    let Some(pooler) = Pooler::start(&database, "transaction", "default_pool_size = 3", "").await
    else {
        return;
    };
    people_at_work(&database, &pooler.url(&database)).await;
}

#[tokio::test]
async fn the_pooler_as_it_is_shipped_serves_people_and_applications_and_no_worker() {
    let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/pgbouncer/pgbouncer.ini");
    let shipped = std::fs::read_to_string(shipped).unwrap();
    let database = Database::new().await;
    let Some(pooler) = Pooler::start_as_in(&database, &shipped).await else { return };
    let pooled = pooler.url(&database);
    // As the driver of Java does.
    assert_eq!(pooler.answers_a_start_with("extra_float_digits", "2"), 'R');
    assert_eq!(pooler.answers_a_start_with("options", "-c work_mem=1MB"), 'E');
    people_at_work(&database, &pooled).await;
    let words = "leads through a connection pooler: it refuses the settings";
    refuses(&pooled, &database.url(), words).await;
    refuses(&database.url(), &pooled, words).await;
}

#[tokio::test]
async fn people_and_applications_may_pool_sessions() {
    let database = Database::new().await;
    let Some(pooler) = Pooler::start(&database, "session", "default_pool_size = 20", "").await
    else {
        return;
    };
    people_at_work(&database, &pooler.url(&database)).await;
}

/// A worker on this queue and with these tasks ends at once, with these words.
async fn refuses(queue: &str, tasks: &str, words: &str) {
    let mut worker = Worker::start_with(queue, &[], &[("PGMILL_TASK_URL", tasks)]);
    let status = worker.ended().await;
    let log = worker.log();
    assert_eq!(status.code(), Some(5), "{log}");
    assert!(log.contains(words) && log.contains(HINT), "{log}");
}

#[tokio::test]
async fn a_worker_refuses_a_pooler_that_keeps_its_settings_back() {
    let database = Database::new().await;
    let id = database.enqueue("SELECT 1", "").await;
    for (mode, settings, words) in [
        ("transaction", "", "it refuses the settings"),
        ("transaction", IGNORING, "it drops the settings"),
        ("session", "", "it refuses the settings"),
        ("session", IGNORING, "it drops the settings"),
    ] {
        let Some(pooler) = Pooler::start(&database, mode, settings, "").await else { return };
        let pooled = pooler.url(&database);
        refuses(
            &pooled,
            &database.url(),
            &format!("--database-url leads through a connection pooler: {words}"),
        )
        .await;
        refuses(
            &database.url(),
            &pooled,
            &format!("--task-url leads through a connection pooler: {words}"),
        )
        .await;
    }
    database.until_state(id, "pending").await;
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.worker_starts").await, 0);
}

/// The mark is set behind the pooler, as if that had passed it on: what is left is the backend.
#[tokio::test]
async fn a_worker_refuses_backends_that_change() {
    let database = Database::new().await;
    let marked = "connect_query='SET mill.pooler_check = ''yes'''";
    for (settings, words) in [
        (IGNORING, "a session changes its backend between transactions"),
        (&format!("{IGNORING}\nserver_round_robin = 1"), "a session changes its backend"),
    ] {
        let pooler = Pooler::start(&database, "transaction", settings, marked).await;
        let Some(pooler) = pooler else { return };
        let pooled = pooler.url(&database);
        refuses(&pooled, &database.url(), words).await;
        refuses(&database.url(), &pooled, words).await;
    }
}
