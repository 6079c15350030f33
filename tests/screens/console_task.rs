//! The page of a task: progress while it runs, its duration history, and its plan.

use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::harness::console::{Console, MAX_TIMED_OUT_REQUESTS, request};
use crate::harness::login::Login;
use crate::harness::{Database, Worker};

/// Reports progress, waits for a lock, and continues.
const REPORTS_PROGRESS: &str = "DO $$ BEGIN
    RAISE NOTICE 'file <script>1';
    RAISE NOTICE E'two\\r\\nlines';
    RAISE NOTICE 'progress: 40.5%% loading <script>';
    PERFORM pg_advisory_xact_lock(1);
END $$";

/// An event stream with the text received so far.
struct Stream {
    address: String,
    id: i64,
    socket: TcpStream,
    output: String,
}

impl Stream {
    async fn open(console: &Console, id: i64) -> Self {
        let address = console.address.clone();
        let socket = request_events(&address, id).await.unwrap();
        Self { address, id, socket, output: String::new() }
    }

    /// Reads until the text has been received. Like a browser, requests the stream again when it ends,
    /// as it does at a time limit of the console; `false` if the text is in none of them.
    async fn until_sent(&mut self, text: &str) -> bool {
        for _ in 0..MAX_TIMED_OUT_REQUESTS {
            if self.is_sent(text).await {
                return true;
            }
            let Ok(again) = request_events(&self.address, self.id).await else { return false };
            self.socket = again;
        }
        false
    }

    /// Reads until the text has been received; `false` if the stream ended before.
    async fn is_sent(&mut self, text: &str) -> bool {
        let mut buffer = [0; 4096];
        while !self.output.contains(text) {
            let read = tokio::time::timeout(Duration::from_secs(30), self.socket.read(&mut buffer));
            match read.await.unwrap_or_else(|_| panic!("no {text} in {}", self.output)) {
                Ok(0) | Err(_) => return false,
                Ok(count) => self.output.push_str(&String::from_utf8_lossy(&buffer[..count])),
            }
        }
        true
    }
}

