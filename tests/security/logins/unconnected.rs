//! A login that cannot connect, or must not run tasks, is a state that everybody sees.

use rustix::process::Signal;

use crate::harness::login::Login;
use crate::harness::{Database, Program, Worker, eventually};

/// Starts a worker with the profile `etl` for this login.
async fn start(database: &Database, login: &Login<'_>, readers: u32) -> Worker {
    database.execute("SELECT mill.set_profile('etl', allowed => ARRAY[current_user])").await;
    let config = std::env::temp_dir().join(format!("pgmill-{}.toml", database.name()));
    let text = format!("[run_as.etl]\nurl = {:?}\nreaders = {readers}\n", login.url());
    std::fs::write(&config, text).unwrap();
    let flags = ["--config", config.to_str().unwrap(), "--readers", "1"];
    let flags = [&flags[..], &["--heartbeat-interval", "200ms"]].concat();
    let variables = [("PGMILL_ALLOW_SUPERUSER", "true")];
    let worker = Worker::start_with(&database.url(), &flags, &variables);
    worker.until_logged("ready").await;
    std::fs::remove_file(config).unwrap();
    worker
}

async fn why(database: &Database, id: i64) -> String {
    database.value(&format!("SELECT mill.why({id})")).await
}

async fn until_why(database: &Database, id: i64, text: &str) {
    eventually(&format!("why says \"{text}\""), async || why(database, id).await.contains(text))
        .await;
}

/// Returns what the commands for people say, and the exit code of `doctor`.
async fn answers(database: &Database) -> ([String; 3], i32) {
    let run = async |arguments: &[&str]| {
        let (code, stdout, stderr) = Program::pgmill(database, arguments).run().await;
        (code, stdout + &stderr)
    };
    let (_, status) = run(&["status"]).await;
    let (code, doctor) = run(&["doctor"]).await;
    let (_, list) = run(&["worker", "list"]).await;
    ([status, doctor, list], code)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_that_cannot_connect_is_in_every_answer() {
    let database = Database::new().await;
    let login = Login::new(&database, "etl", "").await;
    let name = &login.name;
    database.execute(&format!("ALTER ROLE {name} NOLOGIN")).await;
    let worker = start(&database, &login, 2).await;
    let id = database.enqueue("SELECT 1", ", run_as => 'etl', max_attempts => 1").await;
    let refused = format!("role \"{name}\" is not permitted to log in");
    let of_readers = format!("2 of 2 readers of login {name} (profile etl)");
    until_why(&database, id, &format!("{of_readers} cannot connect: ")).await;
    assert!(why(&database, id).await.contains(&refused));
    let (answers_now, code) = answers(&database).await;
    for answer in answers_now {
        assert!(answer.contains(&of_readers) && answer.contains(&refused), "{answer}");
    }
    assert_ne!(code, 0);
    // Other tasks run, and the state is gone when the sessions are there.
    assert_eq!(database.run("SELECT 1", "").await.outcome, "succeeded");
    database.execute(&format!("ALTER ROLE {name} LOGIN")).await;
    assert_eq!(database.outcome(id).await, "succeeded");
    eventually("no worker reports the login", async || {
        database.value("SELECT bool_and(unconnected IS NULL) FROM mill.workers").await
    })
    .await;
    let (answers_now, _) = answers(&database).await;
    assert!(answers_now.iter().all(|answer| !answer.contains("cannot connect")), "{answers_now:?}");
    drop(worker);
    login.gone().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_beyond_a_connection_limit_are_counted() {
    let database = Database::new().await;
    let login = Login::new(&database, "etl", "").await;
    let name = &login.name;
    database.execute(&format!("ALTER ROLE {name} CONNECTION LIMIT 1")).await;
    let mut worker = start(&database, &login, 2).await;
    database.execute("SELECT pg_advisory_lock(1)").await;
    let running = database.enqueue("SELECT pg_advisory_xact_lock(1)", ", run_as => 'etl'").await;
    database.until_waiting_for_lock(running).await;
    let waiting = database.enqueue("SELECT 1", ", run_as => 'etl'").await;
    let limited = format!("1 of 2 readers of login {name} (profile etl) cannot connect: ");
    until_why(&database, waiting, &limited).await;
    let sentence = why(&database, waiting).await;
    assert!(
        sentence.starts_with("all readers (1) that serve queue \"default\" are busy"),
        "{sentence}"
    );
    let (answers, code) = answers(&database).await;
    assert!(answers.iter().all(|answer| answer.contains(&limited)), "{answers:?}");
    assert_ne!(code, 0);
    database.execute("SELECT pg_advisory_unlock(1)").await;
    assert_eq!(database.outcome(waiting).await, "succeeded");
    worker.signal(Signal::TERM);
    worker.ended().await;
    login.gone().await;
}

/// The sessions that a login has opened before it became a superuser are superusers, too.
#[tokio::test(flavor = "multi_thread")]
async fn a_login_that_becomes_a_superuser_gets_no_more_tasks() {
    let database = Database::new().await;
    let login = Login::new(&database, "etl", "").await;
    let name = &login.name;
    let flags = ["--readers", "2", "--heartbeat-interval", "200ms"];
    let url = login.url();
    let variables = [("PGMILL_ALLOW_SUPERUSER", "false"), ("PGMILL_TASK_URL", url.as_str())];
    let mut worker = Worker::start_with(&database.url(), &flags, &variables);
    worker.until_logged("ready").await;
    assert_eq!(database.run("SELECT 1", "").await.outcome, "succeeded");
    database.execute(&format!("ALTER ROLE {name} SUPERUSER")).await;
    let sessions = format!("SELECT count(*) FROM pg_stat_activity WHERE usename = '{name}'");
    eventually("its sessions end", async || database.value::<i64>(&sessions).await == 0).await;
    let id = database.enqueue("SELECT 1", "").await;
    until_why(&database, id, &format!("2 of 2 readers of login {name} cannot connect: ")).await;
    assert!(why(&database, id).await.contains("which is a superuser"));
    database.execute(&format!("ALTER ROLE {name} NOSUPERUSER")).await;
    assert_eq!(database.outcome(id).await, "succeeded");
    assert!(worker.terminate().await.success());
    login.gone().await;
}
