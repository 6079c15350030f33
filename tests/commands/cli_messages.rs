//! Messages of the programs about wrong words, missing privileges and unreachable servers.

use crate::harness::login::{Login, PASSWORD};
use crate::harness::{Database, Program, Worker};

async fn fails(program: Program) -> (i32, String) {
    let (code, stdout, stderr) = program.run().await;
    assert_eq!(stdout, "");
    (code, stderr)
}

#[tokio::test]
async fn help_is_a_word_and_a_flag() {
    let database = Database::new().await;
    let word = Program::pgmill(&database, &["help", "task", "list"]).succeeds().await;
    assert_eq!(word, Program::pgmill(&database, &["task", "list", "--help"]).succeeds().await);
    assert!(word.contains("--no-color"), "{word}");
    let all = Program::pgmill(&database, &["help"]).succeeds().await;
    assert_eq!(all, Program::pgmill(&database, &["--help"]).succeeds().await);
}

#[tokio::test]
async fn a_state_of_a_list_may_be_an_outcome() {
    let database = Database::new().await;
    database.enqueue("SELECT 1/0", ", name => 'fails', max_attempts => 1").await;
    let mut worker = Worker::start(&database, &["--exit-when-idle=100ms"]);
    assert!(worker.ended().await.success());
    database.enqueue("SELECT 1", ", name => 'waits'").await;
    for (state, expected) in [("failed", "fails"), ("pending", "waits")] {
        let list = Program::pgmill(&database, &["task", "list", "--state", state]).succeeds().await;
        assert_eq!(
            (list.lines().count(), list.contains(expected)),
            (if state == "failed" { 3 } else { 2 }, true),
            "{list}"
        );
    }
    let arguments = ["task", "list", "--state", "pending", "--error", "zero"];
    let (code, stderr) = fails(Program::pgmill(&database, &arguments)).await;
    assert!(code == 2 && stderr.contains("--state failed"), "{stderr}");
}

#[tokio::test]
async fn the_examples_of_a_failure_are_different_tasks_and_its_age_is_that_of_the_first() {
    let database = Database::new().await;
    let first =
        database.enqueue("SELECT 1/0", ", max_attempts => 4, retry_interval => '0 s'").await;
    let second =
        database.enqueue("SELECT 1/0", ", max_attempts => 4, retry_interval => '0 s'").await;
    let mut worker = Worker::start(&database, &["--exit-when-idle=100ms"]);
    assert!(worker.ended().await.success());
    let examples = "SELECT (SELECT array_agg(e ORDER BY e) FROM unnest(f.examples) AS e), attempts, tasks FROM mill.failures f";
    let row = &database.rows(examples, &[]).await[0];
    assert_eq!(row.get::<_, Vec<i64>>(0), [first, second]);
    assert_eq!((row.get::<_, i64>(1), row.get::<_, i64>(2)), (8, 2));
    database.create_days_before().await;
    database
        .execute(&format!(
            "UPDATE mill.attempts SET finished_at = finished_at - interval '10 min' WHERE task_id = {first}"
        ))
        .await;
    let status = Program::pgmill(&database, &["status"]).succeeds().await;
    let line = status.lines().find(|line| line.contains("2 tasks failed")).unwrap();
    assert!(line.starts_with("info ") && line.contains(" 10m "), "{status}");
    assert!(line.trim_end().ends_with("pgmill failures --since 1h"), "{status}");
}

#[tokio::test]
async fn an_error_is_stated_once_with_the_privilege_that_is_missing() {
    let database = Database::new().await;
    let plain = Login::new(&database, "plain", "pg_monitor").await;
    let (code, stderr) = fails(Program::pgmill(&database, &["init"]).at(&plain.url())).await;
    assert!(code == 5 && stderr.contains("CREATEROLE") && !stderr.contains("GRANT"), "{stderr}");
    let url = database.url_as(&plain.name, &format!("not-{PASSWORD}"));
    let mut worker = Worker::start_with(&url, &[], &[]);
    assert_eq!(worker.ended().await.code(), Some(5));
    let log = worker.log();
    assert_eq!(log.matches("password authentication failed").count(), 1, "{log}");
    let arguments = ["profile", "set", "p", "--allow", "nobodyrole"];
    let (code, stderr) = fails(Program::pgmill(&database, &arguments)).await;
    assert!(code == 5 && stderr.contains("GRANT mill_owner TO mill_test_operator;"), "{stderr}");
    let (code, stderr) = fails(Program::pgmill_as_owner(&database, &arguments)).await;
    assert!(code == 5 && stderr.contains("there is no role"), "{code} {stderr}");
    plain.drop().await;
}
