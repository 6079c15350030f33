//! A service manager is notified when a worker is ready, is alive, and stops.

use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::harness::{Database, PrivateDatabase, Worker, eventually};

/// Time limit for a message. It is much longer than the interval of heartbeats, at most 1 s, on any
/// machine.
const LONG: Duration = Duration::from_secs(60);

/// The socket of a service manager.
struct ServiceManager {
    socket: UnixDatagram,
    path: PathBuf,
}

impl ServiceManager {
    fn new(database: &Database) -> Self {
        let path = std::env::temp_dir().join(format!("pgmill-{}.notify", database.name()));
        let socket = UnixDatagram::bind(&path).unwrap();
        Self { socket, path }
    }

    fn worker(&self, database: &Database, more: &[(&str, &str)]) -> Worker {
        let mut variables = vec![
            ("NOTIFY_SOCKET", self.path.to_str().unwrap()),
            ("PGMILL_HEARTBEAT_INTERVAL", "100ms"),
        ];
        variables.extend(more);
        let flags = ["--readers", "3", "--shutdown-timeout", "2h"];
        Worker::start_with(&database.url(), &flags, &variables)
    }

    /// Returns the next message, if one arrives within this time.
    fn next_within(&self, patience: Duration) -> Option<String> {
        self.socket.set_read_timeout(Some(patience)).unwrap();
        let mut bytes = [0; 4096];
        let length = self.socket.recv(&mut bytes).ok()?;
        Some(String::from_utf8(bytes[..length].to_vec()).unwrap())
    }

    fn next(&self) -> String {
        self.next_within(LONG).expect("a message")
    }

    /// Returns the messages up to and including the first one that contains this text.
    fn until(&self, text: &str) -> Vec<String> {
        let begun = Instant::now();
        let mut messages = Vec::new();
        while begun.elapsed() < LONG {
            messages.push(self.next());
            if messages.last().unwrap().contains(text) {
                return messages;
            }
        }
        panic!("no \"{text}\" in {messages:?}");
    }

    /// Discards the messages received so far.
    fn drain(&self) {
        while self.next_within(Duration::from_millis(1)).is_some() {}
    }
}

impl Drop for ServiceManager {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_service_manager_is_notified_of_start_watchdog_and_stop() {
    let database = Database::new().await;
    let service_manager = ServiceManager::new(&database);
    // The socket holds about ten messages, and the worker discards a message that does not fit. With
    // frequent heartbeats, a test that does not read for a second would miss READY=1 or STOPPING=1.
    let rare = [("PGMILL_HEARTBEAT_INTERVAL", "1s")];
    let mut worker = service_manager.worker(&database, &rare);
    // Heartbeats may be sent before the worker is ready, but no claim.
    let mut before = service_manager.until("READY=1");
    let ready = before.pop().unwrap();
    assert!(ready.lines().any(|line| line == "STATUS=3 readers"), "{ready}");
    assert!(before.len() <= 1, "{before:?}");
    for message in before {
        assert!(message.starts_with("WATCHDOG=1\nSTATUS=3 readers, 0 busy"), "{message}");
    }
    let holder = database.connect().await;
    holder.batch_execute("SELECT pg_advisory_lock(7)").await.unwrap();
    let held = database.enqueue("SELECT pg_advisory_lock(7)", "").await;
    database.until_state(held, "running").await;
    service_manager.until("STATUS=3 readers, 1 busy");
    for message in [service_manager.next(), service_manager.next()] {
        assert!(message.starts_with("WATCHDOG=1\nSTATUS=3 readers, 1 busy"), "{message}");
    }
    worker.signal(Signal::TERM);
    let stop = service_manager.until("STOPPING=1").pop().unwrap();
    assert!(stop.contains("STATUS=draining, 1 task running"), "{stop}");
    // The shutdown timeout of two hours, plus a margin.
    let extended = stop.lines().find_map(|line| line.strip_prefix("EXTEND_TIMEOUT_USEC="));
    let extended = Duration::from_micros(extended.unwrap().parse().unwrap());
    assert!(extended > Duration::from_secs(7230) && extended < Duration::from_secs(7300), "{stop}");
    // The worker is still alive, and reports it.
    service_manager.until("WATCHDOG=1");
    holder.batch_execute("SELECT pg_advisory_unlock(7)").await.unwrap();
    assert!(worker.ended().await.success());
    assert_eq!(database.outcome(held).await, "succeeded");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_worker_sends_no_watchdog_notification() {
    let database = Database::new().await;
    let service_manager = ServiceManager::new(&database);
    let worker = service_manager.worker(&database, &[]);
    service_manager.until("READY=1");
    service_manager.until("WATCHDOG=1");
    worker.signal(Signal::STOP);
    // SIGSTOP takes effect with a delay. Wait for it, and discard the messages that were sent
    // before.
    eventually("the worker is stopped", async || {
        let state = format!("/proc/{}/stat", worker.pid());
        std::fs::read_to_string(state).unwrap().contains(") T ")
    })
    .await;
    service_manager.drain();
    assert_eq!(service_manager.next_within(Duration::from_millis(1500)), None);
    worker.signal(Signal::CONT);
    service_manager.until("WATCHDOG=1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_outage_does_not_trigger_the_watchdog() {
    let mut private = PrivateDatabase::new(&[]).await;
    let service_manager = ServiceManager::new(&private.database);
    let mut worker = service_manager.worker(&private.database, &[]);
    service_manager.until("READY=1");
    private.cluster.crash().unwrap();
    for _ in 0..3 {
        let messages = service_manager.until("STATUS=the database does not answer");
        assert!(messages.iter().all(|message| message.starts_with("WATCHDOG=1\n")), "{messages:?}");
    }
    private.cluster.start_again().unwrap();
    private.database.reconnect().await;
    service_manager.until("STATUS=3 readers, 0 busy");
    assert!(worker.terminate().await.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watchdog_interval_shorter_than_a_heartbeat_attempt_is_warned_about() {
    let database = Database::new().await;
    let service_manager = ServiceManager::new(&database);
    for (watchdog, warned) in [("30000000", true), ("180000000", false)] {
        let mut worker = service_manager.worker(&database, &[("WATCHDOG_USEC", watchdog)]);
        service_manager.until("READY=1");
        service_manager.until("WATCHDOG=1");
        assert_eq!(worker.log().contains("watchdog timeout is too short"), warned, "{watchdog}");
        worker.kill();
        service_manager.drain();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unresponsive_or_absent_service_manager_blocks_nothing() {
    let database = Database::new().await;
    let service_manager = ServiceManager::new(&database);
    // The socket is never read: its queue fills up after some messages.
    let mut worker = service_manager.worker(&database, &[]);
    worker.until_logged("could not notify the service manager").await;
    let id = database.enqueue("SELECT 1", "").await;
    assert_eq!(database.outcome(id).await, "succeeded");
    drop(service_manager);
    assert!(worker.terminate().await.success());
}
