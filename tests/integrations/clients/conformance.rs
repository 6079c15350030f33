//! The client for Rust passes the cases of `clients/conformance`, which its README explains.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::time::Duration;

use pgmill_client::{Due, Error, Labels, NewTask, RunId, RunOptions, TaskId, TaskOptions};
use serde_json::{Map, Value, from_value, json};
use tokio_postgres::GenericClient;
use tokio_postgres::error::SqlState;

use crate::harness::{Database, Worker, eventually};
use crate::project::tidy::root;

/// Values under their names.
type Saved = BTreeMap<String, Value>;

/// The difference between a result and its expectation.
type Difference = String;

#[tokio::test(flavor = "multi_thread")]
async fn the_client_for_rust_passes_every_case() {
    let database = Database::new().await;
    let mut worker = Worker::start(&database, &["--readers", "4"]);
    let text = std::fs::read_to_string(root().join("clients/conformance/cases.json")).unwrap();
    let document: Value = serde_json::from_str(&text).unwrap();
    let mut ran = 0;
    for case in document["cases"].as_array().unwrap() {
        let mut client = database.connect().await;
        let mut saved = Saved::from([("unique".to_owned(), json!(format!("rust_{ran}")))]);
        let steps = case["steps"].as_array().unwrap();
        if let Err(difference) = run_steps(&mut client, steps, &mut saved).await {
            panic!("{}: {difference}", case["name"]);
        }
        ran += 1;
    }
    assert!(ran > 15, "only {ran} cases found");
    assert!(worker.terminate().await.success());
}

fn run_steps<'a, C: GenericClient>(
    client: &'a mut C,
    steps: &'a [Value],
    saved: &'a mut Saved,
) -> Pin<Box<dyn Future<Output = Result<(), Difference>> + 'a>> {
    Box::pin(async move {
        for step in steps {
            if let Some(inner) = step["transaction"].as_array() {
                let mut transaction = client.transaction().await.unwrap();
                run_steps(&mut transaction, inner, saved).await?;
                match step["end"].as_str() {
                    Some("commit") => transaction.commit().await.unwrap(),
                    _ => transaction.rollback().await.unwrap(),
                }
            } else if step["until"].is_object() {
                let client = &*client;
                eventually(&step.to_string(), async || {
                    run_step(client, &step["until"], saved).await.is_ok()
                })
                .await;
            } else {
                run_step(client, step, saved).await?;
            }
        }
        Ok(())
    })
}

async fn run_step(
    client: &impl GenericClient,
    step: &Value,
    saved: &mut Saved,
) -> Result<(), Difference> {
    if let Some(sql) = step["sql"].as_str() {
        client.batch_execute(&fill_text(sql, saved)).await.map_err(|e| format!("{step}: {e:?}"))?;
        return Ok(());
    }
    if let Some(sql) = step["query"].as_str() {
        let rows = client.query(&fill_text(sql, saved), &[]).await.unwrap();
        let found = rows[0].get::<_, Option<String>>(0);
        return compare(&fill(&step["expect"], saved), &json!(found), step);
    }
    let arguments = fill(&step["with"], saved);
    let result = match call(client, step["call"].as_str().unwrap(), &arguments).await {
        Ok(result) => result,
        Err(error) => {
            let found = json!({
                "sqlstate": error.sqlstate().map(SqlState::code), "message": error.message(),
                "hint": error.hint(), "detail": error.detail(), "exception": variant(&error),
            });
            return compare(&step["error"], &found, step);
        }
    };
    if !step["error"].is_null() {
        return Err(format!("{step}: no error but {result}"));
    }
    if let Some(expected) = step.get("expect") {
        compare(&fill(expected, saved), &result, step)?;
    }
    for (name, field) in step["save"].as_object().into_iter().flatten() {
        saved.insert(name.clone(), result[field.as_str().unwrap()].clone());
    }
    Ok(())
}

fn variant(error: &Error) -> &'static str {
    match error {
        Error::Refused(_) => "Refused",
        Error::PrivilegeMissing(_) => "PrivilegeMissing",
        Error::WaitTimeout(_) => "WaitTimeout",
        Error::TransactionOpen(_) => "TransactionOpen",
        _ => "Error",
    }
}

async fn call(client: &impl GenericClient, function: &str, given: &Value) -> Result<Value, Error> {
    let task = || TaskId(given["task_id"].as_i64().unwrap());
    let run = || RunId(given["run_id"].as_i64().unwrap());
    let timeout = seconds(&given["timeout"]);
    let flag = |name: &str, default| given[name].as_bool().unwrap_or(default);
    Ok(match function {
        "enqueue" => {
            let key = given["key"].as_str();
            json!(pgmill_client::enqueue(client, &new_task(given), &options(given), key).await?)
        }
        "enqueue_many" => {
            let tasks: Vec<NewTask> =
                given["tasks"].as_array().unwrap().iter().map(new_task).collect();
            json!(pgmill_client::enqueue_many(client, &tasks, &options(given)).await?)
        }
        "task" => json!(pgmill_client::task(client, task()).await?),
        "history" => json!(pgmill_client::history(client, task()).await?),
        "why" => json!(pgmill_client::why(client, task()).await?),
        "wait" => json!(pgmill_client::wait(client, task(), timeout).await?),
        "cancel" => json!(pgmill_client::cancel(client, task(), flag("running", true)).await?),
        "retry" => json!(pgmill_client::retry(client, task()).await?),
        "start_run" => {
            let jobs = texts(&given["jobs"]);
            let params = object(&given["params"]);
            let options = RunOptions {
                labels: labels(given),
                run_timeout: seconds(&given["run_timeout"]),
                traceparent: text(&given["traceparent"]).map(|it| it.parse().unwrap()),
            };
            json!(pgmill_client::start_run(client, &jobs, &params, &options).await?)
        }
        "wait_run" => json!(pgmill_client::wait_run(client, run(), timeout).await?),
        "cancel_run" => json!(pgmill_client::cancel_run(client, run(), flag("kill", false)).await?),
        other => panic!("unknown function {other}"),
    })
}

