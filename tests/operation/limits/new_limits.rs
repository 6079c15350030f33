//! A limit that does not exist yet keeps no producer and no other task waiting.

use crate::harness::{Database, amount};

/// The states of the tasks, in the order of their ids.
const STATES: &str = "SELECT string_agg(state::text, ' ' ORDER BY id) FROM mill.tasks";

#[tokio::test]
async fn producers_that_use_new_limits_in_opposite_order_do_not_wait() {
    let database = Database::new().await;
    database.execute("SELECT mill.set_group('g', max_running => 1)").await;
    for [first, second] in [
        ["concurrency_key => 'a'", "concurrency_key => 'b'"],
        ["concurrency_key => 'c', concurrency => 2", "concurrency_key => 'd', concurrency => 3"],
        ["group_name => 'g', run_id => 1", "group_name => 'g', run_id => 2"],
    ] {
        let (one, other) = (database.connect().await, database.connect().await);
        for producer in [&one, &other] {
            producer.batch_execute("SET lock_timeout = '10s'; BEGIN").await.unwrap();
        }
        for (producer, options) in
            [(&one, first), (&other, second), (&one, second), (&other, first)]
        {
            let enqueue = format!("SELECT mill.enqueue('SELECT 1', {options})");
            producer.batch_execute(&enqueue).await.unwrap();
        }
        for producer in [&one, &other] {
            producer.batch_execute("COMMIT").await.unwrap();
        }
    }
    database.execute("SELECT mill.grant_waiting_permits()").await;
    let limits = "SELECT string_agg(concat_ws(' ', name, nullif(run_id, 0), max_running), ', '
        ORDER BY name, run_id) FROM mill.limits";
    assert_eq!(database.value::<String>(limits).await, "a 1, b 1, c 2, d 3, g 1, g 2");
    let pending = "SELECT count(*) FROM mill.tasks WHERE state = 'pending'";
    assert_eq!(database.value::<i64>(pending).await, 1 + 1 + 2 + 2 + 1 + 1);
}

#[tokio::test]
async fn tasks_wait_for_the_transaction_that_creates_their_limit_and_no_others_do() {
    let database = Database::new().await;
    database.execute("SELECT mill.set_group('g', max_running => 1)").await;
    let creators = [
        (
            "SELECT mill.set_max_running('key', 'k', 2)",
            "concurrency_key => 'k'",
            "concurrency key \"k\"",
        ),
        (
            "INSERT INTO mill.limits (kind, name, run_id) VALUES ('group', 'g', 7)",
            "group_name => 'g', run_id => 7",
            "group \"g\" in run 7",
        ),
    ];
    for (create, options, subject) in creators {
        let (creator, granter) = (database.connect().await, database.connect().await);
        creator.batch_execute(&format!("BEGIN; {create}")).await.unwrap();
        let id = database.enqueue("SELECT 1", &format!(", {options}")).await;
        for other in ["concurrency_key => 'other'", "group_name => 'g'"] {
            database.enqueue("SELECT 1", &format!(", {other}")).await;
        }
        // Any wait that the grant itself does not bound is an error.
        let grant = "SET lock_timeout = '1ms'; SELECT mill.grant_waiting_permits()";
        granter.batch_execute(grant).await.unwrap();
        assert_eq!(database.value::<String>(STATES).await, "blocked pending pending", "{create}");
        assert_eq!(
            database.value::<String>(&format!("SELECT mill.why({id})")).await,
            format!(
                "it waits until a worker has created the limit of {subject}, which another \
                 transaction may be creating or removing"
            )
        );
        creator.batch_execute("COMMIT").await.unwrap();
        granter.batch_execute(grant).await.unwrap();
        assert_eq!(database.value::<String>(STATES).await, "pending pending pending", "{create}");
        database.execute("SELECT mill.cancel(id) FROM mill.tasks").await;
    }
}

#[tokio::test]
async fn the_first_task_of_a_key_sets_how_many_run_at_once() {
    let database = Database::new().await;
    for concurrency in [3, 2] {
        let options = format!(", concurrency_key => 'k', concurrency => {concurrency}");
        let id = database.enqueue("SELECT 1", &options).await;
        database
            .execute(&format!("SELECT mill.change_task({id}, '{{\"priority\": \"high\"}}')"))
            .await;
    }
    database.execute("SELECT mill.grant_waiting_permits()").await;
    let limit = "SELECT max_running FROM mill.limits";
    assert_eq!(database.value::<i32>(limit).await, 3);
    let other = "SELECT mill.enqueue('SELECT 1', concurrency_key => 'k', concurrency => 2)";
    let refused = database.client().batch_execute(other).await.unwrap_err();
    let message = "concurrency key \"k\" allows 3 tasks at once, not 2";
    assert_eq!(refused.as_db_error().unwrap().message(), message);
}

#[tokio::test]
async fn many_new_keys_get_their_limits_and_permits_at_once() {
    // More than the thousand tasks and limits that a part of a call checks.
    let keys: i64 = amount(1200, 2500);
    let database = Database::new().await;
    database
        .execute(&format!(
            "SELECT mill.set_group('g', max_running => 10000);
             SELECT mill.enqueue('SELECT 1', concurrency_key => 'k' || n, group_name => 'g')
             FROM generate_series(1, {keys}) AS n;
             SELECT mill.grant_waiting_permits()"
        ))
        .await;
    let counts = "SELECT ARRAY[(SELECT count(*) FROM mill.tasks WHERE state = 'pending'),
        (SELECT count(*) FROM mill.limits), (SELECT count(*) FROM mill.permits)]";
    assert_eq!(database.value::<Vec<i64>>(counts).await, [keys, keys + 1, 2 * keys]);
}
