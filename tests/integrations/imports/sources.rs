//! `pgmill import`: what becomes of the definitions, what is reported, and that nothing else happens.

use std::io::Write as _;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::harness::{Database, Program, amount};
use crate::runs::apply::{Folder, apply};

const HEADER: &str = "jobid,schedule,command,nodename,nodeport,database,username,active,jobname\n";

const PG_CRON: &str = r#"1,30 3 * * 6,"DELETE FROM events",localhost,5432,app,etl,t,purge
2,0 10 * * *,VACUUM,localhost,5432,app,etl,t,vacuum
3,7 seconds,CALL process_updates(),localhost,5432,app,etl,f,
4,0 0 * * MON#2,SELECT 1,localhost,5432,app,etl,t,wrong
5,@reboot,SELECT 1,localhost,5432,app,etl,t,boot
6,0 0 1 * *,SELECT 6; COMMIT,localhost,5432,app,etl,t,commit
7,0 0 1 * *,SELECT 8,localhost,5432,app,bob,t,Purge
"#;

/// Runs `pgmill import SOURCE FILE FLAGS` for a text: returns exit code, standard output and
/// standard error.
async fn import(
    database: &Database,
    source: &str,
    text: &str,
    flags: &[&str],
) -> (i32, String, String) {
    let folder = Folder::new(&[("file", text), ("load.sql", "SELECT 1;\nSELECT 2; -- done")]);
    let path = format!("{}/file", folder.path());
    let (code, stdout, stderr) =
        Program::pgmill(database, &[&["import", source, &path], flags].concat()).run().await;
    (code, stdout, stderr.replace(&format!("{}/", folder.path()), ""))
}

async fn pg_cron(database: &Database, rows: &str, flags: &[&str]) -> (i32, String, String) {
    import(database, "pg-cron", &format!("{HEADER}{rows}"), flags).await
}

async fn schedules(database: &Database) -> String {
    let sql = "SELECT coalesce(string_agg(concat_ws('|', s.name, s.timing, s.overlap, s.enabled,
            s.definition->>'statement', s.definition #>> '{task,mode}', s.definition #>> '{task,run_as}'),
            E'\n' ORDER BY s.name), '') FROM mill.schedules s WHERE s.removed_at IS NULL";
    database.value(sql).await
}

async fn runs_and_tasks(database: &Database) -> i64 {
    database
        .value("SELECT (SELECT count(*) FROM mill.runs) + (SELECT count(*) FROM mill.tasks)")
        .await
}

#[tokio::test]
async fn jobs_of_pg_cron_become_schedules() {
    let database = Database::new().await;
    let (code, stdout, stderr) = pg_cron(&database, PG_CRON, &["--dry-run"]).await;
    assert_eq!((code, schedules(&database).await.as_str()), (0, ""), "{stderr}");
    assert!(
        stdout.ends_with("would apply 5 changes from 5 definitions; 2 definitions left out\n"),
        "{stdout}"
    );
    let (code, stdout, again) = pg_cron(&database, PG_CRON, &[]).await;
    assert_eq!((code, &again), (0, &stderr));
    assert!(stdout.contains("+ schedule vacuum (cron(\"0 10 * * *\"))\n"), "{stdout}");
    assert_eq!(
        schedules(&database).await,
        "Purge_7|cron(\"0 0 1 * *\")|queue|t|SELECT 8\n\
         boot|manual|queue|t|SELECT 1\n\
         pg_cron_3|every(7 seconds)|queue|f|CALL process_updates()\n\
         purge_1|cron(\"30 3 * * 6\")|queue|t|DELETE FROM events\n\
         vacuum|cron(\"0 10 * * *\")|queue|t|VACUUM|autocommit"
    );
    for part in [
        "left out: jobid 4: schedule \"0 0 * * MON#2\": \"MON#2\" is not a valid day of week. ",
        "left out: jobid 6: COMMIT is not allowed in a task",
        "different: jobid 1, jobid 2, jobid 3, jobid 5: ran as user \"etl\"; ",
        "different: jobid 7: the job \"Purge\" is called \"Purge_7\". ",
        "different: jobid 3: the interval is counted from midnight",
        "different: jobid 3: CALL runs in a transaction",
        "different: jobid 5: @reboot has no counterpart",
    ] {
        assert!(stderr.contains(part), "{part}\n{stderr}");
    }
    assert!(!stderr.contains("process_updates"), "no statement is printed: {stderr}");
    assert_eq!(runs_and_tasks(&database).await, 0, "an import starts nothing");
}

