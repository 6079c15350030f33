//! A task that the server cannot send, or that makes claims fail, stops no other task.

use crate::harness::login::Login;
use crate::harness::{Database, Worker, eventually};
use crate::security::run_as::Config;

/// Values of 14 bytes whose texts have 131,072 digits: together more than the gigabyte that the server can send.
const UNSENDABLE: &str = "(SELECT jsonb_agg('1e131071'::jsonb) FROM generate_series(1, 9000))";

#[tokio::test]
async fn params_have_a_size_limit_wherever_they_enter() {
    let database = Database::new().await;
    let client = database.client();
    database.execute("UPDATE mill.settings SET statement_limit_bytes = 1000").await;
    let waiting = database.enqueue("SELECT $1", ", due_at => now() + interval '1 day'").await;
    let long = "jsonb_build_array(repeat(E'\\x01', 200))";
    database
        .execute(
            "SELECT mill.set_job('daily', jsonb_build_array(jsonb_build_object('name', 'load', 'statement', 'SELECT $1',
                 'params', '[{\"$param\": \"day\"}, {\"$param\": \"day\"}]'::jsonb)));
             SELECT mill.set_schedule('nightly', timing => '@daily', jobs => '{daily}', params => '{\"day\": 1}')",
        )
        .await;
    for entry in [
        format!("mill.enqueue('SELECT $1', params => {long})"),
        format!("mill.enqueue_many('{{SELECT $1}}', params => ARRAY[{long}])"),
        format!("mill.change_task({waiting}, jsonb_build_object('params', {long}))"),
        format!("mill.start_run('{{daily}}', params => jsonb_build_object('day', {long}))"),
        // Each value is short enough, but not both together.
        "mill.start_run('{daily}', params => jsonb_build_object('day', repeat('x', 600)))".to_owned(),
        format!(
            "mill.set_job('other', jsonb_build_array(jsonb_build_object('name', 'load', 'statement', 'SELECT $1',
                'params', {long})))"
        ),
        format!(
            "mill.set_schedule('other', timing => '@daily', jobs => '{{daily}}',
                params => jsonb_build_object('day', {long}))"
        ),
        format!(
            "mill.set_schedule('other', timing => '@daily', statement => 'SELECT $1',
                task => jsonb_build_object('params', {long}))"
        ),
    ] {
        let error = client.batch_execute(&format!("SELECT {entry}")).await.unwrap_err();
        let message = error.as_db_error().unwrap().message();
        assert!(message.ends_with("the maximum is 1000 bytes"), "{entry}: {message}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_the_server_cannot_send_fails_alone() {
    let database = Database::new().await;
    let poison =
        database.enqueue("SELECT $1", ", params => '[1]', max_attempts => 2, queue => 'q'").await;
    // As a version without the size limit could have stored it.
    database
        .execute(&format!("UPDATE mill.tasks SET params = {UNSENDABLE} WHERE id = {poison}"))
        .await;
    let others = [
        database.enqueue("SELECT 1", ", queue => 'q'").await,
        database.enqueue("SELECT 1", "").await,
    ];
    let large = format!("SELECT length('{}')", "x".repeat(100_000));
    let fetched = [
        database.enqueue(&large, "").await,
        database.enqueue(&format!("{large}, $1::int"), ", params => '[1]'").await,
        database.enqueue(&large, ", mode => 'autocommit'").await,
        database
            .enqueue(
                "SELECT length($1::text)",
                ", params => jsonb_build_array(repeat('y', 100000))",
            )
            .await,
    ];
    let mut worker = Worker::start(&database, &["--readers", "2"]);
    assert_eq!(database.outcome(poison).await, "failed");
    let ended = "SELECT string_agg(a.sqlstate, ' ') FROM mill.attempts a WHERE a.queue = 'q' AND a.outcome = 'failed'";
    assert_eq!(database.value::<String>(ended).await, "54000");
    for task in others {
        assert_eq!(database.outcome(task).await, "succeeded");
    }
    for task in fetched {
        let record = database.record(task).await;
        assert_eq!((record.outcome.as_str(), record.row(0)[0]), ("succeeded", "100000"));
    }
    assert!(worker.terminate().await.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_that_fail_for_one_profile_are_shown_and_keep_no_other_profile_waiting() {
    let database = Database::new().await;
    let tasks = Login::new(&database, "tasks", "").await;
    let config = Config::new(&database, &[("alpha", &tasks), ("zeta", &tasks)]);
    database
        .execute(
            "SELECT mill.set_profile(p, allowed => ARRAY[current_user]) FROM unnest('{alpha,zeta}'::text[]) p;
             CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN RAISE EXCEPTION 'alpha is refused'; END $$;
             CREATE TRIGGER refuse BEFORE UPDATE ON mill.tasks FOR EACH ROW
                 WHEN (new.run_as = 'alpha' AND new.state = 'running') EXECUTE FUNCTION refuse()",
        )
        .await;
    let alpha = database.enqueue("SELECT 1", ", run_as => 'alpha'").await;
    let path = config.path();
    let flags = ["--task-url", &tasks.url(), "--config", &path, "--heartbeat-interval", "100ms"];
    let mut worker = Worker::start(&database, &flags);
    let why = format!("SELECT mill.why({alpha})");
    let expected = "no worker that serves queue \"default\" can claim tasks: alpha is refused";
    eventually("why names the error", async || {
        database.value::<String>(&why).await.starts_with(expected)
    })
    .await;
    for _ in 0..3 {
        assert_eq!(database.run("SELECT 1", ", run_as => 'zeta'").await.outcome, "succeeded");
    }
    database.refuse_no_more().await;
    assert_eq!(database.outcome(alpha).await, "succeeded");
    eventually("the error ends", async || {
        database.value::<i64>("SELECT count(error) FROM mill.workers").await == 0
    })
    .await;
    assert!(worker.terminate().await.success());
    tasks.gone().await;
}
