//! Clients work through a connection pooler. A worker that would connect through a pooler refuses
//! to start.

use std::process::Command;

use proxy::{Cut, FaultAction, MessageMatch, Proxy};
use serde_json::json;

use crate::harness::{Database, Pooler, Program, Worker, amount, eventually, open_url};
use crate::runs::run::job;
use crate::runs::run_cli::COMMIT;

/// The setting that pgbouncer's documentation recommends for drivers that send settings.
const IGNORING: &str = "ignore_startup_parameters = extra_float_digits, options\n\
                        default_pool_size = 3";

const HINT: &str = "hint: Connect the worker to PostgreSQL directly";

/// Performs every kind of user and application work.
async fn people_at_work(database: &Database, url: &str) {
    let run =
        async |arguments: &[&str]| Program::pgmill(database, arguments).at(url).succeeds().await;
    // As before version 15. Nothing is called from there (`tests/security/planted.rs`).
    database.execute("GRANT CREATE ON SCHEMA public TO PUBLIC").await;
    run(&["init"]).await;
    let _worker = Worker::start(database, &["--readers", "4"]);
    let enqueue = async |arguments: &[&str]| {
        Program::enqueue(database, arguments).at(url).succeeds().await.trim().to_owned()
    };
    // Concurrently, so that transactions of one session use backends of others.
    let many = (0..amount(6, 12)).map(|n: i32| {
        let value = n.to_string();
        async move {
            let arguments = ["--wait", "--param", &value, "SELECT $1::int + 1"];
            Program::enqueue(database, &arguments).at(url).succeeds().await
        }
    });
    let shown = futures_util::future::join_all(many).await;
    assert!(shown[5].contains('6'), "{shown:?}");
    let later = enqueue(&["--in", "1h", "--key", "once", "SELECT 1"]).await;
    assert_eq!(enqueue(&["--in", "1h", "--key", "once", "SELECT 1"]).await, later);

    assert!(run(&["task", "list"]).await.contains(&later));
    run(&["task", "show", &later]).await;
    run(&["why", &later]).await;
    run(&["status"]).await;
    run(&["history"]).await;
    run(&["queue", "pause", "etl", "--create"]).await;
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

/// Calls `mill.enqueue` in an application's own transaction, by the simple protocol and with
/// parameters.
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
    let Ok(psql) = psql else { return println!("skipped: psql is not installed") };
    let id = String::from_utf8(psql.stdout).unwrap();
    assert_eq!(database.outcome(id.trim().parse().unwrap()).await, "succeeded");
}

#[tokio::test]
async fn users_and_applications_work_with_transaction_pooling() {
    let database = Database::new().await;
    let Some(pooler) = Pooler::start(&database, "transaction", "default_pool_size = 3", "").await
    else {
        return;
    };
    people_at_work(&database, &pooler.url(&database)).await;
}

#[tokio::test]
async fn the_shipped_pooler_configuration_serves_users_and_applications_but_no_worker() {
    let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/pgbouncer/pgbouncer.ini");
    let shipped = std::fs::read_to_string(shipped).unwrap();
    let database = Database::new().await;
    let Some(pooler) = Pooler::start_as_in(&database, &shipped).await else { return };
    let pooled = pooler.url(&database);
    // The Java driver sends extra_float_digits.
    assert_eq!(pooler.answers_a_start_with("extra_float_digits", "2"), 'R');
    assert_eq!(pooler.answers_a_start_with("options", "-c work_mem=1MB"), 'E');
    people_at_work(&database, &pooled).await;
    let words = "connects through a connection pooler: the pooler refuses settings";
    refuses(&pooled, &database.url(), words).await;
    refuses(&database.url(), &pooled, words).await;
}

#[tokio::test]
async fn users_and_applications_work_with_session_pooling() {
    let database = Database::new().await;
    let Some(pooler) = Pooler::start(&database, "session", "default_pool_size = 20", "").await
    else {
        return;
    };
    people_at_work(&database, &pooler.url(&database)).await;
}

/// A pooler refuses the search_path of the console's sessions, or drops it without a word.
#[tokio::test]
async fn the_console_refuses_a_pooled_session_that_could_call_functions_of_other_roles() {
    // The login of the tasks may create objects in `public`.
    let database = Database::new().await;
    for settings in ["default_pool_size = 3", IGNORING] {
        let Some(pooler) = Pooler::start(&database, "transaction", settings, "").await else {
            return;
        };
        let url = pooler.url(&database);
        let console = Program::pgmill(&database, &["console", "--listen", "127.0.0.1:0"]).at(&url);
        let (code, _, errors) = console.run().await;
        assert_ne!(code, 0, "{errors}");
        for text in ["the pooler dropped search_path", "REVOKE CREATE ON SCHEMA \"public\" FROM "] {
            assert!(errors.contains(text), "{errors}");
        }
    }
}