#[tokio::test]
async fn a_second_import_changes_nothing() {
    let database = Database::new().await;
    pg_cron(&database, PG_CRON, &[]).await;
    let before = schedules(&database).await;
    let changes = "SELECT count(*) FROM mill.audit";
    let audited: i64 = database.value(changes).await;
    let (code, stdout, _) = pg_cron(&database, PG_CRON, &[]).await;
    assert_eq!(
        (code, stdout.as_str()),
        (0, "no changes from 5 definitions; 2 definitions left out\n")
    );
    assert_eq!(
        (schedules(&database).await, database.value::<i64>(changes).await),
        (before, audited)
    );
    // An operator's decision survives the next import.
    Program::pgmill(&database, &["schedule", "disable", "vacuum"]).succeeds().await;
    pg_cron(&database, PG_CRON, &[]).await;
    assert!(schedules(&database).await.contains("vacuum|cron(\"0 10 * * *\")|queue|f|"));
    let (_, stdout, _) = pg_cron(&database, &PG_CRON.replace("10 * *", "11 * *"), &[]).await;
    assert!(stdout.starts_with("~ schedule vacuum: timing\n"), "{stdout}");
}

#[tokio::test]
async fn what_is_printed_can_be_applied() {
    let database = Database::new().await;
    let (code, printed, _) = pg_cron(&database, PG_CRON, &["--print", "--prefix", "cron/"]).await;
    assert_eq!((code, schedules(&database).await.as_str()), (0, ""));
    let folder = Folder::new(&[("cron.toml", &printed)]);
    apply(&database, folder.path(), &[]).await;
    let applied = schedules(&database).await;
    assert!(applied.contains("cron/vacuum|"), "{applied}");
    let (_, stdout, _) = pg_cron(&database, PG_CRON, &["--prefix", "cron/"]).await;
    assert!(stdout.starts_with("no changes"), "{stdout}");
    // No database is needed.
    let folder = Folder::new(&[("cron.csv", &format!("{HEADER}{PG_CRON}"))]);
    let path = format!("{}/cron.csv", folder.path());
    let program = Program::pgmill(&database, &["import", "pg-cron", &path, "--print"]);
    program.at("postgresql://nobody@127.0.0.1:1/none").succeeds().await;
}

#[tokio::test]
async fn names_and_statements_of_any_kind_arrive_unchanged() {
    let database = Database::new().await;
    let statements = [
        "SELECT '\"\"\"', ''''''",
        "SELECT $$ '''x''' $$, E'\\\\n'\n-- \t\u{1F980} \\u0041",
        "SELECT 1;\r\nSELECT 2",
        "\n\nSELECT '[schedule.x]'\n\n",
    ];
    let names = [
        "a.b",
        "\"quoted\"",
        "x = 1 # y",
        "'; DROP SCHEMA mill CASCADE; --",
        "\u{1b}[31m\nred",
        "é ü",
    ];
    let rows: Vec<Value> = names
        .iter()
        .enumerate()
        .map(|(n, name)| {
            json!({"jobid": n, "jobname": name, "schedule": "* * * * *", "command": statements[n % 4]})
        })
        .collect();
    let (code, stdout, stderr) =
        import(&database, "pg-cron", &Value::from(rows).to_string(), &[]).await;
    assert_eq!(code, 0, "{stderr}");
    assert!(!stdout.contains('\u{1b}') && !stderr.contains('\u{1b}'), "{stdout}{stderr}");
    let stored =
        "SELECT string_agg(s.name || '=' || (s.definition->>'statement'), '~' ORDER BY s.id)
        FROM mill.schedules s";
    let expected: Vec<String> = names
        .iter()
        .enumerate()
        .map(|(n, name)| format!("{}={}", name.replace(['\u{1b}', '\n'], "_"), statements[n % 4]))
        .collect();
    assert_eq!(database.value::<String>(stored).await, expected.join("~"));
}

