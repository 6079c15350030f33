//! Versions of jobs: every change of a definition is kept, and two versions can be compared.

use serde_json::{Value, json};

use crate::harness::console::Console;
use crate::harness::login::Login;
use crate::harness::{Database, Program};

const FIRST: &str = r#"[{"name": "load", "statement": "SELECT 1", "queue": "etl"},
    {"name": "report", "statement": "SELECT 2", "after": ["load"]}]"#;
const SECOND: &str = r#"[{"name": "load", "statement": "SELECT 1\nFROM orders", "queue": "etl"},
    {"name": "mail", "statement": "SELECT '<b>'"}]"#;

/// Creates a job with four versions.
async fn changed_job(database: &Database) {
    for tasks in [FIRST, SECOND] {
        database.rows("SELECT mill.set_job('daily', $1::text::jsonb)", &[&tasks]).await;
    }
    database
        .execute(
            "SELECT mill.enable_job_task('daily', 'mail', false), mill.enable_job('DAILY', false)",
        )
        .await;
}

async fn document(program: Program) -> Value {
    let (code, stdout, stderr) = program.run().await;
    assert_eq!(code, 0, "{stderr}");
    serde_json::from_str(&stdout).unwrap()
}

#[tokio::test]
async fn every_change_of_a_job_is_a_version_that_can_be_compared() {
    let database = Database::new().await;
    changed_job(&database).await;
    database.execute("SELECT mill.enable_job('daily', false)").await;
    let kept = document(Program::pgmill(&database, &["job", "versions", "Daily", "--json"])).await;
    let numbers: Vec<i64> =
        kept.as_array().unwrap().iter().map(|it| it["version"].as_i64().unwrap()).collect();
    assert_eq!(numbers, [4, 3, 2, 1]);
    assert_eq!(kept[0]["definition"]["enabled"], json!(false));

    let arguments = ["job", "diff", "daily", "1", "2", "--json"];
    let diff = document(Program::pgmill(&database, &arguments)).await;
    let fields: Vec<String> = diff["changes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| {
            format!("{} {}", it["task"].as_str().unwrap_or("-"), it["field"].as_str().unwrap())
        })
        .collect();
    assert_eq!(fields, ["load statement", "mail task", "report task"]);
    let (_, text, _) = Program::pgmill(&database, &["job", "diff", "daily", "1", "2"]).run().await;
    for line in ["job daily, version 1 to version 2", "task load", "    + FROM orders", "  removed"]
    {
        assert!(text.contains(line), "{line}: {text}");
    }
    let (_, text, _) = Program::pgmill(&database, &["job", "diff", "daily"]).run().await;
    assert!(text.contains("- true") && text.contains("+ false"), "{text}");
    let (code, _, error) = Program::pgmill(&database, &["job", "diff", "daily", "9"]).run().await;
    assert!(code == 4 && error.contains("job daily has no version 9"), "{code} {error}");
}

#[tokio::test]
async fn fifty_versions_are_kept_and_a_job_from_before_gets_its_old_version() {
    let database = Database::new().await;
    changed_job(&database).await;
    // A job of a database whose schema had no versions before the upgrade.
    database.execute("DELETE FROM mill.job_versions").await;
    database.execute("SELECT mill.enable_job('daily')").await;
    let kept = "SELECT array_agg(version ORDER BY version) FROM mill.job_versions";
    assert_eq!(database.value::<Vec<i32>>(kept).await, [4, 5]);
    database
        .execute("DO $$ BEGIN FOR n IN 1..60 LOOP PERFORM mill.enable_job('daily', n % 2 = 0); END LOOP; END $$")
        .await;
    let bounds =
        "SELECT min(version) || ' ' || max(version) || ' ' || count(*) FROM mill.job_versions";
    assert_eq!(database.value::<String>(bounds).await, "16 65 50");
}

#[tokio::test]
async fn versions_hide_statements_like_the_job_does() {
    let database = Database::new().await;
    changed_job(&database).await;
    database.execute("UPDATE mill.settings SET hide_statements = true").await;
    let viewer = Login::new(&database, "viewer", "mill_viewer").await;
    let program = |arguments: &[&str]| Program::pgmill(&database, arguments).at(&viewer.url());
    let kept = document(program(&["job", "versions", "daily", "--json"])).await;
    assert!(!kept.to_string().contains("SELECT") && kept.to_string().contains("etl"), "{kept}");
    let console = Console::start_at(&database, &viewer.url(), &[]).await;
    let page = console.get("/jobs/versions?name=daily&from=1&to=2").await.body;
    assert!(!page.contains("FROM orders") && page.contains("mail"), "{page}");
}

