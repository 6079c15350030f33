//! Effects in several targets happen once, although workers are killed and targets crash.

use pgmill_worker::Worker as Library;
use rand::RngExt;
use tokio_postgres::Client;

use crate::harness::{Database, Embedded, Fleet, PrivateDatabase, Worker, amount, eventually};
use crate::targets::target::{Configuration, EFFECT, EFFECTS, as_flags, effects};

/// Targets, and tenths of the tasks in each.
const SHARES: [(&str, i64); 3] = [("dwh", 4), ("crm", 2), ("near", 4)];

const TASKS_IN: &str = "SELECT mill.enqueue_many(array_fill($1::text, ARRAY[$2::integer]), 
    profile => mill.profile($3))";

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
    // Only roles that `pgmill target init --login` has named write receipts.
    for (roles, outcome) in [(vec![], "failed"), (vec!["pg_monitor".to_owned()], "succeeded")] {
        queue::receipt::init(dwh.client(), &roles).await.unwrap();
        let role = queue.enqueue("SET ROLE pg_monitor; SELECT 1", ", run_as => 'dwh'").await;
        assert_eq!(queue.outcome(role).await, outcome);
    }
    // A task that runs again has a receipt of its own.
    queue.execute(&format!("SELECT mill.retry({id})")).await;
    assert_eq!(queue.outcome(id).await, "failed");
    let distinct = "SELECT count(DISTINCT receipt) FROM mill.attempts WHERE task_id = ";
    assert_eq!(queue.value::<i64>(&format!("{distinct}{id}")).await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_runs_in_its_target_and_leaves_a_receipt() {
    let queue = Database::new().await;
    let dwh = Database::empty().await;
    let configuration = Configuration::new(&queue, &[("dwh", &dwh, dwh.url())]).await;
    let builder = Library::builder()
        .config_file(configuration.path())
        // The login of the target.
        .setting("allow_superuser", "true")
        .setting("heartbeat_interval", "500ms")
        .handler("load", |call| {
            Box::pin(async move {
                call.transaction().execute(EFFECT, &[]).await?;
                anyhow::ensure!(call.attempt() > 1, "the first attempt fails");
                Ok(call.task_id())
            })
        });
    let _worker = Embedded::start(&queue, builder);
    let options = ", params => '[1]', run_as => 'dwh', max_attempts => 2, retry_interval => '0'";
    let id = queue.enqueue("CALL load($1)", options).await;
    assert_eq!(queue.outcome(id).await, "succeeded");
    assert_eq!(queue.attempts(id).await, "failed succeeded");
    assert_eq!(effects(&dwh).await, (1, 1));
    let receipts = "SELECT count(*) FROM mill_target.receipts WHERE done AND rows = 1";
    assert_eq!(dwh.value::<i64>(receipts).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_over_three_databases_have_their_effect_once_under_kills_and_crashes() {
    // Twelve faults are one of each kind, and kills.
    drain_under_faults(amount(1_500, 20_000), amount(12, 60)).await;
}

/// `cargo test -p tests -- --ignored three_hundred_faults`: takes several minutes.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: 250 kills, and 25 crashes and 25 freezes each of the queue and of targets"]
async fn tasks_over_three_databases_have_their_effect_once_under_three_hundred_faults() {
    drain_under_faults(40_000, 300).await;
}

/// Drains tasks in three targets, while workers are killed, and the queue and two of the targets crash
/// and freeze in turn.
async fn drain_under_faults(tasks: i64, faults: usize) {
    let mut home = PrivateDatabase::new(&[]).await;
    let near = Database::new_in(home.cluster.url("postgres")).await;
    let mut servers = [PrivateDatabase::new(&[]).await, PrivateDatabase::new(&[]).await];
    let [first, second] = &servers;
    let configuration = Configuration::new(
        &home.database,
        &[
            ("near", &near, near.url()),
            ("dwh", &first.database, first.database.url()),
            ("crm", &second.database, second.database.url()),
        ],
    )
    .await;
    for (name, share) in SHARES {
        let count = i32::try_from(tasks * share / 10).unwrap();
        home.database.rows(TASKS_IN, &[&EFFECT, &count, &name]).await;
    }
    let flags = configuration.flags();
    let flags = as_flags(&flags);
    let mut fleet = Fleet::start(&home.database, 3, &flags);
    let mut session = home.database.connect().await;
    let mut finished: i64 = 0;
    for round in 0..faults {
        let step = tasks / i64::try_from(faults).unwrap();
        let next = finished + rand::rng().random_range(1..=step);
        eventually("the drain continues", async || {
            let done = "SELECT count(*) FROM mill.attempts WHERE final";
            finished = session.query_one(done, &[]).await.unwrap().get(0);
            finished >= next || finished >= tasks
        })
        .await;
        // One target crashes, the other one freezes; then the other way round.
        let target = &mut servers[(round / 6 + round / 12) % 2].cluster;
        match round % 12 {
            // Receipts of some commits are not yet recorded.
            0 => {
                target.crash().unwrap();
                target.start_again().unwrap();
            }
            3 => {
                home.cluster.crash().unwrap();
                home.cluster.start_again().unwrap();
                session = home.database.connect().await;
            }
            6 => {
                target.freeze().unwrap();
                fleet.replace(round % 3);
                target.thaw().unwrap();
            }
            9 => {
                home.cluster.freeze().unwrap();
                fleet.replace(round % 3);
                home.cluster.thaw().unwrap();
            }
            _ => fleet.replace(round % 3),
        }
    }
    until_empty(&session).await;
    drop(fleet);
    home.database.reconnect().await;
    let mut near = near;
    let databases = servers.iter_mut().map(|server| &mut server.database).chain([&mut near]);
    for (database, (_, share)) in databases.zip(SHARES) {
        database.reconnect().await;
        let wanted = tasks * share / 10;
        assert_eq!(effects(database).await, (wanted, wanted));
    }
    println!("{tasks} tasks, {faults} faults");
    assert_succeeded_once(&home.database, tasks).await;
}

async fn until_empty(session: &Client) {
    let mut left = i64::MAX;
    while left > 0 {
        let next = (left - 1000).max(0);
        eventually(&format!("at most {next} tasks are left"), async || {
            let count = "SELECT count(*) FROM mill.tasks";
            left = session.query_one(count, &[]).await.unwrap().get(0);
            left <= next
        })
        .await;
    }
}

/// Asserts that each task has succeeded once, and that faults interrupted attempts.
async fn assert_succeeded_once(queue: &Database, tasks: i64) {
    let outcomes: String = queue
        .value(
            "SELECT string_agg(o, ', ' ORDER BY o)
             FROM (SELECT outcome || ' ' || count(*) AS o FROM mill.attempts GROUP BY outcome) AS c",
        )
        .await;
    println!("{outcomes}");
    let succeeded = "SELECT count(*) FROM mill.attempts WHERE outcome = 'succeeded'";
    assert_eq!(queue.value::<i64>(succeeded).await, tasks);
    assert!(outcomes.contains("lost "), "no kill hit a running task: {outcomes}");
}
