//! The receipts of a target: of an attempt that commits and a worker that resolves it, one comes first,
//! and the other one finds out.

use queue::receipt::{Receipt, write_receipt};
use serde_json::json;
use uuid::Uuid;

use crate::harness::login::{Login, answer};
use crate::harness::{Database, Worker, eventually};
use crate::runs::run::{end, job, start};
use crate::targets::target::{Configuration, as_flags};

const ID: &str = "'11111111-1111-1111-1111-111111111111'";

fn resolve(epoch: i64) -> String {
    format!("SELECT * FROM mill_target.resolve(ARRAY[{ID}]::uuid[], ARRAY[{epoch}])")
}

fn complete(epoch: i64) -> String {
    format!("SELECT mill_target.complete({ID}, {epoch}, pg_current_xact_id(), 7)")
}

#[tokio::test]
async fn a_resolution_waits_for_a_commit_under_way_and_a_commit_for_a_resolution() {
    let dwh = Database::empty().await;
    queue::receipt::init(dwh.client(), &[]).await.unwrap();
    let (attempt, resolver) = (dwh.connect().await, dwh.connect().await);
    let impatient = "SET lock_timeout = '50ms'";
    for client in [&attempt, &resolver] {
        client.batch_execute(impatient).await.unwrap();
    }
    // The attempt has written its receipt first.
    attempt.batch_execute(&format!("BEGIN; {}", complete(3))).await.unwrap();
    assert_eq!(answer(&resolver, &resolve(4)).await, "55P03");
    attempt.batch_execute("ROLLBACK").await.unwrap();
    // The resolution comes first. It keeps the attempt and older ones from committing, and no later one.
    resolver.batch_execute(&format!("BEGIN; {}", resolve(4))).await.unwrap();
    assert_eq!(answer(&attempt, &complete(3)).await, "55P03");
    resolver.batch_execute("COMMIT").await.unwrap();
    for (epoch, expected) in [(3, "MT004"), (4, "MT004"), (5, "ok")] {
        assert_eq!(answer(&attempt, &complete(epoch)).await, expected, "{epoch}");
    }
    let row = &resolver.query(&resolve(9), &[]).await.unwrap()[0];
    let found: (bool, i64, i64) = (row.get("done"), row.get("rows"), row.get("epoch"));
    assert_eq!(found, (true, 7, 5));
    assert_eq!(answer(&attempt, &complete(10)).await, "MT003");
    // A task cannot give up the durability of its receipt. A resolution waits for a standby as well.
    for function in
        ["complete(gen_random_uuid(), 1, pg_current_xact_id(), 1)", "resolve('{}', '{}')"]
    {
        let relaxed = format!(
            "BEGIN; SET LOCAL synchronous_commit = off; SELECT FROM mill_target.{function}"
        );
        attempt.batch_execute(&relaxed).await.unwrap();
        let row = attempt.query_one("SHOW synchronous_commit", &[]).await.unwrap();
        assert_eq!(row.get::<_, &str>(0), "on", "{function}");
        attempt.batch_execute("ROLLBACK").await.unwrap();
    }
}

#[tokio::test]
async fn no_login_lists_writes_or_resolves_the_receipts_of_another() {
    let dwh = Database::empty().await;
    let (one, two) = (Login::new(&dwh, "one", "").await, Login::new(&dwh, "two", "").await);
    queue::receipt::init(dwh.client(), &[one.name.clone(), two.name.clone()]).await.unwrap();
    let none = Login::new(&dwh, "none", "").await;
    let (first, second) = (one.connect().await, two.connect().await);
    assert_eq!(answer(&first, &resolve(5)).await, "ok");
    // Not even with a higher epoch.
    assert_eq!(answer(&second, &complete(9)).await, "MT004");
    assert!(second.query(&resolve(5), &[]).await.unwrap().is_empty());
    let list = "SELECT * FROM mill_target.old_receipts('-1 h', 10)";
    assert!(second.query(list, &[]).await.unwrap().is_empty());
    assert_eq!(first.query(list, &[]).await.unwrap().len(), 1);
    for sql in ["TABLE mill_target.receipts", "UPDATE mill_target.state SET epoch = 0"] {
        assert_eq!(answer(&first, sql).await, "42501", "{sql}");
    }
    assert_eq!(answer(&none.connect().await, &complete(9)).await, "42501");
    // The login's own attempts: resolved, then higher, then done.
    for (epoch, expected) in [(5, "MT004"), (6, "ok"), (7, "MT003")] {
        assert_eq!(answer(&first, &complete(epoch)).await, expected, "{epoch}");
    }
    let other = "SELECT mill_target.complete(gen_random_uuid(), 1, '1', 1)";
    assert_eq!(answer(&first, other).await, "MT002");
    drop((first, second));
    for login in [one, two, none] {
        login.gone().await;
    }
}

