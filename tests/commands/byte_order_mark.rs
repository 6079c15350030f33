//! Editors begin a file with an invisible character. It is no part of the first statement, and is refused
//! anywhere else in SQL, wherever statements enter.

use queue::scan;

use crate::harness::receiver::TemporaryFile;
use crate::harness::{Database, Program, Worker};

const MARK: char = '\u{feff}';

/// Statements with everything that quotes: the mark is refused only outside of these.
const STATEMENTS: [&str; 22] = [
    "SELECT 1; SELECT 2",
    "SELECT 'a' || \"b\" FROM t",
    "SELECT 'it''s', \"a\"\"b\"",
    r"SELECT '\', 2",
    r"SELECT E'\'', e'\\', 3",
    r"SELECT E'a''\'', nameE'\', éE'\', 4",
    "SELECT E'a'\n  '\\'', 5",
    "SELECT E'a' -- b\n '\\'', 6",
    "SELECT E'a', '\\', 7",
    r"SELECT U&'\0061', X'1F', 8",
    "SELECT 1 -- it's\n, 2 -- \"\r, 3",
    "SELECT /* it's /* nested */ */ 1 /*/ */, 2 /**/, 3 * 4 / 5 - -6",
    "SELECT $$a$$, $1, $2$$",
    "SELECT $$$$, $a$b$$c$b$d$a$, 1",
    "SELECT $a$ $b$a$, 2",
    "SELECT a$b$c, $b$d$b$, é$e$f",
    "DO $body$ BEGIN RAISE '%', $$x$$; END $body$; SELECT 1",
    "SELECT 'open",
    "SELECT $é$ open $e$",
    "SELECT /* open */ /* ",
    "SELECT \"open",
    "SELECT 'ü', \"ß\", 日本語, '日', 1",
];

#[tokio::test]
async fn the_schema_and_the_programs_find_the_same_marks() {
    let database = Database::new().await;
    let mut texts = Vec::new();
    for statement in STATEMENTS {
        assert_eq!(scan::forbidden(statement), None, "{statement}");
        for (at, _) in statement.char_indices().chain([(statement.len(), ' ')]) {
            texts.push(format!("{}{MARK}{}", &statement[..at], &statement[at..]));
        }
    }
    let found = "SELECT mill.find_byte_order_mark(s.text) FROM unnest($1::text[]) WITH ORDINALITY AS s(text, n)
        ORDER BY s.n";
    let rows = database.rows(found, &[&texts]).await;
    let mut counts = [0, 0];
    for (text, row) in texts.iter().zip(&rows) {
        let place = row.get::<_, Option<i32>>(0);
        let offset = scan::forbidden(text).map(|it| it.offset());
        let expected = offset.map(|offset| text[..offset].chars().count() + 1);
        assert_eq!(place.map(|it| usize::try_from(it).unwrap()), expected, "{text:?}");
        counts[usize::from(place.is_some())] += 1;
    }
    assert!(counts.iter().all(|count| *count > 100), "both cases occur: {counts:?}");
}

#[tokio::test]
async fn a_mark_is_dropped_at_the_start_of_a_statement_and_refused_elsewhere() {
    let database = Database::new().await;
    database
        .execute("SELECT mill.set_job('g', '[{\"name\": \"a\", \"statement\": \"SELECT 1\"}]')")
        .await;
    let run: i64 = database.value("SELECT run_id FROM mill.start_run(ARRAY['g'])").await;
    let add = format!("SELECT mill.add_run_task('b', $1, run_id => {run})::text");
    for (entry, stored) in [
        ("SELECT mill.enqueue($1)::text", "SELECT statement::text FROM mill.tasks"),
        ("SELECT mill.enqueue($1, params => '[]')::text", "SELECT statement::text FROM mill.tasks"),
        (
            "SELECT mill.enqueue_many(ARRAY['SELECT 2', $1], names => '{a,b}')::text",
            "SELECT statement::text FROM mill.tasks WHERE name = 'b'",
        ),
        (
            "SELECT mill.set_job('j', jsonb_build_array(jsonb_build_object('name', 'a', 'statement', $1::text)))::text",
            "SELECT statement::text FROM mill.job_tasks WHERE job = 'j'",
        ),
        (
            "SELECT mill.set_schedule('s', 'daily(03:15)', $1::text)::text",
            "SELECT statement::text FROM mill.job_tasks WHERE job = 's'",
        ),
        (
            "SELECT mill.set_subscription('s', jsonb_build_object('events', ARRAY['run_failed'], 'statement', $1::text))::text",
            "SELECT statement::text FROM mill.subscriptions",
        ),
        (&add, "SELECT statement::text FROM mill.run_tasks WHERE name = 'b'"),
    ] {
        database.execute("DELETE FROM mill.tasks").await;
        let statement = format!("SELECT '{MARK}' -- {MARK}");
        database.rows(entry, &[&format!("{MARK}{statement}")]).await;
        assert_eq!(database.value::<String>(stored).await, statement, "{entry}");
        let joined = format!("{MARK}SELECT 1;\n{MARK}SELECT 2");
        let error = database.client().query(entry, &[&joined]).await.unwrap_err();
        let message = "the statement has a byte order mark (U+FEFF) at character 11";
        assert!(error.as_db_error().unwrap().message().ends_with(message), "{entry}: {error:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_name_the_mark_and_its_line() {
    let database = Database::new().await;
    let one = TemporaryFile::new("\u{feff}SELECT 1;\n");
    let joined = TemporaryFile::new("\u{feff}SELECT 1;\n\u{feff}SELECT 2;\n");
    for arguments in [
        &["\u{feff}SELECT 1;\n"][..],
        &["--file", one.path()],
        &["--lines", "--file", joined.path()],
    ] {
        Program::enqueue(&database, arguments).succeeds().await;
    }
    let stored = "SELECT string_agg(rtrim(statement, E'\\n'), ' ' ORDER BY id) FROM mill.tasks";
    assert_eq!(database.value::<String>(stored).await, "SELECT 1; SELECT 1; SELECT 1; SELECT 2;");
    let reason = "line 2: the statement has a byte order mark (U+FEFF) that is not at its start";
    for arguments in [&["\u{feff}SELECT 1;\n\u{feff}SELECT 2"][..], &["--file", joined.path()]] {
        let (code, _, stderr) = Program::enqueue(&database, arguments).run().await;
        assert!(code == 5 && stderr.contains(reason), "{code} {stderr}");
    }
    // A task from before the check.
    database.execute("DELETE FROM mill.tasks").await;
    let id = database.enqueue("SELECT 1", "").await;
    database
        .rows("UPDATE mill.tasks SET statement = $1::text", &[&"SELECT 1; \u{feff}SELECT 2"])
        .await;
    let mut worker = Worker::start(&database, &["--readers", "1"]);
    assert_eq!(database.outcome(id).await, "failed");
    let message: String = database.value("SELECT message FROM mill.attempts").await;
    assert!(message.contains("byte order mark"), "{message}");
    assert!(worker.terminate().await.success());
}
