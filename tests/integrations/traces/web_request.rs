//! A trace leads from a web request to the attempts of its task, on whichever workers they run.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use super::spans::{TRACE, exported, until_exported};
use crate::harness::console::ask;
use crate::harness::receiver::Receiver;
use crate::harness::{Database, Worker, eventually};

/// The web application in Python; ended on drop.
struct Shop(Child);

impl Shop {
    /// Returns the application and its address; `None` without Python and psql.
    fn start(database: &Database) -> Option<(Self, String)> {
        Command::new("psql").arg("--version").stdout(Stdio::null()).status().ok()?;
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/integrations/traces/shop.py");
        let mut child = Command::new("python3")
            .args([script, &database.url()])
            .stdout(Stdio::piped())
            .spawn()
            .ok()?;
        let mut port = String::new();
        BufReader::new(child.stdout.take()?).read_line(&mut port).ok()?;
        Some((Self(child), format!("127.0.0.1:{}", port.trim())))
    }
}

impl Drop for Shop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_leads_from_a_web_request_to_the_second_attempt_on_another_worker() {
    let database = Database::new().await;
    let tables = "CREATE TABLE orders (item text); CREATE TABLE shipped (item text);
        SELECT pg_advisory_lock(1)";
    database.execute(tables).await;
    let Some((_shop, address)) = Shop::start(&database) else {
        return println!("skipped: python3 and psql are not installed");
    };
    let receiver = Receiver::start().await;
    let url = receiver.url("");
    let flags = ["--readers", "1", "--poll-interval", "50ms", "--otlp-endpoint", &url];
    let mut first = Worker::start(&database, &flags);
    let request = format!(
        "POST /orders HTTP/1.1\r\nHost: shop\r\nConnection: close\r\nContent-Length: 3\r\n\
         traceparent: 00-{TRACE}-00f067aa0ba902b7-01\r\n\r\ntea"
    );
    let answer = ask(&address, request.as_bytes()).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let span_of_request = answer.body[36..52].to_owned();
    let id: i64 = database.value("SELECT id FROM mill.tasks").await;
    database.until_waiting_for_lock(id).await;
    until_exported(&receiver, &["wait default"]).await;
    first.kill();
    let second = Worker::start(&database, &flags);
    eventually("attempt 2 runs", async || {
        let sql = "SELECT FROM mill.running WHERE attempt = 2 AND wait_event = 'advisory'";
        !database.rows(sql, &[]).await.is_empty()
    })
    .await;
    database.execute("SELECT pg_advisory_unlock(1)").await;
    assert_eq!(database.outcome(id).await, "succeeded");
    let names =
        ["wait default", "process default", "wait default", "process default", database.name()];
    let spans = until_exported(&receiver, &names).await;
    for span in &spans {
        assert_eq!(span.trace, TRACE, "{span:?}");
        println!("{} {} parent {} links {:?}", span.id, span.name, span.parent, span.links);
    }
    let number = |name: &str, n: &str| {
        let mut of_name = spans.iter().filter(|span| span.name == name);
        of_name.find(|span| span.get("pgmill.task.attempt") == n).unwrap()
    };
    let (lost, succeeded) = (number("process default", "1"), number("process default", "2"));
    let waits = [number("wait default", "1"), number("wait default", "2")];
    for span in [waits[0], waits[1], lost, succeeded] {
        assert_eq!(span.parent, span_of_request, "{span:?}");
        assert_eq!(span.get("messaging.message.id"), id.to_string());
    }
    assert_eq!((&succeeded.links[..], &lost.links[..]), (&[lost.id.clone()][..], &[][..]));
    // The second worker exports the attempt of the first one.
    let instance = |n: usize| &waits[n].resource["service.instance.id"];
    assert_ne!(instance(0), instance(1));
    assert_eq!(lost.get("messaging.client.id"), instance(0));
    assert_eq!(&lost.resource["service.instance.id"], instance(1));
    assert_eq!(succeeded.get("messaging.client.id"), instance(1));
    assert_eq!((lost.get("pgmill.attempt.outcome"), lost.failed), ("lost", true));
    assert_eq!((succeeded.get("pgmill.attempt.outcome"), succeeded.failed), ("succeeded", false));
    let statement = spans.iter().find(|span| span.name == database.name()).unwrap();
    assert_eq!((&statement.parent, statement.kind), (&succeeded.id, 3));
    assert_eq!(statement.get("db.system.name"), "postgresql");
    assert_eq!(statement.get("db.namespace"), database.name());
    let place = format!("{}:{}", statement.get("server.address"), statement.get("server.port"));
    assert!(database.url().contains(&format!("@{place}/")), "{place}");
    let times = [waits[1].end, succeeded.start, statement.start, statement.end, succeeded.end];
    assert!(times.is_sorted(), "{times:?}");
    assert!(waits[0].end <= lost.start && lost.end <= waits[1].start.max(lost.end));
    second.until_logged(&format!("trace_id=\"{TRACE}\"")).await;
    assert_eq!(exported(&receiver).len(), names.len());
}
