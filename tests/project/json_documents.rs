//! The documents of `--json` match docs/json.schema.json.

use serde_json::{Value, json};

use crate::commands::contexts::{DOWN, contexts};
use crate::harness::http::free_address;
use crate::harness::{Database, Program, Worker, amount, eventually};
use crate::project::tidy::root;
use crate::runs::apply::Folder;

/// Commands without a document: they print a script, or serve a terminal or a browser.
const NONE: [&str; 3] = ["completions", "console", "top"];

/// A document: its name in the schema, and the arguments that print it.
type Document = (&'static str, &'static [&'static str]);

const DOCUMENTS: &[Document] = &[
    ("init", &["init"]),
    ("status", &["status"]),
    ("context list", &["context", "list", "--contexts", "CONTEXTS"]),
    ("status --all-contexts", &["status", "--all-contexts", "--contexts", "CONTEXTS"]),
    ("pause", &["pause", "--for", "1h", "--dry-run"]),
    ("resume", &["resume", "--planned", "--dry-run"]),
    ("doctor", &["doctor"]),
    ("task list", &["task", "list"]),
    ("task list --finished", &["task", "list", "--finished"]),
    ("task list --finished", &["task", "list", "--error", "zero"]),
    ("task show", &["task", "show", "1"]),
    ("task show", &["task", "show", "HELD"]),
    ("task show --plan", &["task", "show", "2", "--plan"]),
    ("task cancel", &["task", "cancel", "--state", "pending", "--dry-run"]),
    ("task retry", &["task", "retry", "1", "4711", "--dry-run"]),
    ("task set", &["task", "set", "--state", "scheduled", "--now", "--dry-run"]),
    ("history", &["history"]),
    ("failures", &["failures"]),
    ("durations", &["durations"]),
    ("audit", &["audit"]),
    ("why TASK", &["why", "1"]),
    ("why run:RUN", &["why", "run:1"]),
    ("why RUN/TASK", &["why", "1/first"]),
    ("why SCHEDULE", &["why", "nightly"]),
    ("why QUEUE", &["why", "etl"]),
    ("queue list", &["queue", "list"]),
    ("queue pause", &["queue", "pause", "etl", "--dry-run"]),
    ("queue resume", &["queue", "resume", "etl", "--dry-run"]),
    ("queue set", &["queue", "set", "etl", "--max-running", "4", "--rate", "30/1m", "--dry-run"]),
    ("queue purge", &["queue", "purge", "stopped", "--dry-run"]),
    ("queue remove", &["queue", "remove", "etl", "--dry-run"]),
    ("priority list", &["priority", "list"]),
    ("priority set", &["priority", "set", "low=7", "--dry-run"]),
    ("priority reserve", &["priority", "reserve", "high", "--dry-run"]),
    ("limit list", &["limit", "list"]),
    ("limit set", &["limit", "set", "customer", "--rate", "30/1m", "--dry-run"]),
    ("limit remove", &["limit", "remove", "unused", "--dry-run"]),
    ("group list", &["group", "list"]),
    ("group set", &["group", "set", "evening", "--max-running", "4", "--dry-run"]),
    ("group default", &["group", "default", "spare", "--dry-run"]),
    ("group import", &["group", "import", "GROUPS", "--dry-run"]),
    ("group remove", &["group", "remove", "spare", "--dry-run"]),
    ("profile list", &["profile", "list"]),
    ("profile set", &["profile", "set", "bi", "--description", "reports", "--dry-run"]),
    ("profile remove", &["profile", "remove", "bi", "--dry-run"]),
    ("target list", &["target", "list"]),
    ("target set", &["target", "set", "dwh", "--dry-run"]),
    ("target remove", &["target", "remove", "dwh", "--dry-run"]),
    ("target accept", &["target", "accept", "dwh", "--dry-run"]),
    ("target init", &["target", "init"]),
    ("target check", &["target", "check", "dwh", "--target-url-file", "TARGET"]),
    ("subscription list", &["subscription", "list"]),
    ("subscription show", &["subscription", "show", "ops"]),
    (
        "subscription set",
        &["subscription", "set", "ops", "--rate", "30/5m", "--clear", "queue", "--dry-run"],
    ),
    ("subscription enable", &["subscription", "enable", "ops", "--dry-run"]),
    ("subscription disable", &["subscription", "disable", "ops", "--dry-run"]),
    ("subscription test", &["subscription", "test", "ops", "--dry-run"]),
    ("subscription remove", &["subscription", "remove", "ops", "--dry-run"]),
    ("notification list", &["notification", "list"]),
    ("notification retry", &["notification", "retry", "--dry-run"]),
    ("job list", &["job", "list"]),
    ("job show", &["job", "show", "daily"]),
    ("job versions", &["job", "versions", "daily"]),
    ("job diff", &["job", "diff", "daily"]),
    ("job enable", &["job", "enable", "daily", "--dry-run"]),
    ("job disable", &["job", "disable", "daily", "--dry-run"]),
    ("apply", &["apply", "FILE", "--dry-run"]),
    ("import pg-cron", &["import", "pg-cron", "EXPORTS/cron.csv"]),
    ("import pg-timetable", &["import", "pg-timetable", "EXPORTS/timetable.json", "--dry-run"]),
    ("import crontab", &["import", "crontab", "EXPORTS/crontab", "--dry-run"]),
    ("import d365", &["import", "d365", "EXPORTS/batch_jobs.json", "--dry-run"]),
    ("dependency list", &["dependency", "list"]),
    ("dependency add", &["dependency", "add", "a", "b", "--dry-run"]),
    ("dependency remove", &["dependency", "remove", "y", "x", "--dry-run"]),
    ("lineage", &["lineage", "second"]),
    ("run list", &["run", "list"]),
    ("run show", &["run", "show", "1"]),
    ("run approve", &["run", "approve", "2", "publish", "--dry-run"]),
    ("run reject", &["run", "reject", "2", "publish", "--dry-run"]),
    ("run graph", &["run", "graph", "1"]),
    ("run results", &["run", "results", "1", "--dbt", "RESULTS"]),
    ("import dbt", &["import", "dbt", "MANIFEST", "--resource-type", "model,test", "--dry-run"]),
    ("run cancel", &["run", "cancel", "1", "4711", "--dry-run"]),
    ("run retry", &["run", "retry", "1", "fails", "--dry-run"]),
    ("run restart", &["run", "restart", "1", "--dry-run"]),
    ("run rerun", &["run", "rerun", "1", "--dry-run"]),
    ("schedule list", &["schedule", "list"]),
    ("schedule show", &["schedule", "show", "nightly"]),
    ("schedule next", &["schedule", "next", "nightly", "--count", "2"]),
    ("schedule calendar", &["schedule", "calendar"]),
    ("schedule test", &["schedule", "test", "nightly"]),
    ("schedule history", &["schedule", "history", "nightly"]),
    ("schedule log", &["schedule", "log", "nightly"]),
    ("schedule enable", &["schedule", "enable", "nightly", "--dry-run"]),
    ("schedule disable", &["schedule", "disable", "nightly", "--dry-run"]),
    ("schedule set", &["schedule", "set", "nightly", "--jitter", "10s", "--dry-run"]),
    ("schedule remove", &["schedule", "remove", "nightly", "--dry-run"]),
    ("schedule run-now", &["schedule", "run-now", "nightly", "--dry-run"]),
    ("schedule run-now", &["schedule", "run-now", "nightly", "--force"]),
    ("schedule cancel", &["schedule", "cancel", "nightly", "--dry-run"]),
    (
        "schedule backfill",
        &["schedule", "backfill", "nightly", "--from", "2026-01-01", "--to", "2026-01-03"],
    ),
    ("schedule backfills", &["schedule", "backfills"]),
    ("schedule pause-backfill", &["schedule", "pause-backfill", "1", "--dry-run"]),
    ("schedule resume-backfill", &["schedule", "resume-backfill", "1", "--dry-run"]),
    ("schedule cancel-backfill", &["schedule", "cancel-backfill", "1", "--dry-run"]),
    ("schedule sync", &["schedule", "sync", "--dry-run"]),
    ("worker list", &["worker", "list"]),
    ("worker drain", &["worker", "drain", "--host", "HOST", "--dry-run"]),
    ("health", &["health", "HTTP"]),
];

const FILE: &str = r#"
[job.other]
description = "new"
[job.other.task.third]
statement = "SELECT 3"
[job.other.task.fourth]
statement = "SELECT 4"
after = ["third"]
"#;

/// Files for the imports. Each has a definition that is imported, with a difference, and one that is
/// left out.
const EXPORTS: &[(&str, &str)] = &[
    ("cron.csv", "schedule,command,username\n@reboot,SELECT 1,etl\n0 0 * * *,COMMIT,etl\n"),
    (
        "timetable.json",
        r#"{"chains": [{"chain_id": 1, "chain_name": "a", "run_at": "@reboot"}, {"chain_id": 2, "chain_name": "b"}],
            "tasks": [{"task_id": 1, "chain_id": 1, "task_order": 1, "command": "SELECT 1"}], "parameters": []}"#,
    ),
    ("crontab", "@reboot psql -c 'SELECT 1'\n@daily true\n"),
    (
        "batch_jobs.json",
        r#"{"batch_jobs": [{"job_description": "a", "tasks": [{"statement": "SELECT 1"}]}, {"job_description": "b"}]}"#,
    ),
];

/// Fills a database so that the documents have few empty lists.
async fn fill(database: &Database) {
    database
        .execute(
            r#"SELECT pg_advisory_lock(1);
            SELECT mill.set_subscription('ops', '{"events": ["task_failed"], "queue": "etl", "destination": "chat"}');
            SELECT mill.enqueue('SELECT 1/0', name => 'fails', queue => 'etl', max_attempts => 2, retry_interval => '0 s',
                key => 'k', options => '{"tags": ["nightly"], "metadata": {"owner": "bi"}}');
            SELECT mill.enqueue('SELECT count(*) FROM generate_series(1, 3)', name => 'counts', explain => true, params => '[]');
            SELECT mill.set_max_running('queue', 'etl', 2), mill.set_rate('key', 'customer', 10, '1 min'),
                mill.set_rate('key', 'unused', 10, '1 min'), mill.set_shared_commit('etl', '20 ms');
            SELECT mill.pause_fleet(reason => 'upgrade', starts_at => now() + interval '1 day');
            SELECT mill.set_group('evening', 'after work', 'high', 2), mill.set_group('spare');
            SELECT mill.set_active_period('evening', '00:00', '23:59', 'UTC');
            SELECT mill.set_profile('bi', '{mill_producer}'), mill.set_target('dwh');
            UPDATE mill.targets SET restored_at = now();
            SELECT mill.set_job('daily', '[{"name": "first", "statement": "SELECT $1::int AS n", "params": [{"$param": "n"}], "group": "evening", "metadata": {"dbt_node": "model.p.first"}},
                {"name": "second", "statement": "SELECT 1", "after": ["first"]},
                {"name": "fails", "statement": "SELECT 1/0", "max_attempts": 1}]', description => 'every day', frequency => 'daily');
            SELECT mill.enable_job_task('daily', 'fails', false); SELECT mill.enable_job_task('daily', 'fails');
            SELECT mill.set_dependency('y', 'x'), mill.set_dependency('second', 'first');
            SELECT mill.set_schedule('nightly', 'daily(03:00)', jobs => '{daily}', params => '{"n": 7}');
            SELECT mill.run_now('nightly');
            SELECT mill.pause_backfill(mill.backfill_schedule('nightly', '2026-01-01', '2026-01-03'));
            CREATE PROCEDURE wrong() LANGUAGE sql AS 'SELECT 1'; COMMENT ON PROCEDURE wrong() IS '@daily(99:99)'"#,
        )
        .await;
}

/// Returns the documents of all commands, in the short form of a fourth of them, by name.
pub(crate) async fn documents(database: &Database) -> Vec<(String, Value)> {
    documents_of(database, DOCUMENTS.iter().step_by(amount(4, 1))).await
}

/// Adds a task that runs until its lock is released, and tasks and a run that wait. Returns the first.
async fn hold(database: &Database) -> i64 {
    let held = "DO $$ BEGIN RAISE NOTICE 'progress: 40%% held'; RAISE NOTICE 'a'; PERFORM pg_advisory_xact_lock(1); END $$";
    let held = database.enqueue(held, ", name => 'held', concurrency_key => 'customer'").await;
    database.until_waiting_for_lock(held).await;
    database.enqueue("SELECT 1", ", due_at => now() + interval '1 day'").await;
    database
        .execute(
            r#"SELECT mill.pause('stopped');
            SELECT mill.set_job('asks', '[{"name": "publish", "statement": "SELECT 1", "approval": true}]');
            SELECT mill.start_run(ARRAY['asks'])"#,
        )
        .await;
    database.enqueue("SELECT 1", ", queue => 'stopped'").await;
    held
}

/// A fleet with something for each command to show, and what the arguments of the commands stand for.
pub(crate) struct Shown<'a> {
    database: &'a Database,
    worker: Worker,
    replaced: Vec<(&'static str, String)>,
    _folders: Vec<Folder>,
}

impl<'a> Shown<'a> {
    /// Fills the database, and starts a worker.
    pub(crate) async fn new(database: &'a Database) -> Self {
        fill(database).await;
        let http = free_address();
        let worker = Worker::start(database, &["--readers", "2", "--http", &http]);
        let done = "SELECT (SELECT count(*) FROM mill.tasks) + (SELECT count(*) FROM mill.runs WHERE state = 'running')";
        eventually("all tasks have ended", async || database.value::<i64>(done).await == 0).await;
        let held = hold(database).await.to_string();
        let folder = Folder::new(&[("jobs.toml", FILE)]);
        let exports = Folder::new(EXPORTS);
        let groups = Folder::new(&[("groups.csv", "group,max_running\nloads,2\n")]);
        let url = Folder::new(&[("target.url", &database.url())]);
        let contexts = contexts(&[("here", &database.url()), ("down", DOWN)]);
        let host = database.value("SELECT host FROM mill.worker_starts LIMIT 1").await;
        let manifest = root().join("tests/integrations/imports/manifest.json");
        let replaced = vec![
            ("HELD", held),
            ("HOST", host),
            ("HTTP", http),
            ("FILE", folder.path().to_owned()),
            ("TARGET", format!("{}/target.url", url.path())),
            ("CONTEXTS", format!("{}/contexts.toml", contexts.path())),
            ("MANIFEST", manifest.display().to_string()),
            ("RESULTS", format!("{}/run_results.json", folder.path())),
            ("GROUPS", format!("{}/groups.csv", groups.path())),
            ("EXPORTS", exports.path().to_owned()),
        ];
        Self { database, worker, replaced, _folders: vec![folder, exports, groups, url, contexts] }
    }

    /// Prepares `pgmill` with these arguments, as the superuser.
    fn pgmill(&self, arguments: &[&str]) -> Program {
        let replaced = arguments.iter().map(|argument| {
            let (head, rest) = argument.split_once('/').unwrap_or((argument, ""));
            match self.replaced.iter().find(|(name, _)| *name == head) {
                Some((_, value)) if rest.is_empty() => value.clone(),
                Some((_, value)) => format!("{value}/{rest}"),
                None => (*argument).to_owned(),
            }
        });
        let arguments: Vec<String> = replaced.chain(["--json".to_owned()]).collect();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let reason = "the schema, profiles and targets are declared by the owner";
        Program::pgmill(self.database, &arguments).by_superuser(self.database, reason)
    }

    /// Returns the commands of all documents without those that only rehearse a change.
    pub(crate) fn commands(&self) -> Vec<Program> {
        let all = DOCUMENTS.iter().map(|(_, arguments)| *arguments);
        all.filter(|it| !it.contains(&"--dry-run")).map(|it| self.pgmill(it)).collect()
    }

    /// Lets the tasks end, and stops the worker.
    async fn end(mut self) {
        self.database.execute("SELECT pg_advisory_unlock(1)").await;
        assert!(self.worker.terminate().await.success());
    }
}

/// Returns some of the documents of `pgmill`, and those of `enqueue`.
async fn documents_of(
    database: &Database,
    wanted: impl Iterator<Item = &'static Document>,
) -> Vec<(String, Value)> {
    let shown = Shown::new(database).await;
    shown.pgmill(&["target", "init"]).succeeds().await;
    let pgmill = wanted.map(|(name, arguments)| (*name, shown.pgmill(arguments)));
    let enqueue = [
        ("enqueue", &["SELECT 1"][..]),
        ("enqueue --wait", &["--wait", "SELECT 1 AS one"]),
        ("enqueue --job", &["--job", "daily", "--param", "n=1"]),
        ("enqueue --job --wait", &["--job", "daily", "--param", "n=1", "--wait"]),
    ];
    let enqueue = enqueue.into_iter().map(|(name, arguments)| {
        (name, Program::enqueue(database, &[arguments, &["--json"]].concat()))
    });
    let mut documents = Vec::new();
    for (name, program) in pgmill.chain(enqueue) {
        let (_, stdout, stderr) = program.run().await;
        let document = serde_json::from_str(&stdout);
        documents.push((
            name.to_owned(),
            document.unwrap_or_else(|_| panic!("{name}: {stdout}{stderr}")),
        ));
    }
    shown.end().await;
    documents
}

/// Compares a value with a schema, and collects the differences. The schema uses only these keywords:
/// `$ref`, `type`, `properties`, `required`, `additionalProperties`, `items`, `anyOf`, `format`.
/// A key that the schema does not have is a difference, because it would not be documented.
fn compare(defs: &Value, schema: &Value, value: &Value, place: &str) -> Vec<String> {
    if let Some(name) = schema["$ref"].as_str() {
        return compare(defs, &defs[name.trim_start_matches("#/$defs/")], value, place);
    }
    if let Some(any) = schema["anyOf"].as_array() {
        let tried: Vec<_> = any.iter().map(|it| compare(defs, it, value, place)).collect();
        let best = tried.into_iter().min_by_key(Vec::len);
        return best.unwrap_or_default();
    }
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_i64() || number.is_u64() => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let allowed = |it: &Value| it == kind || (kind == "integer" && it == "number");
    match &schema["type"] {
        Value::Null => return Vec::new(),
        Value::Array(types) if types.iter().any(allowed) => {}
        one if allowed(one) => {}
        other => return vec![format!("{place}: {kind}, expected {other}")],
    }
    let mut found = Vec::new();
    for (n, item) in value.as_array().into_iter().flatten().enumerate() {
        found.extend(compare(defs, &schema["items"], item, &format!("{place}[{n}]")));
    }
    if let Some(fields) = value.as_object() {
        for key in schema["required"].as_array().into_iter().flatten() {
            if !fields.contains_key(key.as_str().unwrap()) {
                found.push(format!("{place}: no key {key}"));
            }
        }
        for (key, field) in fields {
            let place = format!("{place}.{key}");
            match (&schema["properties"][key], &schema["additionalProperties"]) {
                (Value::Null, Value::Null) if schema["properties"].is_object() => {
                    found.push(format!("{place} is not in the schema"));
                }
                (Value::Null, other) => found.extend(compare(defs, other, field, &place)),
                (known, _) => found.extend(compare(defs, known, field, &place)),
            }
        }
    }
    if schema["format"] == "date-time" && value.as_str().is_some_and(|it| !it.ends_with('Z')) {
        found.push(format!("{place}: {value} is not in UTC"));
    }
    found
}

fn schema() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/json.schema.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_document_matches_its_schema() {
    let database = Database::new().await;
    let schema = schema();
    let mut found = Vec::new();
    // A sample with queries, changes and imports, or all.
    let wanted = DOCUMENTS.iter().skip(amount(1, 0)).step_by(amount(6, 1));
    for (name, document) in documents_of(&database, wanted).await {
        match &schema["$defs"][&name] {
            Value::Null => found.push(format!("{name} has no schema")),
            known => found.extend(compare(&schema["$defs"], known, &document, &name)),
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn every_command_has_a_document() {
    fn leaves(command: &clap::Command, path: &str, found: &mut Vec<String>) {
        for child in command.get_subcommands() {
            let path = format!("{path} {}", child.get_name());
            if child.has_subcommands() {
                leaves(child, &path, found);
            } else {
                found.push(path.trim().to_owned());
            }
        }
    }
    let mut commands = Vec::new();
    leaves(&pgmill::command(), "", &mut commands);
    commands.retain(|command| {
        let documented = |name: &str| name == command || name.starts_with(&format!("{command} "));
        !NONE.contains(&command.as_str()) && !DOCUMENTS.iter().any(|(name, _)| documented(name))
    });
    assert!(commands.is_empty(), "{commands:?}");
    let defs = schema();
    let names = defs["$defs"].as_object().unwrap().keys();
    let unused: Vec<&String> = names
        .filter(|name| {
            name.contains(' ')
                && !name.starts_with("enqueue")
                && !DOCUMENTS.iter().any(|(known, _)| known == *name)
        })
        .collect();
    assert!(unused.is_empty(), "{unused:?}");
}

#[test]
fn the_comparison_finds_each_kind_of_difference() {
    let defs = json!({ "other": { "type": "integer" } });
    let schema = json!({
        "type": "object", "required": ["id"],
        "properties": {
            "id": { "$ref": "#/$defs/other" }, "at": { "type": ["string", "null"], "format": "date-time" },
            "list": { "type": "array", "items": { "anyOf": [{ "type": "number" }, { "type": "null" }] } },
        },
    });
    for (value, expected) in [
        (json!({ "id": 1, "at": null, "list": [1, 1.5, null] }), ""),
        (json!({ "id": 1.5 }), "x.id: number, expected \"integer\""),
        (
            json!({ "at": "2026-01-01T00:00:00+01:00" }),
            "x: no key \"id\" x.at: \"2026-01-01T00:00:00+01:00\" is not in UTC",
        ),
        (json!({ "id": 1, "new": 1 }), "x.new is not in the schema"),
        (json!({ "id": 1, "list": ["a"] }), "x.list[0]: string, expected \"number\""),
    ] {
        assert_eq!(compare(&defs, &schema, &value, "x").join(" "), expected);
    }
}