#[tokio::test]
async fn a_statement_does_not_get_into_another_database() {
    let database = Database::new().await;
    let rows = "1,* * * * *,SELECT 1,h,1,app,etl,t,a\n2,* * * * *,SELECT 2,h,1,dwh,etl,t,b\n";
    let (code, _, stderr) = pg_cron(&database, rows, &[]).await;
    assert_eq!(code, 2);
    assert!(stderr.contains("file: the file has jobs of several databases: app, dwh"), "{stderr}");
    let (code, _, stderr) = pg_cron(&database, rows, &["--database", "none"]).await;
    assert_eq!(code, 2);
    assert!(stderr.contains("no job of database \"none\"; the databases are app, dwh"), "{stderr}");
    let (code, _, stderr) = pg_cron(&database, rows, &["--database", "app", "--strict"]).await;
    assert_eq!((code, schedules(&database).await.as_str()), (2, ""));
    assert!(stderr.contains("left out: jobid 2: the job is of database \"dwh\""), "{stderr}");
    assert!(stderr.contains("1 definition would be left out; nothing was imported"), "{stderr}");
    let (code, _, _) = pg_cron(&database, rows, &["--database", "app"]).await;
    assert_eq!(code, 0);
    assert_eq!(schedules(&database).await.lines().count(), 1);
    // A profile that does not exist is refused, with the id of the job.
    let flags = ["--run-as", "@dwh=dwh", "--run-as", "etl@app=bi"];
    let (code, _, stderr) = pg_cron(&database, rows, &flags).await;
    assert_eq!(code, 5, "{stderr}");
    assert!(stderr.contains("file: jobid 1: ") && stderr.contains("file: jobid 2: "), "{stderr}");
    database
        .execute("SELECT mill.set_profile('bi', '{mill_producer}'), mill.set_profile('dwh', '{mill_producer}')")
        .await;
    let (code, _, stderr) = pg_cron(&database, rows, &flags).await;
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert!(schedules(&database).await.contains("SELECT 2|dwh"));
}

