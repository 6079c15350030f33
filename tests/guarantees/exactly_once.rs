//! A task's effects and its completion commit together, exactly once, although workers are killed
//! meanwhile.

use proxy::{FaultAction, MessageMatch, Proxy};
use rand::RngExt;

use crate::harness::{Database, Fleet, Worker, amount, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn tasks_have_their_effect_once_though_each_worker_is_killed_many_times() {
    drain_under_kills("").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_in_shared_commits_have_their_effect_once_under_kills() {
    drain_under_kills("SELECT mill.set_shared_commit('default', '20ms')").await;
}

async fn drain_under_kills(settings: &str) {
    let tasks: i64 = amount(1_500, 20_000);
    let database = Database::new().await;
    database.execute(settings).await;
    database.execute("CREATE TABLE effect (task bigint NOT NULL)").await;
    let statement = "INSERT INTO effect SELECT current_setting('mill.task_id')::bigint";
    database.enqueue_many(tasks.try_into().unwrap(), statement).await;
    let flags = ["--readers", "8", "--heartbeat-interval", "500ms", "--orphan-timeout", "5s"];
    let mut fleet = Fleet::start(&database, 4, &flags);
    let done = "SELECT count(*) FROM mill.attempts WHERE final";
    let mut finished: i64 = 0;
    let kills = fleet.len() * amount(3, 20);
    let max_progress = tasks / i64::try_from(2 * kills).unwrap();
    for round in 0..kills {
        // Wait for some progress before each kill, so that the kills are spread over the whole
        // drain.
        let next = finished + rand::rng().random_range(1..=max_progress);
        eventually("the drain continues", async || {
            finished = database.value(done).await;
            finished >= next || finished >= tasks
        })
        .await;
        fleet.replace(round % 4);
    }
    database.until_empty().await;
    let row = &database.rows("SELECT count(*), count(DISTINCT task) FROM effect", &[]).await[0];
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (tasks, tasks));
    let succeeded: i64 =
        database.value("SELECT count(*) FROM mill.attempts WHERE outcome = 'succeeded'").await;
    assert_eq!(succeeded, tasks);
    // Every start is in history: the attempts of each task are 1, 2, … without a gap.
    let gaps: i64 = database
        .value(
            "SELECT count(*) FROM (SELECT task_id FROM mill.attempts GROUP BY task_id
             HAVING count(*) <> max(attempt) OR count(DISTINCT attempt) <> max(attempt)) AS odd",
        )
        .await;
    assert_eq!(gaps, 0);
    let lost: i64 =
        database.value("SELECT count(*) FROM mill.attempts WHERE outcome = 'lost'").await;
    println!("{tasks} tasks, {kills} kills, {lost} attempts lost");
    assert!(lost > 0, "no kill hit a running task: the test proves nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_snapshot_shows_an_effect_without_its_success_or_a_success_without_its_effect() {
    let tasks: i64 = amount(500, 2000);
    let database = Database::new().await;
    database.execute("CREATE TABLE effect (task bigint NOT NULL)").await;
    let statement = "INSERT INTO effect SELECT current_setting('mill.task_id')::bigint";
    database.enqueue_many(tasks.try_into().unwrap(), statement).await;
    let _worker = Worker::start(&database, &["--readers", "4"]);
    let apart = "SELECT count(*) FILTER (WHERE e.task IS NULL OR a.task_id IS NULL), count(*)
        FROM effect e FULL JOIN mill.attempts a ON a.task_id = e.task";
    let (mut polls, mut done) = (0, 0);
    while done < tasks {
        let row = &database.rows(apart, &[]).await[0];
        assert_eq!(row.get::<_, i64>(0), 0, "after {done}");
        let now: i64 = row.get(1);
        polls += i32::from(done < now && now < tasks);
        if done < tasks / 2 && now >= tasks / 2 {
            database.execute("SELECT mill.set_shared_commit('default', '20 milliseconds')").await;
        }
        done = now;
    }
    assert!(polls > 2, "{polls} polls fell between the first success and the last");
}

/// A late cancel request for an earlier statement can hit BEGIN.
#[tokio::test(flavor = "multi_thread")]
async fn a_statement_has_no_effect_of_its_own_if_begin_fails() {
    const TASKS: i64 = 20;
    for settings in ["", "SELECT mill.set_shared_commit('default', '100ms')"] {
        let database = Database::new().await;
        database.execute(&format!("CREATE TABLE effect (task bigint NOT NULL); {settings}")).await;
        let proxy = Proxy::start(&database.url()).await.unwrap();
        let through = proxy.url(&database.task_url());
        let flags = ["--readers", "1", "--poll-interval", "20ms", "--task-url", &through];
        let _worker = Worker::start(&database, &flags);
        // The number of tasks that the reader takes at once grows with each round.
        for round in 0..amount(3, 10) {
            proxy.arm(MessageMatch::Text("worker.begin".to_owned()), FaultAction::Fail);
            let enqueue = format!(
                "SELECT mill.enqueue('INSERT INTO effect VALUES (' || {TASKS} * {round} + n || ')',
                     max_attempts => 5, retry_interval => '0') FROM generate_series(1, {TASKS}) AS n"
            );
            database.execute(&enqueue).await;
            proxy.fired().await;
            database.until_empty().await;
            let wrong = "SELECT count(*) - count(DISTINCT task)
                    + (SELECT count(*) FROM mill.attempts WHERE final AND outcome <> 'succeeded') FROM effect";
            assert_eq!(database.value::<i64>(wrong).await, 0, "{settings}, round {round}");
        }
    }
}
