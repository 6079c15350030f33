//! `pgmill import dbt` with a committed manifest: tests without dbt.
//!
//! `make dbt-check` compares the relations with those of dbt.

use std::time::Instant;

use serde_json::{Value, json};

use crate::harness::{Database, Program, Worker, amount};
use crate::integrations::imports::dbt_project::sample_folder;
use crate::project::tidy::root;
use crate::runs::apply::Folder;

/// A manifest in a folder, and the database for which it was compiled.
struct Fixture {
    database: Database,
    folder: Folder,
}

/// Changes the manifest of the sample.
async fn fixture(change: impl FnOnce(&mut Value)) -> Fixture {
    let database = Database::new().await;
    // The nodes create schemas.
    let grant = format!("GRANT CREATE ON DATABASE {} TO mill_test_tasks", database.name());
    database.execute(&grant).await;
    let folder = written(&database, change);
    Fixture { database, folder }
}

fn written(database: &Database, change: impl FnOnce(&mut Value)) -> Folder {
    let text =
        std::fs::read_to_string(root().join("tests/integrations/imports/manifest.json")).unwrap();
    let mut manifest = serde_json::from_str(&text.replace("fixture_db", database.name())).unwrap();
    change(&mut manifest);
    Folder::new(&[("manifest.json", &manifest.to_string())])
}

impl Fixture {
    fn program(&self, arguments: &[&str]) -> Program {
        let manifest = format!("{}/manifest.json", self.folder.path());
        let project = sample_folder().display().to_string();
        let first = ["import", "dbt", &manifest, "--project-dir", &project];
        Program::pgmill(&self.database, &[&first[..], arguments].concat())
    }

    async fn import(&self, arguments: &[&str]) -> String {
        self.program(arguments).succeeds().await
    }

    /// Returns the message of an import that is refused as an error of usage.
    async fn refusal(&self, arguments: &[&str]) -> String {
        let (code, stdout, stderr) = self.program(arguments).run().await;
        assert_eq!(code, 2, "{stdout}{stderr}");
        stderr
    }