/// Requests the events of a task.
async fn request_events(address: &str, id: i64) -> std::io::Result<TcpStream> {
    let mut socket = TcpStream::connect(address).await?;
    let path = format!("/tasks/{id}/events");
    socket.write_all(&request("GET", &path, &[("Host", address)], "")).await?;
    Ok(socket)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tasks_activity_is_streamed_while_it_runs() {
    let database = Database::new().await;
    let viewer = Login::new(&database, "viewer", "mill_viewer").await;
    let console = Console::start(&database, &[]).await;
    let viewer_console = Console::start_at(&database, &viewer.url(), &[]).await;
    database.execute("SELECT pg_advisory_lock(1)").await;
    let mut worker = Worker::start(&database, &["--readers", "1", "--poll-interval", "50ms"]);
    let id = database.enqueue(REPORTS_PROGRESS, ", name => 'load'").await;
    let mut stream = Stream::open(&console, id).await;
    for text in [
        "text/event-stream",
        "event: status",
        "NOTICE: file &#60;script&#62;1",
        "loading &#60;script&#62;",
    ] {
        assert!(stream.until_sent(text).await, "{text} in {}", stream.output);
    }
    assert!(!stream.output.contains("<script>"), "{}", stream.output);
    let page = console.get(&format!("/tasks/{id}")).await.body;
    for text in
        ["value=\"40.5\"", "40.5 %", "Lock: advisory", "Blocked by", "<noscript>", "/events\""]
    {
        assert!(page.contains(text), "{text} in {page}");
    }
    // Hidden statements are not streamed either.
    database.execute("UPDATE mill.settings SET hide_statements = true").await;
    let mut hidden = Stream::open(&viewer_console, id).await;
    assert!(hidden.until_sent("Current attempt").await, "{}", hidden.output);
    let page = viewer_console.get(&format!("/tasks/{id}")).await.body;
    for output in [&hidden.output, &page] {
        assert!(!output.contains("file &#60;") && !output.contains("loading"), "{output}");
    }
    database.execute("SELECT pg_advisory_unlock(1)").await;
    assert!(stream.until_sent("event: end").await, "{}", stream.output);
    assert!(!stream.is_sent("text after the end").await);
    assert_eq!(database.outcome(id).await, "succeeded");
    // An ended task is reported as ended, and an unknown task has no stream.
    let ended = console.get(&format!("/tasks/{id}/events")).await;
    assert!(ended.body.contains("event: end"), "{}", ended.body);
    assert_eq!(console.get("/tasks/99/events").await.status, 404);
    assert!(worker.terminate().await.success());
    drop((console, viewer_console, hidden));
    viewer.gone().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_and_failed_attempts_are_counted_apart() {
    let database = Database::new().await;
    let console = Console::start(&database, &[]).await;
    // Three attempts ended: one failed, one lost its connection, and one lost its worker.
    database
        .execute(
            "INSERT INTO mill.tasks (attempt, failures, transient_failures, crashes, options.max_attempts, statement)
             VALUES (3, 1, 1, 1, 2, 'SELECT 1')",
        )
        .await;
    let page = console.get("/tasks/1").await.body;
    assert!(page.contains("<dd>3; 1 of 2 failed attempts used</dd>"), "{page}");
    let listed = console.get("/tasks").await.body;
    let cells = "<td class=\"n\">3</td>\n<td class=\"n\">1<span class=\"dim\"> of 2</span></td>";
    assert!(listed.contains(cells), "{listed}");
    database.execute("SELECT mill.cancel(1)").await;
    let page = console.get("/tasks/1").await.body;
    assert!(page.contains("<dd>3; at most 2 failed attempts</dd>"), "{page}");
    let listed = console.get("/tasks?q=state:finished").await.body;
    assert!(listed.contains("<td class=\"n\">3</td>\n\n<td>"), "{listed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_number_of_streams_is_limited_and_they_end_with_the_console() {
    let database = Database::new().await;
    let mut console = Console::start(&database, &[]).await;
    let id = database.enqueue("SELECT 1", "").await;
    let mut streams = Vec::new();
    for _ in 0..32 {
        let mut stream = Stream::open(&console, id).await;
        assert!(stream.until_sent("event: status").await, "{}", stream.output);
        streams.push(stream);
    }
    // A poll without a change is reported, so that the page knows the age of its data.
    let first = &mut streams[0];
    assert!(first.until_sent("event: unchanged\ndata: -").await, "{}", first.output);
    let refused = console.get(&format!("/tasks/{id}/events")).await;
    assert_eq!(refused.status, 503, "{}", refused.body);
    assert_eq!(console.get(&format!("/tasks/{id}")).await.status, 200);
    let begun = Instant::now();
    console.terminate().await;
    assert!(begun.elapsed() < Duration::from_secs(10), "it took {:?}", begun.elapsed());
    for stream in &mut streams {
        assert!(!stream.is_sent("text after the end").await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_is_compared_with_those_of_its_name() {
    let database = Database::new().await;
    let console = Console::start(&database, &[]).await;
    let mut worker = Worker::start(&database, &["--readers", "1", "--poll-interval", "50ms"]);
    let named = ", name => 'nightly', max_attempts => 1";
    database.enqueue("SELECT 1", named).await;
    let failed = database.enqueue("SELECT 1 / 0", named).await;
    let last = database.enqueue("SELECT pg_sleep(0.2)", named).await;
    database.until_empty().await;
    let page = console.get(&format!("/tasks/{last}")).await.body;
    for text in
        ["Duration history", "<dt>p50</dt>", "1 failed", "class=\"ok this-task\"", "class=\"bad\""]
    {
        assert!(page.contains(text), "{text} in {page}");
    }
    assert!(page.contains(&format!("href=\"/tasks/{failed}\"")), "{page}");
    let known = console.get(&format!("/api/v1/tasks/{last}")).await.body;
    let known: Value = serde_json::from_str(&known).unwrap();
    assert_eq!(known["duration_history"]["durations"]["attempts"], 3);
    assert_eq!(known["duration_history"]["recent"][0]["task_id"], last);
    assert!(worker.terminate().await.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_is_a_tree_with_what_changed() {
    let database = Database::new().await;
    let viewer = Login::new(&database, "viewer", "mill_viewer").await;
    let console = Console::start(&database, &[]).await;
    let viewer_console = Console::start_at(&database, &viewer.url(), &[]).await;
    database
        .execute(
            "CREATE TABLE \"<script>t\" AS SELECT n, n % 7 AS m FROM generate_series(1, 20000) AS n;
             ANALYZE \"<script>t\"",
        )
        .await;
    let mut worker = Worker::start(&database, &["--readers", "1", "--poll-interval", "50ms"]);
    let query = "SELECT m FROM \"<script>t\" WHERE n = 7";
    let explained = ", name => 'look', explain => true";
    let first = database.enqueue(query, explained).await;
    assert_eq!(database.outcome(first).await, "succeeded");
    database.execute("CREATE UNIQUE INDEX t_n ON \"<script>t\" (n); ANALYZE \"<script>t\"").await;
    let second = database.enqueue(query, explained).await;
    assert_eq!(database.outcome(second).await, "succeeded");
    let page = console.get(&format!("/tasks/{first}")).await.body;
    assert!(page.contains("Seq Scan on &#60;script&#62;t") && !page.contains("plan changed"));
    let page = console.get(&format!("/tasks/{second}")).await.body;
    for text in [
        "plan changed",
        "- Seq Scan on &#60;script&#62;t",
        "+ Index Scan using t_n on &#60;script&#62;t",
        "/plan.json\"",
        " of WAL",
    ] {
        assert!(page.contains(text), "{text} in {page}");
    }
    assert_eq!(page.matches("<script").count(), page.matches("<script src=").count());
    // The saved plan is available as the original JSON, for programs that draw plans.
    let raw = console.get(&format!("/tasks/{second}/plan.json")).await;
    assert!(raw.headers.contains("content-type: application/json"), "{}", raw.headers);
    let raw: Value = serde_json::from_str(&raw.body).unwrap();
    assert_eq!(raw[0]["Plan"]["Index Name"], "t_n");
    let known = console.get(&format!("/api/v1/tasks/{second}")).await.body;
    let known: Value = serde_json::from_str(&known).unwrap();
    assert_eq!(known["plan"]["changed"], true);
    assert_eq!(known["plan"]["previous"]["task_id"], first);

    database.execute("UPDATE mill.settings SET hide_statements = true").await;
    assert!(!viewer_console.get(&format!("/tasks/{second}")).await.body.contains("Index Scan"));
    assert!(!viewer_console.get(&format!("/api/v1/tasks/{second}")).await.body.contains("t_n"));
    assert_eq!(viewer_console.get(&format!("/tasks/{second}/plan.json")).await.status, 404);
    assert!(worker.terminate().await.success());
    drop((console, viewer_console));
    viewer.gone().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_task_is_changed_with_a_form_that_leaves_empty_fields_alone() {
    let database = Database::new().await;
    let console = Console::start(&database, &[]).await;
    let id = database.enqueue("SELECT $1::int", ", params => '[1]', max_attempts => 7").await;
    let path = format!("/tasks/{id}");
    let page = console.get(&path).await.body;
    assert!(page.contains("Edit …") && page.contains("due (UTC)"), "{page}");
    let set = async |form: &str| console.post(&format!("{path}/set"), form).await;
    let stored = async || -> String {
        database
            .value(
                "SELECT concat_ws(' ', priority, queue, group_name, max_attempts, params,
                    to_char(nullif(due_at, enqueued_at) AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI'))
                 FROM mill.visible_tasks",
            )
            .await
    };
    let form = "priority=high&queue=etl&group=g&max_attempts=&params=[2]&due_at=2999-01-01T12:30";
    database.execute("SELECT mill.set_group('g')").await;
    assert_eq!(set(form).await.status, 303);
    assert_eq!(stored().await, "high etl g 7 [2] 2999-01-01 12:30");
    assert_eq!(set("priority=&queue=&params=&due_at=&no_group=true").await.status, 303);
    assert_eq!(stored().await, "high etl 7 [2] 2999-01-01 12:30");
    for form in ["params={}", "params=[1", "due_at=soon", "max_attempts=many", "priority=urgent"] {
        assert_eq!(set(form).await.status, 400, "{form}");
    }
    assert_eq!(set("max_attempts=0").await.status, 422);
    database
        .execute(
            "UPDATE mill.tasks SET state = 'running', attempt = 1, token = gen_random_uuid(), session_pid = 1,
                claimed_by = gen_random_uuid(), claimed_at = now(), session_started_at = now()",
        )
        .await;
    let refused = set("priority=low").await;
    assert!(refused.status == 422 && refused.body.contains("is running"), "{}", refused.body);
    assert!(!console.get(&path).await.body.contains("Edit …"));
    assert_eq!(console.post("/tasks/4711/set", "priority=low").await.status, 404);
}
