//! Statistics from history: durations of tasks, and failures by cause.

use crate::harness::login::Login;
use crate::harness::{Database, Program, Worker};

/// Inserts `count` attempts of tasks with this name, all of them today. The n-th attempt is older
/// than the attempts before it. `seconds` is an SQL expression for its duration.
async fn record(database: &Database, name: &str, count: i32, seconds: &str, outcome: &str) {
    database
        .execute(&format!(
            "INSERT INTO mill.attempts (finished_at, task_id, enqueued_at, due_at, started_at, attempt, outcome,
            priority, final, queue, name, sqlstate, message, statement)
            SELECT at, 1000 + n, at, at, at - make_interval(secs => {seconds}), 1, '{outcome}', 'normal',
                true, 'etl', '{name}',
                CASE WHEN '{outcome}' = 'failed' THEN '23505' END,
                CASE WHEN '{outcome}' = 'failed' THEN format('duplicate key value violates unique constraint \"t_%s\"', n) END,
                'SELECT 1'
            FROM generate_series(1, {count}) AS n, LATERAL (SELECT date_trunc('day', now(), 'UTC')
                + (now() - date_trunc('day', now(), 'UTC')) / (n + 1) AS at) AS x"
        ))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn durations_show_percentiles_and_trend_of_each_name() {
    let database = Database::new().await;
    // The newest attempt has n = 1. Twenty attempts took 3 s, the older ones 1 s, and the oldest
    // one 100 s.
    let seconds = "CASE WHEN n <= 20 THEN 3 WHEN n = 200 THEN 100 ELSE 1 END";
    record(&database, "load", 200, seconds, "succeeded").await;
    record(&database, "load", 7, "0", "failed").await;
    record(&database, "few", 30, "n", "succeeded").await;
    record(&database, "never", 2, "1", "failed").await;
    let reported = "SELECT string_agg(concat_ws(' ', queue, name, attempts, failures,
            extract(epoch FROM p50)::real, extract(epoch FROM p95)::real, extract(epoch FROM mean)::real,
            extract(epoch FROM last)::real, trend), '; ' ORDER BY name) FROM mill.durations";
    assert_eq!(
        database.value::<String>(reported).await,
        "etl few 30 0 15.5 28.55 15.5 1; etl load 207 7 1 3 1.695 3 3; etl never 2 2"
    );
    // Attempts older than seven days do not count.
    database
        .execute(
            "CREATE TABLE mill.attempts_old (LIKE mill.attempts INCLUDING DEFAULTS);
             ALTER TABLE mill.attempts ATTACH PARTITION mill.attempts_old
                 FOR VALUES FROM (now() - interval '20 days') TO (now() - interval '8 days');
             INSERT INTO mill.attempts SELECT (a).* FROM (SELECT jsonb_populate_record(x, jsonb_build_object(
                 'finished_at', now() - interval '9 days', 'name',
                 'old')) AS a FROM mill.attempts x WHERE x.name = 'few') s",
        )
        .await;
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.durations").await, 3);
    let listed = Program::pgmill(&database, &["durations"]).succeeds().await;
    assert!(listed.contains("load") && listed.contains("3.00"), "{listed}");

    let mut worker = Worker::start(&database, &["--readers", "1", "--queues", "etl"]);
    let id = database.enqueue("SELECT 1", ", queue => 'etl', name => 'load'").await;
    assert_eq!(database.outcome(id).await, "succeeded");
    let took = "ALTER TABLE mill.attempts_old REPLICA IDENTITY FULL;
        UPDATE mill.attempts SET started_at = finished_at - interval '1.5 s' WHERE task_id";
    database.execute(&format!("{took} = {id}")).await;
    let shown = Program::pgmill(&database, &["task", "show", &id.to_string()]).succeeds().await;
    let fragment =
        "p50 1.0s, p95 3.0s of the last 208 attempts; this attempt: 1.5 times the median";
    assert!(shown.contains(fragment), "{shown}");
    assert!(worker.terminate().await.success());
}

#[tokio::test]
async fn a_message_becomes_a_pattern_without_its_variable_parts() {
    let database = Database::new().await;
    for (message, pattern) in [
        ("relation \"a b\" has 17 rows", "relation \"…\" has # rows"),
        ("invalid input 'x y' at 12.5", "invalid input '…' at #"),
        ("can't open, don't ask", "can't open, don't ask"),
        ("of 6a1f7c52-9f3e-4c0b-8d7e-0123456789ab on 2026-11-22 08:15:00", "of # on # #"),
        ("at 0x7ffd9", "at #"),
        ("table t17 is gone", "table t# is gone"),
        ("l'objet « a'b »\u{a0}: d’été n’existe", "l'objet «…»\u{a0}: d’été n’existe"),
        ("об'єкт 'x' не", "об'єкт '…' не"),
        ("\u{663}\u{664} von \u{ff11}2", "# von #"),
        ("12\u{202f}345\u{a0}678 octets", "# octets"),
    ] {
        let quoted = message.replace('\'', "''");
        let sql = format!("SELECT mill.message_pattern('{quoted}')");
        assert_eq!(database.value::<String>(&sql).await, pattern);
    }
}