fn new_task(given: &Value) -> NewTask {
    let statement = given.as_str().or(given["statement"].as_str()).unwrap().to_owned();
    NewTask { statement, params: given["params"].as_array().cloned(), name: text(&given["name"]) }
}

fn options(given: &Value) -> TaskOptions {
    let number = |name: &str| given[name].as_i64().map(|it| i32::try_from(it).unwrap());
    let flag = |name: &str| given[name].as_bool();
    let due = match (given["due_at"].as_str(), seconds(&given["due_in"])) {
        (Some(at), _) => Due::At(at.parse().unwrap()),
        (_, Some(wait)) => Due::In(wait),
        _ => Due::Now,
    };
    TaskOptions {
        queue: text(&given["queue"]),
        priority: word(&given["priority"]),
        due,
        max_attempts: number("max_attempts"),
        retry_interval: seconds(&given["retry_interval"]),
        backoff: word(&given["backoff"]),
        jitter: flag("jitter"),
        timeout: seconds(&given["timeout"]),
        mode: word(&given["mode"]),
        at_most_once: flag("at_most_once").unwrap_or_default(),
        external: flag("external").unwrap_or_default(),
        group: text(&given["group"]),
        concurrency_key: text(&given["concurrency_key"]),
        concurrency: number("concurrency"),
        run_as: text(&given["run_as"]),
        target: text(&given["target"]),
        explain: flag("explain").unwrap_or_default(),
        stored: given.as_object().map(|_| from_value(given.clone()).unwrap()).unwrap_or_default(),
    }
}

fn labels(given: &Value) -> Labels {
    Labels { tags: texts(&given["tags"]), metadata: object(&given["metadata"]) }
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().map(|it| text(it).unwrap()).collect()
}

fn object(value: &Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap_or_default()
}

fn seconds(value: &Value) -> Option<Duration> {
    value.as_f64().map(Duration::from_secs_f64)
}

fn word<T: std::str::FromStr<Err = String>>(value: &Value) -> Option<T> {
    value.as_str().map(|it| it.parse().unwrap())
}

/// Replaces `<<name>>` with saved values, and expands `$repeat`.
fn fill(value: &Value, saved: &Saved) -> Value {
    match value {
        Value::String(text) => {
            let whole = text.strip_prefix("<<").and_then(|rest| rest.strip_suffix(">>"));
            match whole.and_then(|name| saved.get(name)) {
                Some(found) => found.clone(),
                None => fill_text(text, saved).into(),
            }
        }
        Value::Array(items) => items.iter().map(|item| fill(item, saved)).collect(),
        Value::Object(fields) => match fields.get("$repeat").and_then(Value::as_u64) {
            Some(count) => (0..count).map(|_| fill(&fields["item"], saved)).collect(),
            None => fields.iter().map(|(key, item)| (key.clone(), fill(item, saved))).collect(),
        },
        other => other.clone(),
    }
}

fn fill_text(text: &str, saved: &Saved) -> String {
    saved.iter().fold(text.to_owned(), |text, (name, value)| {
        let shown = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        text.replace(&format!("<<{name}>>"), &shown)
    })
}

fn compare(expected: &Value, found: &Value, step: &Value) -> Result<(), Difference> {
    match matches(expected, found) {
        true => Ok(()),
        false => Err(format!("{step}: {found}")),
    }
}

/// Compares a value with an expectation, whose objects may omit keys.
fn matches(expected: &Value, found: &Value) -> bool {
    match (expected, found) {
        (Value::String(pattern), found) if pattern.starts_with('~') => {
            found.as_str().is_some_and(|found| contains(found, &pattern[1..]))
        }
        (Value::Array(expected), Value::Array(found)) => {
            expected.len() == found.len()
                && expected.iter().zip(found).all(|(expected, found)| matches(expected, found))
        }
        (Value::Object(fields), Value::Array(found)) => {
            let ascending = found.iter().map(Value::as_i64).is_sorted_by(|a, b| a < b);
            fields["$length"] == found.len() && (ascending || fields.get("$increasing").is_none())
        }
        (Value::Object(expected), Value::Object(found)) => expected
            .iter()
            .all(|(key, value)| found.get(key).is_some_and(|found| matches(value, found))),
        (expected, found) => expected == found,
    }
}

/// Returns whether the text contains the pattern. The cases use only `^`, `.` and `.*`.
fn contains(text: &str, pattern: &str) -> bool {
    let anchored = pattern.starts_with('^');
    let mut rest = Some(text);
    for (n, part) in pattern.trim_start_matches('^').split(".*").enumerate() {
        rest = match rest {
            Some(rest) if n == 0 && anchored => rest.strip_prefix(part),
            Some(rest) if part == "." => (!rest.is_empty()).then_some(rest),
            Some(rest) => rest.split_once(part).map(|(_, after)| after),
            None => None,
        };
    }
    rest.is_some()
}
