//! Groups: the default group, groups from a file, the defaults of a job, active periods, and limits that
//! are set while tasks run.

use serde_json::{Value, json};

use crate::harness::console::Console;
use crate::harness::{Database, Program, Worker, eventually};
use crate::runs::apply::Folder;

#[tokio::test]
async fn tasks_and_runs_without_a_group_get_the_default_group() {
    let database = Database::new().await;
    let pgmill = async |args: &[&str]| Program::pgmill(&database, args).run().await;
    let (code, _, err) = pgmill(&["group", "default", "batch"]).await;
    assert!(code == 5 && err.contains("there is no group \"batch\""), "{err}");
    database
        .execute(
            r#"SELECT mill.set_group('batch', priority => 'low'), mill.set_group('own');
               SELECT mill.set_job('j', '[{"name": "a", "statement": "SELECT 1"},
                   {"name": "b", "statement": "SELECT 1", "group": "own"}]')"#,
        )
        .await;
    let set = ["group", "default", "batch", "--dry-run"];
    for (args, group) in [(&set[..], None), (&set[..3], Some("batch"))] {
        assert_eq!(pgmill(args).await.0, 0);
        let now = "SELECT default_group FROM mill.settings";
        assert_eq!(database.value::<Option<String>>(now).await.as_deref(), group);
    }
    database
        .execute(
            "SELECT mill.enqueue('SELECT 1'), mill.enqueue('SELECT 1', group_name => 'own', priority => 'high');
             SELECT mill.enqueue_many('{SELECT 1}');
             SELECT mill.start_run('{j}');
             SELECT mill.add_run_task('c', 'SELECT 1', run_id => 1);
             SELECT mill.advance_run(1)",
        )
        .await;
    let tasks = "SELECT string_agg(concat_ws(' ', name, group_name, priority), ', ' ORDER BY id) FROM mill.tasks";
    let wanted = "batch low, own high, batch low, a batch low, b own normal, c batch low";
    assert_eq!(database.value::<String>(tasks).await, wanted);
    let list = Program::pgmill(&database, &["group", "list"]).succeeds().await;
    assert!(list.contains("batch (default)"), "{list}");
    let console = Console::start(&database, &[]).await;
    let page = console.get("/groups").await.body;
    assert!(page.contains("batch</a> <span class=\"tag\">default</span>"), "{page}");
    let (code, _, err) = pgmill(&["group", "remove", "batch"]).await;
    assert!(code == 5 && err.contains("group \"batch\" is the default group"), "{err}");
    assert_eq!(pgmill(&["group", "default", "off"]).await.0, 0);
    let id = database.enqueue("SELECT 1", "").await;
    let none = format!("SELECT group_name IS NULL FROM mill.tasks WHERE id = {id}");
    assert!(database.value::<bool>(&none).await);
}

const FILE: &str = "\
Batch group,Description,Priority,Max concurrency,Reserved,Active period,Zone
nightly,\"Loads, nightly\",Low,4,no,22:00-06:00,Europe/Berlin
month end,,,,yes,,
";

#[tokio::test]
async fn groups_are_imported_from_a_file_once_and_all_or_none() {
    let database = Database::new().await;
    let folder = Folder::new(&[("groups.csv", FILE)]);
    let file = format!("{}/groups.csv", folder.path());
    let import = async |flags: &[&str]| {
        let args = [&["group", "import", &file, "--json"], flags].concat();
        let (code, out, err) = Program::pgmill(&database, &args).run().await;
        assert_eq!(code, 0, "{err}");
        let answer: Value = serde_json::from_str(&out).unwrap();
        let groups = answer["groups"].as_array().unwrap().iter();
        groups.map(|it| format!("{} {}", it["group"], it["result"])).collect::<Vec<_>>().join(", ")
    };
    let (new, same) = (
        r#""nightly" "new", "month end" "new""#,
        r#""nightly" "unchanged", "month end" "unchanged""#,
    );
    for (flags, result) in [(&["--dry-run"][..], new), (&[], new), (&[], same)] {
        assert_eq!(import(flags).await, result);
    }
    let stored = "SELECT string_agg(concat_ws('|', name, description, priority, max_running, opens, closes, zone), ', '
        ORDER BY name) FROM mill.groups";
    let wanted = "month end|reserved, nightly|Loads, nightly|low|4|22:00:00|06:00:00|Europe/Berlin";
    assert_eq!(database.value::<String>(stored).await, wanted);
    let audited = "SELECT count(*) FROM mill.audit";
    assert_eq!(database.value::<i64>(audited).await, 3, "an unchanged group is no action");

    folder.write("groups.csv", &FILE.replace("yes", "no").replace(",4,", ",5,"));
    assert_eq!(import(&[]).await, r#""nightly" "changed", "month end" "unchanged""#);

    let broken = FILE.replace("Low", "urgent").replace("yes", "maybe");
    for (text, places) in [
        (broken, &["groups.csv:2: priority: \"urgent\"", "groups.csv:3: reserved: "][..]),
        (
            FILE.replace("nightly,", "new,").replace("yes,,", "yes,01:00-02:00,Nowhere"),
            &["groups.csv:3: time zone"],
        ),
    ] {
        folder.write("groups.csv", &text);
        let (code, _, err) = Program::pgmill(&database, &["group", "import", &file]).run().await;
        assert!(code != 0 && places.iter().all(|place| err.contains(place)), "{code} {err}");
    }
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.groups").await, 2);
}

