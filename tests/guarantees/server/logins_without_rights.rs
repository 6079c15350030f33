//! A login without rights stops and floods no fleet, although it may hold advisory locks and send notifications.

use rustix::process::Signal;

use crate::harness::login::Login;
use crate::harness::{Database, Worker, eventually};

/// All keys of advisory locks that earlier versions used, and those that live sessions hold.
const HOLD_ALL: &str = "SELECT pg_advisory_lock(k) FROM generate_series(7236270911, 7236270916) AS k
    UNION ALL SELECT pg_advisory_lock_shared(l.classid::bigint << 32 | l.objid::bigint) FROM pg_locks l
    WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.pid <> pg_backend_pid()";

#[tokio::test(flavor = "multi_thread")]
async fn workers_register_reclaim_and_maintain_while_a_login_holds_every_advisory_lock() {
    let database = Database::new().await;
    let tenant = Login::new(&database, "tenant", "").await;
    let flags = ["--readers", "1", "--poll-interval", "50ms", "--heartbeat-interval", "300ms"];
    let mut first = Worker::start(&database, &flags);
    database.until_alive(1).await;
    let holder = tenant.connect().await;
    holder.batch_execute(HOLD_ALL).await.unwrap();
    // The last partition is missing, and a queue is held back by a condition that ends.
    database
        .execute(
            "DO $$ BEGIN EXECUTE format('DROP TABLE mill.%I',
                 'attempts_' || to_char((now() AT TIME ZONE 'UTC')::date + 7, 'YYYYMMDD')); END $$;
             SELECT mill.set_queue_conditions('held', max_active_sessions => 1000);
             UPDATE mill.queues SET held_back = 'a condition' WHERE name = 'held'",
        )
        .await;
    let _second = Worker::start(&database, &flags);
    database.until_alive(2).await;
    assert_eq!(database.run("SELECT 1", ", queue => 'held'").await.outcome, "succeeded");
    let days = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'mill.attempts'::regclass";
    eventually("the partition is created", async || database.value::<i64>(days).await == 8).await;
    // The control session of the second worker is cut, and the first worker dies.
    database
        .execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()
                 AND application_name LIKE 'pgmill control%'",
        )
        .await;
    first.kill();
    database.until_alive(1).await;
    assert_eq!(database.run("SELECT 1", "").await.outcome, "succeeded");
    holder.batch_execute("SELECT pg_advisory_unlock_all()").await.unwrap();
    drop(holder);
    tenant.gone().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_schema_is_applied_while_a_login_holds_every_advisory_lock() {
    let database = Database::new().await;
    let tenant = Login::new(&database, "tenant", "").await;
    let holder = tenant.connect().await;
    holder.batch_execute(HOLD_ALL).await.unwrap();
    queue::schema::init(database.client()).await.unwrap();
    drop(holder);
    tenant.gone().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_session_of_a_worker_that_is_taken_for_dead_is_ended() {
    let database = Database::new().await;
    let flags = ["--readers", "2", "--heartbeat-interval", "300ms", "--orphan-timeout", "2s"];
    let frozen = Worker::start(&database, &flags);
    database.until_alive(1).await;
    let id: String = database.value("SELECT left(id::text, 8) FROM mill.workers").await;
    frozen.signal(Signal::STOP);
    let _other = Worker::start(&database, &flags);
    let left = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pgmill %worker {id}%'"
    );
    eventually("no session is left", async || database.value::<i64>(&left).await == 0).await;
    let registered = "SELECT count(*) FROM mill.workers";
    eventually("it is taken for dead", async || database.value::<i64>(registered).await == 1).await;
    frozen.signal(Signal::CONT);
    frozen.until_logged("considered this worker dead").await;
    database.until_alive(2).await;
    assert_eq!(database.run("SELECT 1", "").await.outcome, "succeeded");
}

#[tokio::test(flavor = "multi_thread")]
async fn notifications_of_a_login_cost_ten_heartbeats_a_second_at_most() {
    let database = Database::new().await;
    let tenant = Login::new(&database, "tenant", "").await;
    let _worker = Worker::start(&database, &["--readers", "1"]);
    database.until_alive(1).await;
    let client = tenant.connect().await;
    let state = "SELECT heartbeat, extract(epoch FROM clock_timestamp())::float8 FROM mill.workers";
    let before = &database.rows(state, &[]).await[0];
    for _ in 0..2000 {
        client.batch_execute("NOTIFY mill, 'heartbeat'").await.unwrap();
    }
    // The last one leads to a heartbeat, too.
    let then: i64 = before.get(0);
    eventually("a notification is answered", async || {
        database.rows(state, &[]).await[0].get::<_, i64>(0) > then
    })
    .await;
    let after = &database.rows(state, &[]).await[0];
    let heartbeats = after.get::<_, i64>(0) - then;
    let seconds = after.get::<_, f64>(1) - before.get::<_, f64>(1);
    // With those that the worker sends by itself.
    let limit = seconds * (10.0 + 0.2) + 2.0;
    assert!(heartbeats as f64 <= limit, "{heartbeats} heartbeats in {seconds} s");
    drop(client);
    tenant.gone().await;
}
