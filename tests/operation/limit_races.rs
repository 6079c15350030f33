//! A limit that is set while a claim is in progress counts the claimed task.

use crate::guarantees::checker_mutants::plant;
use crate::harness::{Database, eventually};

#[tokio::test]
async fn a_task_whose_claim_is_in_progress_counts_towards_a_new_limit() {
    for planted in [false, true] {
        let database = Database::new().await;
        let waits = "t.state = 'pending' AND t.queue = enforce_limits.queue";
        if planted {
            plant(&database, "mill.enforce_limits", (waits, &format!("false AND {waits}"))).await;
        }
        let (claimer, operator) = (database.connect().await, database.connect().await);
        let first = database.enqueue("SELECT 1", "").await;
        let second = database.enqueue("SELECT 1", "").await;
        let claim = format!(
            "BEGIN; UPDATE mill.tasks SET state = 'running', attempt = 1, claimed_by = gen_random_uuid(),
                 claimed_at = now(), token = gen_random_uuid(), session_pid = 1, session_started_at = now()
             WHERE id = {first}"
        );
        claimer.batch_execute(&claim).await.unwrap();
        let set = operator.batch_execute("SELECT mill.set_max_running('queue', 'default', 1)");
        let commit = async {
            let stopped =
                "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()
                AND wait_event_type = 'Lock') OR EXISTS (SELECT FROM mill.limits)";
            eventually("the operator waits or is done", async || database.value(stopped).await)
                .await;
            claimer.batch_execute("COMMIT").await.unwrap();
        };
        let (set, ()) = tokio::join!(set, commit);
        set.unwrap();
        database.execute("SELECT mill.grant_waiting_permits()").await;
        let state = format!("SELECT state::text FROM mill.tasks WHERE id = {second}");
        let expected = if planted { "pending" } else { "blocked" };
        assert_eq!(database.value::<String>(&state).await, expected, "planted: {planted}");
    }
}
