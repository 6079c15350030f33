//! Each role has exactly the privileges in the table of SECURITY.md.

use std::fmt::Write;

use crate::harness::Database;
use crate::harness::login::{Login, answer};

/// An operation, with a statement that performs it.
const VERBS: [(&str, &str); 33] = [
    (
        "finish a claim with its token",
        "SELECT mill.complete(ARRAY[1], ARRAY[gen_random_uuid()], NULL, NULL, NULL, NULL)",
    ),
    ("enqueue", "SELECT mill.enqueue('SELECT 1')"),
    ("enqueue many", "SELECT mill.enqueue_many(ARRAY['SELECT 1'])"),
    (
        "enqueue as a profile that is open to it",
        "SELECT mill.enqueue('SELECT 1', run_as => 'open')",
    ),
    ("enqueue as another profile", "SELECT mill.enqueue('SELECT 1', run_as => 'closed')"),
    ("start a run", "SELECT mill.start_run(ARRAY['work'])"),
    ("read live tasks", "SELECT statement FROM mill.visible_tasks"),
    ("read history", "SELECT statement, result FROM mill.history"),
    (
        "read runs, jobs and schedules",
        "SELECT FROM mill.run_status, mill.jobs, mill.schedule_status",
    ),
    ("read why a task waits", "SELECT mill.why(1)"),
    ("read the scale hint", "SELECT mill.scale_hint()"),
    ("read the audit log", "SELECT action, login, actor FROM mill.audit"),
    ("forge audit rows", "SELECT mill.record_audit('cancel', 'task 1')"),
    ("read tokens", "SELECT token FROM mill.tasks"),
    ("read the keys of profiles", "SELECT key FROM mill.profiles"),
    ("cancel, retry", "SELECT mill.cancel(1), mill.retry(1)"),
    ("pause and limit queues", "SELECT mill.pause('q'), mill.set_max_running('queue', 'q', 1)"),
    ("set priorities and groups", "SELECT mill.set_weights(low => 1), mill.set_group('g')"),
    ("drain workers", "SELECT mill.drain(gen_random_uuid())"),
    (
        "declare jobs",
        "SELECT mill.set_job('new', '[{\"name\": \"t\", \"statement\": \"SELECT 1\"}]')",
    ),
    ("declare schedules", "SELECT mill.set_schedule('s', 'manual', 'SELECT 1')"),
    (
        "control runs and schedules",
        "SELECT mill.cancel_run(0), mill.enable_schedule('daily', false)",
    ),
    (
        "read subscriptions and notifications",
        "SELECT statement FROM mill.subscription_status; SELECT document FROM mill.visible_notifications",
    ),
    (
        "set subscriptions",
        "SELECT mill.set_subscription('s', '{\"events\": [\"task_failed\"], \"channel\": \"c\"}'), mill.test_subscription('s'),
             mill.retry_notifications(), mill.remove_subscription('s')",
    ),
    ("change settings", "UPDATE mill.settings SET max_crashes = 6"),
    (
        "insert tasks, or change what they run",
        "INSERT INTO mill.tasks (statement) VALUES ('SELECT 1'); UPDATE mill.tasks SET run_as = run_as, statement = statement",
    ),
    ("insert history", "INSERT INTO mill.attempts SELECT a.* FROM mill.attempts a WHERE false"),
    (
        "claim and reclaim",
        "UPDATE mill.tasks SET attempt = attempt WHERE false; SELECT mill.reclaim(gen_random_uuid())",
    ),
    (
        "send heartbeats",
        "INSERT INTO mill.workers (id, session_pid, session_started_at, readers, heartbeat_interval, orphan_timeout) VALUES (gen_random_uuid(), 1, now(), 1, '5 s', '30 s')",
    ),
    ("record an attempt", "SELECT mill.fail(1, gen_random_uuid(), 'failed', 'final', '0', NULL)"),
    ("prune history", "SELECT mill.prune()"),
    ("open profiles", "SELECT mill.set_profile('mine', allowed => ARRAY[current_user::text])"),
    ("change the schema", "CREATE TABLE mill.own (n int)"),
];

const ROLES: [(&str, &str); 6] = [
    ("task login", ""),
    ("producer", "mill_producer"),
    ("viewer", "mill_viewer"),
    ("operator", "mill_operator"),
    ("worker", "mill_worker"),
    ("owner", "mill_owner"),
];

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../SECURITY.md");

/// Tries each operation as each role. Returns the heading of the table, and the table.
async fn tried() -> (String, String) {
    let database = Database::new().await;
    let mut logins = Vec::new();
    for (what, role) in ROLES {
        logins.push(Login::new(&database, &what.replace(' ', "_"), role).await);
    }
    let allowed: Vec<String> = logins.iter().map(|login| format!("'{}'", login.name)).collect();
    database
        .execute(&format!(
            "SELECT mill.set_profile('open', allowed => ARRAY[{}]), mill.set_profile('closed'),
                 mill.set_job('work', '[{{\"name\": \"t\", \"statement\": \"SELECT 1\"}}]'),
                 mill.set_schedule('daily', 'daily(03:00)', 'SELECT 1')",
            allowed.join(", ")
        ))
        .await;
    let mut rows: Vec<String> = VERBS.iter().map(|(verb, _)| format!("| {verb} |")).collect();
    let mut strange: Vec<String> = Vec::new();
    for login in &logins {
        let client = login.connect().await;
        for ((verb, sql), row) in VERBS.iter().zip(&mut rows) {
            client.batch_execute("BEGIN").await.unwrap();
            let answer = answer(&client, sql).await;
            client.batch_execute("ROLLBACK").await.unwrap();
            // MT001: the call is permitted, but needs a valid token.
            if !["ok", "42501", "MT001"].contains(&&*answer) {
                strange.push(format!("{}: {verb}: {answer}", login.name));
            }
            write!(row, " {} |", if answer == "42501" { "" } else { "✓" }).unwrap();
        }
    }
    for login in logins {
        login.drop().await;
    }
    assert!(strange.is_empty(), "{strange:#?}");
    let heading = ROLES.iter().fold("| |".to_owned(), |line, (what, _)| format!("{line} {what} |"));
    let table = format!("{heading}\n|---|{}\n{}\n", "---|".repeat(ROLES.len()), rows.join("\n"));
    (heading, table)
}

#[tokio::test(flavor = "multi_thread")]
async fn each_role_may_do_exactly_what_the_table_lists() {
    let (_, table) = tried().await;
    let page = std::fs::read_to_string(PAGE).unwrap();
    assert!(page.contains(&table), "SECURITY.md should say (make rights)\n{table}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "writes SECURITY.md: make rights"]
async fn the_table_of_rights_is_written() {
    let (heading, table) = tried().await;
    let page = std::fs::read_to_string(PAGE).unwrap();
    let (before, rest) = page.split_once(&heading).unwrap();
    let after = rest.split_once("\n\n").unwrap().1;
    std::fs::write(PAGE, format!("{before}{table}\n{after}")).unwrap();
}