/// A pooler in transaction mode gives the next client a session with the settings of the client before.
#[tokio::test]
async fn an_error_names_the_setting_that_another_client_has_left_in_the_session() {
    let database = Database::new().await;
    let Some(pooler) = Pooler::start(&database, "transaction", "default_pool_size = 1", "").await
    else {
        return;
    };
    let url = pooler.url(&database);
    let login: String = database.value("SELECT session_user::text").await;
    let role = format!(
        "another client of a pooler, or ALTER ROLE … SET role, has given the session the role pg_monitor instead of {login}"
    );
    for (setting, cause) in [
        (
            "SET default_transaction_read_only = on",
            "default_transaction_read_only is on, which another client",
        ),
        ("SET ROLE pg_monitor", role.as_str()),
    ] {
        open_url(&url).await.batch_execute(setting).await.unwrap();
        let paused = Program::pgmill(&database, &["pause", "--reason", "x"]);
        for program in [paused, Program::enqueue(&database, &["SELECT 1"])] {
            let (code, _, errors) = program.at(&url).run().await;
            let message = errors.lines().next().unwrap_or_default();
            assert!(code != 0 && message.contains(cause) && message.contains("pooler"), "{errors}");
        }
        open_url(&url).await.batch_execute("RESET ALL; RESET ROLE").await.unwrap();
    }
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.tasks").await, 0);
}

/// Asserts that a worker with these connection strings ends at once, with these words in its
/// message.
async fn refuses(queue: &str, tasks: &str, words: &str) {
    let mut worker = Worker::start_with(queue, &[], &[("PGMILL_TASK_URL", tasks)]);
    let status = worker.ended().await;
    let log = worker.log();
    assert_eq!(status.code(), Some(5), "{log}");
    assert!(log.contains(words) && log.contains(HINT), "{log}");
}

#[tokio::test]
async fn a_worker_refuses_a_pooler_that_drops_its_settings() {
    let database = Database::new().await;
    let id = database.enqueue("SELECT 1", "").await;
    for (mode, settings, words) in [
        ("transaction", "", "the pooler refuses settings"),
        ("transaction", IGNORING, "the pooler drops settings"),
        ("session", "", "the pooler refuses settings"),
        ("session", IGNORING, "the pooler drops settings"),
    ] {
        let Some(pooler) = Pooler::start(&database, mode, settings, "").await else { return };
        let pooled = pooler.url(&database);
        refuses(
            &pooled,
            &database.url(),
            &format!("--database-url connects through a connection pooler: {words}"),
        )
        .await;
        refuses(
            &database.url(),
            &pooled,
            &format!("--task-url connects through a connection pooler: {words}"),
        )
        .await;
    }
    database.until_state(id, "pending").await;
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.worker_starts").await, 0);
}

/// The pooler sets the mark on its own sessions with the server, as if it forwarded the mark of the
/// worker. Then only the change of the backend gives the pooler away.
#[tokio::test]
async fn a_worker_refuses_a_session_whose_backend_changes() {
    let database = Database::new().await;
    let marked = "connect_query='SET mill.pooler_check = ''yes'''";
    for (settings, words) in [
        (IGNORING, "the session changes its backend between transactions"),
        (&format!("{IGNORING}\nserver_round_robin = 1"), "the session changes its backend"),
    ] {
        let pooler = Pooler::start(&database, "transaction", settings, marked).await;
        let Some(pooler) = pooler else { return };
        let pooled = pooler.url(&database);
        refuses(&pooled, &database.url(), words).await;
        refuses(&database.url(), &pooled, words).await;
    }
}

/// If pgbouncer loses its connection to the server, it sends an error in place of the answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_answer_a_pooler_has_lost_is_in_doubt() {
    let database = Database::new().await;
    job(&database, "j", json!([{"name": "a", "statement": "SELECT 1"}])).await;
    let proxy = Proxy::start(&database.url()).await.unwrap();
    let through = proxy.url(&database.url());
    let port = through.rsplit_once('@').unwrap().1.split(['/', ':']).nth(1).unwrap();
    let server = format!("port={port}");
    let Some(pooler) = Pooler::start(&database, "transaction", "", &server).await else { return };
    let pooled = pooler.url(&database);
    let lines = std::env::temp_dir().join(format!("pgmill-pooler-{}.sql", database.name()));
    std::fs::write(&lines, "SELECT 1\nSELECT 2\n").unwrap();
    let batch = ["--lines", "--file", lines.to_str().unwrap()];
    for (program, committed) in [
        (Program::enqueue(&database, &["SELECT 1"]), "SELECT count(*) = 1 FROM mill.tasks"),
        (Program::enqueue(&database, &batch), "SELECT count(*) = 3 FROM mill.tasks"),
        (Program::enqueue(&database, &["--job", "j"]), "SELECT count(*) = 1 FROM mill.runs"),
        (
            Program::pgmill(&database, &["run", "cancel", "1"]),
            "SELECT state = 'cancelled' FROM mill.runs",
        ),
        (
            Program::pgmill(&database, &["task", "cancel", "1"]),
            "SELECT count(*) = 2 FROM mill.tasks",
        ),
    ] {
        proxy.arm(MessageMatch::Text(COMMIT.to_owned()), FaultAction::Cut(Cut::After));
        let (code, _, reported) = program.at(&pooled).run().await;
        assert!(proxy.disarm(), "{committed}: {reported}");
        assert!(reported.contains("(08P01)"), "{committed}: {reported}");
        assert!(code == 1 && reported.contains("it is not known whether"), "{code} {reported}");
        assert!(!reported.contains("no task was submitted"), "{reported}");
        eventually(committed, async || database.value::<bool>(committed).await).await;
    }
    std::fs::remove_file(&lines).unwrap();
}