#[tokio::test]
async fn a_file_of_another_kind_changes_nothing() {
    let database = Database::new().await;
    for (source, text, message) in [
        ("pg-cron", "", "file: the file is empty"),
        ("pg-cron", "jobid,command\n1,x\n", "file: line 1: missing column schedule"),
        ("pg-cron", "schedule,command\n* * * * *\n", "file: line 2: 1 fields, expected 2"),
        ("pg-cron", "schedule,command\n\"x\n", "a quote is not closed"),
        ("pg-cron", "[{\"schedule\": \"* * * * *\"}]", "file: row 1: missing command"),
        ("pg-cron", "{\"schedule\"", "file: not valid JSON"),
        ("pg-timetable", "", "file: the file is empty"),
        ("pg-timetable", "[]", "file: the document has no array chains"),
        ("pg-timetable", "{\"chains\": [{\"chain_id\": 1}]}", "chains: row 1 has no chain_name"),
        ("crontab", "# nothing\n", "file: the file has no line with a time and a command"),
        ("d365", "{}", "file: the document has no array batch_jobs"),
        ("d365", "{\"batch_jobs\": [{}]}", "batch job 1 has no job_description"),
    ] {
        let (code, stdout, stderr) = import(&database, source, text, &[]).await;
        assert_eq!((code, stdout.as_str()), (2, ""), "{source} {text}: {stderr}");
        assert!(stderr.contains(message), "{source} {text}: {stderr}");
    }
    let missing = Program::pgmill(&database, &["import", "pg-cron", "/none/x.csv"]).run().await;
    assert!(missing.0 == 2 && missing.2.contains("/none/x.csv: No such file"), "{}", missing.2);
    let binary = Folder::new(&[]);
    std::fs::write(format!("{}/x", binary.path()), b"\xff\xfe\x00").unwrap();
    let path = format!("{}/x", binary.path());
    assert_eq!(Program::pgmill(&database, &["import", "crontab", &path]).run().await.0, 2);
    assert_eq!(schedules(&database).await, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_jobs_are_imported_in_one_transaction() {
    let jobs: i64 = amount(100, 5000);
    let database = Database::new().await;
    let row =
        |n: i64| format!("{n},{} {} * * *,SELECT {n},h,1,app,etl,t,job {n}\n", n % 60, n / 60 % 24);
    let rows: String = (0..jobs).map(row).collect();
    let (code, stdout, stderr) = pg_cron(&database, &rows, &[]).await;
    assert_eq!(code, 0, "{stderr}");
    let applied = format!("applied {jobs} changes from {jobs} definitions\n");
    assert!(stdout.ends_with(&applied), "{stdout:.200}");
    let others = format!("jobid 4 and {} more: ran as user", jobs - 5);
    assert!(stderr.contains(&others), "{stderr:.300}");
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.schedules").await, jobs);
    let (_, stdout, _) = pg_cron(&database, &rows, &[]).await;
    assert!(stdout.starts_with("no changes"), "{stdout:.200}");
}

#[tokio::test]
async fn a_definition_that_the_database_refuses_stops_the_import() {
    let database = Database::new().await;
    let row = |n: usize| {
        let user = if n == 7 { "bob" } else { "etl" };
        format!("{n},0 1 * * *,SELECT {n},h,1,app,{user},t,job {n}\n")
    };
    let rows: String = (0..20).map(row).collect();
    let (code, _, stderr) = pg_cron(&database, &rows, &["--run-as", "bob=none"]).await;
    assert!(code == 5 && stderr.contains("file: jobid 7: "), "{stderr}");
    assert_eq!(schedules(&database).await, "");
}

/// An export with chains of every kind.
fn export_of_pg_timetable() -> Value {
    json!({
        "chains": [
            {"chain_id": 1, "chain_name": "load", "run_at": "0 0 13 * 5", "max_instances": 1, "timeout": 5000,
             "live": true, "self_destruct": true, "exclusive_execution": true, "client_name": "w1",
             "on_error": "SELECT 'failed'"},
            {"chain_id": 2, "chain_name": "pause", "run_at": "@after 1 hour", "live": false},
            {"chain_id": 3, "chain_name": "program", "run_at": null, "live": true},
            {"chain_id": 4, "chain_name": "remote", "run_at": "@every 00:10:00", "live": true},
            {"chain_id": 5, "chain_name": "mail", "run_at": "@reboot", "live": true},
            {"chain_id": 6, "chain_name": "empty", "run_at": "* * * * *", "live": true},
            {"chain_id": 7, "chain_name": "null", "run_at": "* * * * *", "live": true},
        ],
        "tasks": [
            {"task_id": 10, "chain_id": 1, "task_order": 10, "kind": "SQL", "command": "SELECT $1::int",
             "ignore_error": true},
            {"task_id": 11, "chain_id": 1, "task_order": 30, "task_name": "commits", "kind": "SQL",
             "command": "CALL p()", "run_as": "bob", "autonomous": true, "timeout": 100},
            {"task_id": 12, "chain_id": 1, "task_order": 20.5, "kind": "BUILTIN", "command": "Sleep"},
            {"task_id": 13, "chain_id": 1, "task_order": 25, "kind": "SQL", "command": "SELECT 'off'", "live": false},
            {"task_id": 14, "chain_id": 1, "task_order": 5, "kind": "BUILTIN", "command": "NoOp"},
            {"task_id": 20, "chain_id": 2, "task_order": 1, "kind": "SQL", "command": "SELECT 20"},
            {"task_id": 30, "chain_id": 3, "task_order": 1, "kind": "PROGRAM", "command": "rm"},
            {"task_id": 40, "chain_id": 4, "task_order": 1, "kind": "SQL", "command": "SELECT 40",
             "database_connection": "host=h dbname=dwh password=secret"},
            {"task_id": 50, "chain_id": 5, "task_order": 1, "kind": "BUILTIN", "command": "SendMail"},
            {"task_id": 70, "chain_id": 7, "task_order": 1, "kind": "SQL", "command": "SELECT $1"},
            {"task_id": 99, "chain_id": null, "task_order": 1, "kind": "SQL", "command": "SELECT 'disabled'"},
        ],
        "parameters": [
            {"task_id": 10, "order_id": 2, "value": [2]}, {"task_id": 10, "order_id": 1, "value": [1]},
            {"task_id": 12, "order_id": 1, "value": 3}, {"task_id": 70, "order_id": 1, "value": [null]},
        ],
    })
}

#[tokio::test]
async fn a_chain_of_pg_timetable_becomes_a_job_in_the_same_order() {
    let database = Database::new().await;
    let document = export_of_pg_timetable().to_string();
    let (code, stdout, stderr) = import(&database, "pg-timetable", &document, &[]).await;
    assert_eq!(code, 0, "{stderr}");
    assert!(
        stdout.ends_with("applied 4 changes from 2 definitions; 5 definitions left out\n"),
        "{stdout}"
    );
    assert!(!stderr.contains("secret"), "{stderr}");
    assert_eq!(
        schedules(&database).await,
        "load|cron(\"0 0 13 * +5\")|skip|t\npause|every(1 hour)|skip|f"
    );
    let tasks = "SELECT string_agg(concat_ws('|', t.name, t.statement, t.params, t.mode, t.ignore_failure,
            (SELECT string_agg(e.parent || ' ' || e.expected, ',' ORDER BY e.parent) FROM mill.job_edges e
             WHERE e.child = t.name AND e.job = t.job)), E'\n' ORDER BY t.name)
        FROM mill.visible_job_tasks t JOIN mill.jobs j ON j.name = t.job WHERE j.name = 'load'";
    assert_eq!(
        database.value::<String>(tasks).await,
        "commits|CALL p()|autocommit|f|task_12 succeeded\n\
         on_error|SELECT 'failed'|transaction|f|commits failed,task_12 failed\n\
         task_10_1|SELECT $1::int|[1]|transaction|t\n\
         task_10_2|SELECT $1::int|[2]|transaction|t|task_10_1 finished\n\
         task_12|SELECT pg_sleep($1::int)|[3]|transaction|f|task_10_2 finished"
    );
    for part in [
        "left out: chain 3: task 30: PROGRAM tasks run outside of the database",
        "left out: chain 4: task 40: it runs in another database \"dwh\"",
        "left out: chain 5: task 50: pgmill sends mail only as notifications",
        "left out: chain 6: the chain has no task to run",
        "left out: chain 7: task 70: a job file has no null as a parameter",
        "different: chain 1: the times are read as UTC",
        "different: chain 1: task 13 is not live, and left out",
        "different: chain 1: the chain deletes itself",
        "different: chain 1: no other chain runs at the same time",
        "different: chain 1: only the client \"w1\" runs the chain",
        "different: chain 1: ran as role \"bob\"",
        "different: chain 2: @after counts from the end of a run",
    ] {
        assert!(stderr.contains(part), "{part}\n{stderr}");
    }
    let (_, stdout, _) = import(&database, "pg-timetable", &document, &[]).await;
    assert!(stdout.starts_with("no changes"), "{stdout}");
    assert_eq!(runs_and_tasks(&database).await, 0);
}

