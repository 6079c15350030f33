use super::*;

fn file(text: &str) -> Source {
    Source { path: "jobs/daily.toml".into(), text: text.to_owned(), ..Source::default() }
}

/// Returns the error message of a single file.
fn error_of(text: &str) -> String {
    let source = file(text);
    match read(&source) {
        Err(errors) => {
            assert_eq!(errors.len(), 1, "{errors:?}");
            source.to_failure(errors.into_iter().next().unwrap()).to_string()
        }
        Ok(read) => check(&[(&source, &read)])[0].to_string(),
    }
}

const WHOLE: &str = r#"
[job.daily]
description = "Loads of each day"
frequency = "every day, 06:00"
priority = "high"
enabled = false

[job.daily.task.raw]
statement = "CALL load($1::date)"
params = [{ param = "day" }, 7, 0x1F, 1.50, "text", 2026-01-01, [true], { a = 1, b = 06:00:00 }]
queue = "etl"
group = "loads"
max_attempts = 5
retry_interval = "1m 30s"
backoff = "fixed"
jitter = false
timeout = "2h"
mode = "autocommit"
external = true

[job.daily.task."vault \"x\""]
statement = "SELECT 1"
params = [{ result = "raw", column = "n" }]
after = ["raw", { task = "clean", expected = "finished" }]
join = "any"
ignore_failure = true

[job.daily.task.clean]
statement = "SELECT 2"
priority = "low"

[[dependency]]
child = "mart"
parent = "vault"

[[dependency]]
child = "alert"
parent = "vault"
expected = "failed"
"#;

#[test]
fn every_key_is_in_the_document() {
    let source = file(WHOLE);
    let read = read(&source).unwrap();
    assert!(check(&[(&source, &read)]).is_empty());
    assert_eq!(
        read.jobs[0].document,
        json!({
            "name": "daily", "description": "Loads of each day", "frequency": "every day, 06:00",
            "priority": "high", "enabled": false,
            "tasks": [
                {"name": "raw", "statement": "CALL load($1::date)", "queue": "etl", "group": "loads",
                 "params": [{"$param": "day"}, 7, 31, serde_json::from_str::<Value>("1.50").unwrap(),
                    "text", "2026-01-01", [true], {"a": 1, "b": "06:00:00"}],
                 "max_attempts": 5, "retry_interval": "90.000000 seconds", "backoff": "fixed",
                 "jitter": false, "timeout": "7200.000000 seconds", "mode": "autocommit",
                 "external": true},
                {"name": "vault \"x\"", "statement": "SELECT 1",
                 "params": [{"$result": "raw", "column": "n"}],
                 "after": [{"task": "raw", "expected": "succeeded"},
                    {"task": "clean", "expected": "finished"}],
                 "join": "any", "ignore_failure": true},
                {"name": "clean", "statement": "SELECT 2", "priority": "low"},
            ],
        })
    );
    let edges: Vec<_> =
        read.dependencies.iter().map(|it| (it.child.as_str(), it.expected)).collect();
    assert_eq!(edges, [("mart", Expected::Succeeded), ("alert", Expected::Failed)]);
    assert_eq!(source.location(read.jobs[0].offset_of_task(Some("raw"))), "jobs/daily.toml:8:1");
    assert_eq!(source.location(read.jobs[0].offset_of_task(Some("gone"))), "jobs/daily.toml:2:1");
}

#[test]
fn each_error_is_reported_with_its_location() {
    for (text, expected) in [
        ("[job.x", "jobs/daily.toml:1:7: "),
        ("[jobs.x]", "jobs/daily.toml:1:2: the file: unknown key \"jobs\""),
        ("[job.\"a,b\"]", "jobs/daily.toml:1:1: job name \"a,b\" must have no comma"),
        ("job = 3", "jobs/daily.toml:1:7: the file: job is an integer, not a table"),
        ("[job.x]\npriorty = \"low\"", "jobs/daily.toml:2:1: job \"x\": unknown key \"priorty\""),
        (
            "[job.x]\npriority = \"urgent\"",
            "jobs/daily.toml:2:12: job \"x\": priority: \"urgent\" is not one of low,",
        ),
        ("[job.x.task.a]\n", "jobs/daily.toml:1:1: task \"a\" of job \"x\": missing statement"),
        (
            "[job.x.task]\n  a = {}\n",
            "jobs/daily.toml:2:3: task \"a\" of job \"x\": missing statement",
        ),
        ("[job.x.task]\n  a = 1\n", "jobs/daily.toml:2:7: task \"a\" of job \"x\" is an integer"),
        (
            "[job.x.task.a]\nstatement = \"-- x\"\n",
            "jobs/daily.toml:2:13: task \"a\" of job \"x\": the statement has no SQL",
        ),
        (
            "[job.x.task.a]\nstatement = \"COMMIT\"\n",
            "jobs/daily.toml:2:13: task \"a\" of job \"x\": COMMIT is not allowed",
        ),
        (
            "[job.x.task.a]\nstatement_file = \"gone.sql\"\n",
            "jobs/daily.toml:2:18: task \"a\" of job \"x\": jobs/gone.sql: ",
        ),
    ] {
        let found = error_of(text);
        assert!(found.starts_with(expected), "{found}\n  is not\n{expected}");
    }
}

