//! The console's API: the description matches the routes, responses match the description, and all
//! errors have one format.

use serde_json::Value;

use crate::harness::console::Console;
use crate::harness::http::Answer;
use crate::harness::login::Login;
use crate::harness::{Database, Worker};
use crate::project::tidy::{files, literals};

/// Returns the places at which a value violates a schema. Supports the subset of JSON Schema that
/// the description uses.
fn faults(at: &str, value: &Value, schema: &Value, document: &Value) -> Vec<String> {
    if let Some(name) = schema["$ref"].as_str() {
        let pointer = name.strip_prefix('#').unwrap();
        return faults(at, value, document.pointer(pointer).unwrap(), document);
    }
    if let Some(options) = schema["oneOf"].as_array() {
        let checked = options.iter().map(|it| faults(at, value, it, document));
        return checked.min_by_key(Vec::len).unwrap();
    }
    let kind = match value {
        Value::Null => "null",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
        Value::String(_) => "string",
        Value::Number(number) if number.is_i64() || number.is_u64() => "integer",
        Value::Number(_) => "number",
        Value::Bool(_) => "boolean",
    };
    let is = |it: &Value| it == kind || (it == "number" && kind == "integer");
    let known = match &schema["type"] {
        Value::Null => true,
        Value::Array(kinds) => kinds.iter().any(is),
        one => is(one),
    };
    let mut found = Vec::new();
    if !known {
        found.push(format!("{at} is {kind}, not {}", schema["type"]));
    }
    for name in schema["required"].as_array().into_iter().flatten() {
        if value.get(name.as_str().unwrap()).is_none() {
            found.push(format!("{at} has no {name}"));
        }
    }
    if schema["additionalProperties"] == false {
        let known = schema["properties"].as_object().unwrap();
        let names = value.as_object().into_iter().flat_map(|it| it.keys());
        let more = names.filter(|name| !known.contains_key(*name));
        found.extend(more.map(|name| format!("{at} has {name}, too")));
    }
    for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
        if let Some(value) = value.get(name) {
            found.extend(faults(&format!("{at}.{name}"), value, inner, document));
        }
    }
    if let (Some(inner), Some(values)) = (schema.get("items"), value.as_array()) {
        for (n, value) in values.iter().enumerate() {
            found.extend(faults(&format!("{at}[{n}]"), value, inner, document));
        }
    }
    found
}

async fn description(console: &Console) -> Value {
    let document = console.get("/api/v1/openapi.json").await;
    assert!(document.headers.contains("application/json"), "{}", document.headers);
    serde_json::from_str(&document.body).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_answer_is_as_the_api_describes_it() {
    let database = Database::new().await;
    let console = Console::start(&database, &[]).await;
    let document = description(&console).await;
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.len() >= 9, "{} paths", paths.len());
    let id = database.enqueue("SELECT 1", "").await;
    let failed = database.enqueue("SELECT * FROM nowhere", ", max_attempts => 1").await;
    // A job, one of its tasks and a schedule, all with the same name.
    database
        .execute(
            r#"SELECT mill.set_job('it', '[{"name": "it", "statement": "SELECT 1"}]');
               SELECT mill.set_schedule('it', 'daily(03:15)', jobs => ARRAY['it']);
               SELECT mill.set_rate('queue', 'default', 10, '1 minute')"#,
        )
        .await;
    let run: i64 = database.value("SELECT run_id FROM mill.start_run(ARRAY['it'])").await;
    // Check the responses of an empty fleet, of a fleet with waiting tasks, and of a fleet with
    // history.
    for task in [id, failed] {
        for (path, described) in paths.iter().filter(|(_, it)| it["get"].is_object()) {
            let parameters = described["get"]["parameters"].as_array().unwrap();
            let named = parameters.iter().filter(|it| it["in"] == "path").count();
            assert_eq!(named, path.matches('{').count(), "{path}: its parameters");
            let id = if path.contains("/runs/") { run } else { task };
            let answer =
                console.get(&format!("{}?name=it", path.replace("{id}", &id.to_string()))).await;
            assert_eq!(answer.status, 200, "{path}: {}", answer.body);
            let value: Value = serde_json::from_str(&answer.body).unwrap();
            let schema =
                &described["get"]["responses"]["200"]["content"]["application/json"]["schema"];
            assert_eq!(faults(path, &value, schema, &document), [""; 0]);
        }
        if task == id {
            let _worker = Worker::start(&database, &["--readers", "1", "--poll-interval", "50ms"]);
            database.until_empty().await;
        }
    }
}

#[test]
fn a_value_that_violates_the_description_is_found() {
    let document = serde_json::json!({ "a": { "type": ["string", "null"] } });
    let schema = serde_json::json!({ "type": "object", "required": ["n", "list"], "properties": {
        "n": { "type": "integer" }, "list": { "type": "array", "items": { "$ref": "#/a" } } } });
    let checked = |value: Value| faults("it", &value, &schema, &document);
    assert_eq!(checked(serde_json::json!({ "n": 1, "list": ["x", null] })), [""; 0]);
    assert_eq!(checked(serde_json::json!({ "n": 1.5, "list": [] })).len(), 1);
    assert_eq!(checked(serde_json::json!({ "list": [1, 2] })).len(), 3);
    assert_eq!(checked(Value::Null).len(), 3);
}

