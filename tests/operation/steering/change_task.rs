//! Operators change tasks that wait.

use crate::harness::login::Login;
use crate::harness::{Database, Program};
use crate::runs::run::{job, start};

async fn task(database: &Database, id: i64) -> String {
    let sql = format!(
        "SELECT concat_ws(' ', t.state, t.queue, t.priority, t.group_name, t.max_attempts, t.timeout,
            t.params, (SELECT string_agg(l.kind || ':' || l.name, ',') FROM mill.permits p
                JOIN mill.limits l ON l.id = p.limit_id WHERE p.task_id = t.id))
         FROM mill.visible_tasks t WHERE t.id = {id}"
    );
    database.value(&sql).await
}

async fn change(database: &Database, id: i64, changes: &str) -> String {
    database.value(&format!("SELECT mill.change_task({id}, '{changes}')")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_task_gives_its_permits_back_and_waits_for_its_new_limits() {
    let database = Database::new().await;
    database.execute("SELECT mill.set_max_running('queue', 'etl', 1)").await;
    let id = database.enqueue("SELECT $1::int", ", queue => 'etl', params => '[1]'").await;
    database.execute("SELECT mill.grant_waiting_permits()").await;
    assert_eq!(task(&database, id).await, "pending etl normal 3 [1] queue:etl");
    // A change that concerns no limit keeps the permit.
    assert_eq!(change(&database, id, r#"{"priority": "high", "params": [2]}"#).await, "updated");
    assert_eq!(task(&database, id).await, "pending etl high 3 [2] queue:etl");
    let changes = r#"{"queue": "slow", "max_attempts": 5, "timeout": "1 min"}"#;
    assert_eq!(change(&database, id, changes).await, "updated");
    assert_eq!(task(&database, id).await, "pending slow high 5 00:01:00 [2]");
    assert_eq!(change(&database, id, changes).await, "unchanged");
    assert_eq!(change(&database, id, r#"{"queue": "etl", "timeout": null}"#).await, "updated");
    assert_eq!(task(&database, id).await, "blocked etl high 5 [2]");
    database.execute("SELECT mill.grant_waiting_permits()").await;
    assert_eq!(change(&database, id, r#"{"due_at": "2999-01-01T00:00:00Z"}"#).await, "updated");
    assert_eq!(task(&database, id).await, "scheduled etl high 5 [2]");
    assert_eq!(change(&database, id, r#"{"due_at": null}"#).await, "updated");
    assert_eq!(task(&database, id).await, "blocked etl high 5 [2]");
    assert_eq!(change(&database, 4711, "{}").await, "not found");
    let audit = "SELECT detail->'priority' = '{\"old\": \"normal\", \"new\": \"high\"}'
        FROM mill.audit WHERE action = 'change_task' ORDER BY id LIMIT 1";
    assert!(database.value::<bool>(audit).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_of_a_run_keeps_a_change_and_a_running_task_is_refused() {
    let database = Database::new().await;
    job(&database, "j", serde_json::json!([{"name": "a", "statement": "SELECT 1"}])).await;
    let run = start(&database, "j").await;
    database.execute(&format!("SELECT mill.advance_run({run})")).await;
    let id: i64 = database.value("SELECT id FROM mill.tasks").await;
    let operator = Login::new(&database, "operator", "mill_operator").await;
    let set = async |arguments: &[&str]| {
        let all = [&["task", "set"], arguments].concat();
        Program::pgmill(&database, &all).at(&operator.url()).run().await
    };
    let id_text = id.to_string();
    assert_eq!(set(&[&id_text, "--front", "--dry-run"]).await.0, 0);
    assert_eq!(task(&database, id).await, "pending default normal 3");
    assert_eq!(set(&[&id_text, "--front", "--queue", "slow"]).await.0, 0);
    assert_eq!(task(&database, id).await, "pending slow critical 3");
    let copy = "SELECT queue || ' ' || priority FROM mill.run_tasks";
    assert_eq!(database.value::<String>(copy).await, "slow critical");
    assert_eq!(set(&["--from-queue", "slow", "--priority", "low", "--yes"]).await.0, 0);
    assert_eq!(task(&database, id).await, "pending slow low 3");
    assert_eq!(set(&["4711", "--now"]).await.0, 4);
    database
        .execute(
            "UPDATE mill.tasks SET state = 'running', attempt = 1, token = gen_random_uuid(), session_pid = 1,
                claimed_by = gen_random_uuid(), claimed_at = now(), session_started_at = now()",
        )
        .await;
    let (code, stdout, _) = set(&[&id_text, "--now", "--queue", "etl"]).await;
    assert!(code == 5 && stdout.contains("the task is running"), "{stdout}");
    operator.gone().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_a_task_that_stays_locked_can_be_tried_again() {
    let database = Database::new().await;
    let id = database.enqueue("SELECT 1", "").await;
    database
        .execute("ALTER FUNCTION mill.change_tasks(bigint[], jsonb, mill.state) SET lock_timeout = '50ms'")
        .await;
    let holder = database.connect().await;
    let lock = format!("BEGIN; SELECT FROM mill.tasks WHERE id = {id} FOR UPDATE");
    holder.batch_execute(&lock).await.unwrap();
    let id_text = id.to_string();
    let set = ["task", "set", &id_text, "--priority", "high"];
    let (code, _, reported) = Program::pgmill(&database, &set).run().await;
    assert!(code == 75 && reported.contains("lock timeout"), "{code} {reported}");
    holder.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(task(&database, id).await, "pending default normal 3");
    Program::pgmill(&database, &set).succeeds().await;
}