#[tokio::test]
async fn lines_of_a_crontab_that_call_psql_become_schedules() {
    let database = Database::new().await;
    let text = "MAILTO=ops@example.org\nPGDATABASE = app\n\n# comment\n\
        30 2 * * 1-5 psql -c \"SELECT refresh()\" >/dev/null 2>&1\n\
        CRON_TZ=Europe/Berlin\n\
        0 3 * * * /usr/bin/psql -X -f load.sql\n\
        0 4 * * * pg_dump app\n\
        */5 * * * * cd /x && psql -c 'SELECT 1'\n\
        @daily psql -c 'VACUUM'\n\
        @reboot psql -c 'SELECT 9'\n\
        0 5 * * * psql -f none.sql\n\
        0 6 * * * psql -c 'SELECT $1'\n\
        0 7 * * *\n\
        0 8 * * * psql 'postgresql://u:secret@h/app' -c 'SELECT 10'\n\
        @often psql -c 'SELECT 11'\n";
    let (code, stdout, stderr) =
        import(&database, "crontab", text, &["--zone", "Asia/Kolkata"]).await;
    assert_eq!(code, 0, "{stdout}{stderr}");
    assert!(stdout.ends_with("from 6 definitions; 5 definitions left out\n"), "{stdout}{stderr}");
    assert!(!stderr.contains("secret"), "{stderr}");
    let berlin = "zone: Europe/Berlin";
    assert_eq!(
        schedules(&database).await,
        format!(
            "load|cron(\"0 3 * * *\", {berlin})|allow|t|SELECT 1;\nSELECT 2; -- done|autocommit\n\
             select_11|manual|allow|t|SELECT 9\n\
             select_13|cron(\"0 6 * * *\", {berlin})|allow|t|SELECT $1\n\
             select_15|cron(\"0 8 * * *\", {berlin})|allow|t|SELECT 10\n\
             select_refresh|cron(\"30 2 * * 1-5\", zone: Asia/Kolkata)|allow|t|SELECT refresh()\n\
             vacuum|cron(\"0 0 * * *\", {berlin})|allow|t|VACUUM|autocommit"
        )
    );
    for part in [
        "left out: line 8: the command is not psql",
        "left out: line 9: the line has more than one command",
        "left out: line 12: cannot read none.sql: No such file",
        "left out: line 14: the line has no command",
        "left out: line 16: schedule \"@often\"",
        "different: line 1: MAILTO: ",
        "different: line 5: the output is not written to a file",
        "different: line 7: psql continues after an error",
        "different: line 15: psql connects to a host of its own",
    ] {
        assert!(stderr.contains(part), "{part}\n{stderr}");
    }
    let system =
        "0 1 * * * postgres psql -c 'SELECT 1' app\n0 2 * * * root psql -c 'SELECT 2' dwh\n";
    let (code, _, stderr) = import(&database, "crontab", system, &["--system"]).await;
    assert!(code == 2 && stderr.contains("several databases: app, dwh"), "{stderr}");
    let flags = ["--system", "--database", "app", "--dry-run"];
    let (code, _, stderr) = import(&database, "crontab", system, &flags).await;
    assert_eq!(code, 0, "{stderr}");
    assert!(stderr.contains("line 1: ran as user \"postgres\""), "{stderr}");
    assert!(stderr.contains("line 2: psql connects to the database \"dwh\""), "{stderr}");
    assert!(stderr.contains("line 1: the time is read as UTC"), "{stderr}");
}