#[tokio::test]
async fn a_job_declared_in_sql_has_defaults_for_its_tasks() {
    let database = Database::new().await;
    let set = |defaults: &str| {
        format!(
            r#"SELECT mill.set_job('j', '[{{"name": "a", "statement": "SELECT 1"}},
                {{"name": "b", "statement": "SELECT 1", "group": "own", "max_retries": 1}},
                {{"name": "c", "statement": "SELECT 1", "mode": "autocommit", "at_most_once": true}}]',
                options => '{{"tags": ["t"], "task_defaults": {defaults}}}')"#
        )
    };
    database.execute("SELECT mill.set_group('all'), mill.set_group('own')").await;
    database.execute(&set(r#"{"queue": "etl", "group": "all", "attempts": 5}"#)).await;
    let tasks = "SELECT string_agg(concat_ws(' ', name, queue, group_name, max_attempts), ', ' ORDER BY name)
        FROM mill.visible_job_tasks";
    assert_eq!(database.value::<String>(tasks).await, "a etl all 5, b etl own 2, c etl all 1");
    for (defaults, part) in [
        (r#"{"statement": "SELECT 1"}"#, "have no default"),
        (r#"{"colour": "red"}"#, "unknown key \"colour\""),
        ("[]", "must be a JSON object"),
    ] {
        let error = database.client().query(&set(defaults), &[]).await.unwrap_err();
        let message = error.as_db_error().unwrap().message();
        assert!(message.contains(part), "{defaults}: {message}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_limit_counts_the_tasks_that_run_already() {
    let database = Database::new().await;
    database
        .execute(
            "SELECT mill.set_group('loads');
             SELECT pg_advisory_lock(1);
             SELECT mill.enqueue('SELECT pg_advisory_xact_lock_shared(1)', queue => 'etl', group_name => g)
             FROM unnest(ARRAY[NULL, 'loads', NULL, 'loads']) AS g",
        )
        .await;
    let _worker = Worker::start(&database, &["--readers", "12"]);
    let states = "SELECT coalesce(string_agg(state || ' ' || n, ', '), '') FROM (
        SELECT state, count(*) AS n FROM mill.tasks GROUP BY state ORDER BY state) AS s";
    let become_ = async |wanted: &str| {
        eventually(wanted, async || database.value::<String>(states).await == wanted).await;
    };
    become_("running 4").await;
    database
        .execute(
            "SELECT mill.set_max_running('queue', 'etl', 5);
             SELECT mill.set_group('loads', max_running => 2);
             SELECT mill.enqueue('SELECT pg_advisory_xact_lock_shared(1)', queue => 'etl', group_name => g)
             FROM unnest(ARRAY['loads', NULL, NULL]) AS g",
        )
        .await;
    // The queue admits one more task; the group is full.
    become_("blocked 2, running 5").await;
    let granted: i32 = database.value("SELECT granted FROM mill.grant_waiting_permits()").await;
    assert_eq!(granted, 0);
    let held =
        "SELECT jsonb_object_agg(kind, n) FROM (SELECT l.kind, count(*) AS n FROM mill.permits p
        JOIN mill.limits l ON l.id = p.limit_id GROUP BY l.kind) AS h";
    assert_eq!(database.value::<Value>(held).await, json!({"queue": 5, "group": 2}));
    database.execute("SELECT pg_advisory_unlock(1)").await;
    database.until_empty().await;
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.permits").await, 0);
}

#[tokio::test]
async fn a_run_whose_group_is_gone_is_not_started_again() {
    let database = Database::new().await;
    let set_job = |group: &str| {
        format!(
            r#"SELECT mill.set_job('j', '[{{"name": "a", "statement": "SELECT 1"}},
                {{"name": "b", "statement": "SELECT 1", "after": ["a"]{group}}}]')"#
        )
    };
    database.execute("SELECT mill.set_group('g')").await;
    database.execute(&set_job(r#", "group": "g""#)).await;
    database.execute("SELECT mill.start_run('{j}'); SELECT mill.cancel_run(1)").await;
    database.execute(&set_job("")).await;
    assert!(database.value::<bool>("SELECT mill.drop_group('g')").await);
    for again in ["mill.restart_run(1, force => true)", "mill.rerun_run(1)"] {
        let result = database.client().batch_execute(&format!("SELECT {again}")).await;
        let error = result.unwrap_err();
        let error = error.as_db_error().unwrap();
        assert_eq!(error.message(), "there is no group \"g\"", "{again}");
        assert!(error.hint().unwrap().contains("pgmill group set"), "{error:?}");
    }
    database.execute("SELECT mill.set_group('g'); SELECT mill.rerun_run(1)").await;
}

#[tokio::test]
async fn a_group_that_an_open_transaction_uses_is_not_removed() {
    let job = |name: &str, group: &str| {
        format!(
            r#"SELECT mill.set_job('{name}', '[{{"name": "{name}a", "statement": "SELECT 1"}},
                {{"name": "{name}b", "statement": "SELECT 1", "after": ["{name}a"]{group}}}]')"#
        )
    };
    let in_group = r#", "group": "g""#;
    let of_jobs = "group \"g\" is used by tasks of jobs or runs";
    for (uses, refusal) in [
        ("SELECT mill.add_run_task('added', 'SELECT 1', run_id => 1, group_name => 'g')", of_jobs),
        (&*job("new", in_group), of_jobs),
        ("SELECT mill.start_run('{old}')", of_jobs),
        ("SELECT mill.set_default_group('g')", "group \"g\" is the default group"),
    ] {
        let database = Database::new().await;
        database.execute("SELECT mill.set_group('g')").await;
        database.execute(&job("free", "")).await;
        database.execute(&job("old", in_group)).await;
        database.execute("SELECT mill.start_run('{free}')").await;
        let (user, operator) = (database.connect().await, database.connect().await);
        user.batch_execute(&format!("BEGIN; {uses}")).await.unwrap();
        database.execute(&job("old", "")).await;
        let removal = operator.batch_execute("SELECT mill.drop_group('g')");
        let commit = async {
            // The removal waits or is done.
            database.until_a_session_waits_or("NOT EXISTS (SELECT FROM mill.groups)").await;
            user.batch_execute("COMMIT").await.unwrap();
        };
        let (removed, ()) = tokio::join!(removal, commit);
        let refused = removed.err().map(|error| error.as_db_error().unwrap().message().to_owned());
        assert_eq!(refused.as_deref(), Some(refusal), "{uses}");
    }
}

#[tokio::test]
async fn an_active_period_follows_the_clocks_of_its_zone() {
    let database = Database::new().await;
    // Berlin moves its clocks forward from 02:00 to 03:00 on March 29th and back from 03:00 to
    // 02:00 on October 25th.
    for (period, at, open, until) in [
        ("22:00-06:00", "2026-01-10 20:59:59+00", false, "2026-01-10 21:00:00+00"),
        ("22:00-06:00", "2026-01-10 21:00:00+00", true, "2026-01-11 05:00:00+00"),
        ("22:00-06:00", "2026-01-11 04:59:59+00", true, "2026-01-11 05:00:00+00"),
        ("22:00-06:00", "2026-01-11 05:00:00+00", false, "2026-01-11 21:00:00+00"),
        ("08:00-17:00", "2026-07-01 06:00:00+00", true, "2026-07-01 15:00:00+00"),
        ("22:00-06:00", "2026-03-28 22:00:00+00", true, "2026-03-29 04:00:00+00"),
        ("22:00-06:00", "2026-10-24 22:00:00+00", true, "2026-10-25 05:00:00+00"),
        ("02:30-05:00", "2026-03-29 00:59:59+00", false, "2026-03-29 01:00:00+00"),
        ("02:30-05:00", "2026-03-29 01:00:00+00", true, "2026-03-29 03:00:00+00"),
        ("02:30-05:00", "2026-10-25 00:30:00+00", true, "2026-10-25 04:00:00+00"),
        ("02:30-05:00", "2026-10-25 01:10:00+00", true, "2026-10-25 04:00:00+00"),
        ("22:00-02:30", "2026-10-25 00:29:59+00", true, "2026-10-25 00:30:00+00"),
        ("22:00-02:30", "2026-10-25 01:10:00+00", false, "2026-10-25 21:00:00+00"),
        // The clocks skip the whole period.
        ("02:10-02:40", "2026-03-29 00:30:00+00", false, "2026-03-30 00:10:00+00"),
    ] {
        let (opens, closes) = period.split_once('-').unwrap();
        let row = &database
            .rows(
                &format!(
                    "SELECT open, until = '{until}' FROM
                     mill.active_period('{opens}', '{closes}', 'Europe/Berlin', '{at}')"
                ),
                &[],
            )
            .await[0];
        assert_eq!((row.get(0), row.get(1)), (open, true), "{period} at {at}");
    }
}

#[tokio::test]
async fn outside_its_active_period_a_task_waits_and_why_names_its_end() {
    let database = Database::new().await;
    // The period opens in an hour, for an hour.
    database
        .execute(
            "SELECT mill.set_group('night');
             SELECT mill.set_active_period('night', (now() AT TIME ZONE 'UTC')::time + interval '1 hour',
                 (now() AT TIME ZONE 'UTC')::time + interval '2 hours', 'UTC')",
        )
        .await;
    let id = database.enqueue("SELECT 1", ", group_name => 'night'").await;
    let other = database.enqueue("SELECT 1", "").await;
    let _worker = Worker::start(&database, &["--readers", "2"]);
    assert_eq!(database.outcome(other).await, "succeeded");
    let why: String = database.value(&format!("SELECT mill.why({id})")).await;
    assert!(why.starts_with("group \"night\" is outside its active period ("), "{why}");
    assert!(why.contains(", UTC) until "), "{why}");
    database.execute("SELECT mill.set_active_period('night', NULL, NULL)").await;
    assert_eq!(database.outcome(id).await, "succeeded");
}

/// Returns a task that has the permits of an open group and did not start before the period closed.
async fn missed_its_period() -> (Database, i64) {
    let database = Database::new().await;
    database
        .execute(
            "SELECT mill.set_group('day');
             SELECT mill.set_active_period('day', (now() AT TIME ZONE 'UTC')::time - interval '1 hour',
                 (now() AT TIME ZONE 'UTC')::time + interval '1 hour', 'UTC')",
        )
        .await;
    let id = database.enqueue("SELECT 1", ", group_name => 'day'").await;
    database.execute("SELECT mill.grant_waiting_permits()").await;
    database.until_state(id, "pending").await;
    let hours: f64 = database
        .value("SELECT round(extract(epoch FROM start_by - now()) / 3600)::float8 FROM mill.tasks")
        .await;
    assert!((hours - 1.0).abs() < f64::EPSILON, "{hours}");
    database.execute("UPDATE mill.tasks SET start_by = now() - interval '1 second'").await;
    (database, id)
}

#[tokio::test]
async fn a_permit_ends_with_the_active_period() {
    let (database, id) = missed_its_period().await;
    let closed =
        "UPDATE mill.groups SET opens = (now() AT TIME ZONE 'UTC')::time + interval '1 hour',
                      closes = (now() AT TIME ZONE 'UTC')::time + interval '2 hours'";
    database.execute(closed).await;
    let other = database.enqueue("SELECT 1", "").await;
    let _worker = Worker::start(&database, &["--readers", "2"]);
    assert_eq!(database.outcome(other).await, "succeeded");
    database.until_state(id, "blocked").await;
    assert_eq!(database.attempts(id).await, "");
}

#[tokio::test]
async fn a_task_that_missed_a_period_starts_in_the_next_one() {
    let (database, id) = missed_its_period().await;
    let _worker = Worker::start(&database, &["--readers", "2"]);
    assert_eq!(database.outcome(id).await, "succeeded");
}
