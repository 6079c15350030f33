//! No program and no client calls what a task has planted: functions and operators in a schema of the search_path that
//! fit the arguments of the statements better than those of pg_catalog do.
//!
//! The names are those that the statements of the programs and clients contain, so a new statement is included by itself.

use std::collections::BTreeSet;

use pgmill_client::{TaskId, history, task, why};

use crate::harness::console::Console;
use crate::harness::login::Login;
use crate::harness::{Database, Pooler, PrivateDatabase, Program, eventually};
use crate::project::json_documents::documents;
use crate::project::tidy::{files, literals, without_tests};
use crate::screens::pages::SCREENS;

/// Creates, for each name, a function for each list of types, and operators for the types of the queue. Each of them
/// writes a line to the log of the server, which works in a read-only transaction, too.
const PLANT: &str = r"DO $plant$
DECLARE
    own text[] := ARRAY(SELECT format('mill.%I', t.typname) FROM pg_type t WHERE t.typnamespace = 'mill'::regnamespace
        AND t.typtype IN ('e', 'd', 'c') AND t.typname !~ '^attempts_[0-9]');
    base CONSTANT text[] := '{text,name,integer,bigint,boolean,double precision,numeric,interval,timestamptz,jsonb,uuid,
        text[],bigint[],anyelement,anyarray}';
    pairs CONSTANT text[] := '{text,name,integer,bigint,jsonb,interval,timestamptz,anyelement}';
    lists text[];
    name text;
    list text;
    operator text;
BEGIN
    lists := own || base || ARRAY(SELECT format('%s, %s', a, b) FROM unnest(pairs) AS a, unnest(pairs) AS b)
        || '{text;name;name,text;name;text,text;text;text,text;text;anyelement,text;bigint;text;text[],
            text;text;integer,text;anyelement;anyelement,interval;interval;interval}'::text[]
        || '{variadic anyarray,text;variadic text[],text;variadic anyarray}'::text[];
    FOREACH name IN ARRAY string_to_array(current_setting('planted.names'), ' ') LOOP
        FOREACH list IN ARRAY lists LOOP
            BEGIN
                EXECUTE format($f$CREATE FUNCTION public.%I(%s) RETURNS text LANGUAGE plpgsql AS
                    'BEGIN RAISE LOG ''planted: %% calls %s'', current_user; RETURN NULL; END'$f$,
                    name, replace(btrim(list, E' \n'), ';', ', '), format('%s(%s)', name, replace(list, ';', ', ')));
            EXCEPTION WHEN duplicate_function OR invalid_function_definition OR syntax_error THEN NULL;
            END;
        END LOOP;
    END LOOP;
    FOREACH list IN ARRAY own || '{name,text}'::text[] LOOP
        FOREACH operator IN ARRAY '{=,<>,<,>,<=,>=,||,~,->>}'::text[] LOOP
            BEGIN
                EXECUTE format($f$CREATE FUNCTION public.%I(%s, %s) RETURNS boolean LANGUAGE plpgsql AS
                    'BEGIN RAISE LOG ''planted: %% calls operator %s of %s'', current_user; RETURN false; END'$f$,
                    'planted ' || operator, list, CASE list WHEN 'name' THEN 'text' ELSE list END, operator, list);
                EXECUTE format('CREATE OPERATOR public.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = public.%I)',
                    operator, list, CASE list WHEN 'name' THEN 'text' ELSE list END, 'planted ' || operator);
            EXCEPTION WHEN duplicate_function THEN NULL;
            END;
        END LOOP;
    END LOOP;
END
$plant$";

/// Returns the names that are called in the statements of the programs and the Rust client.
fn called_names() -> BTreeSet<String> {
    let programs = [
        "clients/rust/src",
        "crates/conninfo/src",
        "crates/console/src",
        "enqueue/src",
        "pgmill/src",
        "crates/queue/src",
        "crates/schedule/src",
        "worker/src",
    ];
    let mut names = BTreeSet::new();
    for (_, text) in files(&programs, &[".rs"]) {
        let statements = literals(without_tests(&text)).into_iter().map(|(_, literal)| literal);
        statements.filter(|it| it.contains("/* ")).for_each(|it| add_called(&mut names, it));
    }
    assert!(names.len() > 60, "{names:?}");
    names
}

/// Returns the names that are called in the statements of the clients in other languages. Their drivers have statements
/// of their own, which call other functions without a schema.
pub(crate) fn called_by_clients() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (_, text) in files(&["clients/python/src", "clients/typescript/src"], &[".py", ".ts"]) {
        let statements = text.lines().filter(|it| it.contains("mill.") || it.contains("::"));
        statements.for_each(|it| add_called(&mut names, it));
    }
    names
}

