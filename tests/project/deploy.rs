//! The SQL and commands that deploy/ relies on: the scale hint for autoscalers, and the health
//! check.

use std::path::Path;

use crate::harness::http::free_address;
use crate::harness::login::{Login, answer};
use crate::harness::{Database, Program, Worker, eventually};

async fn hint(database: &Database, queues: &str) -> i64 {
    database.value(&format!("SELECT mill.scale_hint({queues})")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_hint_counts_runnable_and_running_tasks() {
    let database = Database::new().await;
    assert_eq!(hint(&database, "").await, 0);
    for queue in ["a", "a", "b", "paused", "paused"] {
        database.enqueue("SELECT 1", &format!(", queue => '{queue}'")).await;
    }
    database.enqueue("SELECT 1", ", queue => 'b', due_at => now() + interval '1 day'").await;
    assert_eq!(hint(&database, "").await, 5);
    database.execute("SELECT mill.pause('paused')").await;
    assert_eq!(hint(&database, "").await, 3);
    assert_eq!(hint(&database, "ARRAY['a']").await, 2);
    assert_eq!(hint(&database, "ARRAY['b', 'paused', 'none']").await, 1);
    // Without a worker, nothing promotes this task.
    database.execute("UPDATE mill.tasks SET due_at = now() WHERE state = 'scheduled'").await;
    assert_eq!(hint(&database, "ARRAY['b']").await, 2);
    database.execute("UPDATE mill.tasks SET queue = 'paused' WHERE state = 'scheduled'").await;
    assert_eq!(hint(&database, "").await, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_waits_for_a_permit_asks_for_no_worker() {
    let database = Database::new().await;
    database.execute("SELECT mill.set_max_running('queue', 'narrow', 1)").await;
    for _ in 0..5 {
        database.enqueue("SELECT 1", ", queue => 'narrow'").await;
    }
    let pending = "SELECT count(*) FROM mill.tasks WHERE state = 'pending'";
    let pending: i64 = database.value(pending).await;
    assert!(pending <= 1, "{pending}");
    assert_eq!(hint(&database, "").await, pending);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_fleet_is_not_scaled_down() {
    let database = Database::new().await;
    database.execute("SELECT pg_advisory_lock(1)").await;
    let _worker = Worker::start(&database, &["--readers", "2", "--poll-interval", "100ms"]);
    for _ in 0..2 {
        let id = database.enqueue("SELECT pg_advisory_xact_lock(1)", ", queue => 'slow'").await;
        database.until_state(id, "running").await;
    }
    assert_eq!(hint(&database, "").await, 2);
    // Running tasks of a paused queue still need their workers.
    database.execute("SELECT mill.pause('slow')").await;
    assert_eq!(hint(&database, "ARRAY['slow']").await, 2);
    assert_eq!(hint(&database, "ARRAY['other']").await, 0);
    database.execute("SELECT pg_advisory_unlock(1)").await;
    eventually("the tasks have ended", async || hint(&database, "").await == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cost_of_the_hint_is_bounded() {
    let database = Database::new().await;
    database.execute("SELECT mill.pause('default')").await;
    database.enqueue_many(100_001, "SELECT 1").await;
    database.enqueue("SELECT 1", ", queue => 'other'").await;
    let mut blocks = i64::MAX;
    for _ in 0..10 {
        blocks = blocks.min(database.blocks_of("SELECT mill.scale_hint()").await);
    }
    assert!(blocks < 100, "{blocks} blocks, though only 1 of 100,002 tasks may run");
    assert_eq!(hint(&database, "").await, 1);
    database.execute("SELECT mill.resume('default')").await;
    assert_eq!(hint(&database, "").await, 100_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_query_of_a_scaler_gives_one_number_to_a_viewer() {
    let database = Database::new().await;
    database.enqueue("SELECT 1", ", queue => 'etl'").await;
    let login = Login::new(&database, "scaler", "mill_viewer").await;
    let client = login.connect().await;
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("deploy");
    let mut ran = 0;
    for file in ["kubernetes/production/scaled-object.yaml", "helm/pgmill/templates/scaling.yaml"] {
        let text = std::fs::read_to_string(deploy.join(file)).unwrap();
        let queries = text.lines().filter_map(|line| line.trim().strip_prefix("query: SELECT"));
        for query in queries {
            let rows = client.query(&format!("SELECT{query}"), &[]).await.unwrap();
            assert_eq!(rows.len(), 1, "{query}");
            assert_eq!((rows[0].len(), rows[0].get::<_, i64>(0)), (1, 1), "{query}");
            ran += 1;
        }
        // The query that the chart generates for a fleet with specific queues.
        let template = "SELECT mill.scale_hint(ARRAY['%s'])";
        if text.contains(template) {
            let query = template.replace("%s", "etl','reports.nightly");
            assert_eq!(client.query_one(&query, &[]).await.unwrap().get::<_, i64>(0), 1);
            ran += 1;
        }
    }
    assert_eq!(ran, 3);
    drop(client);
    login.drop().await;
    let nobody = Login::new(&database, "nobody", "").await;
    let client = nobody.connect().await;
    assert_eq!(answer(&client, "SELECT mill.scale_hint()").await, "42501");
    drop(client);
    nobody.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn health_is_the_exit_code_of_a_program_that_needs_no_database() {
    let database = Database::new().await;
    let address = free_address();
    let nowhere = "postgres://postgres@127.0.0.1:1/postgres";
    let health = async |arguments: &[&str]| {
        let arguments = [&["health", "--timeout", "5m"], arguments].concat();
        Program::pgmill(&database, &arguments).at(nowhere).run().await
    };
    let (code, _, stderr) = health(&[&address]).await;
    assert_eq!(code, 1, "{stderr}");
    assert!(stderr.contains("--http") && stderr.contains("hint"), "{stderr}");

    let worker = Worker::start(&database, &["--readers", "1", "--http", &address]);
    worker.until_logged("ready").await;
    let url = format!("http://{address}/livez");
    for arguments in [&[&*address][..], &[&url], &[&url, "--json"]] {
        let (code, stdout, stderr) = health(arguments).await;
        assert_eq!(code, 0, "{arguments:?} {stdout}{stderr}");
    }
    let (_, stdout, _) = health(&[&address, "--json"]).await;
    let document: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((&document["healthy"], &document["status"]), (&true.into(), &200.into()));

    database
        .execute("UPDATE mill.schema_version SET version = 1000, min_compatible_version = 1000")
        .await;
    // A readiness check is valid for a second.
    eventually("the worker is not ready", async || health(&[&address]).await.0 == 1).await;
    let (code, stdout, stderr) = health(&[&address, "--json"]).await;
    assert_eq!(code, 1, "{stderr}");
    assert!(stdout.contains("503") && stdout.contains("version 1000"), "{stdout}");
    assert_eq!(health(&[&url]).await.0, 0, "the worker is alive");
    for wrong in ["https://127.0.0.1:1/", "", "http://:80/", "127.0.0.1:no"] {
        let (code, _, stderr) = health(&[wrong]).await;
        assert_eq!(code, 2, "{wrong}: {stderr}");
    }
}
