//! A limit holds over the whole fleet at every moment, and does not delay tasks without the limit.

pub(crate) mod limit_costs;
pub(crate) mod new_limits;

use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use jiff::Timestamp;
use queue::claim::{ClaimSession, Lane, LaneRange, SessionIdentity};
use queue::complete::{Success, complete};
use queue::fail::Report;
use queue::limit::grant_waiting_permits;
use queue::{Priority, WorkerId};

use crate::harness::{Database, Program, Worker, amount, eventually};

/// Returns the maximum number of concurrent tasks in a selection of history.
async fn max_concurrent(database: &Database, of: &str) -> i64 {
    database
        .value(&format!(
            "SELECT coalesce(max(running), 0)::bigint FROM (
                 SELECT sum(step) OVER (ORDER BY at, step) AS running FROM (
                     SELECT started_at AS at, 1 AS step FROM mill.attempts WHERE {of}
                     UNION ALL SELECT finished_at, -1 FROM mill.attempts WHERE {of}) AS steps) AS sums"
        ))
        .await
}

async fn succeeded(database: &Database) -> i64 {
    database.value("SELECT count(*) FROM mill.attempts WHERE outcome = 'succeeded'").await
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_with_one_concurrency_key_run_one_at_a_time() {
    let (one, four): (i64, i64) = amount((60, 40), (150, 100));
    let database = Database::new().await;
    database
        .execute(&format!(
            "SELECT mill.enqueue('SELECT pg_sleep(0.001)', concurrency_key => 'k' || n % 3, name => 'k' || n % 3)
             FROM generate_series(1, {one}) AS n;
             SELECT mill.enqueue('SELECT pg_sleep(0.001)', concurrency_key => 'four', concurrency => 4,
                 name => 'four') FROM generate_series(1, {four})"
        ))
        .await;
    let _workers = [
        Worker::start(&database, &["--readers", "8"]),
        Worker::start(&database, &["--readers", "8"]),
    ];
    database.until_empty().await;
    for key in ["k0", "k1", "k2"] {
        assert_eq!(max_concurrent(&database, &format!("name = '{key}'")).await, 1, "{key}");
    }
    assert!(max_concurrent(&database, "name = 'four'").await <= 4);
    assert_eq!(succeeded(&database).await, one + four);
    let left: i64 = database.value("SELECT count(*) FROM mill.permits").await;
    assert_eq!(left, 0, "permits without a task");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_keeps_its_limit_while_it_is_changed_and_workers_die() {
    let (tasks, more): (i64, i64) = amount((400, 200), (1500, 500));
    let [raised_after, lowered_after, lifted_after] = amount([40, 120, 160], [100, 400, 550]);
    let database = Database::new().await;
    database
        .execute(&format!(
            "CREATE TABLE limit_from (at timestamptz, max_running integer);
             INSERT INTO limit_from VALUES ('-infinity', 6);
             SELECT mill.set_max_running('queue', 'narrow', 6);
             SELECT mill.enqueue('SELECT pg_sleep(random() * 0.004)', queue => 'narrow')
             FROM generate_series(1, {tasks})"
        ))
        .await;
    let start = || Worker::start(&database, &["--readers", "16"]);
    let mut workers = vec![start(), start(), start(), start()];
    let done = async |min: i64| {
        eventually("more tasks have finished", async || succeeded(&database).await >= min).await;
    };
    // Record a raised limit before the call that sets it, and a lowered limit after it.
    done(raised_after).await;
    database
        .execute(
            "INSERT INTO limit_from VALUES (clock_timestamp(), 12);
             SELECT mill.set_max_running('queue', 'narrow', 12)",
        )
        .await;
    done(lowered_after).await;
    workers[0].kill();
    database.execute("SELECT mill.set_max_running('queue', 'narrow', 3)").await;
    database.execute("INSERT INTO limit_from VALUES (clock_timestamp(), 3)").await;
    done(lifted_after).await;
    workers[1].kill();
    workers.push(start());
    database
        .execute(&format!(
            "INSERT INTO limit_from VALUES (clock_timestamp(), NULL);
             SELECT mill.set_max_running('queue', 'narrow', NULL);
             SELECT mill.enqueue('SELECT pg_sleep(random() * 0.1)', queue => 'narrow')
             FROM generate_series(1, {more})"
        ))
        .await;
    database.until_empty().await;
    // No task starts while the limit is used up.
    let above: i64 = database
        .value(
            "SELECT count(*) FROM mill.attempts a
             CROSS JOIN LATERAL (SELECT l.max_running FROM limit_from l WHERE l.at <= a.started_at
                 ORDER BY l.at DESC LIMIT 1) AS l
             WHERE l.max_running < (SELECT count(*) FROM mill.attempts b
                 WHERE b.started_at <= a.started_at AND b.finished_at > a.started_at)",
        )
        .await;
    assert_eq!(above, 0, "tasks that started above the limit");
    assert_eq!(succeeded(&database).await, tasks + more);
    let busiest = max_concurrent(&database, "true").await;
    assert!(busiest > 12, "{busiest} at once without a limit: the test proves nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn sixty_four_claimers_never_run_more_than_the_limit() {
    const LIMIT: usize = 5;
    let tasks = amount(80, 400);
    let database = Database::new().await;
    database
        .execute(&format!(
            "SELECT mill.set_max_running('queue', 'narrow', {LIMIT});
             SELECT count(*) FROM mill.enqueue_many(array_fill('SELECT 1'::text, ARRAY[{tasks}]),
                 queue => 'narrow')"
        ))
        .await;
    let lane =
        || Lane { queue: "narrow".to_owned(), priority: Priority::Normal, run_as: String::new() };
    let session = [SessionIdentity { pid: 1, started_at: Timestamp::UNIX_EPOCH }];
    let (running, finished) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let client = database.connect().await;
    let claimers = (0..64).map(async |_| {
        let claims =
            ClaimSession::new(database.connect().await, WorkerId::random(), None).await.unwrap();
        while finished.load(Ordering::SeqCst) < tasks {
            grant_waiting_permits(&client, None).await.unwrap();
            let claimed =
                claims.claim(&[LaneRange { limit: 1, ..LaneRange::whole(lane()) }], &session).await;
            // On a busy machine a row may stay locked for longer than a claim waits.
            for claimed in claimed.unwrap_or_default() {
                let at_once = running.fetch_add(1, Ordering::SeqCst) + 1;
                assert!(at_once <= LIMIT, "{at_once} at once");
                tokio::task::yield_now().await;
                running.fetch_sub(1, Ordering::SeqCst);
                let report = Report::default();
                complete(&client, &[Success::now(&claimed.claim, &report)], None).await.unwrap();
                finished.fetch_add(1, Ordering::SeqCst);
            }
        }
    });
    join_all(claimers).await;
    assert_eq!(succeeded(&database).await, i64::try_from(tasks).unwrap());
}

#[tokio::test]
async fn a_limit_holds_for_tasks_that_were_there_before_it() {
    let database = Database::new().await;
    database.execute("SELECT mill.enqueue('SELECT 1') FROM generate_series(1, 5)").await;
    // A producer enqueues before the limit is set, and commits afterwards.
    let producer = database.connect().await;
    producer.batch_execute("BEGIN; SELECT mill.enqueue('SELECT 2')").await.unwrap();
    database
        .execute("SELECT mill.set_max_running('queue', 'default', 1); SELECT mill.grant_waiting_permits()")
        .await;
    let states = "SELECT string_agg(state::text || '*' || n, ' ' ORDER BY state)
        FROM (SELECT state, count(*) AS n FROM mill.tasks GROUP BY state) AS s";
    assert_eq!(database.value::<String>(states).await, "blocked*4 pending*1");
    producer.batch_execute("COMMIT").await.unwrap();
    assert_eq!(database.value::<String>(states).await, "blocked*4 pending*2");
    let _worker = Worker::start(&database, &["--readers", "8"]);
    database.until_empty().await;
    assert_eq!(max_concurrent(&database, "true").await, 1);
    assert_eq!(succeeded(&database).await, 6);
}

#[tokio::test]
async fn many_blocked_tasks_do_not_slow_down_a_claim() {
    let blocked = amount(10_000, 100_000);
    let database = Database::new().await;
    database
        .execute(&format!(
            "SELECT mill.set_group('wide', max_running => 10);
             SELECT count(*) FROM mill.enqueue_many(array_fill('SELECT 1'::text, ARRAY[{blocked}]),
                 group_name => 'wide', run_id => 7);
             SELECT * FROM mill.grant_waiting_permits();
             SELECT count(*) FROM mill.enqueue_many(array_fill('SELECT 2'::text, ARRAY[100]))"
        ))
        .await;
    let pending: i64 =
        database.value("SELECT count(*) FROM mill.tasks WHERE state = 'pending'").await;
    assert_eq!(pending, 110);
    let index: i64 = database.value("SELECT pg_relation_size('mill.tasks_pending') / 8192").await;
    assert!(index < 20, "{index} pages in the index that a claim reads");
    // The ten tasks of the group are older, and each that ended would admit another one that is older.
    let holder = database.connect().await;
    let lock =
        "BEGIN; SELECT FROM mill.tasks WHERE state = 'pending' AND group_name = 'wide' FOR UPDATE";
    holder.batch_execute(lock).await.unwrap();
    let _worker = Worker::start(&database, &["--readers", "4"]);
    eventually("the others have finished", async || {
        database.value::<i64>("SELECT count(*) FROM mill.tasks WHERE group_name IS NULL").await == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rate_is_kept_in_every_period() {
    let database = Database::new().await;
    database
        .execute(
            "SELECT mill.set_rate('queue', 'mail', 20, '1 second');
             SELECT mill.enqueue('SELECT 1', queue => 'mail') FROM generate_series(1, 70)",
        )
        .await;
    let _workers = [
        Worker::start(&database, &["--readers", "16"]),
        Worker::start(&database, &["--readers", "16"]),
    ];
    database.until_empty().await;
    let tightest: f64 = database
        .value(
            "SELECT min(extract(epoch FROM later - started_at))::float8 FROM (
                 SELECT started_at, lead(started_at, 20) OVER (ORDER BY started_at) AS later
                 FROM mill.attempts) AS s",
        )
        .await;
    assert!(tightest >= 1.0, "21 starts within {tightest} s");
}

#[tokio::test]
async fn a_rate_uses_the_shortest_window_of_equal_precision() {
    let database = Database::new().await;
    for (starts, period, window) in [
        (100, "1 minute", "1 in 00:00:00.6"),
        (1000, "1 minute", "10 in 00:00:00.6"),
        (7, "1 second", "7 in 00:00:01"),
        (1, "1 day", "1 in 1 day"),
    ] {
        database.execute(&format!("SELECT mill.set_rate('key', 'k', {starts}, '{period}')")).await;
        let kept: String = database
            .value("SELECT window_starts || ' in ' || window_length FROM mill.limits")
            .await;
        assert_eq!(kept, window, "{starts} in {period}");
    }
}

#[tokio::test]
async fn permits_are_returned_however_a_task_ends() {
    let database = Database::new().await;
    let keyed = async |statement: &str, options: &str| {
        database.enqueue(statement, &format!(", concurrency_key => 'k'{options}")).await
    };
    let failing = keyed("SELECT 1/0", ", max_attempts => 1").await;
    let again = keyed("SELECT 1/0", ", max_attempts => 2, retry_interval => '0'").await;
    let cancelled = keyed("SELECT pg_advisory_lock(1)", "").await;
    let last = keyed("SELECT 1", "").await;
    database.execute("SELECT pg_advisory_lock(1)").await;
    let _worker = Worker::start(&database, &["--readers", "4"]);
    assert_eq!(database.outcome(failing).await, "failed");
    assert_eq!(database.outcome(again).await, "failed");
    database.until_waiting_for_lock(cancelled).await;
    let why: String = database.value(&format!("SELECT mill.why({last})")).await;
    assert_eq!(
        why,
        "concurrency key \"k\" has 1 of 1 tasks running; tasks ahead with the same priority: 0"
    );
    database.execute(&format!("SELECT mill.cancel({cancelled})")).await;
    assert_eq!(database.outcome(cancelled).await, "cancelled");
    assert_eq!(database.outcome(last).await, "succeeded");
}

#[tokio::test]
async fn a_group_is_limited_within_each_run_and_can_be_paused() {
    let database = Database::new().await;
    database
        .execute(
            "SELECT mill.set_group('g', max_running => 2, priority => 'high');
             SELECT mill.enqueue('SELECT 1', group_name => 'g', run_id => run)
             FROM generate_series(1, 3) AS run, generate_series(1, 5);
             SELECT mill.grant_waiting_permits()",
        )
        .await;
    let pending = "SELECT string_agg(run_id || ':' || n, ' ' ORDER BY run_id) FROM (SELECT run_id,
        count(*) AS n FROM mill.tasks WHERE state = 'pending' AND priority = 'high' GROUP BY run_id) AS s";
    assert_eq!(database.value::<String>(pending).await, "1:2 2:2 3:2");
    let set = async |max_running: &str| {
        let sql = format!(
            "SELECT mill.set_max_running('group', 'g', {max_running}); SELECT mill.grant_waiting_permits()"
        );
        database.execute(&sql).await;
    };
    set("0").await;
    assert_eq!(database.value::<Option<String>>(pending).await, None);
    let why: String = database.value("SELECT mill.why(min(id)) FROM mill.tasks").await;
    assert_eq!(why, "group \"g\" in run 1 is paused");
    set("3").await;
    assert_eq!(database.value::<String>(pending).await, "1:3 2:3 3:3");
    set("NULL").await;
    assert_eq!(database.value::<String>(pending).await, "1:5 2:5 3:5");
    let _worker = Worker::start(&database, &["--readers", "4"]);
    database.until_empty().await;
}

#[tokio::test]
async fn an_invalid_limit_is_refused_and_changes_nothing() {
    let database = Database::new().await;
    database
        .execute("SELECT mill.set_group('g'); SELECT mill.enqueue('SELECT 1', group_name => 'g')")
        .await;
    let all = "SELECT concat_ws(' ', (SELECT array_agg(p) FROM mill.priorities p),
        (SELECT array_agg(g) FROM mill.groups g), (SELECT array_agg(l) FROM mill.limits l),
        (SELECT count(*) FROM mill.tasks))";
    let before: String = database.value(all).await;
    for (wrong, fragment) in [
        ("mill.set_weights(low => -1)", "weight"),
        ("mill.set_weights(low => 'NaN')", "weight"),
        ("mill.set_weights(low => 'Infinity')", "weight"),
        ("mill.set_weights(0, 0, 0, 0, 0)", "all weights are zero"),
        ("mill.set_group('g', priority => 'urgent')", "urgent"),
        ("mill.set_group('g', max_running => -1)", "group_max_running_range"),
        ("mill.set_group('')", "label_length"),
        ("mill.set_active_period('g', '10:00', '10:00')", "active period is empty"),
        ("mill.set_active_period('g', '10:00', '11:00', 'Mars/Base')", "Mars/Base"),
        ("mill.set_active_period('g', '10:00', NULL)", "period_whole"),
        ("mill.set_active_period('nobody', '10:00', '11:00')", "there is no group \"nobody\""),
        ("mill.drop_group('g')", "group \"g\" has live tasks"),
        ("mill.enqueue('SELECT 1', group_name => 'nobody')", "there is no group \"nobody\""),
        ("mill.enqueue('SELECT 1', concurrency => 2)", "concurrency requires a concurrency key"),
        ("mill.enqueue('SELECT 1', concurrency_key => 'k', concurrency => -1)", "not be negative"),
        ("mill.set_max_running('queue', 'q', -1)", "max_running_range"),
        ("mill.set_max_running('group', 'nobody', 1)", "there is no group \"nobody\""),
        ("mill.set_rate('queue', 'q', 0, '1 second')", "rate_starts_range"),
        ("mill.set_rate('queue', 'q', 5, '1 millisecond')", "rate_period_range"),
        ("mill.set_rate('queue', 'q', 5, NULL)", "requires both a number of starts and a period"),
        ("mill.set_reserved_capacity('all')", "all"),
    ] {
        let error = database.client().batch_execute(&format!("SELECT {wrong}")).await.unwrap_err();
        let reported = error.as_db_error().unwrap();
        assert!(reported.message().contains(fragment), "{wrong}: {reported}");
    }
    assert_eq!(database.value::<String>(all).await, before);
}

#[tokio::test]
async fn the_programs_set_show_and_refuse_limits() {
    let database = Database::new().await;
    let pgmill = async |arguments: &[&str]| Program::pgmill(&database, arguments).run().await;
    let ok = async |arguments: &[&str]| {
        let (code, out, err) = pgmill(arguments).await;
        assert_eq!(code, 0, "{arguments:?}: {err}");
        out
    };
    ok(&["group", "set", "nightly", "--priority", "low", "--max-running", "4"]).await;
    for (given, stored, shown) in [("0", "0", "paused"), ("off", "null", "off"), ("4", "4", "4")] {
        ok(&["group", "set", "nightly", "--max-concurrency", given]).await;
        let json = ok(&["group", "list", "--json"]).await;
        assert!(json.contains(&format!("\"max_running\": {stored}")), "{given}: {json}");
        assert!(ok(&["group", "list"]).await.contains(shown), "{given}");
    }
    ok(&["group", "set", "nightly", "--active", "22:00-06:00", "--zone", "Europe/Berlin"]).await;
    let groups = ok(&["group", "list"]).await;
    assert!(groups.contains("22:00-06:00 Europe/Berlin"), "{groups}");
    ok(&["queue", "set", "mail", "--max-running", "10", "--rate", "100/1m", "--create"]).await;
    let queues = ok(&["queue", "list"]).await;
    assert!(queues.contains("max running 10, rate 100 in 1m 0s"), "{queues}");
    Program::enqueue(
        &database,
        &["--concurrency-key", "c", "--concurrency", "2", "--group", "nightly", "SELECT 1"],
    )
    .succeeds()
    .await;
    ok(&["limit", "set", "c", "--max-running", "1"]).await;
    database.execute("SELECT mill.grant_waiting_permits()").await;
    let limits = ok(&["limit", "list"]).await;
    for line in ["key", "group", "queue"] {
        assert!(limits.contains(line), "{limits}");
    }
    ok(&["limit", "set", "c", "--rate", "off", "--dry-run"]).await;
    let (code, _, err) = pgmill(&["group", "remove", "nightly"]).await;
    assert!(code == 5 && err.contains("has live tasks"), "{code} {err}");
    let (code, _, _) = pgmill(&["group", "remove", "nobody"]).await;
    assert_eq!(code, 4);
    for wrong in [
        &["group", "set", "g", "--max-running", "-1"][..],
        &["group", "set", "g", "--active", "10:00-10:00"],
        &["priority", "set", "low=-1"],
        &["priority", "set", "urgent=1"],
        &["priority", "reserve", "some"],
        &["queue", "set", "q"],
        &["queue", "set", "q", "--rate", "5"],
        &["limit", "set", "k", "--max-running", "-1"],
    ] {
        assert_eq!(pgmill(wrong).await.0, 2, "{wrong:?}");
    }
    let (code, _, err) =
        pgmill(&["priority", "set", "low=0", "normal=0", "high=0", "critical=0", "reserved=0"])
            .await;
    assert!(code == 5 && err.contains("zero"), "{code} {err}");
    let (code, _, err) =
        pgmill(&["group", "set", "new", "--active", "10:00-11:00", "--zone", "Mars/Base"]).await;
    assert!(code == 5 && err.contains("Mars/Base"), "{code} {err}");
    assert!(!ok(&["group", "list"]).await.contains("new"), "an incomplete group was created");
    assert_eq!(
        ok(&["priority", "set", "low=10"]).await,
        "shares: reserved 38.1 %, critical 28.6 %, high 14.3 %, normal 9.5 %, low 9.5 %\n"
    );
    ok(&["priority", "reserve", "high"]).await;
    let priorities = ok(&["priority", "list"]).await;
    assert!(priorities.contains("reserved capacity: high"), "{priorities}");
}
