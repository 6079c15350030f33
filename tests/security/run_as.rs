//! A task runs with the login of its profile. Only members of the profile's roles may use the
//! profile.

use std::path::PathBuf;

use crate::harness::login::{Login, PASSWORD, answer};
use crate::harness::{Database, Program, Worker, amount, eventually};

/// A configuration with profiles, in files readable only by the owner; removed on drop.
pub(crate) struct Config {
    folder: PathBuf,
}

impl Config {
    /// Creates profiles, each with a login whose connection string is in a separate file.
    pub(crate) fn new(database: &Database, profiles: &[(&str, &Login<'_>)]) -> Self {
        let folder = std::env::temp_dir().join(format!("pgmill-{}", database.name()));
        std::fs::create_dir_all(&folder).unwrap();
        let mut text = String::new();
        for (name, login) in profiles {
            let secret = folder.join(format!("{name}.url"));
            std::fs::write(&secret, login.url() + "\n").unwrap();
            text += &format!("[run_as.{name}]\nurl_file = {secret:?}\nreaders = 2\n");
        }
        std::fs::write(folder.join("worker.toml"), text).unwrap();
        Self { folder }
    }

    pub(crate) fn path(&self) -> String {
        self.folder.join("worker.toml").to_str().unwrap().to_owned()
    }
}

impl Drop for Config {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

const WHO: &str = "SELECT session_user::text, current_user::text";

#[tokio::test(flavor = "multi_thread")]
async fn tasks_run_as_the_login_of_their_profile_in_sessions_of_its_own() {
    let database = Database::new().await;
    let tasks = Login::new(&database, "tasks", "").await;
    let etl = Login::new(&database, "etl", "").await;
    let web = Login::new(&database, "web", "").await;
    let config = Config::new(&database, &[("etl", &etl), ("web", &web)]);
    let set = "SELECT mill.set_profile(p, allowed => ARRAY[current_user]) FROM unnest(ARRAY['etl', 'web']) p";
    database.execute(set).await;
    let path = config.path();
    let flags = ["--readers", "2", "--task-url", &tasks.url(), "--config", &path];
    let mut worker = Worker::start(&database, &flags);
    for (options, login) in [("", &tasks), (", run_as => 'etl'", &etl), (", run_as => 'web'", &web)]
    {
        let name = login.name.as_str();
        let autocommit = format!("{options}, mode => 'autocommit'");
        for options in [options, &autocommit] {
            assert_eq!(database.run(WHO, options).await.row(0), [name, name], "{options}");
            database.run("SET ROLE NONE; RESET SESSION AUTHORIZATION", options).await;
        }
    }
    // Many tasks run at once, and in shared commits. Nevertheless no session serves two logins.
    database.execute("SELECT mill.set_shared_commit('default', '50 milliseconds')").await;
    let of_each: i64 = amount(50, 200);
    database
        .execute(&format!(
            "CREATE TABLE who (wanted text, session_user_was text DEFAULT session_user, pid int DEFAULT pg_backend_pid());
             GRANT INSERT ON who TO PUBLIC;
             SELECT mill.enqueue(format('INSERT INTO who (wanted) VALUES (%L)', p), run_as => nullif(p, ''))
             FROM generate_series(1, {of_each}), unnest(ARRAY['', 'etl', 'web']) AS p"
        ))
        .await;
    database.until_empty().await;
    let rows = database
        .rows(
            "SELECT wanted, min(session_user_was), max(session_user_was), count(*) FROM who GROUP BY 1 ORDER BY 1",
            &[],
        )
        .await;
    for (row, login) in rows.iter().zip([&tasks, &etl, &web]) {
        assert_eq!((row.get(1), row.get(2)), (login.name.as_str(), login.name.as_str()));
        assert_eq!(row.get::<_, i64>(3), of_each);
    }
    let mixed = "SELECT count(*) FROM (SELECT pid FROM who GROUP BY pid HAVING count(DISTINCT wanted) > 1) m";
    assert_eq!(database.value::<i64>(mixed).await, 0);
    let kept = "SELECT string_agg(DISTINCT run_as, ',' ORDER BY run_as) FROM mill.attempts";
    assert_eq!(database.value::<String>(kept).await, ",etl,web");
    assert!(worker.terminate().await.success());
    assert!(!worker.log().contains(PASSWORD), "a secret in the log");
    drop(worker);
    for login in [tasks, etl, web] {
        login.drop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_without_access_to_a_profile_is_refused_at_enqueue() {
    let database = Database::new().await;
    let loader = Login::new(&database, "loader", "mill_producer, mill_operator").await;
    let other = Login::new(&database, "other", "mill_producer, mill_operator").await;
    let allow = format!("SELECT mill.set_profile('etl', allowed => ARRAY['{}'])", loader.name);
    database.execute(&allow).await;
    let (may, may_not) = (loader.connect().await, other.connect().await);
    let key: String = may.query_one("SELECT mill.profile('etl')::text", &[]).await.unwrap().get(0);
    let job = r#"SELECT mill.set_job('own', '[{"name": "a", "statement": "SELECT 1", "run_as": "etl"}]')"#;
    let many = "SELECT mill.enqueue_many(ARRAY['SELECT 1'], profile => mill.profile('etl'))";
    for sql in ["SELECT mill.enqueue('SELECT 1', run_as => 'etl')", many, job] {
        assert_eq!(answer(&may_not, sql).await, "42501", "{sql}");
        assert_eq!(answer(&may, sql).await, "ok", "{sql}");
    }
    for sql in [
        "SELECT mill.enqueue('SELECT 1', run_as => 'no such profile')",
        "SELECT mill.submit('SELECT 1', options => jsonb_build_object('profile', gen_random_uuid()))",
        "SELECT mill.name_of_profile(gen_random_uuid())",
        "SELECT key FROM mill.profiles",
        "SELECT * FROM mill.profiles",
        "SELECT mill.set_profile('etl', allowed => ARRAY['mill_producer'])",
        "SELECT mill.drop_profile('etl')",
        "UPDATE mill.profiles SET allowed = ARRAY['mill_producer']",
    ] {
        assert_eq!(answer(&may_not, sql).await, "42501", "{sql}");
    }
    let seen = may_not.query("SELECT FROM mill.my_profiles", &[]).await.unwrap();
    assert!(seen.is_empty());
    // In a function that runs with its owner's rights, the access of the owner counts, not that of
    // the caller.
    database.execute("CREATE SCHEMA lent; GRANT ALL ON SCHEMA lent TO PUBLIC").await;
    may_not
        .batch_execute(
            "CREATE FUNCTION lent.trap() RETURNS bigint LANGUAGE sql SECURITY DEFINER
             AS $$ SELECT mill.enqueue('SELECT 1', run_as => 'etl') $$",
        )
        .await
        .unwrap();
    assert_eq!(answer(&may, "SELECT lent.trap()").await, "42501");
    // After access is revoked, a login cannot use the profile, even if it has kept the profile's
    // key.
    database.execute("SELECT mill.set_profile('etl', allowed => '{}')").await;
    let kept = format!(
        "SELECT mill.submit('SELECT 1', options => jsonb_build_object('profile', '{key}'))"
    );
    assert_eq!(answer(&may, &kept).await, "42501");
    assert_eq!(answer(&may, many).await, "42501");
    let arguments = ["--run-as", "etl", "SELECT 1"];
    let (code, _, stderr) = Program::enqueue(&database, &arguments).at(&other.url()).run().await;
    assert_eq!(code, i32::from(cli::exit::REFUSED), "{stderr}");
    assert!(
        stderr.contains("may not use profile \"etl\"") && stderr.contains("set_profile"),
        "{stderr}"
    );
    drop((may, may_not));
    database.execute("DROP SCHEMA lent CASCADE").await;
    loader.drop().await;
    other.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_waits_for_a_worker_with_its_profile_and_why_reports_it() {
    let database = Database::new().await;
    let etl = Login::new(&database, "etl", "").await;
    let allow = ["profile", "set", "etl", "--allow", "mill_producer", "--description", "loads"];
    let output = Program::pgmill_as_owner(&database, &allow).succeeds().await;
    assert_eq!(output, "profile etl is open to members of mill_producer\n");
    let _plain = Worker::start(&database, &["--readers", "1"]);
    let waiting = Program::enqueue(&database, &["--run-as", "etl", WHO]).succeeds().await;
    let waiting: i64 = waiting.trim().parse().unwrap();
    let plain = database.run(WHO, "").await;
    assert_eq!(plain.outcome, "succeeded", "the waiting task delays no other task");
    let why = format!("SELECT mill.why({waiting})");
    let expected =
        "no live worker serves queue \"default\" and has the profile \"etl\" in its configuration";
    assert_eq!(database.value::<String>(&why).await, expected);
    let remove = || Program::pgmill_as_owner(&database, &["profile", "remove", "etl"]);
    let (code, _, stderr) = remove().run().await;
    assert!(code == 5 && stderr.contains(&format!("is used by task {waiting}")), "{code} {stderr}");
    let config = Config::new(&database, &[("etl", &etl)]);
    let mut worker = Worker::start(&database, &["--readers", "1", "--config", &config.path()]);
    assert_eq!(database.record(waiting).await.row(0), [etl.name.as_str(), etl.name.as_str()]);
    let shown =
        Program::pgmill(&database, &["task", "show", &waiting.to_string()]).succeeds().await;
    assert!(shown.contains("run as") && shown.contains("etl"), "{shown}");
    let listed = Program::pgmill(&database, &["profile", "list", "--json"]).succeeds().await;
    assert!(listed.contains("\"readers\": 2"), "{listed}");
    assert!(worker.terminate().await.success());
    remove().succeeds().await;
    etl.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_of_runs_and_retries_keep_their_profile() {
    let database = Database::new().await;
    let etl = Login::new(&database, "etl", "").await;
    database.execute("SELECT mill.set_profile('etl', allowed => ARRAY[current_user])").await;
    let config = Config::new(&database, &[("etl", &etl)]);
    let mut worker = Worker::start(&database, &["--readers", "1", "--config", &config.path()]);
    database
        .execute(
            r#"SELECT mill.set_job('load', '[{"name": "a", "statement": "SELECT session_user::text", "run_as": "etl"}]');
               SELECT mill.start_run(ARRAY['load'])"#,
        )
        .await;
    let ran = "SELECT result->'rows'->0->>0 FROM mill.attempts WHERE name = 'a' AND final";
    eventually("the run's task has ended", async || !database.rows(ran, &[]).await.is_empty())
        .await;
    assert_eq!(database.value::<String>(ran).await, etl.name);
    let definition = "SELECT mill.job_definition('load')->'tasks'->0->>'run_as'";
    assert_eq!(database.value::<String>(definition).await, "etl");
    let failed = database
        .enqueue("SELECT session_user::text, 1 / 0", ", run_as => 'etl', max_attempts => 1")
        .await;
    assert_eq!(database.outcome(failed).await, "failed");
    database.execute("CREATE TABLE made_by (who text); GRANT INSERT ON made_by TO PUBLIC").await;
    database.execute(&format!("SELECT mill.retry({failed})")).await;
    eventually("the task has failed again", async || {
        database.attempts(failed).await == "failed failed"
    })
    .await;
    let kept =
        format!("SELECT count(*) FROM mill.attempts WHERE task_id = {failed} AND run_as = 'etl'");
    assert_eq!(database.value::<i64>(&kept).await, 2);
    assert!(worker.terminate().await.success());
    etl.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_task_runs_as_superuser_unless_that_is_allowed() {
    let database = Database::new().await;
    let strict = [("PGMILL_ALLOW_SUPERUSER", "false")];
    let mut worker = Worker::start_with(&database.url(), &["--readers", "1"], &strict);
    assert_eq!(worker.ended().await.code(), Some(i32::from(cli::exit::REFUSED)));
    let log = worker.log();
    assert!(log.contains("which is a superuser") && log.contains("--allow-superuser"), "{log}");
    // The login of a profile becomes a superuser while the worker runs, and gets no more sessions.
    let tasks = Login::new(&database, "tasks", "").await;
    let etl = Login::new(&database, "etl", "").await;
    database.execute("SELECT mill.set_profile('etl', allowed => ARRAY[current_user])").await;
    let config = Config::new(&database, &[("etl", &etl)]);
    let (path, url) = (config.path(), tasks.url());
    let flags = ["--readers", "1", "--task-url", &url, "--config", &path];
    let mut worker = Worker::start_with(&database.url(), &flags, &strict);
    assert_eq!(database.run(WHO, ", run_as => 'etl'").await.outcome, "succeeded");
    // In a transaction of its own: before it has committed, an ended session can reconnect.
    database.execute(&format!("ALTER ROLE {} SUPERUSER", etl.name)).await;
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename =";
    database.execute(&format!("{end} '{}'", etl.name)).await;
    worker.until_logged("which is a superuser").await;
    let waiting = database.enqueue(WHO, ", run_as => 'etl'").await;
    assert_eq!(database.run(WHO, "").await.outcome, "succeeded");
    let state = format!("SELECT state::text FROM mill.tasks WHERE id = {waiting}");
    assert_eq!(database.value::<String>(&state).await, "pending");
    database.execute(&format!("ALTER ROLE {} NOSUPERUSER", etl.name)).await;
    assert_eq!(database.outcome(waiting).await, "succeeded");
    assert!(worker.terminate().await.success());
    tasks.drop().await;
    etl.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_a_profile_ends_with_the_right_to_use_it_and_is_of_no_use_to_others() {
    let database = Database::new().await;
    let loaders = Login::new(&database, "loaders", "").await;
    let loader = Login::new(&database, "loader", "mill_producer").await;
    let other = Login::new(&database, "other", "mill_producer, mill_operator").await;
    let allow = format!(
        "GRANT {0} TO {1}; SELECT mill.set_profile('etl', allowed => ARRAY['{0}']), mill.set_profile('another')",
        loaders.name, loader.name
    );
    database.execute(&allow).await;
    let (may, may_not) = (loader.connect().await, other.connect().await);
    let key: String = may.query_one("SELECT mill.profile('etl')::text", &[]).await.unwrap().get(0);
    let submit = format!(
        "SELECT mill.submit('SELECT $1', params => '[1]',
            options => jsonb_build_object('profile', '{key}'))"
    );
    assert_eq!(answer(&may, &submit).await, "ok");
    assert_eq!(answer(&loader.connect().await, &submit).await, "ok");
    assert_eq!(answer(&may_not, &submit).await, "42501");
    // An operator may steer the task, but not change what the login of the profile does.
    for (change, result) in [(r#"{"priority": "high"}"#, "ok"), (r#"{"params": [2]}"#, "42501")] {
        let change = format!("SELECT mill.change_task(1, '{change}')");
        assert_eq!(answer(&may_not, &change).await, result, "{change}");
    }
    database.execute(&format!("REVOKE {} FROM {}", loaders.name, loader.name)).await;
    assert_eq!(answer(&may, &submit).await, "42501");
    drop((may, may_not));
    for login in [loader, other, loaders] {
        login.gone().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_run_as_the_role_that_their_login_assumes_by_default() {
    let database = Database::new().await;
    let data = Login::new(&database, "data", "").await;
    let tasks = Login::new(&database, "tasks", "").await;
    let role = format!("GRANT {0} TO {1}; ALTER ROLE {1} SET role = {0}", data.name, tasks.name);
    database.execute(&role).await;
    let mut worker = Worker::start(&database, &["--readers", "1", "--task-url", &tasks.url()]);
    for _ in 0..2 {
        assert_eq!(database.run(WHO, "").await.row(0), [&tasks.name, &data.name]);
        assert_eq!(database.run("SET ROLE NONE", "").await.outcome, "succeeded");
    }
    assert!(worker.terminate().await.success());
    tasks.gone().await;
    data.gone().await;
}
