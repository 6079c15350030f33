//! The expected end of a run in progress: its error on runs with a known end, and the cases without one.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::harness::Database;
use crate::harness::console::Console;
use crate::runs::run::{job, start};
use crate::runs::run_cli::json_of;
use crate::schedules::schedule_cli::output_of;

/// Runs 1 to 30 of a job with four tasks, whose durations vary by 40 % in each direction: the start and
/// the end of each task in seconds after the start of its run. Runs 1 to 20 have ended.
const HISTORY: &str = r#"
SELECT mill.set_job('etl', '[{"name": "a", "statement": "SELECT 1"}, {"name": "b", "statement": "SELECT 1", "after": ["a"]},
    {"name": "c", "statement": "SELECT 1", "after": ["a"]}, {"name": "d", "statement": "SELECT 1", "after": ["b", "c"]}]');
SELECT mill.start_run('{etl}') FROM generate_series(1, 30);
DELETE FROM mill.tasks;
SELECT setseed(0.42);
CREATE TABLE truth AS
    WITH drawn AS MATERIALIZED (SELECT r.id, 60 * (0.6 + 0.8 * random()) AS a, 300 * (0.6 + 0.8 * random()) AS b,
        200 * (0.6 + 0.8 * random()) AS c, 120 * (0.6 + 0.8 * random()) AS d FROM mill.runs r ORDER BY r.id)
    SELECT w.id AS run_id, t.name, t.starts, t.ends FROM drawn w CROSS JOIN LATERAL (VALUES ('a', 0, w.a),
        ('b', w.a, w.a + w.b), ('c', w.a, w.a + w.c),
        ('d', w.a + greatest(w.b, w.c), w.a + greatest(w.b, w.c) + w.d)) AS t (name, starts, ends);
CREATE FUNCTION finish(run bigint) RETURNS void LANGUAGE sql AS $$
    UPDATE mill.run_tasks t SET state = 'succeeded', started_at = now() + make_interval(secs => x.starts),
            finished_at = now() + make_interval(secs => x.ends)
        FROM truth x WHERE x.run_id = run AND t.run_id = run AND t.name = x.name;
    DELETE FROM mill.tasks;
    UPDATE mill.runs SET state = 'succeeded', succeeded = 4, open = 0, finished_at = now() WHERE id = run
$$;
SELECT finish(n) FROM generate_series(1, 20) AS n"#;

/// Shows the run as it was after this many seconds.
async fn replay(database: &Database, run: i64, seconds: f64) {
    let tasks = "SELECT name, starts::float8, ends::float8 FROM truth WHERE run_id = $1";
    for row in database.rows(tasks, &[&run]).await {
        let (name, starts, ends): (String, f64, f64) = (row.get(0), row.get(1), row.get(2));
        let set = async |columns: String| {
            let sql = format!(
                "UPDATE mill.run_tasks SET {columns} WHERE run_id = {run} AND name = '{name}'"
            );
            database.execute(&sql).await;
        };
        if ends <= seconds {
            set("state = 'succeeded'".to_owned()).await;
        } else if starts <= seconds {
            let id = database.enqueue("SELECT 1", "").await;
            set(format!("state = 'released', task_id = {id}")).await;
            database
                .execute(&format!(
                    "UPDATE mill.tasks SET state = 'running', attempt = 1, token = gen_random_uuid(),
                         claimed_by = gen_random_uuid(), session_pid = 1, session_started_at = now(),
                         claimed_at = now() - make_interval(secs => {}) WHERE id = {id}",
                    seconds - starts
                ))
                .await;
        } else {
            set("state = 'waiting'".to_owned()).await;
        }
    }
}

async fn eta(database: &Database, run: i64) -> (Value, Value) {
    let shown = json_of(database, &["run", "show", &run.to_string()]).await;
    (shown["run"]["eta_at"].clone(), shown["no_eta"].clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_expected_end_at_half_time_is_close_to_the_end() {
    let database = Database::new().await;
    database.execute(HISTORY).await;
    let mut errors = Vec::new();
    for run in 21..=30_i64 {
        let whole: f64 = database
            .value(&format!("SELECT max(ends)::float8 FROM truth WHERE run_id = {run}"))
            .await;
        replay(&database, run, whole / 2.0).await;
        let now = database.value::<std::time::SystemTime>("SELECT now()").await;
        let now = Timestamp::try_from(now).unwrap();
        let (at, reason) = eta(&database, run).await;
        assert_eq!(reason, json!(null));
        let at: Timestamp = at.as_str().unwrap().parse().unwrap();
        let rest = at.duration_since(now).as_secs_f64();
        errors.push((rest - whole / 2.0).abs() / whole);
        database.execute(&format!("SELECT finish({run})")).await;
    }
    errors.sort_by(f64::total_cmp);
    let median = f64::midpoint(errors[4], errors[5]);
    println!("relative error: median {:.1} %, worst {:.1} %", median * 100.0, errors[9] * 100.0);
    assert!(median < 0.25, "{errors:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_declared_duration_replaces_a_missing_history_and_without_both_there_is_no_estimate() {
    let database = Database::new().await;
    let tasks = json!([
        {"name": "a", "statement": "SELECT 1", "expected_duration": "10 min"},
        {"name": "b", "statement": "SELECT 1", "expected_duration": "20 min", "after": ["a"]},
    ]);
    job(&database, "known", tasks).await;
    job(&database, "new", json!([{"name": "c", "statement": "SELECT 1"}])).await;
    let (known, new) = (start(&database, "known").await, start(&database, "new").await);
    let (at, reason) = eta(&database, known).await;
    let close = format!(
        "SELECT '{}'::timestamptz BETWEEN now() + interval '29 min' AND now() + interval '30 min'",
        at.as_str().unwrap()
    );
    assert!(database.value::<bool>(&close).await && reason.is_null(), "{at} {reason}");
    let wanted = "no earlier run has ended task c";
    assert_eq!(eta(&database, new).await, (json!(null), json!(wanted)));
    let shown = output_of(&database, &["run", "show", &new.to_string()]).await;
    assert!(shown.contains(&format!("\nno expected end: {wanted}\n")), "{shown}");
    let list = json_of(&database, &["run", "list"]).await;
    assert_eq!((&list[0]["eta_at"], &list[1]["eta_at"].is_string()), (&json!(null), &true));
    let console = Console::start(&database, &[]).await;
    for path in ["/runs".to_owned(), format!("/runs/{known}")] {
        let page = console.get(&path).await.body;
        assert!(page.contains("expected end") && page.contains(">in "), "{path}: {page}");
    }
    let page = console.get(&format!("/runs/{new}")).await.body;
    assert!(page.contains(wanted), "{page}");
    // Reading more tasks would cost too much.
    database.execute(&format!("UPDATE mill.runs SET tasks = 2001 WHERE id = {known}")).await;
    assert_eq!(eta(&database, known).await, (json!(null), json!("more than 2000 tasks")));
    database.execute(&format!("SELECT mill.cancel_run({new})")).await;
    assert_eq!(eta(&database, new).await, (json!(null), json!(null)));
}
