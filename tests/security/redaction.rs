//! With hidden statements, a viewer sees no statement, parameter or message of a task.

use tokio_postgres::Client;

use crate::harness::login::Login;
use crate::harness::{Database, Program, Worker, amount, eventually};

/// Text that is a part of every text of a task.
const SECRET: &str = "ORANGE";

/// Creates a task with the secret in its statement, parameters, notices, result and error, a run, a
/// job and a schedule of such tasks, and triggers with the secret in their SQL and its error.
async fn put_secret_everywhere(database: &Database) -> i64 {
    let statement = format!(
        "DO $$ BEGIN RAISE NOTICE 'a {SECRET}';
         RAISE 'a {SECRET}' USING DETAIL = 'a {SECRET}', HINT = 'a {SECRET}'; END $$"
    );
    let failed = database.enqueue(&statement, ", max_attempts => 1").await;
    let shown = format!("SELECT $1::text, 'a {SECRET}'");
    let params = format!(", params => '[\"a {SECRET}\"]'");
    database.enqueue(&shown, &params).await;
    let explained =
        format!("SELECT n FROM generate_series(1, 2) AS n WHERE n::text = 'a {SECRET}'");
    database.enqueue(&explained, ", explain => true").await;
    database
        .execute(&format!(
            "SELECT mill.set_job('work', jsonb_build_array(jsonb_build_object('name', 't', 'statement',
                 'SELECT (''a {SECRET}'' || $1)::integer', 'params', jsonb_build_array(jsonb_build_object('$param', 'p')), 'max_attempts', 1)));
             SELECT mill.start_run(ARRAY['work'], params => '{{\"p\": \"a {SECRET}\"}}');
             SELECT mill.set_schedule('nightly', 'daily(03:00)', 'SELECT ''a {SECRET}''');
             SELECT mill.set_schedule('nightly', 'trigger\n (table: a, filter: \"{SECRET}\", rows: no)', 'SELECT ''a {SECRET}''');
             SELECT mill.set_schedule('trigger', $x$trigger(table: pg_class, filter: \"relname = 'a {SECRET}'\", rows: 1)$x$,
                 'SELECT 1');
             SELECT mill.set_schedule('faulty', $x$trigger(table: pg_class, filter: \"'a {SECRET}'::integer = 1\", rows: 1)$x$,
                 'SELECT 1');
             SELECT mill.set_schedule('broken', 'manual', $x${statement}$x$, task => '{{\"max_attempts\": 1}}');
             SELECT mill.run_now('broken');
             SELECT mill.enqueue('SELECT ''a {SECRET}''', due_at => now() + interval '1 day')"
        ))
        .await;
    eventually("all due tasks have ended, and the triggers have been evaluated", async || {
        let left = "SELECT (SELECT count(*) FROM mill.tasks WHERE state <> 'scheduled')
            + (SELECT count(*) FROM mill.runs WHERE state = 'running')
            + (SELECT 3 - count(*) FILTER (WHERE name = 'trigger' AND trigger_result IS NOT NULL
                OR error ~ 'ORANGE' OR new_timing_error IS NOT NULL) FROM mill.schedules)";
        database.value::<i64>(left).await == 0
    })
    .await;
    failed
}

/// Returns all columns that the client can read, of every relation that it can read.
async fn read_relations(client: &Client) -> String {
    let relations =
        "SELECT c.relname::text FROM pg_class c WHERE c.relnamespace = 'mill'::regnamespace
        AND c.relkind IN ('r', 'p', 'v') AND c.relname <> 'settings' ORDER BY 1";
    let mut read = String::new();
    for relation in client.query(relations, &[]).await.unwrap() {
        let name: &str = relation.get(0);
        let columns = "SELECT coalesce(string_agg(quote_ident(attname), ', '), '') FROM pg_attribute
            WHERE attrelid = ('mill.' || quote_ident($1))::regclass AND attnum > 0 AND NOT attisdropped
                AND has_column_privilege(attrelid, attnum, 'SELECT')";
        let columns: String = client.query_one(columns, &[&name]).await.unwrap().get(0);
        if columns.is_empty() {
            continue;
        }
        let sql = format!(
            "SELECT coalesce(string_agg(x::text, ' '), '') FROM (SELECT {columns} FROM mill.{name}) x"
        );
        read += &client.query_one(&sql, &[]).await.unwrap().get::<_, String>(0);
    }
    read
}