/// Forms of the translations of the server, and of applications.
#[tokio::test]
async fn one_cause_is_one_group_in_every_language() {
    let database = Database::new().await;
    for form in [
        "invalid input syntax for type integer: \"%s\"",
        "ungültige Eingabesyntax für Typ integer: »%s«",
        "ungültige Eingabesyntax für Typ integer: „%s“",
        "Benutzer ‚%s‘ existiert nicht",
        "syntaxe en entrée invalide pour le type integer : «\u{a0}%s\u{a0}»",
        "syntaxe en entrée invalide pour le type integer\u{202f}: «\u{202f}%s\u{202f}»",
        "syntaxe en entrée invalide pour l'entrée de type integer : « %s »",
        "l’utilisateur ‹ %s › n’existe pas",
        "la sintaxis de entrada no es válida para tipo integer: «%s»",
        "неверный синтаксис для типа integer: \"%s\"",
        "ошибка в строке „%s”",
        "型integerの入力構文が不正です: \"%s\"",
        "リレーション「%s」は存在しません",
        "整数类型输入语法无效: “%s”",
        "关系‘%s’不存在",
        "表'%s'は存在しません",
        "fältet ”%s” saknas",
    ] {
        let patterns = "SELECT array_agg(DISTINCT mill.message_pattern(replace($1, '%s', value)))
            FROM unnest($2::text[]) AS value";
        let values = ["abc1-xa", "abc 22-xb", "", "x, y: z", "日本", "12", "é.è"];
        let row = &database.rows(patterns, &[&form, &&values[..]]).await[0];
        let patterns: Vec<String> = row.get(0);
        assert!(patterns.len() == 1 && patterns[0].contains('…'), "{form}: {patterns:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_are_counted_by_cause_and_a_cause_is_retried() {
    let database = Database::new().await;
    record(&database, "load", 6, "1", "failed").await;
    let mut worker = Worker::start(&database, &["--readers", "2"]);
    database
        .execute(
            "CREATE TABLE t (n int); CREATE UNIQUE INDEX t_1 ON t (n); INSERT INTO t VALUES (1)",
        )
        .await;
    let once = ", max_attempts => 1, name => 'insert'";
    let duplicate = database.enqueue("INSERT INTO t VALUES (1)", once).await;
    let divided: Vec<i64> = vec![
        database.enqueue("SELECT 1 / 0", ", max_attempts => 2, retry_interval => '0'").await,
        database.enqueue("SELECT 2 / 0", once).await,
    ];
    for id in [&divided[..], &[duplicate]].concat() {
        assert_eq!(database.outcome(id).await, "failed");
    }
    assert!(worker.terminate().await.success());
    let reported = "SELECT string_agg(concat_ws(' ', outcome, sqlstate, message, attempts, tasks, queues, names), '; '
            ORDER BY sqlstate) FROM mill.failures";
    let duplicates = "duplicate key value violates unique constraint \"…\"";
    assert_eq!(
        database.value::<String>(reported).await,
        format!(
            "failed 22012 division by zero 3 2 {{default}} {{insert}}; \
             failed 23505 {duplicates} 7 7 {{default,etl}} {{insert,load}}"
        )
    );
    let listed = Program::pgmill(&database, &["failures"]).succeeds().await;
    assert!(listed.contains(duplicates) && listed.contains("division by zero"), "{listed}");

    // Two causes of one queue have the same code and different messages.
    database.execute("UPDATE mill.attempts SET message = 'another' WHERE task_id = 1001").await;
    let again = ["task", "retry", "--sqlstate", "23505", "--message", duplicates, "--queue", "etl"];
    let foreseen = Program::pgmill(&database, &[&again[..], &["--dry-run"]].concat()).succeeds();
    assert!(foreseen.await.contains("5 tasks: 5 retried\ndry run"));
    Program::pgmill(&database, &[&again[..], &["--yes"]].concat()).succeeds().await;
    let live = "SELECT string_agg(id::text, ' ' ORDER BY id) FROM mill.tasks";
    assert_eq!(database.value::<String>(live).await, "1002 1003 1004 1005 1006");

    // A viewer without access to messages sees the codes.
    let viewer = Login::new(&database, "viewer", "mill_viewer").await;
    database.execute("UPDATE mill.settings SET hide_statements = true").await;
    let seen =
        "SELECT string_agg(concat_ws(' ', sqlstate, message, attempts), '; ' ORDER BY sqlstate)
        FROM mill.failures";
    let seen: String = viewer.connect().await.query_one(seen, &[]).await.unwrap().get(0);
    assert_eq!(seen, "22012 3; 23505 7");
    viewer.drop().await;
}