#[tokio::test]
async fn a_receipt_belongs_to_the_login_that_wrote_it_whatever_its_name() {
    let dwh = Database::empty().await;
    let name = format!("Etl@{}", dwh.name());
    dwh.execute(&format!("CREATE ROLE \"{name}\" LOGIN")).await;
    queue::receipt::init(dwh.client(), std::slice::from_ref(&name)).await.unwrap();
    let client = dwh.connect().await;
    client.batch_execute(&format!("SET SESSION AUTHORIZATION \"{name}\"")).await.unwrap();
    assert_eq!(answer(&client, &complete(1)).await, "ok");
    let owners = "SELECT pg_get_userbyid(login)::text FROM mill_target.receipts";
    assert_eq!(dwh.value::<String>(owners).await, name);
    drop(client);
    dwh.execute(&format!("DROP OWNED BY \"{name}\"; DROP ROLE \"{name}\"")).await;
}

#[tokio::test]
async fn a_receipt_keeps_every_character_of_a_result_in_any_encoding() {
    for (encoding, stored) in [("UTF8", "object"), ("LATIN1", "string"), ("SQL_ASCII", "string")] {
        let dwh = Database::with_encoding(encoding).await;
        queue::receipt::init(dwh.client(), &[]).await.unwrap();
        let receipt = Receipt { id: Uuid::from_u128(1), epoch: 3 };
        let result = json!({ "columns": ["José"], "rows": [["cut …", "\u{1f600} \" \\ '"]] });
        dwh.execute("BEGIN").await;
        let xact: String = dwh.value("SELECT pg_current_xact_id()::text").await;
        write_receipt(dwh.client(), receipt, &xact, Some(1), Some(&result)).await.unwrap();
        dwh.execute("COMMIT").await;
        let found = queue::receipt::resolve(dwh.client(), &[receipt]).await.unwrap();
        assert_eq!(found[0].done.as_ref().unwrap().result, Some(result), "{encoding}");
        let kind = "SELECT jsonb_typeof(result) FROM mill_target.receipts";
        assert_eq!(dwh.value::<String>(kind).await, stored, "{encoding}");
    }
}

/// The history keeps the beginning of a long value and an ellipsis, which LATIN1 does not have.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_of_a_run_with_a_long_result_succeeds_in_a_target_of_another_encoding() {
    let (queue, dwh) = (Database::new().await, Database::with_encoding("LATIN1").await);
    let configuration = Configuration::new(&queue, &[("dwh", &dwh, dwh.url())]).await;
    let flags = configuration.flags();
    let _worker = Worker::start(&queue, &as_flags(&flags));
    let load = "SELECT repeat('é', 4000) AS text";
    let load = json!({ "name": "load", "run_as": "dwh", "max_attempts": 1, "statement": load });
    job(&queue, "daily", json!([load])).await;
    let run = start(&queue, "daily").await;
    assert_eq!(end(&queue, run).await, "succeeded");
    let shown: String = queue.value("SELECT result #>> '{rows,0,0}' FROM mill.attempts").await;
    assert_eq!(shown, "é".repeat(2048) + "…");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_task_delays_the_record_of_no_other_task() {
    let (queue, one, other) =
        (Database::new().await, Database::empty().await, Database::empty().await);
    let targets = [("one", &one, one.url()), ("other", &other, other.url())];
    let configuration = Configuration::new(&queue, &targets).await;
    let flags = configuration.flags();
    let _worker = Worker::start(&queue, &as_flags(&flags));
    one.execute("SELECT pg_advisory_lock(7)").await;
    let locked = queue.enqueue("SELECT pg_advisory_xact_lock(7)", ", run_as => 'one'").await;
    queue.until_state(locked, "running").await;
    let session = queue.connect().await;
    let lock = format!("BEGIN; SELECT FROM mill.tasks WHERE id = {locked} FOR UPDATE");
    session.batch_execute(&lock).await.unwrap();
    one.execute("SELECT pg_advisory_unlock(7)").await;
    let done = "SELECT count(*) FROM mill_target.receipts WHERE done";
    eventually("it has succeeded in its target", async || one.value::<i64>(done).await == 1).await;
    for _ in 0..20 {
        let task = queue.enqueue("SELECT 1", ", run_as => 'other'").await;
        assert_eq!(queue.outcome(task).await, "succeeded");
    }
    session.batch_execute("COMMIT").await.unwrap();
    assert_eq!(queue.outcome(locked).await, "succeeded");
}
