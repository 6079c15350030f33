//! `--trace-comments` appends the trace context to the statements of tasks, and changes nothing else.

use super::spans::{CALLER, TRACE, exported, traced, until_exported};
use crate::harness::receiver::Receiver;
use crate::harness::{Database, Worker};

const FLAGS: [&str; 5] = ["--readers", "1", "--poll-interval", "50ms", "--trace-comments"];

#[tokio::test(flavor = "multi_thread")]
async fn every_statement_of_a_traced_task_has_the_comment() {
    let database = Database::new().await;
    database.execute("CREATE TABLE seen (way text, sql text)").await;
    let _worker = Worker::start(&database, &FLAGS);
    let comment = format!("%\n/*traceparent='00-{TRACE}-{CALLER}-01'*/%");
    for (way, statement, options) in [
        ("plain", "INSERT INTO seen VALUES ('plain', current_query())", ""),
        ("dashes", "INSERT INTO seen VALUES ('dashes', current_query()) -- the end", ""),
        ("semicolon", "INSERT INTO seen VALUES ('semicolon', current_query());", ""),
        ("params", "INSERT INTO seen VALUES ($1, current_query())", r#", params => '["params"]'"#),
        ("explain", "INSERT INTO seen VALUES ('explain', current_query());", ", explain => true"),
        (
            "autocommit",
            "INSERT INTO seen VALUES ('autocommit', current_query()) -- x
             ; INSERT INTO seen VALUES ('autocommit', current_query()) -- y",
            ", mode => 'autocommit'",
        ),
    ] {
        let record = database.run(statement, &format!("{options}{}", traced())).await;
        assert_eq!(record.outcome, "succeeded", "{way}: {:?}", record.message);
        let statements = statement.matches("INSERT").count();
        let sql = "SELECT count(*) FROM seen WHERE way = $1 AND sql LIKE $2";
        let found: i64 = database.rows(sql, &[&way, &comment]).await[0].get(0);
        assert_eq!(found, i64::try_from(statements).unwrap(), "{way}");
    }
    for shared in ["NULL", "'100ms'"] {
        database.execute(&format!("SELECT mill.set_shared_commit('default', {shared})")).await;
        database.execute("TRUNCATE seen").await;
        let many = format!(
            "SELECT mill.enqueue_many(array_fill('INSERT INTO seen VALUES (''x'', current_query()) --'::text,
                 ARRAY[200]){})",
            traced()
        );
        database.execute(&many).await;
        database.until_empty().await;
        let found = "SELECT count(*) FROM seen WHERE sql LIKE $1";
        assert_eq!(database.rows(found, &[&comment]).await[0].get::<_, i64>(0), 200);
    }
    // A task without a trace has no comment.
    let own = database.run("INSERT INTO seen VALUES ('none', current_query())", "").await;
    assert_eq!(own.outcome, "succeeded");
    let sql = "SELECT sql LIKE '%traceparent%' FROM seen WHERE way = 'none'";
    assert!(!database.value::<bool>(sql).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_are_the_same_with_and_without_the_comment() {
    let database = Database::new().await;
    let _worker = Worker::start(&database, &FLAGS);
    let errors = "SELECT string_agg(concat_ws(' ', sqlstate, position), ',' ORDER BY task_id)
        FROM mill.attempts WHERE statement = $1 AND (options).traceparent IS NULL = $2";
    for statement in [
        "SELECT 1 FROM missing -- end",
        "SELECT 'abc",
        "SELECT $$abc",
        "SELECT \"abc",
        "SELECT 1 /* open",
        "SELECT 1 +",
        "-- nothing",
        "SELECT é, nothing FROM pg_class;",
    ] {
        let once = ", max_attempts => 1";
        database.run(statement, once).await;
        database.run(statement, &format!("{once}{}", traced())).await;
        let of = async |without: bool| -> Option<String> {
            database.rows(errors, &[&statement, &without]).await[0].get(0)
        };
        let (without, with) = (of(true).await, of(false).await);
        println!("{statement}: {without:?}");
        // An open quote ends behind the comment, or at its first quote.
        let code =
            |text: &Option<String>| text.as_deref().map(|it| it[..it.len().min(5)].to_owned());
        assert_eq!(code(&with), code(&without), "{statement}");
        if !statement.contains("'abc") {
            assert_eq!(with, without, "{statement}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_comment_names_the_span_of_the_statement() {
    let database = Database::new().await;
    database.execute("CREATE TABLE seen (sql text)").await;
    let receiver = Receiver::start().await;
    let url = receiver.url("");
    let flags = [&FLAGS[..], &["--otlp-endpoint", &url]].concat();
    let _worker = Worker::start(&database, &flags);
    database.run("INSERT INTO seen VALUES (current_query())", "").await;
    let insert = format!("INSERT {}", database.name());
    let names = ["send default", "wait default", "process default", &insert];
    let spans = until_exported(&receiver, &names).await;
    let span = spans.iter().find(|span| span.name == insert).unwrap();
    let sql: String = database.value("SELECT sql FROM seen").await;
    let expected = format!("/*traceparent='00-{}-{}-01'*/", span.trace, span.id);
    assert!(sql.ends_with(&expected), "{sql}");
    assert_eq!(exported(&receiver).len(), names.len());
}