#[tokio::test]
async fn the_console_shows_what_changed_between_two_versions() {
    let database = Database::new().await;
    changed_job(&database).await;
    let console = Console::start(&database, &[]).await;
    let job = console.get("/jobs/detail?name=daily").await.body;
    assert!(job.contains("version 4") && job.contains("/jobs/versions?name=daily"), "{job}");
    let page = console.get("/jobs/versions?name=daily&from=1&to=2").await.body;
    for text in ["FROM orders", "removed", "added", "&#60;b&#62;", "from version 1 to version 2"] {
        assert!(page.contains(text), "{text}: {page}");
    }
    assert_eq!(console.get("/jobs/versions?name=daily&from=77").await.status, 404);
    assert_eq!(console.get("/jobs/versions?name=none").await.status, 404);
    let api = console.get("/api/v1/jobs/versions?name=daily").await.body;
    assert!(api.contains("\"version\":4"), "{api}");
}

/// Calls a function while another session, which has called `first`, has not committed. Returns the
/// result, or the error.
async fn meanwhile(database: &Database, first: &str, call: &str) -> Result<bool, String> {
    let rows = database.rows_after(&format!("SELECT {first}"), &format!("SELECT {call}"), "").await;
    rows.map(|it| it[0].get(0)).map_err(|it| it.as_db_error().unwrap().message().to_owned())
}

#[tokio::test]
async fn two_changes_of_a_job_at_the_same_time_are_two_versions() {
    let database = Database::new().await;
    let set = |n: i32| {
        format!("mill.set_job('j', '[{{\"name\": \"t\", \"statement\": \"SELECT {n}\"}}]')")
    };
    database.execute(&format!("SELECT {}", set(1))).await;
    assert_eq!(meanwhile(&database, &set(2), &set(1)).await, Ok(true));
    let kept = "SELECT string_agg(version || ' ' || (definition->'tasks'->0->>'statement'), ', ' ORDER BY version)
        FROM mill.job_versions";
    let versions: String = database.value(kept).await;
    assert_eq!(versions, "1 SELECT 1, 2 SELECT 2, 3 SELECT 1");
}

#[tokio::test]
async fn a_job_and_a_dependency_set_at_the_same_time_form_no_cycle() {
    let database = Database::new().await;
    let job = "mill.set_job('j', '[{\"name\": \"p\", \"statement\": \"SELECT 1\"},
        {\"name\": \"q\", \"statement\": \"SELECT 1\", \"after\": [\"p\"]}]')";
    let dependency = "mill.set_dependency('p', 'q')";
    for (first, second) in [(job, dependency), (dependency, job)] {
        let error = meanwhile(&database, first, second).await.unwrap_err();
        assert!(error.contains("dependency cycle"), "{error}");
        database.execute("SELECT mill.drop_dependency('p', 'q')").await;
        database
            .execute("UPDATE mill.job_tasks SET disabled_at = now(); DELETE FROM mill.job_edges")
            .await;
    }
}

#[tokio::test]
async fn a_change_after_which_a_result_would_be_missing_is_refused() {
    let database = Database::new().await;
    let refused = async |call: &str, wanted: &str| {
        let error = database.client().batch_execute(&format!("SELECT {call}")).await.unwrap_err();
        let message = error.as_db_error().unwrap().message().to_owned();
        assert!(message.contains(wanted), "{call}: {message}");
    };
    let job = |enabled: bool| {
        let producer = json!({"name": "p", "statement": "SELECT 1 AS v", "enabled": enabled});
        let params = json!([{"$result": "p", "column": "v"}]);
        let user = json!({"name": "q", "statement": "SELECT $1::integer", "params": params});
        format!("mill.set_job('j', '{}')", json!([producer, user]))
    };
    refused(&job(true), "does not wait for it").await;
    database.execute("SELECT mill.set_dependency('q', 'p')").await;
    refused(&job(false), "uses a result of \"p\", which is disabled").await;
    database.execute(&format!("SELECT {}", job(true))).await;
    refused("mill.drop_dependency('q', 'p')", "does not wait for it").await;
    database.execute("SELECT mill.start_run('{j}')").await;
}
