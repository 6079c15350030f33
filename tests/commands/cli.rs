//! The command-line programs against a running fleet.

use std::process::Stdio;

use serde_json::Value;

use crate::harness::login::Login;
use crate::harness::terminal::Terminal;
use crate::harness::{Database, Program, Worker, amount, eventually};

fn worker(database: &Database) -> Worker {
    Worker::start(database, &["--readers", "2", "--poll-interval", "100ms"])
}

async fn json(program: Program) -> Value {
    serde_json::from_str(&program.succeeds().await).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_is_waited_for_shows_its_rows_and_exits_with_zero() {
    let database = Database::new().await;
    let _worker = worker(&database);
    let arguments = ["--wait", "--param", "20", "--param", "22", "SELECT $1::int + $2::int AS sum"];
    let (code, stdout, stderr) = Program::enqueue(&database, &arguments).run().await;
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.contains("sum") && stdout.contains("42"), "{stdout}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_fails_exits_with_three_and_shows_where_it_failed() {
    let database = Database::new().await;
    let _worker = worker(&database);
    let (code, _, stderr) =
        Program::enqueue(&database, &["--wait", "SELECT 1 FROM nowhere"]).run().await;
    assert_eq!(code, 3);
    assert!(
        stderr.contains("nowhere") && stderr.contains("42P01") && stderr.contains('^'),
        "{stderr}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_times_out_exits_with_124_and_the_task_keeps_running() {
    let database = Database::new().await;
    let (code, stdout, _) = Program::enqueue(&database, &["--wait=100ms", "SELECT 1"]).run().await;
    assert_eq!(code, 124);
    let id: i64 = stdout.trim().parse().unwrap();
    let _worker = worker(&database);
    assert_eq!(database.outcome(id).await, "succeeded");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_lines_are_one_transaction() {
    let count: i64 = amount(10_000, 100_000);
    let database = Database::new().await;
    let file = std::env::temp_dir().join(format!("pgmill-lines-{}.sql", std::process::id()));
    let lines: String = (0..count).map(|n| format!("SELECT {n}\n")).collect();
    std::fs::write(&file, lines).unwrap();
    let path = file.to_str().unwrap();
    let stdout = Program::enqueue(&database, &["--lines", "--file", path]).succeeds().await;
    assert_eq!(i64::try_from(stdout.lines().count()).unwrap(), count);
    let transactions: i64 =
        database.value("SELECT count(DISTINCT xmin::text) FROM mill.tasks").await;
    assert_eq!(transactions, 1);
    // A refused line rolls back the others.
    std::fs::write(&file, "SELECT 1\nCOMMIT\nSELECT 2\n").unwrap();
    let (code, _, _) = Program::enqueue(&database, &["--lines", "--file", path]).run().await;
    assert_eq!(code, 5);
    std::fs::remove_file(&file).unwrap();
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.tasks").await, count);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_database_is_75_and_an_absent_schema_5() {
    let database = Database::empty().await;
    let nowhere = "postgres://postgres@127.0.0.1:1/postgres";
    let (code, ..) = Program::enqueue(&database, &["SELECT 1"]).at(nowhere).run().await;
    assert_eq!(code, 75);
    let (code, ..) = Program::pgmill(&database, &["status"]).at(nowhere).run().await;
    assert_eq!(code, 75);
    let (code, _, stderr) = Program::pgmill(&database, &["status"]).run().await;
    assert_eq!(code, 5);
    assert!(stderr.contains("pgmill init"), "{stderr}");
    Program::init(&database).succeeds().await;
    Program::init(&database).succeeds().await;
    Program::pgmill(&database, &["status"]).succeeds().await;
}

/// Every program reports the same error with the same exit code and in the same form.
#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_is_refused_alike_by_every_program() {
    let database = Database::new().await;
    let url = database.url_as("postgres", "wrong");
    let mut worker = Worker::start_at(&url, &[]);
    let code = worker.ended().await.code();
    let enqueue = Program::enqueue(&database, &["SELECT 1"]).at(&url).run().await;
    let pgmill = Program::pgmill(&database, &["status"]).at(&url).run().await;
    assert_eq!((code, enqueue.0, pgmill.0), (Some(5), 5, 5));
    for reported in [worker.log(), enqueue.2, pgmill.2] {
        let error = reported.lines().any(|line| line.starts_with("error: "));
        assert!(error && reported.contains("password authentication failed"), "{reported}");
    }
}

/// The setting has three names: two of them are those of other schedulers.
#[tokio::test(flavor = "multi_thread")]
async fn the_number_of_attempts_is_stored_under_one_name() {
    let database = Database::new().await;
    for flags in [["--max-attempts", "4"], ["--attempts", "4"], ["--max-retries", "3"]] {
        let [flag, number] = flags;
        let id = Program::enqueue(&database, &[flag, number, "SELECT 1"]).succeeds().await;
        let stored =
            format!("SELECT max_attempts FROM mill.visible_tasks WHERE id = {}", id.trim());
        assert_eq!(database.value::<i32>(&stored).await, 4, "{flag}");
    }
    for (key, number) in [("max_attempts", 4), ("attempts", 4), ("max_retries", 3)] {
        let task = format!(r#"[{{"name": "a", "statement": "SELECT 1", "{key}": {number}}}]"#);
        database.execute(&format!("SELECT mill.set_job('j', tasks => '{task}')")).await;
        let stored = "SELECT max_attempts FROM mill.visible_job_tasks WHERE job = 'j'";
        assert_eq!(database.value::<i32>(stored).await, 4, "{key}");
    }
    let both = r#"[{"name": "a", "statement": "SELECT 1", "attempts": 4, "max_retries": 3}]"#;
    let set = format!("SELECT mill.set_job('j', tasks => '{both}')");
    let error = database.client().batch_execute(&set).await.unwrap_err();
    let message = error.as_db_error().unwrap().message();
    assert!(message.contains("are the same setting"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_pauses_asks_why_resumes_cancels_and_retries() {
    let database = Database::new().await;
    let _worker = worker(&database);
    Program::pgmill(&database, &["queue", "pause", "etl", "--create"]).succeeds().await;
    let id = Program::enqueue(&database, &["--queue", "etl", "SELECT 1"]).succeeds().await;
    let id = id.trim();
    let why = Program::pgmill(&database, &["why", id]).succeeds().await;
    assert!(why.contains("paused"), "{why}");
    let dry = Program::pgmill(&database, &["task", "cancel", id, "--dry-run"]).succeeds().await;
    assert!(dry.contains(id), "{dry}");
    Program::pgmill(&database, &["task", "cancel", id]).succeeds().await;
    assert_eq!(database.outcome(id.parse().unwrap()).await, "cancelled");
    Program::pgmill(&database, &["task", "retry", id]).succeeds().await;
    Program::pgmill(&database, &["queue", "resume", "etl"]).succeeds().await;
    assert_eq!(database.outcome(id.parse().unwrap()).await, "succeeded");
    let shown = json(Program::pgmill(&database, &["task", "show", id, "--json"])).await;
    assert!(shown.to_string().contains("succeeded") && shown.to_string().contains("cancelled"));
    let (code, ..) = Program::pgmill(&database, &["why", "999999"]).run().await;
    assert_eq!(code, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_finds_drift() {
    let database = Database::new().await;
    let _worker = worker(&database);
    let doctor = || {
        let reason = "applies the schema in a transaction, to compare it";
        Program::pgmill(&database, &["doctor"]).by_superuser(&database, reason)
    };
    let (code, healthy, _) = doctor().run().await;
    assert!(!healthy.contains("tasks_scheduled"), "{healthy}");
    for (sql, names) in [
        (
            "DROP INDEX mill.tasks_scheduled;
             ALTER TABLE mill.settings DISABLE TRIGGER audit_settings",
            &["tasks_scheduled", "audit_settings"][..],
        ),
        ("DROP TRIGGER audit_settings ON mill.settings", &["audit_settings"]),
    ] {
        database.execute(sql).await;
        let (drifted, report, _) = doctor().run().await;
        assert!(names.iter().all(|name| report.contains(*name)), "{sql}: {report}");
        assert_eq!(drifted, 1, "{sql}: {report} {code}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_listing_is_json_too() {
    let database = Database::new().await;
    let _worker = worker(&database);
    Program::enqueue(&database, &["--wait", "SELECT 1"]).succeeds().await;
    for arguments in [
        &["status", "--json"][..],
        &["task", "list", "--json"],
        &["task", "list", "--outcome", "succeeded", "--json"],
        &["queue", "list", "--json"],
        &["worker", "list", "--json"],
        &["history", "--json"],
        &["why", "1", "--json"],
    ] {
        json(Program::pgmill(&database, arguments)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn completions_need_no_database_and_survive_a_closed_pipe() {
    let database = Database::empty().await;
    let nowhere = "postgres://postgres@127.0.0.1:1/postgres";
    for shell in ["bash", "zsh", "fish"] {
        let program = Program::pgmill(&database, &["completions", shell]).at(nowhere);
        assert!(program.succeeds().await.contains("pgmill"));
    }
    let mut command = Program::pgmill(&database, &["completions", "bash"]).into_command();
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

/// A broken id cannot be copied, and a broken state cannot be read.
#[tokio::test]
async fn tables_break_lines_between_words_only() {
    let database = Database::new().await;
    let words: Vec<String> = (1..=9).map(|n| format!("word_number_{n}")).collect();
    let options = format!(", queue => 'a_queue_with_a_long_name', name => '{}'", words.join(" "));
    database.enqueue("SELECT 1", &options).await;
    for columns in [80, 0] {
        let command = Program::pgmill(&database, &["task", "list"]).into_command();
        let mut terminal = Terminal::reporting(columns, command);
        assert!(terminal.ended().await.success());
        let text = terminal.text();
        let lines: Vec<&str> = text.split_whitespace().collect();
        for word in ["PRIORITY", "pending", "a_queue_with_a_long_name", &words[0], &words[3]] {
            assert!(lines.contains(&word), "{columns}: no {word} in\n{text}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_that_do_not_count_as_failed_are_told_apart() {
    let database = Database::new().await;
    database.execute("SELECT pg_advisory_lock(1)").await;
    let _worker = worker(&database);
    // Ends twice by a transient error, fails once, and waits.
    let task = "DO $$ BEGIN
        IF current_setting('mill.attempt')::integer < 3 THEN
            RAISE EXCEPTION 'transient' USING ERRCODE = '40001';
        ELSIF current_setting('mill.attempt') = '3' THEN
            RAISE EXCEPTION 'failed';
        END IF;
        PERFORM pg_advisory_xact_lock(1);
    END $$";
    let id = database.enqueue(task, ", max_attempts => 2, retry_interval => '0'").await;
    let fourth = "SELECT count(*) FROM mill.running WHERE attempt = 4";
    eventually("attempt 4", async || database.value::<i64>(fourth).await == 1).await;
    let show = ["task", "show", &id.to_string()];
    let shown = Program::pgmill(&database, &show).succeeds().await;
    assert!(shown.contains("attempt   4; 1 of 2 failed attempts used; "), "{shown}");
    let listed = Program::pgmill(&database, &["task", "list"]).succeeds().await;
    let fields: Vec<&str> = listed.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(fields[..6], ["1", "running", "default", "normal", "4", "1/2"], "{listed}");
    database.execute("SELECT pg_advisory_unlock(1)").await;
    assert_eq!(database.outcome(id).await, "succeeded");
    let shown = Program::pgmill(&database, &show).succeeds().await;
    assert!(shown.contains("attempt   4; at most 2 failed attempts; "), "{shown}");
}

#[tokio::test]
async fn a_city_and_a_bare_cron_expression_get_a_hint() {
    let database = Database::new().await;
    let set = ["group", "set", "nightly", "--active", "22:00-06:00", "--zone", "Berlin"];
    let (code, _, reported) = Program::pgmill(&database, &set).run().await;
    assert_eq!(code, 5);
    assert!(reported.contains("hint: did you mean Europe/Berlin?"), "{reported}");
    let cron = ["schedule", "next", "--timing", "0 3 * * *"];
    let (code, _, reported) = Program::pgmill(&database, &cron).run().await;
    assert_eq!(code, 2);
    assert!(reported.contains("hint: did you mean cron(\"0 3 * * *\")?"), "{reported}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_nothing_has_is_refused_unless_it_is_to_be_created_and_settings_can_be_removed()
{
    let database = Database::new().await;
    let pgmill = async |arguments: &[&str]| Program::pgmill(&database, arguments).run().await;
    let set_queue = ["queue", "set", "mail", "--max-running", "10"];
    let set_limit = ["limit", "set", "key", "--max-running", "1"];
    for misspelled in [
        &set_queue[..],
        &["queue", "pause", "mail"],
        &["queue", "remove", "mail"],
        &set_limit,
        &["limit", "remove", "key"],
    ] {
        let (code, _, err) = pgmill(misspelled).await;
        assert!(code == 4 && err.contains("hint"), "{misspelled:?}: {code} {err}");
    }
    for create in [&set_queue[..], &set_limit] {
        assert_eq!(pgmill(&[create, &["--create"]].concat()).await.0, 0, "{create:?}");
    }
    assert_eq!(pgmill(&["queue", "pause", "mail"]).await.0, 0, "it has settings now");
    let id = database.enqueue("SELECT 1", ", queue => 'mail', concurrency_key => 'key'").await;
    for remove in [["queue", "remove", "mail"], ["limit", "remove", "key"]] {
        let (code, _, err) = pgmill(&remove).await;
        assert!(code == 5 && err.contains("has live tasks"), "{remove:?}: {code} {err}");
    }
    database.execute(&format!("SELECT mill.cancel({id})")).await;
    let settings = "SELECT (SELECT count(*) FROM mill.queues) + (SELECT count(*) FROM mill.limits)";
    for (dry_run, left) in [(&["--dry-run"][..], 3), (&[], 0)] {
        for remove in [["queue", "remove", "mail"], ["limit", "remove", "key"]] {
            assert_eq!(pgmill(&[&remove, dry_run].concat()).await.0, 0, "{remove:?}");
        }
        assert_eq!(database.value::<i64>(settings).await, left);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_holds_tasks_back_is_a_problem_and_reported_to_a_wait_without_a_terminal() {
    let database = Database::new().await;
    database.execute("SELECT mill.set_group('loads', max_running => 0)").await;
    let wait = ["--group", "loads", "--wait=10s", "SELECT 1"];
    let (code, _, stderr) = Program::enqueue(&database, &wait).run().await;
    assert!(
        code == 124 && stderr.contains("has not started: group \"loads\" is paused"),
        "{stderr}"
    );
    database.execute("SELECT mill.renew_chains(NULL)").await;
    let status = Program::pgmill(&database, &["status"]).succeeds().await;
    assert!(status.contains("group loads has max_running 0, and 1 task waits"), "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_a_session_blocks_is_shown_with_the_session_and_the_remedy() {
    let database = Database::new().await;
    let _worker = worker(&database);
    let holder = database.connect().await;
    holder.batch_execute("BEGIN; SELECT pg_advisory_xact_lock(1)").await.unwrap();
    let pid: i32 = holder.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    let id = database.enqueue("SELECT pg_advisory_xact_lock(1)", "").await;
    let blocked = "SELECT count(*) FROM mill.running WHERE cardinality(blocked_by) > 0";
    eventually("the task is blocked", async || database.value::<i64>(blocked).await == 1).await;
    let why = ["why", &id.to_string()];
    let text = Program::pgmill(&database, &why).succeeds().await;
    let lines: Vec<&str> = text.lines().collect();
    let [sentence, owner, terminate, cancel] = lines[..] else { panic!("{text}") };
    assert!(sentence.contains(&format!("blocked by backend {pid}")), "{text}");
    let ends = format!("the owner of session {pid} can end its transaction, open for ");
    assert!(owner.starts_with(&ends), "{text}");
    assert!(terminate.starts_with(&format!("SELECT pg_terminate_backend({pid})")), "{text}");
    assert!(terminate.contains("a member of pg_signal_backend"), "{text}");
    assert_eq!(cancel, format!("pgmill task cancel {id} frees the reader"));
    let document = json(Program::pgmill(&database, &[&why[..], &["--json"]].concat())).await;
    assert_eq!(document, serde_json::json!({"task_id": id, "why": sentence}));
    let list = ["task", "list", "--state", "running"];
    let listed = Program::pgmill(&database, &list).succeeds().await;
    assert!(listed.contains("ACTIVITY"), "{listed}");
    assert!(listed.contains(&format!("blocked by {pid}")), "{listed}");
    let all = Program::pgmill(&database, &list[..2]).succeeds().await;
    assert!(!all.contains("ACTIVITY"), "{all}");
    holder.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(database.outcome(id).await, "succeeded");
    assert_eq!(Program::pgmill(&database, &why).succeeds().await.lines().count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_holds_a_queue_back_is_explained() {
    let database = Database::new().await;
    let why = async || Program::pgmill(&database, &["why", "etl"]).run().await;
    let (code, _, stderr) = why().await;
    assert!(code == 4 && stderr.contains("no schedule \"etl\""), "{stderr}");
    assert!(stderr.contains("pgmill status"), "{stderr}");
    let sentence = async || why().await.1.trim_end().to_owned();
    database.execute("SELECT mill.pause('etl')").await;
    assert_eq!(sentence().await, "queue etl is paused, with 0 pending tasks");
    database.execute("SELECT mill.resume('etl'); SELECT pg_advisory_lock(1)").await;
    let held = database.enqueue("SELECT pg_advisory_xact_lock(1)", ", queue => 'etl'").await;
    assert_eq!(sentence().await, "queue etl has no live worker, with 1 pending task");
    let _worker = Worker::start(&database, &["--readers", "1"]);
    let running = "SELECT count(*) FROM mill.running";
    eventually("the reader is busy", async || database.value::<i64>(running).await == 1).await;
    assert_eq!(sentence().await, "nothing holds the tasks of queue etl back");
    database.enqueue("SELECT 1", ", queue => 'etl'").await;
    let busy = sentence().await;
    assert!(busy.starts_with("queue etl: 1 pending task, the oldest has waited for "), "{busy}");
    assert!(busy.ends_with("; the only reader is busy"), "{busy}");
    database.execute("SELECT mill.set_max_running('queue', 'mail', 0)").await;
    database.enqueue("SELECT 1", ", queue => 'mail'").await;
    let mail = json(Program::pgmill(&database, &["why", "mail", "--json"])).await;
    let reason = "queue mail has max_running 0, and 1 task waits";
    assert_eq!(mail, serde_json::json!({"queue": "mail", "why": reason}));
    database.execute("SELECT mill.set_group('loads', max_running => 0)").await;
    database.enqueue("SELECT 1", ", queue => 'loads', group_name => 'loads'").await;
    let loads = Program::pgmill(&database, &["why", "loads"]).succeeds().await;
    assert!(loads.starts_with("queue loads: 1 task waits for permits, see "), "{loads}");
    database.execute("SELECT pg_advisory_unlock(1)").await;
    assert_eq!(database.outcome(held).await, "succeeded");
}

#[tokio::test]
async fn a_dry_run_of_a_drain_is_refused_as_the_drain() {
    let database = Database::new().await;
    database
        .execute(
            "INSERT INTO mill.workers (id, session_pid, session_started_at, readers, heartbeat_interval, orphan_timeout)
                VALUES ('00000000-0000-0000-0000-000000000001', 1, now(), 1, '5 s', '30 s')",
        )
        .await;
    let viewer = Login::new(&database, "viewer", "mill_viewer").await;
    for flags in [&[][..], &["--dry-run"]] {
        let arguments = [&["worker", "drain", "0"], flags].concat();
        let drain = Program::pgmill(&database, &arguments).at(&viewer.url());
        let (code, _, stderr) = drain.run().await;
        assert!(code == 5 && stderr.contains("GRANT mill_operator"), "{code} {stderr}");
    }
    viewer.gone().await;
    Program::pgmill(&database, &["worker", "drain", "0", "--dry-run"]).succeeds().await;
    assert!(!database.value::<bool>("SELECT bool_or(draining) FROM mill.workers").await);
}
