//! A task is claimed by one reader at a time. The cost of the claim statement does not grow.

use std::collections::HashSet;

use futures_util::future::join_all;
use jiff::Timestamp;
use queue::claim::{CLAIM, ClaimSession, Lane, LaneRange, SESSION_SETTINGS, SessionIdentity};
use queue::complete::{Success, complete};
use queue::fail::Report;
use queue::poll::{PollOptions, Served, poll};
use queue::{Priority, RunId, TaskId, WorkerId};
use tokio_postgres::error::SqlState;
use uuid::Uuid;

use crate::harness::{Database, PrivateDatabase, Worker, amount, eventually};

/// Returns the whole lanes of these queues with normal priority.
pub(crate) fn lanes(queues: &[&str]) -> Vec<LaneRange> {
    queues
        .iter()
        .map(|queue| Lane {
            queue: (*queue).to_owned(),
            priority: Priority::Normal,
            run_as: String::new(),
        })
        .map(LaneRange::whole)
        .collect()
}

/// Returns this many sessions of readers, which do not exist.
pub(crate) fn sessions(count: i32) -> Vec<SessionIdentity> {
    (1..=count).map(|pid| SessionIdentity { pid, started_at: Timestamp::UNIX_EPOCH }).collect()
}

/// Opens the session of a claimer.
pub(crate) async fn claimer(database: &Database) -> ClaimSession {
    ClaimSession::new(database.connect().await, WorkerId::random(), None).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_of_a_task_with_effects_elsewhere_survives_a_crash() {
    // The server writes no WAL by itself soon enough to save the claim.
    let mut server = PrivateDatabase::new(&[("wal_writer_delay", "10s")]).await;
    let target = "SELECT mill.set_target('dwh', allowed => ARRAY[current_user])";
    server.database.execute(target).await;
    let once = ", mode => 'autocommit', at_most_once => true";
    for (options, run_as) in [(", external => true", ""), (", run_as => 'dwh'", "dwh"), (once, "")]
    {
        let id = server.database.enqueue("SELECT 1", options).await;
        let mut ranges = lanes(&["default"]);
        ranges[0].lane.run_as = run_as.to_owned();
        let claimer = claimer(&server.database).await;
        let claimed = claimer.claim(&ranges, &sessions(1)).await.unwrap();
        assert_eq!(claimed.len(), 1, "{options}");
        server.cluster.crash().unwrap();
        server.cluster.start_again().unwrap();
        server.database.reconnect().await;
        let state = format!("SELECT state::text FROM mill.tasks WHERE id = {id}");
        assert_eq!(server.database.value::<String>(&state).await, "running", "{options}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sixty_four_claimers_never_hold_one_task_twice() {
    let database = Database::new().await;
    database.enqueue_many(5000, "SELECT 1").await;
    let claimers = join_all((0..64).map(|_| claimer(&database))).await;
    let (lanes, sessions) = (lanes(&["default"]), sessions(7));
    let rounds = claimers.iter().map(async |claimer| {
        let mut ids = Vec::new();
        loop {
            let claimed = match claimer.claim(&lanes, &sessions).await {
                // On a busy machine a row may stay locked for longer than a claim waits.
                Err(error) if error.sqlstate() == Some(&SqlState::LOCK_NOT_AVAILABLE) => continue,
                claimed => claimed.unwrap(),
            };
            if claimed.is_empty() {
                return ids;
            }
            ids.extend(claimed.into_iter().map(|claimed| claimed.claim.id()));
        }
    });
    let ids: Vec<TaskId> = join_all(rounds).await.into_iter().flatten().collect();
    let distinct: HashSet<TaskId> = ids.iter().copied().collect();
    assert_eq!((ids.len(), distinct.len()), (5000, 5000));
}

#[tokio::test]
async fn stale_statistics_do_not_make_it_take_more_than_it_asked_for() {
    let database = Database::new().await;
    database.enqueue("SELECT 1", "").await;
    database.execute("ANALYZE mill.tasks").await;
    database.enqueue_many(40, "SELECT 1").await;
    let claimer = claimer(&database).await;
    assert_eq!(claimer.claim(&lanes(&["default"]), &sessions(2)).await.unwrap().len(), 2);
    let running: i64 =
        database.value("SELECT count(*) FROM mill.tasks WHERE state = 'running'").await;
    assert_eq!(running, 2);
}

#[tokio::test]
async fn tasks_come_in_the_order_of_their_ids_from_the_first_lane_that_has_any() {
    let database = Database::new().await;
    let first = database.enqueue("SELECT 1", ", queue => 'b'").await;
    let second = database.enqueue("SELECT 1", ", queue => 'a'").await;
    let third = database.enqueue("SELECT 1", ", queue => 'a'").await;
    let claimer = claimer(&database).await;
    let mut claimed = claimer.claim(&lanes(&["a", "b"]), &sessions(3)).await.unwrap();
    claimed.sort_by_key(|claimed| claimed.session);
    let ids: Vec<i64> = claimed.iter().map(|claimed| claimed.claim.id().0).collect();
    assert_eq!(ids, [second, third, first]);
}

#[tokio::test]
async fn a_paused_queue_is_not_claimed_from() {
    let database = Database::new().await;
    database.enqueue("SELECT 1", ", queue => 'a'").await;
    database.execute("SELECT mill.pause('a')").await;
    let claimer = claimer(&database).await;
    assert!(claimer.claim(&lanes(&["a"]), &sessions(1)).await.unwrap().is_empty());
    database.execute("SELECT mill.resume('a')").await;
    assert_eq!(claimer.claim(&lanes(&["a"]), &sessions(1)).await.unwrap().len(), 1);
}

/// Prepares the claim statement under the name `claim`, like a claimer.
pub(crate) async fn prepare(database: &Database) {
    database
        .execute(&format!(
            "{SESSION_SETTINGS};
             PREPARE claim (text[], text[], bigint[], bigint, uuid, integer[], timestamptz[], bigint[],
                 text[])
             AS {CLAIM}"
        ))
        .await;
}

/// Returns the EXPLAIN output of a claim of one task of this priority above `after`.
async fn explain(database: &Database, options: &str, priority: &str, after: i64) -> String {
    let sql = format!(
        "EXPLAIN ({options}) EXECUTE claim ('{{default}}', '{{{priority}}}', '{{{after}}}', 1,
         gen_random_uuid(), '{{1}}', '{{epoch}}', '{{1}}', ARRAY[''])"
    );
    let rows = database.client().simple_query(&sql).await.unwrap();
    let line = |message: &tokio_postgres::SimpleQueryMessage| match message {
        tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    };
    rows.iter().filter_map(line).collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn a_claim_reads_one_index_range_whatever_the_statistics() {
    let database = Database::new().await;
    let fill = "SELECT mill.enqueue_many(array_fill('SELECT 1'::text, ARRAY[20000]))";
    let run = "UPDATE mill.tasks SET state = 'running', token = gen_random_uuid(), attempt = 1,
               claimed_by = gen_random_uuid(), claimed_at = now(), session_pid = 1,
               session_started_at = now()";
    for (case, change) in [
        ("a new table", ""),
        ("no row, and statistics that know it", "ANALYZE mill.tasks"),
        ("many rows, statistics of none", fill),
        ("many rows", "ANALYZE mill.tasks"),
        ("none pending, many running", &format!("{run}; ANALYZE mill.tasks")),
        ("many dead rows", "DELETE FROM mill.tasks; ANALYZE mill.tasks"),
    ] {
        database.execute(change).await;
        prepare(&database).await;
        let plan = explain(&database, "COSTS OFF", "normal", 0).await;
        let at = plan.find("Index Scan using tasks_pending on tasks").unwrap_or_else(|| {
            panic!("{case}: the head is not read through tasks_pending\n{plan}")
        });
        let condition = plan[at..].lines().nth(1).unwrap();
        for part in [
            "((queue)::text = lane.queue) AND (priority = (lane.priority)::mill.priority)",
            "AND (ROW((run_as)::text, id) > ROW(lane.run_as, lane.after))",
            "AND ((run_as)::text <= lane.run_as)",
        ] {
            assert!(condition.contains(part), "{case}: no \"{part}\" in {condition}\n{plan}");
        }
        let flat = plan.lines().map(str::trim_start).collect::<Vec<_>>().join(", ");
        let lookup = "Index Scan using tasks_pkey on tasks t, Index Cond: (id = ANY ";
        assert!(flat.contains(lookup), "{case}: the claimed rows are not looked up\n{plan}");
        assert!(!plan.contains("Sort"), "{case}: the plan sorts\n{plan}");
        assert!(!plan.contains("Seq Scan on tasks"), "{case}: the plan reads the table\n{plan}");
        database.execute("DEALLOCATE claim; RESET ALL").await;
    }
}

/// Returns the buffers that a claim of a normal task accesses, without planning.
pub(crate) async fn buffers(database: &Database, after: i64) -> u64 {
    buffers_of(database, "normal", after).await
}

async fn buffers_of(database: &Database, priority: &str, after: i64) -> u64 {
    database.execute("BEGIN").await;
    let plan = explain(database, "ANALYZE, BUFFERS, COSTS OFF, TIMING OFF", priority, after).await;
    database.execute("ROLLBACK").await;
    let line = plan.lines().find(|line| line.contains("Buffers:")).unwrap();
    let count = |word: &str| -> u64 {
        let after = line.split_once(word).map_or("0", |(_, rest)| rest);
        after.split(' ').next().unwrap().parse().unwrap()
    };
    count("hit=") + count("read=")
}

/// Returns the fewest buffers of three claims of this priority. Any database that is created on the
/// server can empty the cache of the catalog.
async fn fewest_buffers_of(database: &Database, priority: &str) -> u64 {
    let mut fewest = u64::MAX;
    for _ in 0..3 {
        fewest = buffers_of(database, priority, 0).await.min(fewest);
    }
    fewest
}

#[tokio::test]
async fn with_the_watermark_it_costs_the_same_after_many_finished_tasks() {
    let tasks = amount(10_000, 50_000);
    let database = Database::new().await;
    let old = database.connect().await;
    old.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM mill.tasks")
        .await
        .unwrap();
    database.enqueue_many(tasks, "SELECT 1").await;
    let (claimer, lanes, sessions) =
        (claimer(&database).await, lanes(&["default"]), sessions(tasks / 10));
    let mut last = 0;
    for _ in 0..10 {
        let claimed = claimer.claim(&lanes, &sessions).await.unwrap();
        last = claimed.iter().map(|claimed| claimed.claim.id().0).max().unwrap().max(last);
    }
    database.execute("DELETE FROM mill.tasks WHERE state = 'running'").await;
    database.enqueue_many(100, "SELECT 1").await;
    prepare(&database).await;
    let from_the_head = buffers(&database, 0).await;
    // While a vacuum runs, the search for space for the new row occasionally takes more buffers.
    let mut tried = Vec::new();
    for _ in 0..3 {
        tried.push(buffers(&database, last).await);
    }
    let from_the_watermark = tried.into_iter().min().unwrap();
    println!("buffers per claim of 1: {from_the_watermark}, without watermark {from_the_head}");
    assert!(from_the_watermark <= 30, "{from_the_watermark} buffers");
    let proves = from_the_head > amount(60, 300);
    assert!(proves, "no dead entries ({from_the_head}): the test proves nothing");
    drop(old);
}

#[tokio::test]
async fn a_completion_finds_its_row_by_the_primary_key() {
    let database = Database::new().await;
    database.enqueue_many(2000, "SELECT 1").await;
    let claimed =
        claimer(&database).await.claim(&lanes(&["default"]), &sessions(1000)).await.unwrap();
    database.execute("ANALYZE mill.tasks").await;
    let scans = async |index: &str| -> i64 {
        database.value(&format!("SELECT pg_stat_get_xact_numscans('mill.{index}'::regclass)")).await
    };
    for mode in ["force_generic_plan", "force_custom_plan"] {
        database.execute(&format!("SET plan_cache_mode = {mode}")).await;
        for claimed in &claimed[..10] {
            // Each completion is rolled back. The counters are those of the open transaction.
            database.execute("BEGIN").await;
            let before = scans("tasks_pkey").await;
            complete(database.client(), &[Success::now(&claimed.claim, &Report::default())], None)
                .await
                .unwrap();
            assert_eq!(scans("tasks_pkey").await, before + 1, "{mode}");
            assert_eq!(scans("tasks_running").await, 0, "{mode}");
            assert_eq!(scans("tasks").await, 0, "{mode}: sequential scans");
            database.execute("ROLLBACK").await;
        }
    }
}

#[tokio::test]
async fn the_defaults_of_a_database_do_not_stop_it() {
    let defaults = [
        "default_transaction_isolation = 'repeatable read'",
        "default_transaction_isolation = 'serializable'",
        "default_transaction_read_only = on",
        "enable_indexscan = off",
        "search_path = ''",
        "DateStyle = 'German'",
        "TimeZone = 'Pacific/Apia'",
    ];
    join_all(defaults.map(async |defaults| {
        let database = Database::new().await;
        database.execute("CREATE TABLE effect (task bigint)").await;
        let statement = "INSERT INTO public.effect SELECT current_setting('mill.task_id')::bigint";
        database.enqueue_many(50, statement).await;
        database.execute(&format!("ALTER DATABASE {} SET {defaults}", database.name())).await;
        let _worker = Worker::start(&database, &["--readers", "4"]);
        database.until_empty().await;
        let row = &database.rows("SELECT count(*), count(DISTINCT task) FROM effect", &[]).await[0];
        assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (50, 50), "{defaults}");
    }))
    .await;
}

#[tokio::test]
async fn a_locked_table_blocks_claims_but_neither_the_heartbeat_nor_the_worker() {
    let database = Database::new().await;
    let flags = [
        "--readers",
        "2",
        "--heartbeat-interval",
        "300ms",
        "--orphan-timeout",
        "20s",
        "--poll-interval",
        "50ms",
    ];
    let worker = Worker::start(&database, &flags);
    let other = Worker::start(&database, &flags);
    worker.until_logged("ready").await;
    other.until_logged("ready").await;
    let locker = database.connect().await;
    locker.batch_execute("BEGIN; LOCK TABLE mill.tasks IN ACCESS EXCLUSIVE MODE").await.unwrap();
    // This session waits for the lock, and enqueues once it is released.
    let enqueuer = database.connect().await;
    let enqueued = enqueuer.query_one("SELECT mill.enqueue('SELECT 1')", &[]);
    let unlocked = async {
        worker.until_logged("canceling statement due to lock timeout").await;
        let heartbeat = "SELECT coalesce(min(heartbeat), 0) FROM mill.workers HAVING count(*) = 2";
        let begun: i64 = database.value(heartbeat).await;
        eventually("both workers keep sending heartbeats", async || {
            let rows = database.rows(heartbeat, &[]).await;
            rows.first().is_some_and(|row| row.get::<_, i64>(0) > begun + 1)
        })
        .await;
        locker.batch_execute("COMMIT").await.unwrap();
    };
    let (enqueued, ()) = futures_util::future::join(enqueued, unlocked).await;
    let id: i64 = enqueued.unwrap().get(0);
    assert_eq!(database.outcome(id).await, "succeeded");
    for worker in [&worker, &other] {
        let log = worker.log();
        assert!(!log.contains("dead worker") && !log.contains("worker dead"), "{log}");
    }
}

#[tokio::test]
async fn a_worker_that_ends_when_idle_leaves_nothing_runnable() {
    let database = Database::new().await;
    let early = database.enqueue("SELECT 1", ", due_at => now() + interval '1 day'").await;
    // The late task makes the early one pending, below the watermark and before the next scheduled
    // sweep.
    let due = format!("UPDATE mill.tasks SET state = 'pending', due_at = now() WHERE id = {early}");
    let late = database.enqueue(&due, "").await;
    let mut worker = Worker::start_as_superuser(
        &database,
        "the task changes the queue",
        &["--readers", "1", "--exit-when-idle=1ms"],
    );
    assert!(worker.ended().await.success());
    for id in [late, early] {
        assert_eq!(database.attempts(id).await, "succeeded");
    }
}

#[tokio::test]
async fn tasks_of_another_profile_do_not_slow_down_a_claim() {
    let database = Database::new().await;
    database.execute("SELECT mill.set_profile('other', allowed => ARRAY[current_user])").await;
    let mut costs = Vec::new();
    for count in [0, 50_000] {
        database
            .execute(&format!(
                "SELECT mill.enqueue_many(array_fill('SELECT 1'::text, ARRAY[{count}]),
                     profile => mill.profile('other'))
                 WHERE {count} > 0"
            ))
            .await;
        database.enqueue_many(100, "SELECT 1").await;
        prepare(&database).await;
        costs.push(fewest_buffers_of(&database, "normal").await);
        database.execute("DEALLOCATE claim; RESET ALL").await;
    }
    println!("buffers of a claim ahead of and after other tasks: {costs:?}");
    assert!(costs[1] <= costs[0] + 6, "{costs:?}");
}

#[tokio::test]
async fn a_claim_from_an_empty_lane_reads_no_other_lane() {
    let database = Database::new().await;
    database.enqueue_many(50_000, "SELECT 1").await;
    prepare(&database).await;
    for priority in ["low", "high"] {
        let cost = fewest_buffers_of(&database, priority).await;
        println!("buffers of a claim of {priority} tasks, of which there are none: {cost}");
        assert!(cost <= 15, "{cost} buffers for the priority {priority}");
    }
}

#[tokio::test]
async fn a_sweep_reads_a_thousand_lanes_and_the_next_one_continues_after_them() {
    let database = Database::new().await;
    database
        .execute(
            "SELECT mill.enqueue('SELECT 1', queue => 'q' || n) FROM generate_series(1, 1500) AS n;
             SELECT mill.enqueue('SELECT 1', queue => 'q' || n, priority => 'low') FROM generate_series(1, 700) AS n",
        )
        .await;
    let claims = claimer(&database).await;
    let profiles = [String::new()];
    let (mut all, mut after, mut parts) = (HashSet::new(), None, Vec::new());
    loop {
        let (lanes, last) = claims.lanes(&profiles, after.as_ref()).await.unwrap();
        parts.push(lanes.len());
        all.extend(lanes.into_iter().map(|(lane, _)| lane));
        after = last;
        if after.is_none() {
            break;
        }
    }
    assert_eq!((parts, all.len()), (vec![1000, 1000, 200], 2200));
    // The lanes of other profiles are read and left out.
    let (lanes, last) = claims.lanes(&["other".to_owned()], None).await.unwrap();
    assert!(lanes.is_empty() && last.is_some());
}

#[tokio::test]
async fn what_workers_repeat_reads_tasks_by_the_index_of_their_state() {
    let database = Database::new().await;
    let me = WorkerId(Uuid::nil());
    let options =
        PollOptions { peers: true, unregistered: true, pending: true, runs_after: RunId(0) };
    let all = Served::default();
    let some = Served { queues: Some(vec!["other".to_owned()]), ..Served::default() };
    let one_low = "SELECT mill.enqueue('SELECT 1', priority => 'low')";
    for change in
        ["", "SELECT mill.enqueue_many(array_fill('SELECT 1'::text, ARRAY[20000]))", one_low]
    {
        database.execute(change).await;
        database.execute("ANALYZE mill.tasks").await;
        database.execute("BEGIN").await;
        for served in [&all, &some] {
            let polled = poll(database.client(), me, served, options).await.unwrap();
            assert_eq!(polled.pending, !change.is_empty() && served.queues.is_none());
            assert!(!polled.blocked);
        }
        queue::insight::lanes::lanes(database.client()).await.unwrap();
        database.execute("SELECT mill.pending_by_queue(NULL, 1000)").await;
        let read: i64 = database
            .value(
                "SELECT pg_stat_get_xact_tuples_returned('mill.tasks'::regclass)
                     + pg_stat_get_xact_tuples_returned('mill.tasks_pkey'::regclass)",
            )
            .await;
        assert_eq!(read, 0, "after {change:?}, rows read without the index of their state");
        database.execute("ROLLBACK").await;
    }
}

#[tokio::test]
async fn a_drained_worker_that_ends_when_idle_ends_after_its_last_task() {
    let database = Database::new().await;
    database.execute("SELECT pg_advisory_lock(1)").await;
    let held = database.enqueue("SELECT pg_advisory_xact_lock_shared(1)", "").await;
    let flags = ["--readers", "2", "--heartbeat-interval", "200ms", "--exit-when-idle=1ms"];
    let mut worker = Worker::start(&database, &flags);
    database.until_waiting_for_lock(held).await;
    database.execute("SELECT mill.drain(id) FROM mill.workers").await;
    worker.until_logged("an operator has started the drain").await;
    // A claim may have begun before.
    let claimed_at = "SELECT max(query_start)::text FROM pg_stat_activity
        WHERE application_name LIKE 'pgmill claimer %' AND state = 'idle'";
    let mut before: Option<String> = None;
    eventually("the claimer rests", async || {
        database.until_next_poll().await;
        let now = database.value::<Option<String>>(claimed_at).await;
        now.is_some() && std::mem::replace(&mut before, now.clone()) == now
    })
    .await;
    let left = database.enqueue("SELECT 1", "").await;
    database.execute("SELECT pg_advisory_unlock(1)").await;
    assert!(worker.ended().await.success());
    assert_eq!(database.attempts(held).await, "succeeded");
    assert_eq!(database.attempts(left).await, "");
}