#[tokio::test]
async fn the_file_can_be_standard_input() {
    let database = Database::new().await;
    let mut command =
        Program::pgmill(&database, &["import", "crontab", "-", "--zone", "UTC"]).into_command();
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"0 1 * * * psql -c 'SELECT 1'\n").unwrap();
    let output =
        tokio::task::spawn_blocking(move || child.wait_with_output().unwrap()).await.unwrap();
    assert!(output.status.success());
    assert_eq!(schedules(&database).await, "select|cron(\"0 1 * * *\")|allow|t|SELECT 1");
}

const BATCH_JOBS: &str = r#"{
    "classes": {"LoadOrders": "CALL load_orders($1)", "Report": "SELECT report()"},
    "batch_jobs": [
        {"Job description": "Nightly load", "ScheduledStart": "2026-12-01 02:30", "time_zone": "Europe/Berlin",
         "scheduling_priority": "Reserved capacity", "batch_group": "loads", "run_by": "erp", "critical_job": true,
         "monitoring_category": "Finance", "recurrence": {"pattern": "Weeks", "count": 2, "days_of_week": ["Monday", "thu"]},
         "tasks": [
            {"task_id": "1", "task_description": "load", "class": "LoadOrders", "parameters": ["usmf"], "company": "usmf",
             "maximum_retries": 2},
            {"task_id": "2", "class": "Report", "ignore_task_failure": true,
             "conditions": [{"task": "1", "expected_status": "Ended"}]},
            {"task_id": "3", "task_description": "clean", "statement": "SELECT clean()", "condition_type": "Any",
             "conditions": [{"task": "load", "expected_status": "Error"}, {"task": "2", "expected_status": "Ended or error"}]}
         ]},
        {"job_description": "Often", "scheduled_start": "2026-12-01T00:07", "status": "Withhold",
         "recurrence": {"pattern": "minutes", "count": 10, "end_after": 5}, "colour": "red",
         "active_period": {"from": "08:00", "to": "18:00"},
         "tasks": [{"class": "Report"}]},
        {"job_description": "No SQL", "tasks": [{"class": "Unknown"}]},
        {"job_description": "Once", "tasks": [{"class": "Report"}]},
        {"job_description": "Canceled", "tasks": [{"class": "Report"}, {"class": "LoadOrders",
            "conditions": [{"task": "x"}]}]}
    ]}"#;

