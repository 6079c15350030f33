//! A priority is a share, not a rank. Reserved readers run only tasks of priority `reserved`.

use crate::harness::{Database, Program, Worker, amount, eventually};
use crate::targets::target::Configuration;

/// Enqueues this many tasks of each priority, lowest first.
async fn backlog(database: &Database, counts: [i32; 5]) {
    for (priority, count) in ["low", "normal", "high", "critical", "reserved"].iter().zip(counts) {
        database
            .execute(&format!(
                "SELECT count(*) FROM mill.enqueue_many(array_fill('SELECT 1'::text, ARRAY[{count}]),
                     priority => '{priority}')"
            ))
            .await;
    }
}

/// Returns the percentage of each priority in the first `claims` claims.
async fn shares(database: &Database, claims: u32) -> Vec<(String, f64)> {
    database
        .rows(
            "SELECT priority::text, (count(*) * 100.0 / $1::bigint)::float8 FROM (
                 SELECT priority FROM mill.attempts ORDER BY started_at, task_id LIMIT $1) AS picked
             GROUP BY picked.priority ORDER BY picked.priority",
            &[&i64::from(claims)],
        )
        .await
        .iter()
        .map(|row| (row.get(0), row.get(1)))
        .collect()
}

/// Asserts the shares of independent draws: each is within six standard deviations, which 2 of 10⁹ are
/// not.
fn assert_shares(found: &[(String, f64)], claims: u32, wanted: &[(&str, f64)]) {
    for ((priority, share), (name, percent)) in found.iter().zip(wanted) {
        assert_eq!(priority, name);
        let deviation = (percent * (100.0 - percent) / f64::from(claims)).sqrt();
        assert!(
            (share - percent).abs() < 6.0 * deviation,
            "{priority} has {share:.2} %, expected {percent} %"
        );
    }
    assert_eq!(found.len(), wanted.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn each_priority_has_its_share_of_the_claims() {
    let database = Database::new().await;
    // Let the short tasks share commits, which only makes the test faster.
    database.execute("SELECT mill.set_shared_commit('default', '100 milliseconds')").await;
    // So many tasks that no priority runs out of them before the last claim that counts.
    let (claims, tasks) = amount(
        (4000, [340, 590, 830, 1490, 1910]),
        (100_000, [5800, 11_000, 16_200, 31_500, 41_500]),
    );
    backlog(&database, tasks).await;
    let start = || Worker::start(&database, &["--readers", "4", "--exit-when-idle=1s"]);
    let mut workers = [start(), start(), start()];
    database.until_empty().await;
    for worker in &mut workers {
        assert!(worker.ended().await.success());
    }
    let wanted =
        [("low", 5.0), ("normal", 10.0), ("high", 15.0), ("critical", 30.0), ("reserved", 40.0)];
    assert_shares(&shares(&database, claims).await, claims, &wanted);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_top_two_the_others_share_their_part() {
    let database = Database::new().await;
    database.execute("SELECT mill.set_shared_commit('default', '100 milliseconds')").await;
    let (claims, tasks) =
        amount((1000, [285, 485, 660, 0, 0]), (30_000, [6000, 11_000, 16_000, 0, 0]));
    backlog(&database, tasks).await;
    let mut worker = Worker::start(&database, &["--readers", "4", "--exit-when-idle=1s"]);
    // Do not limit the time, because the number of tasks per minute depends on the machine.
    database.until_empty().await;
    assert!(worker.ended().await.success());
    let wanted = [("low", 16.7), ("normal", 33.3), ("high", 50.0)];
    assert_shares(&shares(&database, claims).await, claims, &wanted);
}

#[tokio::test(flavor = "multi_thread")]
async fn low_priority_runs_despite_any_amount_of_reserved_work_and_weights_change_live() {
    let database = Database::new().await;
    let (low, reserved, max) = amount((10, 600, 450), (40, 3000, 1000));
    backlog(&database, [low, 0, 0, 0, reserved]).await;
    let _worker = Worker::start(&database, &["--readers", "4"]);
    database.until_empty().await;
    let before_low: i64 = database
        .value(
            "SELECT count(*) FROM mill.attempts WHERE priority = 'reserved' AND started_at <
             (SELECT max(started_at) FROM mill.attempts WHERE priority = 'low')",
        )
        .await;
    // One claim in nine takes a low task. So all low ones are claimed after about nine times as many
    // claims, and practically always within `max`.
    assert!(before_low < max, "{before_low} reserved tasks before the last low one");
    Program::pgmill(&database, &["priority", "set", "low=0"]).succeeds().await;
    let weights = "SELECT weight FROM mill.priorities WHERE priority = 'low'";
    assert!(database.value::<f64>(weights).await.abs() < f64::EPSILON);
    let only = database.enqueue("SELECT 1", ", priority => 'low'").await;
    assert_eq!(database.outcome(only).await, "succeeded", "without other tasks");
}

#[tokio::test]
async fn the_reserved_readers_are_a_share_of_all_spread_by_rank() {
    let database = Database::new().await;
    database
        .execute(
            "INSERT INTO mill.workers (id, session_pid, session_started_at, readers, profiles, heartbeat_interval, orphan_timeout)
             SELECT format('00000000-0000-0000-0000-%s', lpad(n::text, 12, '0'))::uuid, n, now(), 12, '{\"\": 12}', '5 s', '30 s'
             FROM generate_series(1, 10) AS n",
        )
        .await;
    let split =
        "SELECT string_agg(mill.reserved_readers(id)::text, ' ' ORDER BY id) FROM mill.workers";
    for (level, wanted) in [
        ("none", "0 0 0 0 0 0 0 0 0 0"),
        ("low", "12 0 0 0 0 0 0 0 0 0"),
        ("medium", "12 6 0 0 0 0 0 0 0 0"),
        ("high", "12 12 6 0 0 0 0 0 0 0"),
    ] {
        database.execute(&format!("SELECT mill.set_reserved_capacity('{level}')")).await;
        assert_eq!(database.value::<String>(split).await, wanted, "{level}");
    }
    // A draining worker reserves no readers; 25 % of 97 readers are 25.
    database
        .execute("DELETE FROM mill.workers WHERE session_pid = 1;
                  UPDATE mill.workers SET readers = 1, profiles = '{\"\": 1}' WHERE session_pid = 10;
                  UPDATE mill.workers SET draining = true WHERE session_pid = 2;
                  UPDATE mill.workers SET readers = 24, profiles = '{\"\": 24}' WHERE session_pid = 3")
        .await;
    assert_eq!(database.value::<String>(split).await, "0 24 1 0 0 0 0 0 0");
}

#[tokio::test]
async fn every_queue_and_profile_keeps_a_reader_for_other_tasks() {
    let database = Database::new().await;
    // Workers in the order of their ids, and the readers that each of them reserves of each profile.
    for (level, workers, wanted) in [
        ("low", &[("all", r#"{"": 1}"#)][..], "-"),
        ("low", &[("all", r#"{"": 2}"#)], "1: 1"),
        ("high", &[("all", r#"{"": 1}"#), ("all", r#"{"": 1}"#)], "1: 1"),
        ("high", &[("a", r#"{"": 1}"#), ("b", r#"{"": 1}"#)], "-"),
        ("high", &[("a", r#"{"": 1}"#), ("b", r#"{"": 4}"#)], "2: 2"),
        // The readers of one profile cannot take the place of another's.
        ("high", &[("all", r#"{"": 1, "etl": 3}"#)], "1: 1 etl"),
        ("high", &[("all", r#"{"": 4, "etl": 4}"#)], "1: 1, 1: 1 etl"),
        ("high", &[("all", r#"{"": 1, "etl": 1}"#), ("all", r#"{"": 2}"#)], "1: 1"),
        // Small profiles together reserve no more than one large profile.
        ("low", &[("all", r#"{"": 2, "a": 2, "b": 2, "c": 2, "d": 2}"#)], "1: 1 b"),
    ] {
        let rows = (1..).zip(workers).map(|(n, (queues, profiles))| {
            format!("('00000000-0000-0000-0000-00000000000{n}', {n}, now(), 9, nullif('{{{queues}}}', '{{all}}')::text[],
                 '{profiles}', '5 s', '30 s')")
        });
        let rows = rows.collect::<Vec<_>>().join(", ");
        database
            .execute(&format!(
                "SELECT mill.set_reserved_capacity('{level}'); TRUNCATE mill.workers;
                 INSERT INTO mill.workers (id, session_pid, session_started_at, readers, queues, profiles, heartbeat_interval,
                     orphan_timeout) VALUES {rows}"
            ))
            .await;
        let reserved = "SELECT coalesce(string_agg(format('%s: %s', w.session_pid,
                 rtrim(r.reserved || ' ' || r.profile)), ', ' ORDER BY w.id, r.profile), '-')
             FROM mill.reserved_by_profile() r JOIN mill.workers w ON w.id = r.worker_id WHERE r.reserved > 0";
        assert_eq!(database.value::<String>(reserved).await, wanted, "{level} {workers:?}");
    }
}

/// Starts a worker with readers of its own and four readers of a target, and a quarter of all reserved:
/// `reserved` in the target.
async fn tasks_run_while_readers_are_reserved(readers: &str, reserved: usize) {
    let (database, dwh) = (Database::new().await, Database::empty().await);
    let configuration = Configuration::new(&database, &[("dwh", &dwh, dwh.url())]).await;
    database.execute("SELECT mill.set_reserved_capacity('high')").await;
    dwh.execute("SELECT pg_advisory_lock(1)").await;
    let path = configuration.path();
    let flags = ["--readers", readers, "--heartbeat-interval", "500ms", "--config"];
    let worker = Worker::start(&database, &[&flags[..], &[path.to_str().unwrap()]].concat());
    worker.until_logged("ready").await;
    every_worker_has_sent_two_heartbeats(&database).await;
    let other = database.enqueue("SELECT 1", "").await;
    assert_eq!(database.outcome(other).await, "succeeded");
    let locked = "SELECT pg_advisory_xact_lock_shared(1)";
    for _ in reserved..4 {
        let id = database.enqueue(locked, ", run_as => 'dwh'").await;
        let running = format!("SELECT state = 'running' FROM mill.tasks WHERE id = {id}");
        eventually("the task runs", async || database.value::<bool>(&running).await).await;
    }
    let waits = database.enqueue(locked, ", run_as => 'dwh'").await;
    let why: String = database.value(&format!("SELECT mill.why({waits})")).await;
    let wanted = format!(": {reserved} of 4 are kept for reserved tasks, the others are busy");
    assert!(why.contains(&wanted), "{why}");
    let urgent = database.enqueue("SELECT 1", ", run_as => 'dwh', priority => 'reserved'").await;
    assert_eq!(database.outcome(urgent).await, "succeeded");
    dwh.execute("SELECT pg_advisory_unlock(1)").await;
    database.until_empty().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_only_reader_of_a_profile_is_not_reserved() {
    // Two of five readers are reserved.
    tasks_run_while_readers_are_reserved("1", 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn why_counts_the_reserved_readers_of_the_profile_only() {
    // Two of seven readers are reserved, one of each profile.
    tasks_run_while_readers_are_reserved("3", 1).await;
}

/// Waits until every worker knows its share of the reserved readers. A worker learns it from the reply
/// to a heartbeat, and only its second heartbeat shows that it has received the reply to the first.
async fn every_worker_has_sent_two_heartbeats(database: &Database) {
    database
        .execute("CREATE TABLE heartbeats_before AS SELECT id, heartbeat FROM mill.workers")
        .await;
    eventually("every worker has sent two heartbeats", async || {
        database
            .value::<i64>(
                "SELECT count(*) FROM mill.workers w JOIN heartbeats_before b ON b.id = w.id AND w.heartbeat < b.heartbeat + 2",
            )
            .await
            == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reserved_readers_run_nothing_else_and_are_redistributed_when_a_worker_dies() {
    let (count, readers): (i64, i64) = amount((6, 8), (10, 12));
    let (all, kept) = (count * readers, count * readers / 4);
    let database = Database::new().await;
    database.execute("SELECT mill.set_reserved_capacity('high'); SELECT pg_advisory_lock(1)").await;
    let flag = readers.to_string();
    let flags = ["--readers", &flag, "--heartbeat-interval", "500ms"];
    let mut workers: Vec<Worker> = (0..count).map(|_| Worker::start(&database, &flags)).collect();
    for worker in &workers {
        worker.until_logged("ready").await;
    }
    let sum = "SELECT coalesce(sum(mill.reserved_readers(id)), 0)::bigint FROM mill.workers";
    assert_eq!(database.value::<i64>(sum).await, kept);
    every_worker_has_sent_two_heartbeats(&database).await;
    database
        .execute(&format!(
            "SELECT mill.enqueue('SELECT pg_advisory_lock_shared(1)')
             FROM generate_series(1, {all} + 30)"
        ))
        .await;
    let running = "SELECT count(*) FROM mill.tasks WHERE state = 'running'";
    eventually("all other readers are busy", async || {
        database.value::<i64>(running).await == all - kept
    })
    .await;
    let one: i64 = database.value("SELECT max(id) FROM mill.tasks").await;
    // The explanation needs a heartbeat of each worker that reports its busy readers.
    eventually("why explains the next task", async || {
        let why: String = database.value(&format!("SELECT mill.why({one})")).await;
        why.contains(&format!(": {kept} of {all} are")) && why.contains("kept for reserved tasks")
    })
    .await;
    database
        .execute(
            "SELECT mill.enqueue('SELECT 1', priority => 'reserved') FROM generate_series(1, 40)",
        )
        .await;
    eventually("reserved tasks have finished", async || {
        database.value::<i64>("SELECT count(*) FROM mill.tasks WHERE priority = 'reserved'").await
            == 0
    })
    .await;
    assert_eq!(database.value::<i64>(running).await, all - kept);
    // On each worker, exactly the unreserved readers run other tasks. Workers whose readers are all
    // reserved have never run other tasks.
    let split: String = database
        .value(
            "SELECT string_agg((SELECT count(*) FROM mill.tasks t WHERE t.claimed_by = w.id)::text, ' ' ORDER BY w.id)
             FROM mill.workers w",
        )
        .await;
    assert_eq!(split, amount("0 4 8 8 8 8", "0 0 6 12 12 12 12 12 12 12"));
    let whole = kept / readers;
    let others = format!(
        "SELECT count(*) FROM mill.attempts a WHERE a.priority <> 'reserved'
             AND a.worker_id IN (SELECT id FROM mill.workers ORDER BY id LIMIT {whole})"
    );
    assert_eq!(database.value::<i64>(&others).await, 0);
    // When a worker with reserved readers dies, the next worker takes over its part: 25 % of 40
    // readers are 10, and of 108 readers 27.
    let pid: i32 = database
        .value(
            "SELECT pid FROM mill.worker_starts JOIN mill.workers USING (id) ORDER BY id LIMIT 1",
        )
        .await;
    workers.iter_mut().find(|worker| worker.pid().cast_signed() == pid).unwrap().kill();
    eventually("the shares are redistributed", async || {
        database.value::<i64>("SELECT count(*) FROM mill.workers").await == count - 1
            && database.value::<i64>(sum).await == amount(10, 27)
    })
    .await;
    let listed = Program::pgmill(&database, &["worker", "list", "--json"]).succeeds().await;
    let reserved = format!("\"reserved\": {readers}");
    assert_eq!(listed.matches(&reserved).count(), amount(1, 2), "{listed}");
    database.execute("SELECT pg_advisory_unlock(1)").await;
    database.until_empty().await;
}

#[tokio::test]
async fn queues_take_turns_and_empty_ones_cost_nothing() {
    let database = Database::new().await;
    // Tasks with an isolation level run in no chain. Otherwise a reader would take up to eight tasks of
    // the queue that it has drawn, and half of the tasks would be too few draws.
    let (count, tasks, min): (i64, i64, i64) = amount((4, 60, 7), (20, 100, 17));
    database
        .execute(&format!(
            "INSERT INTO mill.queues (name) SELECT 'empty' || n FROM generate_series(1, 10000) AS n;
             SELECT mill.enqueue('SELECT 1', queue => 'q' || q,
                 options => '{{\"isolation\": \"serializable\"}}')
             FROM generate_series(1, {count}) AS q, generate_series(1, {tasks})"
        ))
        .await;
    let _worker = Worker::start(&database, &["--readers", "2"]);
    database.until_empty().await;
    // When half of the tasks are finished, no queue is far behind.
    let half = format!(
        "(SELECT queue FROM mill.attempts ORDER BY started_at, task_id LIMIT {}) AS half",
        count * tasks / 2
    );
    let slowest: i64 = database
        .value(&format!(
            "SELECT min(n) FROM (SELECT count(*) AS n FROM {half} GROUP BY queue) AS s"
        ))
        .await;
    let queues: i64 = database.value(&format!("SELECT count(DISTINCT queue) FROM {half}")).await;
    assert!(
        queues == count && slowest >= min,
        "{queues} queues, the slowest with {slowest} of {tasks}"
    );
}