    /// Runs the job; returns the names of the tasks in this state.
    async fn run(&self, state: &str) -> Vec<String> {
        let arguments = ["--job", "jaffle_shop", "--wait"];
        Program::enqueue(&self.database, &arguments).run().await;
        let sql =
            "SELECT name FROM mill.run_task_status WHERE run_id = (SELECT max(id) FROM mill.runs)
                   AND state = $1 ORDER BY name";
        let rows = self.database.rows(sql, &[&state]).await;
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// Writes run_results.json of the last run; returns the results by node.
    async fn results(&self) -> Value {
        let run: i64 = self.database.value("SELECT max(id) FROM mill.runs").await;
        let file = format!("{}/run_results.json", self.folder.path());
        let arguments = ["run", "results", &run.to_string(), "--dbt", &file];
        Program::pgmill(&self.database, &arguments).succeeds().await;
        let text = std::fs::read_to_string(&file).unwrap();
        let document: Value = serde_json::from_str(&text).unwrap();
        assert!(document["metadata"]["dbt_schema_version"].as_str().unwrap().ends_with("/v6.json"));
        let results = document["results"].as_array().unwrap().iter();
        results.map(|it| (it["unique_id"].as_str().unwrap().to_owned(), it.clone())).collect()
    }
}

fn node<'m>(manifest: &'m mut Value, id: &str) -> &'m mut Value {
    let node = &mut manifest["nodes"][id];
    assert!(node.is_object(), "{id}");
    node
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sample_runs_and_stays_in_step() {
    let fixture = fixture(|_| {}).await;
    let database = &fixture.database;
    let dry = fixture.import(&["--dry-run"]).await;
    assert!(dry.contains("would set job jaffle_shop with 26 nodes"), "{dry}");
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.jobs").await, 0);
    fixture.import(&[]).await;
    let again = fixture.import(&[]).await;
    assert!(again.contains("no changes"), "{again}");
    let _worker = Worker::start(database, &["--readers", "4"]);
    assert_eq!(fixture.run("succeeded").await.len(), 31);
    for (relation, rows) in [
        ("raw_orders", 200_i64),
        ("stg_customers", 60),
        ("orders", 200),
        ("order_log", 200),
        ("order_status_history", 200),
        ("status_totals", 4),
        ("run_log", 1),
    ] {
        let sql = format!("SELECT count(*) FROM jaffle_shop.{relation}");
        assert_eq!(database.value::<i64>(&sql).await, rows, "{relation}");
    }
    let comment = "SELECT obj_description('jaffle_shop.orders'::regclass)";
    assert!(database.value::<String>(comment).await.contains("One row per order"));
    let results = fixture.results().await;
    assert_eq!(results.as_object().unwrap().len(), 28);
    assert_eq!(results["model.jaffle_shop.orders"]["status"], "success");
    assert_eq!(results["model.jaffle_shop.orders"]["failures"], Value::Null);
    let test = &results["test.jaffle_shop.orders_are_paid"];
    assert_eq!((&test["status"], &test["failures"]), (&json!("pass"), &json!(0)));

    // A node that is gone is removed from the job, and its children wait for its parents.
    let removed = written(database, |manifest| {
        manifest["nodes"].as_object_mut().unwrap().remove("model.jaffle_shop.status_totals");
        node(manifest, "model.jaffle_shop.customers")["compiled_code"] =
            json!("SELECT 1 AS customer_id");
    });
    let changed = Fixture { folder: removed, ..fixture };
    let plan = changed.import(&[]).await;
    assert!(plan.contains("- task status_totals"), "{plan}");
    assert!(plan.contains("~ task customers (statement)"), "{plan}");
    assert!(!plan.contains("task orders ("), "{plan}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_test_holds_back_the_nodes_after_it() {
    let fixture = fixture(|manifest| {
        let test = "test.jaffle_shop.orders_are_paid";
        node(manifest, test)["compiled_code"] = json!("SELECT g FROM generate_series(1, 60) g");
        let warned = "test.jaffle_shop.payments_are_positive";
        node(manifest, warned)["compiled_code"] = json!("SELECT 1 AS a UNION ALL SELECT 2");
    })
    .await;
    fixture.import(&[]).await;
    let _worker = Worker::start(&fixture.database, &["--readers", "4"]);
    assert_eq!(fixture.run("failed").await, ["orders_are_paid"]);
    let results = fixture.results().await;
    let of = |id: &str| results[id].clone();
    let failed = of("test.jaffle_shop.orders_are_paid");
    assert_eq!((&failed["status"], &failed["failures"]), (&json!("fail"), &json!(60)));
    assert_eq!(failed["message"], "Got 60 results, configured to fail if > 50");
    let warned = of("test.jaffle_shop.payments_are_positive");
    assert_eq!((&warned["status"], &warned["failures"]), (&json!("warn"), &json!(2)));
    assert_eq!(of("model.jaffle_shop.customers")["status"], "skipped");
    assert_eq!(of("model.jaffle_shop.orders")["status"], "success");
    // The rows that fail are stored, and the hook at the end runs all the same.
    let stored = "SELECT count(*) FROM jaffle_shop_dbt_test__audit.payments_are_positive";
    assert_eq!(fixture.database.value::<i64>(stored).await, 2);
    let log = "SELECT count(*) FROM jaffle_shop.run_log WHERE event = 'end'";
    assert_eq!(fixture.database.value::<i64>(log).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_incremental_model_needs_the_sql_for_the_state_of_its_table() {
    let first = fixture(|_| {}).await;
    let database = &first.database;
    let new_rows = |manifest: &mut Value| {
        let model = node(manifest, "model.jaffle_shop.order_log");
        let own = model["relation_name"].as_str().unwrap().to_owned();
        let query = model["compiled_code"].as_str().unwrap().to_owned();
        let query =
            format!("{query}\nwhere order_id > (select coalesce(max(order_id), 0) from {own})");
        model["compiled_code"] = json!(query);
    };
    let later = written(database, new_rows);
    let notes = first.import(&[]).await;
    assert!(notes.contains("order_log: compiled while its table did not exist"), "{notes}");
    let _worker = Worker::start(database, &["--readers", "4"]);
    assert!(first.run("failed").await.is_empty());
    // The table now exists, but the job still has the SQL that creates it.
    assert_eq!(first.run("failed").await, ["daily_sales", "order_log"]);
    let only_full = first.folder.path().to_owned();
    let second = Fixture { database: Database::new().await, folder: later };
    let manifest = format!("{}/manifest.json", second.folder.path());
    let project = sample_folder().display().to_string();
    let arguments =
        ["import", "dbt", &manifest, "--project-dir", &project, "--select", "order_log"];
    let models = [&arguments[..], &["--resource-type", "model"]].concat();
    Program::pgmill(database, &models).succeeds().await;
    database.execute("DELETE FROM jaffle_shop.order_log WHERE order_id > 150").await;
    assert!(first.run("failed").await.is_empty());
    let count = "SELECT count(*) FROM jaffle_shop.order_log";
    assert_eq!(database.value::<i64>(count).await, 200);
    // Without its table, the SQL for new rows fails with a hint.
    database.execute("DROP TABLE jaffle_shop.order_log").await;
    assert_eq!(first.run("failed").await, ["order_log"]);
    let message: String = database
        .value("SELECT message FROM mill.run_task_status WHERE state = 'failed' ORDER BY run_id DESC LIMIT 1")
        .await;
    assert!(message.contains("does not exist"), "{message}");
    // With the SQL of both manifests, the task creates the table.
    let full = format!("{only_full}/manifest.json");
    let both = [&models[..], &["--full-refresh-manifest", &full]].concat();
    Program::pgmill(database, &both).succeeds().await;
    assert!(first.run("failed").await.is_empty());
    assert!(first.run("failed").await.is_empty());
    assert_eq!(database.value::<i64>(count).await, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_selection_takes_the_nodes_that_dbt_takes() {
    let fixture = fixture(|_| {}).await;
    for (arguments, nodes) in [
        (&["--resource-type", "model"][..], 8),
        (&["--resource-type", "model,seed", "--select", "+orders"], 5),
        (&["--resource-type", "model", "--select", "orders+"], 4),
        (&["--resource-type", "model", "--select", "orders+1", "--exclude", "customers"], 3),
        (&["--select", "tag:staging", "--resource-type", "model"], 3),
        (&["--select", "models/marts", "--resource-type", "model"], 5),
        (&["--select", "path:models/staging,stg_o*", "--resource-type", "model"], 1),
        (&["--select", "config.materialized:incremental", "--resource-type", "model"], 2),
        (&["--select", "resource_type:snapshot"], 1),
        (&["--select", "marts.orders"], 4),
        (&["--select", "@stg_customers", "--resource-type", "model"], 5),
        (&["--select", "test_type:singular"], 2),
    ] {
        let printed = fixture.import(&[arguments, &["--dry-run", "--json"]].concat()).await;
        let document: Value = serde_json::from_str(&printed).unwrap();
        assert_eq!(document["nodes"], nodes, "{arguments:?}");
    }
    let wrong = fixture.refusal(&["--select", "state:modified"]).await;
    assert!(wrong.contains("method \"state\" is not supported"), "{wrong}");
    let wrong = fixture.refusal(&["--select", "no_such_node"]).await;
    assert!(wrong.contains("matches no node"), "{wrong}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_cannot_be_carried_over_is_reported() {
    let fixture = fixture(|manifest| {
        node(manifest, "model.jaffle_shop.customers")["language"] = json!("python");
        let orders = node(manifest, "model.jaffle_shop.orders");
        orders["config"]["pre-hook"] = json!([{ "sql": "{{ log_start() }}", "transaction": true }]);
        node(manifest, "seed.jaffle_shop.raw_orders")["original_file_path"] =
            json!("../secret.csv");
        node(manifest, "model.jaffle_shop.daily_sales")["config"]["incremental_strategy"] =
            json!("microbatch");
        node(manifest, "model.jaffle_shop.stg_orders")["compiled_code"] =
            json!("select 1); COMMIT; (");
    })
    .await;
    let refused = fixture.refusal(&[]).await;
    for expected in [
        "customers cannot be carried over: models in python",
        "orders cannot be carried over: a hook contains",
        "raw_orders cannot be carried over: ../secret.csv is outside of the project",
        "daily_sales cannot be carried over: the incremental strategy \"microbatch\"",
        "stg_orders cannot be carried over: COMMIT",
        "--partial",
    ] {
        assert!(refused.contains(expected), "{expected} is not in {refused}");
    }
    let partial = fixture.import(&["--partial"]).await;
    assert!(partial.contains("with 21 nodes"), "{partial}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_manifest_is_refused() {
    let database = Database::new().await;
    let with = |change: fn(&mut Value)| {
        let mut manifest = json!({
            "metadata": {
                "dbt_schema_version": "https://schemas.getdbt.com/dbt/manifest/v12.json",
                "project_name": "p", "adapter_type": "postgres",
            },
            "nodes": {},
        });
        change(&mut manifest);
        manifest.to_string()
    };
    let two = |first: &str, second: &str| {
        json!({ "unique_id": first, "name": first, "resource_type": "model", "package_name": "p",
            "original_file_path": "m.sql", "alias": first, "schema": "s", "compiled_code": "SELECT 1",
            "depends_on": { "nodes": [second] }, "config": { "materialized": "view" } })
    };
    let cycle = json!({ "a": two("a", "b"), "b": two("b", "a") });
    let mut circular: Value = serde_json::from_str(&with(|_| {})).unwrap();
    circular["nodes"] = cycle;
    let mut wrong_config = circular.clone();
    wrong_config["nodes"]["a"]["config"]["indexes"] = json!(7);
    for (text, expected) in [
        (String::new(), "not a manifest of dbt"),
        ("{".to_owned(), "not a manifest of dbt"),
        ("[]".to_owned(), "not a manifest of dbt"),
        ("{\"metadata\": {}}".to_owned(), "not a manifest of dbt"),
        (with(|it| it["nodes"] = json!({ "a": 7 })), "not a manifest of dbt"),
        (
            with(|it| {
                it["metadata"]["dbt_schema_version"] =
                    json!("https://schemas.getdbt.com/dbt/manifest/v9.json");
            }),
            "manifest version v9 is unknown; pgmill reads: v12",
        ),
        (
            with(|it| it["metadata"]["adapter_type"] = json!("snowflake")),
            "the project is for snowflake",
        ),
        (with(|_| {}), "no node is selected"),
        (circular.to_string(), "dependency cycle among these nodes: a, b"),
        (wrong_config.to_string(), "config of a: "),
    ] {
        let folder = Folder::new(&[("manifest.json", &text)]);
        let path = format!("{}/manifest.json", folder.path());
        let (code, _, stderr) = Program::pgmill(&database, &["import", "dbt", &path]).run().await;
        assert_eq!(code, 2, "{stderr}");
        assert!(stderr.contains(expected), "{expected} is not in {stderr}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_names_are_quoted() {
    const NAME: &str = "a\"; DROP TABLE victim; --";
    let fixture = fixture(|manifest| {
        let customers = node(manifest, "model.jaffle_shop.stg_customers");
        customers["alias"] = json!(NAME);
        customers["schema"] = json!("s'chema $dbt$");
        customers["name"] = json!("n\n$dbt$'\"");
        customers["relation_name"] = json!(format!("\"db\".\"s'chema $dbt$\".\"{NAME}\""));
        customers["description"] = json!("it's $dbt$ $dbt1$ \\");
        customers["config"]["persist_docs"] = json!({ "relation": true, "columns": true });
        customers["columns"] =
            json!({ "c": { "name": "name", "description": "'$dbt$; DROP TABLE victim" } });
        customers["config"]["grants"] = json!({ "select; DROP": ["public; DROP TABLE victim"] });
        customers["tags"] = json!(["'; DROP TABLE victim"]);
    })
    .await;
    let database = &fixture.database;
    database.execute("CREATE TABLE victim (); CREATE ROLE \"public; DROP TABLE victim\"").await;
    fixture.import(&["--select", "tag:*victim", "--resource-type", "model"]).await;
    database
        .execute("CREATE SCHEMA jaffle_shop; CREATE TABLE jaffle_shop.raw_customers (id int, name text, joined_on date, newsletter bool)")
        .await;
    let _worker = Worker::start_as_superuser(
        database,
        "the schema belongs to another login",
        &["--readers", "2"],
    );
    for _ in 0..2 {
        let failed = fixture.run("failed").await;
        let message: Vec<Option<String>> = database
            .rows("SELECT message FROM mill.run_task_status WHERE state = 'failed'", &[])
            .await
            .iter()
            .map(|row| row.get(0))
            .collect();
        // "SELECT DROP" is not a privilege.
        assert_eq!(failed, ["n_$dbt$'\""], "{message:?}");
        assert!(message[0].as_ref().unwrap().contains("DROP"), "{message:?}");
    }
    let fixed = written(database, |manifest| {
        let customers = node(manifest, "model.jaffle_shop.stg_customers");
        customers["alias"] = json!(NAME);
        customers["schema"] = json!("s'chema $dbt$");
        customers["description"] = json!("it's $dbt$ $dbt1$ \\");
        customers["config"]["persist_docs"] = json!({ "relation": true, "columns": true });
        customers["columns"] =
            json!({ "c": { "name": "name", "description": "'$dbt$; DROP TABLE victim" } });
        customers["relation_name"] = json!(format!("\"db\".\"s'chema $dbt$\".\"{NAME}\""));
        customers["config"]["grants"] = json!({ "select": ["public; DROP TABLE victim"] });
    });
    let fixture = Fixture { folder: fixed, ..fixture };
    fixture.import(&["--select", "stg_customers", "--resource-type", "model"]).await;
    assert!(fixture.run("failed").await.is_empty());
    let sql = "SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
               WHERE relname = $1 AND nspname = $2 AND obj_description(c.oid) = $3";
    let params: [&(dyn tokio_postgres::types::ToSql + Sync); 3] =
        [&NAME, &"s'chema $dbt$", &"it's $dbt$ $dbt1$ \\"];
    assert_eq!(fixture.database.rows(sql, &params).await[0].get::<_, i64>(0), 1);
    assert_eq!(fixture.database.value::<i64>("SELECT count(*) FROM victim").await, 0);
    fixture
        .database
        .execute(
            "DROP OWNED BY \"public; DROP TABLE victim\"; DROP ROLE \"public; DROP TABLE victim\"",
        )
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_project_is_imported() {
    let models = amount(200, 4000);
    let nodes = models + models / 4;
    let begun = Instant::now();
    let fixture = fixture(|manifest| {
        let model = node(manifest, "model.jaffle_shop.stg_orders").clone();
        let test =
            node(manifest, "test.jaffle_shop.not_null_stg_orders_order_id.81cfe2fe64").clone();
        let nodes = manifest["nodes"].as_object_mut().unwrap();
        nodes.clear();
        for n in 0..models {
            let mut model = model.clone();
            let id = format!("model.jaffle_shop.m{n}");
            let parents: Vec<String> = [n / 2, n / 3]
                .into_iter()
                .filter(|parent| *parent < n)
                .map(|parent| format!("model.jaffle_shop.m{parent}"))
                .collect();
            model["unique_id"] = json!(id);
            model["name"] = json!(format!("m{n}"));
            model["alias"] = json!(format!("m{n}"));
            model["depends_on"]["nodes"] = json!(parents);
            nodes.insert(id.clone(), model);
            if n % 4 == 0 {
                let mut test = test.clone();
                test["unique_id"] = json!(format!("test.jaffle_shop.t{n}"));
                test["name"] = json!(format!("t{n}"));
                test["depends_on"]["nodes"] = json!([id, format!("model.jaffle_shop.m{}", n / 2)]);
                nodes.insert(format!("test.jaffle_shop.t{n}"), test);
            }
        }
    })
    .await;
    let printed = fixture.import(&[]).await;
    let expected = format!("set job jaffle_shop with {nodes} nodes");
    assert!(printed.contains(&expected), "{printed}");
    let again = fixture.import(&[]).await;
    assert!(again.contains("no changes"), "{again}");
    println!("two imports of {nodes} nodes: {:.1} s", begun.elapsed().as_secs_f64());
}
