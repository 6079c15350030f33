//! Effects in several targets happen once, although workers are killed and targets crash.

use rand::RngExt;

use crate::harness::{Database, Fleet, PrivateDatabase, Worker, eventually};
use crate::targets::target::{Configuration, EFFECT, EFFECTS, as_flags, effects};

const TASKS_IN: &str = "SELECT mill.enqueue_many(array_fill($1::text, ARRAY[$2::integer]), profile => mill.profile($3))";

#[tokio::test(flavor = "multi_thread")]
async fn a_task_runs_in_its_target_and_the_queue_records_it() {
    let queue = Database::new().await;
    let dwh = Database::empty().await;
    let configuration = Configuration::new(&queue, &[("dwh", &dwh, dwh.url())]).await;
    queue.execute(EFFECTS).await;
    let flags = configuration.flags();
    let _worker = Worker::start(&queue, &as_flags(&flags));
    let id = queue.enqueue(&format!("{EFFECT} RETURNING task"), ", run_as => 'dwh'").await;
    assert_eq!(queue.outcome(id).await, "succeeded");
    assert_eq!((effects(&dwh).await, effects(&queue).await), ((1, 1), (0, 0)));
    let recorded =
        "SELECT rows || ' ' || (result->'rows')::text || ' ' || run_as FROM mill.attempts";
    assert_eq!(queue.value::<String>(recorded).await, format!("1 [[\"{id}\"]] dwh"));
    let receipts = "SELECT count(*) FROM mill_target.receipts WHERE done AND rows = 1";
    assert_eq!(dwh.value::<i64>(receipts).await, 1);
    // A failure leaves neither effect nor receipt.
    let id = queue
        .enqueue(
            &format!("{EFFECT}; SELECT 1/0"),
            ", run_as => 'dwh', max_attempts => 2, retry_interval => '0'",
        )
        .await;
    assert_eq!(queue.outcome(id).await, "failed");
    assert_eq!(queue.attempts(id).await, "failed failed");
    assert_eq!((effects(&dwh).await.0, dwh.value::<i64>(receipts).await), (1, 1));
    // A task that ends its own transaction fails, and autocommit tasks run as at home.
    let ends = queue.enqueue("DO $$BEGIN COMMIT; END$$", ", run_as => 'dwh'").await;
    assert_eq!(queue.outcome(ends).await, "failed");
    let autocommit =
        queue.enqueue("VACUUM effect", ", run_as => 'dwh', mode => 'autocommit'").await;
    assert_eq!(queue.outcome(autocommit).await, "succeeded");
    // A task that runs again has a receipt of its own.
    queue.execute(&format!("SELECT mill.retry({id})")).await;
    assert_eq!(queue.outcome(id).await, "failed");
    let distinct = "SELECT count(DISTINCT receipt) FROM mill.attempts WHERE task_id = ";
    assert_eq!(queue.value::<i64>(&format!("{distinct}{id}")).await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_thousand_tasks_over_three_databases_have_their_effect_once_under_kills_and_crashes()
{
    const TASKS: i64 = 20_000;
    const KILLS: usize = 60;
    let queue = Database::new().await;
    let near = Database::empty().await;
    let mut servers = [PrivateDatabase::new(&[]).await, PrivateDatabase::new(&[]).await];
    let [first, second] = &servers;
    let configuration = Configuration::new(
        &queue,
        &[
            ("near", &near, near.url()),
            ("dwh", &first.database, first.database.url()),
            ("crm", &second.database, second.database.url()),
        ],
    )
    .await;
    for (name, share) in [("near", 4), ("dwh", 4), ("crm", 2)] {
        let count = i32::try_from(TASKS * share / 10).unwrap();
        queue.rows(TASKS_IN, &[&EFFECT, &count, &name]).await;
    }
    let flags = configuration.flags();
    let flags = as_flags(&flags);
    let mut fleet = Fleet::start(&queue, 3, &flags);
    let done = "SELECT count(*) FROM mill.attempts WHERE final";
    let mut finished: i64 = 0;
    for round in 0..KILLS {
        let next = finished + rand::rng().random_range(1..=TASKS / 65);
        eventually("the drain continues", async || {
            finished = queue.value(done).await;
            finished >= next || finished >= TASKS
        })
        .await;
        // A target crashes while its tasks run, with the receipts of some commits not yet recorded.
        match round % 6 {
            0 => {
                let server = &mut servers[round / 6 % 2];
                server.cluster.crash().unwrap();
                server.cluster.start_again().unwrap();
            }
            3 => {
                let server = &servers[round / 6 % 2].cluster;
                server.freeze().unwrap();
                fleet.replace(round % 3);
                server.thaw().unwrap();
            }
            _ => fleet.replace(round % 3),
        }
    }
    queue.until_empty().await;
    for (server, share) in servers.iter_mut().zip([4, 2]) {
        server.database.reconnect().await;
        let wanted = TASKS * share / 10;
        assert_eq!(effects(&server.database).await, (wanted, wanted));
    }
    assert_eq!(effects(&near).await, (TASKS * 4 / 10, TASKS * 4 / 10));
    let outcomes: String = queue
        .value("SELECT string_agg(o, ', ' ORDER BY o) FROM (SELECT outcome || ' ' || count(*) AS o FROM mill.attempts GROUP BY outcome) AS c")
        .await;
    println!("{TASKS} tasks, {KILLS} faults: {outcomes}");
    let succeeded = "SELECT count(*) FROM mill.attempts WHERE outcome = 'succeeded'";
    assert_eq!(queue.value::<i64>(succeeded).await, TASKS);
    assert!(outcomes.contains("lost "), "no kill hit a running task: {outcomes}");
}
