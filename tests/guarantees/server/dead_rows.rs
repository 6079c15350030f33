//! Autovacuum is off while many tasks pass through the queue.

use queue::complete::{Success, complete};
use queue::fail::Report;

use crate::guarantees::claim::{buffers, claimer, lanes, prepare, sessions};
use crate::harness::{Database, PrivateDatabase, Program, Worker, amount};

/// Number of buffers that a sweep reads at most for each thousand tasks since the last vacuum.
const MAX_BUFFERS: u64 = 8;

/// Number of tasks that are claimed and completed at once.
const BATCH: i32 = 1000;

/// Enqueues tasks, claims and completes all of them. Returns the highest id.
async fn pass_through(database: &Database, tasks: i32) -> i64 {
    database.enqueue_many(tasks, "SELECT 1").await;
    let (claimer, lanes, sessions) =
        (claimer(database).await, lanes(&["default"]), sessions(BATCH));
    let mut last = 0;
    loop {
        let claimed = claimer.claim(&lanes, &sessions).await.unwrap();
        if claimed.is_empty() {
            return last;
        }
        last = claimed.iter().map(|claimed| claimed.claim.id().0).max().unwrap().max(last);
        let report = Report::default();
        let ended: Vec<Success<'_>> =
            claimed.iter().map(|claimed| Success::now(&claimed.claim, &report)).collect();
        complete(database.client(), &ended, None).await.unwrap();
    }
}

/// Returns the fewest buffers that a claim of one task reads: from the last claimed task on, as most
/// claims do, and from the start of the lane, as a sweep does about once a second.
async fn costs(database: &Database, last: i64) -> [u64; 2] {
    prepare(database).await;
    let mut costs = [u64::MAX; 2];
    for _ in 0..3 {
        for (cost, after) in costs.iter_mut().zip([last, 0]) {
            *cost = buffers(database, after).await.min(*cost);
        }
    }
    database.execute("DEALLOCATE claim; RESET ALL").await;
    costs
}

/// Returns what the doctor prints about autovacuum and dead rows.
async fn warnings(database: &Database) -> String {
    // The server writes the statistics when the session is idle.
    let (_, printed, _) = Program::pgmill(database, &["doctor"]).run().await;
    let about = |line: &&str| line.contains("autovacuum") || line.contains("dead rows");
    printed.lines().filter(about).collect::<Vec<_>>().join("\n")
}

/// Passes this many tasks through the queue in each round. Each task leaves two dead rows in the
/// tasks table.
async fn rounds(rounds: u32, tasks: u32) {
    let private = PrivateDatabase::new(&[("autovacuum", "off"), ("fsync", "off")]).await;
    let database = &private.database;
    let mut all = Vec::new();
    for _ in 0..rounds {
        let last = pass_through(database, tasks.cast_signed()).await;
        let waiting = database.enqueue("SELECT 1", "").await;
        all.push(costs(database, last).await);
        database.execute(&format!("DELETE FROM mill.tasks WHERE id = {waiting}")).await;
    }
    let bytes: i64 = database.value("SELECT pg_total_relation_size('mill.tasks')").await;
    println!("buffers of a claim after each {tasks} tasks, and without watermark: {all:?}");
    println!("{bytes} bytes of the tasks table for {} tasks", tasks * rounds);
    for (round, [from_the_watermark, from_the_head]) in (1..).zip(&all) {
        assert!(*from_the_watermark <= 30, "{all:?}");
        // A sweep reads the pages of the index, whose entries are marked as dead, but no dead row.
        assert!(*from_the_head <= 30 + u64::from(tasks) / 1000 * MAX_BUFFERS * round, "{all:?}");
    }
    database.execute("SELECT pg_stat_force_next_flush()").await;
    let printed = warnings(database).await;
    for expected in ["problem  settings         autovacuum = off", "warning  dead rows"] {
        assert!(printed.contains(expected), "{printed}");
    }
    // The queue works, and vacuum repairs everything.
    let id = database.enqueue("SELECT 1", "").await;
    let _worker = Worker::start(database, &["--readers", "1"]);
    assert_eq!(database.outcome(id).await, "succeeded");
    database.execute("VACUUM mill.tasks; ").await;
    let printed = warnings(database).await;
    assert!(printed.contains("ok       dead rows"), "{printed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_autovacuum_a_claim_costs_the_same_and_the_doctor_warns() {
    rounds(3, amount(5000, 20_000)).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes: make vacuum-check"]
async fn without_autovacuum_for_half_a_million_tasks() {
    rounds(25, 20_000).await;
}