#[test]
fn options_of_a_job_are_the_defaults_of_its_tasks() {
    let source = file(
        "[job.x]\nqueue = \"etl\"\nattempts = 5\nmode = \"autocommit\"\npriority = \"low\"\n\
         [job.x.task.a]\nstatement = \"SELECT 1\"\n\
         [job.x.task.b]\nstatement = \"SELECT 1\"\nqueue = \"own\"\nat_most_once = true\n",
    );
    let file = read(&source).unwrap();
    let tasks = &file.jobs[0].document["tasks"];
    let of =
        |n: usize| ["queue", "max_attempts", "mode", "priority"].map(|key| tasks[n][key].clone());
    assert_eq!(of(0), [json!("etl"), json!(5), json!("autocommit"), Value::Null]);
    assert_eq!(of(1), [json!("own"), Value::Null, json!("autocommit"), Value::Null]);
    assert_eq!(file.jobs[0].document["priority"], "low");
}

#[test]
fn each_error_in_a_task_is_reported_with_its_location() {
    const TASK: &str = "[job.x.task.a]\nstatement = \"SELECT 1\"\n";
    for (line, expected) in [
        ("statement_file = \"b.sql\"", "3:18: task \"a\" of job \"x\": statement and"),
        ("statement = \"SELECT 2\"", "3:1: duplicate key"),
        ("queue = \"a b\"", "3:9: task \"a\" of job \"x\": queue: a queue name"),
        ("queue = 7", "3:9: task \"a\" of job \"x\": queue is an integer, not a string"),
        ("mode = \"fast\"", "3:8: task \"a\" of job \"x\": mode: \"fast\" is not one of"),
        ("join = \"most\"", "3:8: task \"a\" of job \"x\": join: \"most\" is not one of"),
        ("backoff = \"x\"", "3:11: task \"a\" of job \"x\": backoff: \"x\" is not one of"),
        ("max_attempts = 0", "3:16: task \"a\" of job \"x\": max_attempts must be from"),
        ("attempts = 0", "3:12: task \"a\" of job \"x\": attempts must be from 1"),
        ("max_retries = 10000", "3:15: task \"a\" of job \"x\": max_retries must be from 0"),
        (
            "attempts = 3\nmax_retries = 2",
            "4:15: task \"a\" of job \"x\": attempts and max_retries are the same setting",
        ),
        ("timeout = \"10\"", "3:11: task \"a\" of job \"x\": timeout: missing unit"),
        ("timeout = \"0s\"", "3:11: task \"a\" of job \"x\": timeout: must be greater than zero"),
        ("jitter = \"no\"", "3:10: task \"a\" of job \"x\": jitter is a string, not true or false"),
        ("params = \"x\"", "3:10: task \"a\" of job \"x\": params is a string, not an array"),
        ("params = [1, nan]", "3:14: task \"a\" of job \"x\": params: JSON has no infinity"),
        ("metadata = { a = nan }", "3:18: task \"a\" of job \"x\": metadata: JSON has no infinity"),
        ("metadata = [1]", "3:12: task \"a\" of job \"x\": metadata must be a table"),
        ("tags = [\"a\", 1]", "3:14: task \"a\" of job \"x\": tags must be strings"),
        ("tags = \"a\"", "3:8: task \"a\" of job \"x\": tags is a string, not an array"),
        ("params = [{ result = \"b\" }]", "3:11: task \"a\" of job \"x\": result requires column"),
        (
            "after = [\"b\"]",
            "3:10: task \"a\" of job \"x\" waits for \"b\", which is not a task of this job",
        ),
        ("after = [\"a\"]", "1:1: dependency cycle in job \"x\": a > a"),
        ("after = [\"b\", \"b\"]", "3:15: task \"a\" of job \"x\": after names \"b\" twice"),
        ("after = [7]", "3:10: task \"a\" of job \"x\": after takes task names, not an integer"),
        (
            "after = [{ task = \"a\", expected = \"ok\" }]",
            "3:35: task \"a\" of job \"x\": an edge: expected: \"ok\" is",
        ),
        (
            "after = [{ expected = \"failed\" }]",
            "3:10: task \"a\" of job \"x\": an edge: missing task",
        ),
        ("at_most_once = true", "3:16: task \"a\" of job \"x\": at_most_once requires mode"),
        ("[[dependency]]\nchild = \"a\"", "3:1: a dependency: missing parent"),
        ("[[dependency]]\nchild = \"a\"\nparent = \"a\"", "3:1: dependency cycle: a > a"),
    ] {
        let found = error_of(&format!("{TASK}{line}\n"));
        let expected = format!("jobs/daily.toml:{expected}");
        assert!(found.starts_with(&expected), "{found}\n  is not\n{expected}");
    }
}

#[test]
fn a_cycle_across_files_is_found() {
    let one = file(
        "[job.x.task.a]\nstatement = \"SELECT 1\"\n[job.x.task.b]\nstatement = \"SELECT 1\"\nafter = [\"a\"]\n",
    );
    let other = file("[[dependency]]\nchild = \"a\"\nparent = \"b\"\n");
    let (read_one, read_other) = (read(&one).unwrap(), read(&other).unwrap());
    let found = check(&[(&one, &read_one), (&other, &read_other)])[0].to_string();
    assert_eq!(found, "jobs/daily.toml:1:1: dependency cycle in job \"x\": a > b > a");
    let twice = check(&[(&one, &read_one), (&one, &read_one)])[0].to_string();
    assert!(twice.contains("is already declared"), "{twice}");
}
