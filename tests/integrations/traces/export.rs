//! Exported spans, and the tasks that are traced.

use super::spans::{CALLER, Exported, TRACE, exported, traced, until_exported};
use crate::harness::receiver::{Receiver, TemporaryFile};
use crate::harness::{Database, Worker, eventually};

fn flags<'a>(url: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let flags = ["--readers", "1", "--poll-interval", "50ms", "--otlp-endpoint", url];
    [&flags[..], more].concat()
}

fn named<'a>(spans: &'a [Exported], name: &str) -> &'a Exported {
    spans.iter().find(|span| span.name == name).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_attempt_is_linked_and_no_text_of_the_task_is_exported() {
    let database = Database::new().await;
    let receiver = Receiver::start().await;
    let url = receiver.url("/");
    let _worker = Worker::start(&database, &flags(&url, &[]));
    let options = format!(
        r#", name => 'divide', params => '["s3cret"]', max_attempts => 2, retry_interval => '0'{}"#,
        traced()
    );
    let id = database.enqueue("SELECT $1::text, 1 / (random() * 0)::integer", &options).await;
    assert_eq!(database.outcome(id).await, "failed");
    let select = format!("SELECT {}", database.name());
    let of_attempt = ["wait default", "process default", &select];
    let spans = until_exported(&receiver, &of_attempt.repeat(2)).await;
    let attempt = |n: &str| {
        let is =
            |it: &&Exported| it.name == "process default" && it.get("pgmill.task.attempt") == n;
        spans.iter().find(is).unwrap()
    };
    let (first, second) = (attempt("1"), attempt("2"));
    assert_eq!((first.links.len(), &second.links), (0, &vec![first.id.clone()]));
    for (span, retried) in [(first, "true"), (second, "false")] {
        assert_eq!((&*span.trace, &*span.parent, span.kind), (TRACE, CALLER, 5));
        assert_eq!(span.flags, 0x301, "sampled, with a parent in another process");
        assert!(span.failed);
        for (key, value) in [
            ("messaging.system", "pgmill"),
            ("messaging.operation.name", "process"),
            ("messaging.operation.type", "process"),
            ("messaging.destination.name", "default"),
            ("pgmill.task.name", "divide"),
            ("pgmill.attempt.outcome", "failed"),
            ("pgmill.attempt.retried", retried),
            ("error.type", "22012"),
        ] {
            assert_eq!(span.get(key), value, "{key}");
        }
    }
    let statement = named(&spans, &select);
    assert!(statement.failed && statement.flags == 0x101);
    assert_eq!(statement.get("db.operation.name"), "SELECT");
    assert_eq!(statement.get("db.response.status_code"), "22012");
    for request in receiver.received() {
        let text = String::from_utf8_lossy(&request.content).into_owned();
        assert!(!text.contains("s3cret") && !text.contains("random"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_without_a_caller_has_a_trace_of_its_own() {
    let database = Database::new().await;
    let receiver = Receiver::start().await;
    let url = receiver.url("");
    let headers = TemporaryFile::new("Authorization: Bearer t0ken\n");
    let more = ["--trace-statements", "--otlp-headers-file", headers.path()];
    let variables = [
        ("OTEL_SERVICE_NAME", "etl"),
        ("OTEL_RESOURCE_ATTRIBUTES", "service.namespace=dwh,deployment.environment.name=test"),
    ];
    let worker = Worker::start_with(&database.url(), &flags(&url, &more), &variables);
    let id = database.enqueue("SELECT 1", "").await;
    assert_eq!(database.outcome(id).await, "succeeded");
    let select = format!("SELECT {}", database.name());
    let names = ["send default", "wait default", "process default", &select];
    let spans = until_exported(&receiver, &names).await;
    let root = named(&spans, "send default");
    assert_eq!((&*root.parent, root.kind, root.start == root.end), ("", 4, true));
    for name in ["wait default", "process default"] {
        assert_eq!(named(&spans, name).parent, root.id);
    }
    let statement = named(&spans, &select);
    assert_eq!(statement.get("db.query.text"), "SELECT 1");
    assert_eq!(statement.get("pgmill.statement.rows"), "1");
    let resource = &statement.resource;
    assert_eq!(resource["service.name"], "etl");
    assert_eq!(resource["service.namespace"], "dwh");
    assert!(receiver.received()[0].headers.contains("authorization: bearer t0ken"));
    assert!(!worker.log().contains("t0ken"));
    let trace = root.trace.clone();
    assert!(spans.iter().all(|span| span.trace == trace));
    worker.until_logged(&format!("trace_id=\"{trace}\"")).await;
    // A retry continues the trace.
    database.execute(&format!("SELECT mill.retry({id})")).await;
    let spans = until_exported(&receiver, &[&names[..], &names[1..]].concat()).await;
    assert!(spans.iter().all(|span| span.trace == trace));
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_of_chains_shared_commits_and_autocommit_are_traced_alike() {
    let database = Database::new().await;
    let receiver = Receiver::start().await;
    let url = receiver.url("");
    let _worker = Worker::start(&database, &flags(&url, &[]));
    let mut names = Vec::new();
    let select = format!("SELECT {}", database.name());
    for shared in ["NULL", "'100ms'"] {
        database.execute(&format!("SELECT mill.set_shared_commit('default', {shared})")).await;
        database.enqueue_many(100, "SELECT 1").await;
        database.until_empty().await;
        names.extend(["send default", "wait default", "process default", &select].repeat(100));
    }
    let id = database.enqueue("VACUUM mill.settings", ", mode => 'autocommit'").await;
    assert_eq!(database.outcome(id).await, "succeeded");
    let vacuum = format!("VACUUM {}", database.name());
    names.extend(["send default", "wait default", "process default", &vacuum]);
    let spans = until_exported(&receiver, &names).await;
    for statement in spans.iter().filter(|span| span.kind == 3) {
        let attempt = spans.iter().find(|span| span.id == statement.parent).unwrap();
        assert_eq!(attempt.name, "process default");
        assert!(attempt.start <= statement.start && statement.end <= attempt.end);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sampler_selects_the_tasks() {
    let database = Database::new().await;
    let receiver = Receiver::start().await;
    let url = receiver.url("");
    let unsampled = traced().replace("-01\"", "-00\"");
    for (sampler, ratio, of_caller, own) in [
        ("always_on", "1", [true, true], true),
        ("always_off", "1", [false, false], false),
        ("traceidratio", "0", [false, false], false),
        ("parentbased_always_on", "0", [true, false], true),
        ("parentbased_always_off", "1", [true, false], false),
        ("parentbased_traceidratio", "0", [true, false], false),
    ] {
        let before = exported(&receiver).len();
        let expected = of_caller.into_iter().chain([own]).filter(|traced| *traced).count();
        let variables = [("OTEL_TRACES_SAMPLER", sampler), ("OTEL_TRACES_SAMPLER_ARG", ratio)];
        let mut worker = Worker::start_with(&database.url(), &flags(&url, &[]), &variables);
        for options in [&*traced(), &unsampled, ""] {
            let id = database.enqueue("SELECT 1", options).await;
            assert_eq!(database.outcome(id).await, "succeeded");
        }
        let count = |name: &str| {
            exported(&receiver)[before..].iter().filter(|span| span.name == name).count()
        };
        eventually("the spans arrive", async || count("process default") >= expected).await;
        // The worker exports the last spans before it ends.
        assert!(worker.terminate().await.success());
        assert_eq!(count("process default"), expected, "{sampler}");
        assert_eq!(count("send default"), usize::from(own), "{sampler}");
    }
}
