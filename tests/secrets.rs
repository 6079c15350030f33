//! No password is in a log, a metric, an error, a list of processes or a row, however it was given and
//! whatever went wrong.

use std::path::Path;

use crate::harness::http::{free_address, get};
use crate::harness::login::Login;
use crate::harness::{Database, Program, Worker};

const SECRET: &str = "Xyzzy-4711";

/// Connection strings with the secret in them, each wrong in its own way.
fn broken(good: &str) -> Vec<String> {
    let (_, place) = good.rsplit_once('@').unwrap();
    vec![
        format!("postgres://somebody:{SECRET}@{place}"),
        format!("postgres://postgres:{SECRET}@{place}?no_such_option={SECRET}"),
        format!("postgres://postgres:{SECRET}@127.0.0.1:1/none"),
        format!("postgres://postgres:{SECRET}@127.0.0.1:port/none"),
        format!("postgres://postgres:{SECRET}@[127.0.0.1/none"),
        format!("postgres://postgres:{SECRET}%zz@127.0.0.1/none"),
        format!("host=127.0.0.1 port=1 user=postgres password={SECRET}"),
        format!("host=127.0.0.1 password='{SECRET}"),
        format!("host=127.0.0.1 password={SECRET} port=none"),
        format!("host=127.0.0.1 password={SECRET} sslmode=sometimes"),
        format!("host=no.such.host.invalid connect_timeout=1 password={SECRET}"),
    ]
}

fn assert_silent(what: &str, text: &str) {
    assert!(!text.contains(SECRET), "the secret in {what}: {text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_about_a_connection_says_nothing_of_its_password() {
    let database = Database::new().await;
    for url in broken(&database.url()) {
        for program in [
            Program::enqueue(&database, &["SELECT 1"]),
            Program::pgmill(&database, &["status"]),
            Program::pgmill(&database, &["doctor", "--json"]),
        ] {
            let (code, stdout, stderr) = program.at(&url).run().await;
            assert_ne!(code, 0, "{url}");
            assert_silent(&url, &(stdout + &stderr));
        }
        // An unreachable database is waited for, or is the end: both say so.
        let mut worker = Worker::start_at(&url, &["--log", "trace", "--readers", "1"]);
        worker.until_logged("worker").await;
        worker.kill();
        assert_silent(&url, &worker.log());
        let mut worker =
            Worker::start_with(&database.url(), &["--readers", "1"], &[("PGMILL_TASK_URL", &url)]);
        worker.until_logged("worker: ").await;
        worker.kill();
        assert_silent(&url, &worker.log());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_at_work_shows_no_password_anywhere() {
    let database = Database::new().await;
    let control = Login::new(&database, "control", "mill_worker, mill_viewer").await;
    let tasks = Login::new(&database, "tasks", "").await;
    let etl = Login::new(&database, "etl", "").await;
    database
        .execute(&format!(
            "ALTER ROLE {} PASSWORD '{SECRET}'; ALTER ROLE {} PASSWORD '{SECRET}'; ALTER ROLE {} PASSWORD '{SECRET}';
             SELECT mill.set_profile('etl', allowed => ARRAY[current_user])",
            control.name, tasks.name, etl.name
        ))
        .await;
    let url = |login: &Login<'_>| database.url_as(&login.name, SECRET);
    let config = std::env::temp_dir().join(format!("pgmill-{}.toml", database.name()));
    std::fs::write(&config, "[run_as.etl]\nurl_env = \"ETL_URL\"\nreaders = 1\n").unwrap();
    let path = config.to_str().unwrap();
    let http = free_address().await;
    let flags = ["--config", path, "--readers", "1", "--log", "trace", "--http", &http];
    let (task_url, etl_url) = (url(&tasks), url(&etl));
    let variables = [("PGMILL_TASK_URL", task_url.as_str()), ("ETL_URL", etl_url.as_str())];
    let mut worker = Worker::start_with(&url(&control), &flags, &variables);
    worker.until_logged("ready").await;
    for options in ["", ", run_as => 'etl'"] {
        assert_eq!(database.run("SELECT 1", options).await.outcome, "succeeded");
        assert_eq!(
            database.run("SELECT 1/0", &format!("{options}, max_attempts => 1")).await.outcome,
            "failed"
        );
    }
    // Sessions that end and come back are reported, and what they are told.
    let end = format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{}'",
        etl.name
    );
    database.execute(&format!("ALTER ROLE {} PASSWORD 'changed'; {end}", etl.name)).await;
    worker.until_logged("no session for tasks").await;
    assert_silent("the metrics", &get(&http, "/metrics").await.unwrap().body);
    let process = format!("/proc/{}/cmdline", worker.pid());
    if Path::new(&process).exists() {
        assert_silent("the arguments", &String::from_utf8_lossy(&std::fs::read(&process).unwrap()));
    }
    let shown = "SELECT string_agg(a::text, ' ') FROM pg_stat_activity a WHERE application_name LIKE 'pgmill%'";
    assert_silent("the server's sessions", &database.value::<String>(shown).await);
    let tables = "SELECT format('SELECT coalesce(string_agg(x::text, '' ''), '''') FROM mill.%I x', relname)
        FROM pg_class WHERE relnamespace = 'mill'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition";
    for row in database.rows(tables, &[]).await {
        assert_silent(row.get(0), &database.value::<String>(row.get(0)).await);
    }
    assert!(worker.terminate().await.success());
    assert_silent("the log", &worker.log());
    let print = ["--config", path, "--print-config"];
    let mut printed = Worker::start_with(&url(&control), &print, &variables);
    assert!(printed.ended().await.success());
    assert_silent("the configuration", &printed.log());
    std::fs::remove_file(&config).unwrap();
    for login in [control, tasks, etl] {
        login.drop().await;
    }
}
