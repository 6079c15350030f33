//! Concurrent claims, grants and maintenance do not exceed a limit.

use queue::limit::grant_waiting_permits;
use tokio_postgres::error::SqlState;

use crate::guarantees::checker_mutants::plant;
use crate::harness::{Database, Worker, amount, claim_as_worker};

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
        let claim = format!("BEGIN; {}", claim_as_worker(&format!("id = {first}")));
        claimer.batch_execute(&claim).await.unwrap();
        let set = operator.batch_execute("SELECT mill.set_max_running('queue', 'default', 1)");
        let commit = async {
            // The operator waits or is done.
            database.until_a_session_waits_or("EXISTS (SELECT FROM mill.limits)").await;
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

/// Creates two tasks with one concurrency key, which admits one task. Its limit exists: sessions that use it wait for its
/// row, not for the transaction that creates it.
async fn two_tasks_of_a_key() -> Database {
    let database = Database::new().await;
    let limit = "INSERT INTO mill.limits (kind, name, max_running) VALUES ('key', 'k', 1)";
    database.execute(limit).await;
    for _ in 0..2 {
        database.enqueue("SELECT 1", ", concurrency_key => 'k'").await;
    }
    database
}

const PENDING: &str = "SELECT count(*) FROM mill.tasks WHERE state = 'pending'";

#[tokio::test]
async fn a_grant_waits_for_another_grant_of_the_same_limit() {
    let database = two_tasks_of_a_key().await;
    // The second grant must not give up before the first one ends, however long that takes.
    plant(&database, "mill.await_limit", ("'50ms'", "'5min'")).await;
    let (first, second) = (database.connect().await, database.connect().await);
    first.batch_execute("BEGIN; SELECT mill.grant_waiting_permits()").await.unwrap();
    let grant = second.batch_execute("SELECT mill.grant_waiting_permits()");
    let commit = async {
        // The second grant waits or is done.
        let done = "EXISTS (SELECT FROM mill.tasks WHERE state = 'pending')";
        database.until_a_session_waits_or(done).await;
        first.batch_execute("COMMIT").await.unwrap();
    };
    let (granted, ()) = tokio::join!(grant, commit);
    granted.unwrap();
    assert_eq!(database.value::<i64>(PENDING).await, 1);
}

#[tokio::test]
async fn a_limit_that_an_open_transaction_changes_does_not_hold_back_the_others() {
    let database = two_tasks_of_a_key().await;
    database.enqueue("SELECT 1", ", concurrency_key => 'other'").await;
    let holder = database.connect().await;
    let set = "BEGIN; SELECT mill.set_max_running('key', 'k', 2)";
    holder.batch_execute(set).await.unwrap();
    let worker = database.connect().await;
    worker.batch_execute("SET lock_timeout = '1ms'").await.unwrap();
    for grant in
        ["mill.grant_waiting_permits()", "mill.grant_permits(ARRAY(SELECT id FROM mill.limits))"]
    {
        worker.batch_execute(&format!("SELECT {grant}")).await.unwrap();
        let pending =
            "SELECT string_agg(concurrency_key, ' ') FROM mill.tasks WHERE state = 'pending'";
        assert_eq!(database.value::<String>(pending).await, "other", "{grant}");
    }
    holder.batch_execute("COMMIT").await.unwrap();
    worker.batch_execute("SELECT mill.grant_waiting_permits()").await.unwrap();
    assert_eq!(database.value::<i64>(PENDING).await, 3);
}

#[tokio::test]
async fn maintenance_keeps_the_permits_of_live_tasks() {
    let database = two_tasks_of_a_key().await;
    database
        .execute(
            "SELECT mill.grant_waiting_permits(); SELECT mill.prune();
             SELECT mill.grant_waiting_permits()",
        )
        .await;
    assert_eq!(database.value::<i64>(PENDING).await, 1);
    let permits = "SELECT count(*) FROM mill.permits";
    assert_eq!(database.value::<i64>(permits).await, 1);
    // The permit of a task that no longer exists would take a place of the limit without end.
    database.execute("INSERT INTO mill.permits VALUES (-1, -1, NULL); SELECT mill.prune()").await;
    assert_eq!(database.value::<i64>(permits).await, 1);
}

#[tokio::test]
async fn a_failed_and_a_cancelled_task_give_their_permits_back() {
    let database = two_tasks_of_a_key().await;
    let permits = "SELECT count(*) FROM mill.permits";
    for (before, end) in [
        (
            "true",
            "SELECT mill.fail(id, token, 'failed', 'failure', '1 hour', '{}') FROM mill.tasks
            WHERE state = 'running'",
        ),
        ("false", "SELECT mill.cancel(id) FROM mill.tasks WHERE state = 'pending'"),
    ] {
        database.execute("SELECT mill.grant_waiting_permits()").await;
        assert_eq!(database.value::<i64>(permits).await, 1);
        database.run_as_worker(before).await;
        database.execute(end).await;
        assert_eq!(database.value::<i64>(permits).await, 0, "{end}");
    }
}

/// Returns the number of tasks in each state.
async fn states(database: &Database) -> String {
    let states = "SELECT coalesce(string_agg(state || ' ' || n, ', ' ORDER BY state), '')
        FROM (SELECT state, count(*) AS n FROM mill.tasks GROUP BY state) AS s";
    database.value(states).await
}

#[tokio::test]
async fn a_lowered_limit_also_holds_for_tasks_that_wait_for_a_later_limit() {
    for planted in [false, true] {
        let database = Database::new().await;
        if planted {
            let from = "g.counts_until IS NULL AND t.state IN ('pending', 'blocked')";
            let to = "g.counts_until IS NULL AND t.state = 'pending'";
            plant(&database, "mill.revoke_permits", (from, to)).await;
        }
        database.execute("SELECT mill.set_max_running('queue', 'default', 0)").await;
        for _ in 0..3 {
            database.enqueue("SELECT 1", ", concurrency_key => 'k', concurrency => 3").await;
        }
        database
            .execute(
                "SELECT mill.grant_waiting_permits();
                 SELECT mill.set_max_running('key', 'k', 1); SELECT mill.grant_waiting_permits();
                 SELECT mill.set_max_running('queue', 'default', 10); SELECT mill.grant_waiting_permits();
                 SELECT mill.grant_waiting_permits()",
            )
            .await;
        let expected = if planted { "pending 3" } else { "blocked 2, pending 1" };
        assert_eq!(states(&database).await, expected);
    }
}

#[tokio::test]
async fn a_task_whose_limit_ended_with_its_run_gets_a_new_one() {
    let repeats = ("unnest(missing)", "unnest('{}'::bigint[])");
    for planted in [None, Some(repeats)] {
        let database = Database::new().await;
        if let Some(defect) = planted {
            plant(&database, "mill.renew_chains", defect).await;
        }
        database
            .execute(
                r#"SELECT mill.set_group('g', max_running => 1);
                   SELECT mill.set_job('j', '[{"name": "a", "statement": "SELECT 1"}]');
                   SELECT mill.start_run('{j}');
                   SELECT mill.enqueue('SELECT 1', group_name => 'g', run_id => id) FROM mill.runs;
                   SELECT mill.enqueue('SELECT 1', group_name => 'g', run_id => id) FROM mill.runs;
                   SELECT mill.renew_chains(NULL);
                   SELECT mill.cancel_run(id) FROM mill.runs; SELECT mill.advance_run(id) FROM mill.runs;
                   SELECT mill.advance_run(id) FROM mill.runs"#,
            )
            .await;
        assert_eq!(states(&database).await, "blocked 2");
        let limits = "SELECT count(*) FROM mill.limits WHERE kind = 'group'";
        assert_eq!(database.value::<i64>(limits).await, 1, "tasks wait for the limit");
        database.execute("DELETE FROM mill.limits; SELECT mill.grant_waiting_permits()").await;
        let expected = if planted.is_some() { "blocked 2" } else { "blocked 1, pending 1" };
        assert_eq!(states(&database).await, expected);
    }
}

#[tokio::test]
async fn limits_are_reconciled_after_the_clock_was_set_back() {
    let database = Database::new().await;
    let reconcile = "SELECT mill.reconcile_limits()";
    assert!(database.value::<bool>(reconcile).await);
    let ahead = "UPDATE mill.limit_reconciliation SET at = now() + interval '1 hour'";
    database.execute(ahead).await;
    assert!(database.value::<bool>(reconcile).await);
}

#[tokio::test]
async fn a_start_before_the_clock_was_set_back_counts_for_at_most_one_more_window() {
    let database = Database::new().await;
    database
        .execute(
            "SELECT mill.set_rate('queue', 'default', 1, '1 hour');
             SELECT mill.enqueue('SELECT 1') FROM generate_series(1, 2);
             SELECT mill.grant_waiting_permits()",
        )
        .await;
    database.run_as_worker("true").await;
    // The test moves the times in the rows instead of the clock, which has the same effect.
    database
        .execute(
            "UPDATE mill.tasks SET claimed_at = claimed_at + interval '5 hours' WHERE state = 'running';
             SELECT mill.reconcile_limits()",
        )
        .await;
    let ahead = "SELECT count(*) FROM mill.tasks WHERE claimed_at > clock_timestamp()";
    let running_ahead: i64 = database.value(ahead).await;
    database
        .execute(
            "SELECT mill.fail(id, token, 'failed', 'failure', '1 hour', '{}') FROM mill.tasks WHERE state = 'running';
             UPDATE mill.permits SET counts_until = counts_until + interval '5 hours';
             SELECT mill.grant_waiting_permits()",
        )
        .await;
    let within_the_window: i64 = database.value(PENDING).await;
    database
        .execute(
            "UPDATE mill.permits SET counts_until = counts_until - interval '1 hour';
             SELECT mill.grant_waiting_permits()",
        )
        .await;
    let after_the_window: i64 = database.value(PENDING).await;
    assert_eq!((running_ahead, within_the_window, after_the_window), (0, 0, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_runs_tasks_whose_limit_was_the_only_one_and_is_gone() {
    let database = Database::new().await;
    database
        .execute(
            "SELECT mill.set_group('g', max_running => 1);
             SELECT mill.enqueue('SELECT 1', group_name => 'g', run_id => 7) FROM generate_series(1, 3);
             SELECT mill.renew_chains(NULL); DELETE FROM mill.limits",
        )
        .await;
    assert_eq!(states(&database).await, "blocked 3");
    let _worker = Worker::start(&database, &["--readers", "2", "--poll-interval", "50ms"]);
    database.until_empty().await;
}

/// Such a snapshot does not show the tasks that have begun to use the group or the limit since.
#[tokio::test]
async fn a_removal_or_a_cancel_with_a_snapshot_that_can_be_old_is_refused() {
    let database = Database::new().await;
    database
        .execute(
            r#"SELECT mill.set_group('g'), mill.set_max_running('key', 'k', 1), mill.set_max_running('queue', 'q', 1);
               SELECT mill.set_job('j', '[{"name": "a", "statement": "SELECT 1"}]');
               SELECT mill.start_run('{j}')"#,
        )
        .await;
    let operator = database.connect().await;
    let calls =
        ["drop_group('g')", "remove_limit('key', 'k')", "remove_queue('q')", "cancel_run(1)"];
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        for call in calls {
            let begin = format!("BEGIN ISOLATION LEVEL {level}; SELECT FROM mill.tasks");
            operator.batch_execute(&begin).await.unwrap();
            let options = ", group_name => 'g', concurrency_key => 'k', queue => 'q'";
            database.enqueue("SELECT 1", options).await;
            let error = operator.batch_execute(&format!("SELECT mill.{call}")).await.unwrap_err();
            let error = error.as_db_error().unwrap();
            assert_eq!(error.code(), &SqlState::ACTIVE_SQL_TRANSACTION, "{call}: {error}");
            assert!(error.hint().unwrap().contains("READ COMMITTED"), "{error:?}");
            operator.batch_execute("ROLLBACK").await.unwrap();
        }
        // Tasks have such levels, too, and enqueue other tasks.
        let enqueue = format!(
            "BEGIN ISOLATION LEVEL {level};
             SELECT mill.enqueue('SELECT 1', group_name => 'g', concurrency_key => 'k', queue => 'q');
             SELECT mill.add_run_task('{level}', 'SELECT 1', run_id => 1, group_name => 'g');
             COMMIT"
        );
        operator.batch_execute(&enqueue).await.unwrap();
    }
    database.execute("SELECT mill.cancel_run(1)").await;
}

#[tokio::test]
async fn maintenance_deletes_only_default_limits_of_unused_keys() {
    let database = Database::new().await;
    for key in ["default", "raised", "confirmed"] {
        let id = database.enqueue("SELECT 1", &format!(", concurrency_key => '{key}'")).await;
        database.execute(&format!("SELECT mill.cancel({id})")).await;
    }
    database
        .execute(
            "SELECT mill.set_max_running('key', 'raised', 2), mill.set_max_running('key', 'confirmed', 1),
                 mill.set_max_running('key', 'new', 1);
             SELECT mill.prune()",
        )
        .await;
    let left = "SELECT string_agg(name, ' ' ORDER BY name) FROM mill.limits";
    assert_eq!(database.value::<String>(left).await, "confirmed new raised");
}

#[tokio::test]
async fn a_rate_leaves_one_task_of_a_key_at_once_whether_or_not_its_idle_limit_was_deleted() {
    let database = Database::new().await;
    let limits = "SELECT string_agg(concat_ws(' ', kind, name, max_running), ', ' ORDER BY name) FROM mill.limits";
    let task = database.enqueue("SELECT 1", ", concurrency_key => 'ann'").await;
    database.execute(&format!("SELECT mill.cancel({task}), mill.prune()")).await;
    assert_eq!(database.value::<Option<String>>(limits).await, None);
    database
        .execute(
            "SELECT mill.set_rate('key', 'ann', 1000, '1 second'), mill.set_rate('key', 'bob', NULL, NULL),
                 mill.set_rate('queue', 'mail', 1000, '1 second')",
        )
        .await;
    assert_eq!(database.value::<String>(limits).await, "key ann 1, key bob 1, queue mail");
    let many =
        "SELECT mill.enqueue('SELECT 1', concurrency_key => 'ann') FROM generate_series(1, 3);
        SELECT mill.grant_waiting_permits()";
    database.execute(many).await;
    let claimable = "SELECT count(*) FROM mill.tasks WHERE state = 'pending'";
    assert_eq!(database.value::<i64>(claimable).await, 1);
    // Without a rate, it is a default limit.
    database.execute("SELECT mill.prune()").await;
    assert_eq!(database.value::<String>(limits).await, "key ann 1, queue mail");
}

#[tokio::test]
async fn why_names_a_task_that_holds_a_permit_without_running() {
    let database = Database::new().await;
    let [holder, other] = [
        database.enqueue("SELECT 1", ", concurrency_key => 'k', queue => 'etl'").await,
        database.enqueue("SELECT 1", ", concurrency_key => 'k'").await,
    ];
    database.execute("SELECT mill.grant_waiting_permits()").await;
    let why: String = database.value(&format!("SELECT mill.why({other})")).await;
    let wanted = format!(
        "concurrency key \"k\" has 0 of 1 tasks running; tasks that wait hold a permit (task {holder}: \
         no live worker serves queue \"etl\"); tasks ahead with the same priority: 0"
    );
    assert_eq!(why, wanted);
}

/// What the permit granter does about once a second.
const RECONCILE_AND_GRANT: &str = "DELETE FROM mill.limit_reconciliation;
    SELECT mill.reconcile_limits(); SELECT mill.grant_waiting_permits()";

#[tokio::test]
async fn a_task_on_hold_leaves_its_permits_to_other_tasks() {
    let held_back = "INSERT INTO mill.queues (name, held_back) VALUES ('etl', 'too busy')
        ON CONFLICT (name) DO UPDATE SET held_back = excluded.held_back";
    let end_hold = "UPDATE mill.queues SET held_back = NULL";
    for (options, hold, why, resume) in [
        (
            ", queue => 'etl'",
            "SELECT mill.pause('etl')",
            "queue \"etl\" is paused",
            "SELECT mill.resume('etl')",
        ),
        (", queue => 'etl'", held_back, "queue \"etl\" is held back: too busy", end_hold),
        (
            ", run_as => 'dwh'",
            "INSERT INTO mill.target_checks VALUES ('dwh', now(), 'too busy')",
            "target \"dwh\" is held back: too busy",
            "DELETE FROM mill.target_checks",
        ),
        // The task has the permit of its key, and waits for that of its queue.
        (
            ", queue => 'full'",
            "SELECT mill.pause('full')",
            "queue \"full\" is paused",
            "SELECT mill.set_max_running('queue', 'full', 1), mill.resume('full')",
        ),
    ] {
        let database = Database::new().await;
        let prepare = "SELECT mill.set_target('dwh', allowed => ARRAY[current_user]);
            SELECT mill.set_max_running('queue', 'full', 0)";
        database.execute(prepare).await;
        let holder =
            database.enqueue("SELECT 1", &format!(", concurrency_key => 'k'{options}")).await;
        let other = database.enqueue("SELECT 1", ", concurrency_key => 'k'").await;
        let has_permit = async |id: i64| -> bool {
            let sql = format!("SELECT count(*) > 0 FROM mill.permits WHERE task_id = {id}");
            database.value(&sql).await
        };
        database.execute(RECONCILE_AND_GRANT).await;
        assert!(has_permit(holder).await && !has_permit(other).await, "{why}");
        database.execute(hold).await;
        database.execute(RECONCILE_AND_GRANT).await;
        assert!(!has_permit(holder).await && has_permit(other).await, "{why}");
        let answer: String = database.value(&format!("SELECT mill.why({holder})")).await;
        assert_eq!(answer, why);
        database.execute(&format!("SELECT mill.cancel({other})")).await;
        database.execute(RECONCILE_AND_GRANT).await;
        assert!(!has_permit(holder).await, "{why}");
        database.execute(resume).await;
        database.execute(RECONCILE_AND_GRANT).await;
        let state: String = database
            .value(&format!("SELECT state::text FROM mill.tasks WHERE id = {holder}"))
            .await;
        assert_eq!(state, "pending", "{why}");
    }
}

#[tokio::test]
async fn a_task_behind_any_number_of_tasks_on_hold_gets_a_permit() {
    let database = Database::new().await;
    database
        .execute(
            "SELECT mill.pause('etl'), mill.set_max_running('key', 'k', 1);
             SELECT mill.enqueue('SELECT 1', concurrency_key => 'k', queue => 'etl')
             FROM generate_series(1, 3000);
             SELECT mill.enqueue('SELECT 1', concurrency_key => 'k')",
        )
        .await;
    // Each grant finds the task with a probability of one third.
    let mut session = database.connect().await;
    let mut found = 0;
    for _ in 0..60 {
        let transaction = session.transaction().await.unwrap();
        let grant = "SELECT granted FROM mill.grant_waiting_permits()";
        found += transaction.query_one(grant, &[]).await.unwrap().get::<_, i32>(0);
        transaction.rollback().await.unwrap();
    }
    assert!((1..60).contains(&found), "{found} of 60");
}

/// Returns how many blocks a grant reads, as the fewest of 30 calls, each rolled back.
async fn blocks_of_a_grant(database: &Database) -> i64 {
    let mut fewest = i64::MAX;
    for _ in 0..30 {
        database.execute("BEGIN").await;
        let blocks = database.blocks_of("SELECT mill.grant_waiting_permits()").await;
        fewest = fewest.min(blocks);
        database.execute("ROLLBACK").await;
    }
    fewest
}

#[tokio::test]
async fn the_cost_of_a_grant_is_independent_of_the_number_of_waiting_tasks() {
    let database = Database::new().await;
    let enqueue = |count| {
        format!(
            "SELECT mill.enqueue('SELECT 1', concurrency_key => 'k', queue => 'etl')
             FROM generate_series(1, {count}); ANALYZE mill.tasks"
        )
    };
    // Grants search the other priorities first.
    database
        .execute(
            "UPDATE mill.priorities SET weight = 0 WHERE priority = 'normal';
             SELECT mill.set_max_running('key', 'k', 1)",
        )
        .await;
    database.execute(&enqueue(10)).await;
    let few = blocks_of_a_grant(&database).await;
    // Statistics that say that all tasks wait for one limit make other indexes look as good.
    let more = amount(3000, 10_000);
    database.execute(&enqueue(more)).await;
    let many = blocks_of_a_grant(&database).await;
    database.execute("SELECT mill.pause('etl')").await;
    let on_hold = blocks_of_a_grant(&database).await;
    println!("blocks of a grant: {few} of 10 tasks, {many} with {more} more, {on_hold} on hold");
    assert!(many <= few + 40, "{many} blocks, and {few} with few tasks");
    assert!(on_hold <= few + 600, "{on_hold} blocks of tasks on hold, and {few} otherwise");
}

#[tokio::test]
async fn a_call_checks_a_thousand_limits_and_the_worker_continues_after_them() {
    let database = Database::new().await;
    database
        .execute(
            "SELECT mill.enqueue('SELECT 1', concurrency_key => 'k' || n, queue => 'etl')
             FROM generate_series(1, 1000) AS n",
        )
        .await;
    let behind = database.enqueue("SELECT 1", ", concurrency_key => 'z'").await;
    let client = database.client();
    let (first, last) = grant_waiting_permits(client, None).await.unwrap();
    assert_eq!((first.tasks, last.is_some()), (1000, true));
    let (second, last) = grant_waiting_permits(client, last).await.unwrap();
    assert_eq!((second.tasks, last), (1, None));
    // No permit is free for the first thousand limits, and tasks still wait for them.
    database.execute("SELECT mill.pause('etl')").await;
    database.execute("SELECT mill.revoke_permits(array_agg(l.id)) FROM mill.limits l").await;
    assert_eq!(database.value::<i64>(PENDING).await, 0);
    let _worker = Worker::start(&database, &["--readers", "1"]);
    assert_eq!(database.outcome(behind).await, "succeeded");
}