/// The router is built from described handlers. The test reads the source to show that nothing else
/// adds a route.
#[tokio::test(flavor = "multi_thread")]
async fn the_router_has_exactly_the_described_paths() {
    let database = Database::new().await;
    let document = description(&Console::start(&database, &[]).await).await;
    let mut found = Vec::new();
    for (path, text) in files(&["crates/console/src"], &[".rs"]) {
        let text = crate::project::tidy::without_tests(&text);
        let is_path = |literal: &str| literal.starts_with("/api/v") && !literal.contains(' ');
        found.extend(literals(text).into_iter().filter(|(_, it)| is_path(it)).map(|(_, it)| {
            assert!(path.starts_with("crates/console/src/api"), "{path}: {it}");
            it.to_owned()
        }));
    }
    let paths = document["paths"].as_object().unwrap().keys().cloned();
    let mut described: Vec<String> = paths.chain(["/api/v1/openapi.json".to_owned()]).collect();
    // A path may have a handler for GET and one for POST.
    found.sort();
    found.dedup();
    described.sort();
    assert_eq!(found, described);
}

fn assert_api_error(what: &str, answer: &Answer, status: u16) -> Value {
    assert_eq!(answer.status, status, "{what}: {}", answer.body);
    let headers = answer.headers.to_lowercase();
    assert!(headers.contains("content-type: application/json"), "{what}: {headers}");
    let reported: Value = serde_json::from_str(&answer.body).unwrap();
    let keys: Vec<&String> = reported.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["error", "hint"], "{what}: {reported}");
    assert!(reported["error"].as_str().is_some_and(|it| !it.is_empty()), "{what}: {reported}");
    reported
}

#[tokio::test(flavor = "multi_thread")]
async fn every_api_error_has_the_same_format() {
    let database = Database::new().await;
    let console = Console::start(&database, &[]).await;
    let with_hint = [
        ("/api/v1/tasks?q=que:etl", 400),
        ("/api/v1/tasks?q=since:soon", 400),
        ("/api/v1/tasks?after=1&after=2", 400),
        ("/api/v1/failures?queue=a&queue=b", 400),
    ];
    for (path, status) in with_hint {
        let reported = assert_api_error(path, &console.get(path).await, status);
        assert!(reported["hint"].as_str().is_some_and(|it| !it.is_empty()), "{path}: {reported}");
    }
    for (path, status) in [
        ("/api/v1/nothing", 404),
        ("/api/v1/tasks/1", 404),
        ("/api/v1/tasks/none", 404),
        ("/api/v1/tasks?after=nowhere", 400),
    ] {
        assert_api_error(path, &console.get(path).await, status);
    }
    let tasks = "/api/v1/tasks";
    let host = ("Host", console.address.as_str());
    let foreign = console.request("GET", tasks, &[("Host", "evil.example")], "").await;
    assert_api_error("a foreign host", &foreign, 403);
    let origin = [("Origin", "http://evil.example")];
    let foreign = console.post_json(tasks, &serde_json::json!({}), &origin).await;
    assert_api_error("a request from elsewhere", &foreign, 403);
    assert_api_error("a form", &console.post_with(tasks, "", &[]).await, 415);
    let nothing = console.post_json("/api/v1/queues", &serde_json::json!({}), &[]).await;
    assert_api_error("a path that only reads", &nothing, 405);
    let large = serde_json::json!({ "tasks": [{ "statement": "x".repeat(3_000_000) }] });
    assert_api_error("a large body", &console.post_json(tasks, &large, &[]).await, 413);
    assert_api_error("a method", &console.request("DELETE", tasks, &[host], "").await, 405);

    let file = std::env::temp_dir().join(format!("pgmill-test-token-{}", database.name()));
    std::fs::write(&file, "a-token-of-enough-length").unwrap();
    let closed = Console::start(&database, &["--token-file", file.to_str().unwrap()]).await;
    let reported = assert_api_error("without a token", &closed.get(tasks).await, 401);
    assert!(reported["hint"].as_str().unwrap().contains("Bearer"), "{reported}");
    let bearer = ("Authorization", "Bearer a-token-of-enough-length");
    let host = ("Host", closed.address.as_str());
    assert_eq!(closed.request("GET", tasks, &[host, bearer], "").await.status, 200);
    let _ = std::fs::remove_file(&file);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_privilege_is_named() {
    let database = Database::new().await;
    let login = Login::new(&database, "looker", "mill_viewer").await;
    let console = Console::start_at(&database, &login.url(), &[]).await;
    assert_eq!(console.get("/api/v1/queues").await.status, 200);
    database.execute(&format!("REVOKE mill_viewer FROM {}", login.name)).await;
    let reported = assert_api_error("no right", &console.get("/api/v1/queues").await, 403);
    assert!(reported["hint"].as_str().unwrap().contains("mill_viewer"), "{reported}");
    drop(console);
    login.gone().await;
}
