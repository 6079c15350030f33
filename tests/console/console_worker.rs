//! The console inside a worker: starts and ends with the worker, and never delays the worker's own
//! work.

use cluster::Mode;
use rustix::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::harness::http::{free_address, get};
use crate::harness::login::Login;
use crate::harness::{Database, PrivateDatabase, Worker, eventually};

const FLAGS: [&str; 4] = ["--readers", "1", "--poll-interval", "50ms"];

fn flags<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&FLAGS[..], more].concat()
}

/// Waits until the console is served.
async fn until_served(address: &str) {
    eventually("the console is served", async || {
        get(address, "/").await.is_some_and(|answer| answer.status == 200)
    })
    .await;
}

/// Opens a stream of a task's page that stays open.
async fn stream(address: &str, task: i64) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!("GET /tasks/{task}/events HTTP/1.1\r\nHost: {address}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut begun = [0; 15];
    stream.read_exact(&mut begun).await.unwrap();
    assert_eq!(&begun, b"HTTP/1.1 200 OK");
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn the_console_runs_while_the_worker_works_and_drains_and_ends_with_it() {
    let database = Database::new().await;
    let address = free_address();
    let mut worker = Worker::start_as_superuser(
        &database,
        "the console shows everything to its login",
        &flags(&["--console", &address]),
    );
    until_served(&address).await;
    database.execute("SELECT pg_advisory_lock(1)").await;
    let id = database.enqueue("SELECT pg_advisory_xact_lock(1)", ", name => 'held'").await;
    database.until_waiting_for_lock(id).await;
    let page = get(&address, "/workers").await.unwrap().body;
    assert!(page.contains(&worker.pid().to_string()) && page.contains("held"), "{page}");
    let sessions = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = 'pgmill console'";
    assert!(database.value::<i64>(sessions).await > 0, "the console has its own sessions");

    // A stream of a task that stays live does not delay the shutdown.
    let stays = database.enqueue("SELECT 1", ", due_at => now() + interval '1 day'").await;
    let mut watching = stream(&address, stays).await;
    worker.signal(Signal::TERM);
    worker.until_logged("draining").await;
    let drains = get(&address, "/").await.unwrap();
    assert_eq!(drains.status, 200, "an operator sees the remaining tasks: {}", drains.body);
    assert!(worker.ended_already().is_none());
    database.execute("SELECT pg_advisory_unlock(1)").await;
    assert_eq!(worker.ended().await.code(), Some(0), "{}", worker.log());
    assert_eq!(database.outcome(id).await, "succeeded");
    let mut rest = Vec::new();
    watching.read_to_end(&mut rest).await.unwrap();
    assert!(rest.ends_with(b"\r\n0\r\n\r\n"), "the stream was ended and not cut off");
    assert!(get(&address, "/livez").await.is_none(), "the address has no listener");
    assert!(!worker.log().contains("no longer served"), "{}", worker.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_console_is_off_by_default_and_a_port_in_use_is_reported_before_anything_starts() {
    let database = Database::new().await;
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let id = database.enqueue("SELECT 1", "").await;
    let mut worker = Worker::start(&database, &flags(&["--console", &address]));
    assert_eq!(worker.ended().await.code(), Some(1), "{}", worker.log());
    let reported = format!("cannot listen on {address}: Address already in use");
    assert!(worker.log().contains(&reported), "{}", worker.log());
    // The worker ended before it registered or claimed a task.
    database.until_state(id, "pending").await;
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.worker_starts").await, 0);

    let mut worker = Worker::start(&database, &flags(&["--console", "0.0.0.0:0"]));
    assert_eq!(worker.ended().await.code(), Some(2), "{}", worker.log());
    assert!(worker.log().contains("--console-token-file FILE"), "{}", worker.log());

    let file = std::env::temp_dir().join(format!("pgmill-{}.toml", database.name()));
    std::fs::write(&file, "console = \"127.0.0.1:0\"\nconsole_tls_cert = \"cert.pem\"\n").unwrap();
    let mut worker = Worker::start(&database, &["--config", file.to_str().unwrap()]);
    assert_eq!(worker.ended().await.code(), Some(2), "{}", worker.log());
    assert!(worker.log().contains("tls-cert and tls-key must be set together"), "{}", worker.log());
    std::fs::remove_file(&file).unwrap();

    let mut worker = Worker::start(&database, &FLAGS);
    database.until_empty().await;
    assert!(!worker.log().contains("console"), "{}", worker.log());
    assert!(worker.terminate().await.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_login_gets_the_list_of_missing_privileges() {
    let database = Database::new().await;
    let login = Login::new(&database, "works", "mill_worker").await;
    let address = free_address();
    let mut worker = Worker::start_at(&login.url(), &flags(&["--console", &address]));
    assert_eq!(worker.ended().await.code(), Some(5), "{}", worker.log());
    for text in
        ["not allowed to read the queue", &format!("GRANT mill_viewer TO \"{}\"", login.name)]
    {
        assert!(worker.log().contains(text), "{text} in {}", worker.log());
    }
    database.execute(&format!("GRANT mill_viewer TO {}", login.name)).await;
    let mut worker = Worker::start_at(&login.url(), &flags(&["--console", &address]));
    until_served(&address).await;
    let page = get(&address, "/queues").await.unwrap().body;
    assert!(page.contains("view only"), "{page}");
    assert!(worker.terminate().await.success());
    login.gone().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn during_an_outage_the_console_responds_and_the_worker_keeps_running() {
    let mut private = PrivateDatabase::new(&[]).await;
    let address = free_address();
    let mut worker = Worker::start_as_superuser(
        &private.database,
        "the console shows everything to its login",
        &flags(&["--console", &address]),
    );
    until_served(&address).await;
    private.cluster.stop(Mode::Fast).unwrap();
    let status = async |path: &str| get(&address, path).await.map(|answer| answer.status);
    for path in ["/", "/queues", "/api/v1/overview"] {
        assert_eq!(status(path).await, Some(503), "{path}");
    }
    assert_eq!(status("/livez").await, Some(200));
    private.cluster.start_again().unwrap();
    private.database.reconnect().await;
    let id = private.database.enqueue("SELECT 1", "").await;
    assert_eq!(private.database.outcome(id).await, "succeeded");
    until_served(&address).await;
    assert!(worker.terminate().await.success());
}