/// Returns what the functions that only read, and that take nothing but ids and names, return to the
/// client.
async fn call_functions(client: &Client, tasks: [i64; 2]) -> String {
    let [failed, held] = tasks;
    let calls = format!(
        "SELECT DISTINCT format('mill.%I(%s)', p.proname, (SELECT string_agg(CASE a.type WHEN 'bigint'::regtype
                THEN v.id::text ELSE quote_literal(v.name) END, ', ' ORDER BY a.place)
            FROM unnest(p.proargtypes::oid[]) WITH ORDINALITY AS a(type, place)
            WHERE a.place <= p.pronargs - p.pronargdefaults))
        FROM pg_proc p CROSS JOIN (VALUES ({failed}, 'nightly'), ({held}, 'trigger'), (1, 'faulty'), (2, 'work'))
            AS v(id, name)
        WHERE p.pronamespace = 'mill'::regnamespace AND p.prokind = 'f' AND p.provolatile <> 'v'
            AND has_function_privilege(p.oid, 'EXECUTE') AND NOT EXISTS (
                SELECT FROM unnest(p.proargtypes::oid[]) WITH ORDINALITY AS a(type, place)
                WHERE a.place <= p.pronargs - p.pronargdefaults
                    AND a.type NOT IN ('bigint'::regtype, 'text'::regtype))"
    );
    let calls: Vec<String> =
        client.query(&calls, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    for known in ["mill.backends()", "mill.schedule_to_test('faulty')", "mill.why_run(1)"] {
        assert!(calls.iter().any(|call| call == known), "{known} is not in {calls:?}");
    }
    let mut read = String::new();
    for call in calls {
        let sql = format!("SELECT coalesce(string_agg(x::text, ' '), '') FROM {call} AS x");
        read += &match client.query_one(&sql, &[]).await {
            Ok(row) => format!("{call}: {}\n", row.get::<_, String>(0)),
            Err(error) => format!("{call}: {:?}\n", error.as_db_error()),
        };
    }
    read
}

/// Returns what the commands print. In the short form, each command has one of its two forms, which
/// read the same columns, and a secret that the login sees is not looked for in further commands.
async fn outputs(database: &Database, url: &str, commands: &[Vec<&str>], sees: bool) -> String {
    let mut output = String::new();
    for (n, command) in commands.iter().enumerate() {
        let forms = [None, Some("--json")];
        for form in amount(&forms[n % 2..=n % 2], &forms[..]) {
            let arguments = [&command[..], form.as_slice()].concat();
            output += &Program::pgmill(database, &arguments).at(url).succeeds().await;
        }
        if sees && amount(output.contains(SECRET), false) {
            break;
        }
    }
    output
}

#[tokio::test(flavor = "multi_thread")]
async fn a_viewer_sees_no_statement_and_no_message_of_a_statement() {
    let database = Database::new().await;
    let viewer = Login::new(&database, "viewer", "mill_viewer").await;
    let operator = Login::new(&database, "operator", "mill_operator").await;
    let mut worker = Worker::start(&database, &["--readers", "2", "--poll-interval", "50ms"]);
    let failed_id = put_secret_everywhere(&database).await;
    database.execute("SELECT pg_advisory_lock(1)").await;
    let statement = format!("SELECT pg_advisory_xact_lock(1) /* a {SECRET} */");
    let held_id = database.enqueue(&statement, "").await;
    database.until_waiting_for_lock(held_id).await;
    let (failed, held) = (failed_id.to_string(), held_id.to_string());
    let commands = [
        vec!["status"],
        vec!["task", "list"],
        vec!["task", "list", "--outcome", "failed"],
        vec!["task", "show", &failed],
        vec!["task", "show", &held],
        vec!["why", &failed],
        vec!["why", &held],
        vec!["history"],
        vec!["failures"],
        vec!["audit"],
        vec!["durations"],
        vec!["run", "list"],
        vec!["run", "show", "1"],
        vec!["run", "show", "2"],
        vec!["job", "show", "work"],
        vec!["schedule", "list"],
        vec!["schedule", "show", "nightly"],
        vec!["schedule", "show", "trigger"],
        vec!["schedule", "show", "faulty"],
        vec!["schedule", "test", "nightly"],
        vec!["schedule", "test", "trigger"],
        vec!["schedule", "history"],
        vec!["schedule", "log"],
    ];
    for hidden in [false, true] {
        let set = format!("UPDATE mill.settings SET hide_statements = {hidden}");
        database.execute(&set).await;
        for (login, sees) in [(&viewer, !hidden), (&operator, true)] {
            let output = outputs(&database, &login.url(), &commands, sees).await;
            assert_eq!(output.contains(SECRET), sees, "{} hidden {hidden}: {output}", login.name);
            let client = login.connect().await;
            let read = read_relations(&client).await;
            assert_eq!(read.contains(SECRET), sees, "{} hidden {hidden}", login.name);
            let returned = call_functions(&client, [failed_id, held_id]).await;
            assert_eq!(
                returned.contains(SECRET),
                sees,
                "{} hidden {hidden}: {returned}",
                login.name
            );
        }
    }
    database.execute("SELECT pg_advisory_unlock(1)").await;
    assert_eq!(database.outcome(held_id).await, "succeeded");
    assert!(worker.terminate().await.success());
    viewer.drop().await;
    operator.drop().await;
}