#[tokio::test]
async fn batch_jobs_of_dynamics_become_jobs() {
    let database = Database::new().await;
    let (code, _, stderr) = import(&database, "d365", BATCH_JOBS, &[]).await;
    assert!(
        code == 5 && stderr.contains("batch job 1 \"Nightly load\": "),
        "no group yet: {stderr}"
    );
    database.execute("SELECT mill.set_group('loads')").await;
    let (code, stdout, stderr) = import(&database, "d365", BATCH_JOBS, &[]).await;
    assert_eq!(code, 0, "{stderr}");
    assert!(
        stdout.ends_with("applied 6 changes from 3 definitions; 2 definitions left out\n"),
        "{stdout}"
    );
    assert_eq!(
        schedules(&database).await,
        "Nightly load|weekly(mon, thu, 02:30, every: 2, from: 2026-12-01, zone: Europe/Berlin)|skip|t\n\
         Often|every(10 minutes, from: 2026-12-01, between: 08:00-18:00)|skip|f\n\
         Once|manual|skip|t"
    );
    let tasks = "SELECT string_agg(concat_ws('|', t.name, t.max_attempts, t.group_name, t.ignore_failure, t.join_mode,
            (SELECT string_agg(e.parent || ' ' || e.expected, ',' ORDER BY e.parent) FROM mill.job_edges e
             WHERE e.child = t.name AND e.job = t.job)), E'\n' ORDER BY t.name)
        FROM mill.visible_job_tasks t JOIN mill.jobs j ON j.name = t.job
        WHERE j.name = 'Nightly load' AND j.priority = 'reserved'";
    assert_eq!(
        database.value::<String>(tasks).await,
        "Report|1|loads|t|all|load succeeded\n\
         clean|1|loads|f|any|Report finished,load failed\n\
         load|3|loads|f|all"
    );
    for part in [
        "left out: batch job 3 \"No SQL\": task 1 \"Unknown\": no statement for class Unknown",
        "left out: batch job 5 \"Canceled\": task 2 \"LoadOrders\": a condition names the unknown task \"x\"",
        "different: batch job 1 \"Nightly load\": ran as user \"erp\"",
        "different: batch job 2 \"Often\": unknown field \"colour\"",
        "different: batch job 2 \"Often\": the recurrence counts from the scheduled start",
        "different: batch job 2 \"Often\": the recurrence ends after 5 runs",
        "different: batch job 2 \"Often\": the active period applies to the starts of runs only",
        "different: batch job 4 \"Once\": the batch job has no recurrence",
    ] {
        assert!(stderr.contains(part), "{part}\n{stderr}");
    }
    let (_, stdout, _) = import(&database, "d365", BATCH_JOBS, &[]).await;
    assert!(stdout.starts_with("no changes"), "{stdout}");
    assert_eq!(runs_and_tasks(&database).await, 0);
}

#[tokio::test]
async fn the_document_lists_everything_that_differs() {
    let database = Database::new().await;
    let (code, stdout, stderr) = pg_cron(&database, PG_CRON, &["--json", "--dry-run"]).await;
    assert_eq!((code, stderr.as_str()), (0, ""));
    let document: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(document["imported"], 5);
    assert_eq!(document["plan"]["schedules"].as_array().unwrap().len(), 5);
    assert_eq!(document["left_out"][0]["places"], json!(["jobid 4"]));
    assert_eq!(document["different"].as_array().unwrap().len(), 7);
}