fn add_called(names: &mut BTreeSet<String>, text: &str) {
    for (at, _) in text.match_indices('(') {
        let name = text[..at].rsplit(|c: char| !(c.is_ascii_lowercase() || c == '_'));
        let name = name.into_iter().next().unwrap_or_default();
        // A name behind a point is qualified. The tasks of the test take advisory locks.
        let qualified = text[..at - name.len()].ends_with('.');
        if name.len() > 1 && !qualified && !name.starts_with("pg_advisory") {
            names.insert(name.to_owned());
        }
    }
}

/// Has a login of tasks plant functions of these names, and operators, in schema `public`.
pub(crate) async fn plant(database: &Database, names: BTreeSet<String>) {
    let names: Vec<String> = names.into_iter().collect();
    database.rows("SELECT set_config('planted.names', $1, false)", &[&names.join(" ")]).await;
    let etl = Login::new(database, "etl", "").await;
    database.execute(&format!("GRANT USAGE, CREATE ON SCHEMA public TO {}", etl.name)).await;
    let plant =
        format!("SET SESSION AUTHORIZATION {}; SET search_path = pg_catalog; {PLANT}", etl.name);
    database.execute(&plant).await;
    database.execute("RESET SESSION AUTHORIZATION").await;
    let made: i64 = database
        .value("SELECT count(*) FROM pg_proc WHERE pronamespace = 'public'::regnamespace")
        .await;
    println!("{made} functions for {} names", names.len());
    assert!(made > 100, "{made}");
}

/// Returns the lines of the server's log that planted code has written.
fn planted(private: &PrivateDatabase) -> Vec<String> {
    let log = std::fs::read_to_string(private.cluster.log()).unwrap();
    let lines = log.lines().filter_map(|line| line.split_once("planted: "));
    lines.map(|(_, call)| call.to_owned()).collect()
}

/// Runs commands through a pooler in transaction mode, which drops the search_path.
async fn commands_through_a_pooler(database: &Database) {
    let Some(pooler) = Pooler::start(database, "transaction", "", "").await else { return };
    let url = pooler.url(database);
    let reading = "status|doctor|history|why 1|task list|task show 1|queue list|run list";
    for command in reading.split('|') {
        let words: Vec<&str> = command.split(' ').collect();
        Program::pgmill(database, &words).at(&url).run().await;
    }
    for program in [
        Program::enqueue(database, &["SELECT 1"]),
        Program::enqueue(database, &["--job", "daily", "--param", "n=1"]),
        Program::pgmill(database, &["queue", "pause", "etl", "--create"]),
    ] {
        program.at(&url).succeeds().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_program_calls_what_a_task_has_planted() {
    let private = PrivateDatabase::new(&[("max_connections", "60"), ("fsync", "off")]).await;
    let database = &private.database;
    plant(database, called_names()).await;

    // With the default search_path, such a function is called.
    database.execute("SET search_path = \"$user\", public; SELECT lower('A'::name)").await;
    assert_eq!(planted(&private), ["postgres calls lower(name)"]);
    let seen = planted(&private).len();

    // The commands, with a worker, as superuser. A call would not only be logged, but also change results. The session
    // of the test itself has a safe search_path.
    database.execute("CREATE SCHEMA kept; SET search_path = pg_catalog, kept").await;
    documents(database).await;
    let console = Console::start(database, &[]).await;
    eventually("the console has read the last hour", async || {
        console.get("/api/v1/overview").await.body.contains("\"minutes_read\":60")
    })
    .await;
    let more = [
        "/tasks/1",
        "/tasks?q=state:finished",
        "/tasks?q=nobodys",
        "/runs/1",
        "/schedules/detail?name=nightly",
        "/jobs/detail?name=daily",
    ];
    for path in SCREENS.iter().chain(&more) {
        let answer = console.get(path).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    }
    commands_through_a_pooler(database).await;
    // Applications call the client in sessions of their own.
    let application = database.connect().await;
    application.batch_execute("SET search_path = \"$user\", public").await.unwrap();
    assert!(task(&application, TaskId(1)).await.unwrap().is_some());
    assert!(!history(&application, TaskId(1)).await.unwrap().is_empty());
    why(&application, TaskId(1)).await.unwrap();
    for sql in [
        "SELECT mill.enqueue('SELECT 1', run_as => 'bi')",
        "CALL mill.wait(1)",
        "CALL mill.wait_run(1)",
        "SELECT * FROM mill.schedule_test('nightly')",
    ] {
        application.batch_execute(sql).await.unwrap_or_else(|error| panic!("{error:?} in {sql}"));
    }
    let refused = "SELECT mill.enqueue('SELECT 1', run_as => 'nobodys')";
    application.batch_execute(refused).await.unwrap_err();
    assert_eq!(planted(&private)[seen..], [""; 0], "planted code ran");
}
