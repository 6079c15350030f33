//! A task tries to act as another login, to read the data of others, or to change its own recorded
//! outcome. No attempt succeeds.

use crate::harness::login::{Login, PASSWORD};
use crate::harness::{Database, Worker, eventually};

/// Two tenants with a profile each, and the worker that runs both.
struct Tenants<'a> {
    database: &'a Database,
    control: Login<'a>,
    own: Login<'a>,
    other: Login<'a>,
    worker: Worker,
    config: std::path::PathBuf,
}

impl<'a> Tenants<'a> {
    async fn new(database: &'a Database) -> Self {
        let control = Login::new(database, "control", "mill_worker").await;
        let own = Login::new(database, "own", "").await;
        let other = Login::new(database, "other", "").await;
        database
            .execute(&format!(
                "SELECT mill.set_profile(p, allowed => ARRAY[current_user]) FROM unnest(ARRAY['own', 'other']) p;
                 CREATE TABLE secret (n int); ALTER TABLE secret OWNER TO {};
                 CREATE SCHEMA mine AUTHORIZATION {}",
                other.name, own.name
            ))
            .await;
        let config = std::env::temp_dir().join(format!("pgmill-{}.toml", database.name()));
        let profile = |name: &str, login: &Login<'_>| {
            format!("[run_as.{name}]\nurl = {:?}\nreaders = 1\n", login.url())
        };
        std::fs::write(&config, profile("own", &own) + &profile("other", &other)).unwrap();
        let nobody = Login::new(database, "nobody", "").await.url();
        let flags = ["--readers", "1", "--task-url", &nobody, "--config", config.to_str().unwrap()];
        let worker = Worker::start_at(&control.url(), &flags);
        worker.until_logged("ready").await;
        Self { database, control, own, other, worker, config }
    }

    async fn run(&self, statement: &str) -> crate::harness::record::Record {
        self.database.run(statement, ", run_as => 'own', max_attempts => 1").await
    }

    /// Asserts that the other tenant's data is untouched, and that the next tasks of both tenants
    /// run with the right login.
    async fn assert_apart(&self, after: &str) {
        let secret = self.database.value::<i64>("SELECT count(*) FROM secret").await;
        assert_eq!(secret, 0, "after {after}");
        for (profile, login) in [("own", &self.own), ("other", &self.other)] {
            let who =
                "SELECT session_user::text, current_user::text, current_setting('search_path')";
            let ran = self.database.run(who, &format!(", run_as => '{profile}'")).await;
            let name = login.name.as_str();
            assert_eq!(ran.row(0), [name, name, "\"$user\", public"], "after {after}");
        }
    }

    async fn end(mut self) {
        assert!(self.worker.terminate().await.success());
        std::fs::remove_file(&self.config).unwrap();
        let nobody = format!("{}_nobody", self.database.name());
        self.database
            .execute(&format!("DROP ROLE {nobody}; DROP TABLE secret; DROP SCHEMA mine CASCADE"))
            .await;
        for login in [self.control, self.own, self.other] {
            login.drop().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_task_acts_as_another_login() {
    let database = Database::new().await;
    let tenants = Tenants::new(&database).await;
    let other = &tenants.other.name;
    let write = "INSERT INTO secret VALUES (1)";
    for attempt in [
        format!("RESET ROLE; {write}"),
        format!("SET ROLE NONE; {write}"),
        format!("SET ROLE {other}; {write}"),
        format!("SET SESSION AUTHORIZATION {other}; {write}"),
        format!("RESET SESSION AUTHORIZATION; {write}"),
        format!(
            "SELECT set_config('role', '{other}', false), set_config('session_authorization', '{other}', false); {write}"
        ),
        format!("ALTER ROLE {other} PASSWORD 'known'"),
        format!("GRANT {other} TO CURRENT_USER"),
        "SELECT mill.set_profile('other', allowed => ARRAY[current_user::text])".to_owned(),
        format!("SELECT mill.enqueue('{write}', run_as => 'other')"),
    ] {
        let ran = tenants.run(&attempt).await;
        assert_eq!((ran.outcome.as_str(), ran.sqlstate.as_str()), ("failed", "42501"), "{attempt}");
        tenants.assert_apart(&attempt).await;
    }
    tenants.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn code_that_runs_at_commit_runs_as_the_task() {
    let database = Database::new().await;
    let tenants = Tenants::new(&database).await;
    let other = &tenants.other.name;
    // The trigger is deferred until COMMIT, which comes after the completion, and it defers all
    // constraints again.
    let deferred = format!(
        "CREATE TABLE mine.t (n int);
         CREATE FUNCTION mine.late() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             SET CONSTRAINTS ALL DEFERRED;
             EXECUTE 'SET ROLE {other}';
             INSERT INTO public.secret VALUES (1);
             RETURN NULL;
         END $$;
         CREATE CONSTRAINT TRIGGER late AFTER INSERT ON mine.t DEFERRABLE INITIALLY DEFERRED
             FOR EACH ROW EXECUTE FUNCTION mine.late();
         INSERT INTO mine.t VALUES (1)"
    );
    let ran = tenants.run(&deferred).await;
    assert_eq!((ran.outcome.as_str(), ran.sqlstate.as_str()), ("failed", "42501"), "{ran:?}");
    tenants.assert_apart("a deferred trigger").await;
    // The cursor's query runs at COMMIT.
    let held = format!(
        "CREATE FUNCTION mine.steal() RETURNS int LANGUAGE plpgsql AS $$
         BEGIN
             IF current_user <> session_user OR pg_has_role('{other}', 'MEMBER') THEN
                 INSERT INTO public.secret VALUES (1);
             END IF;
             RETURN 1;
         END $$;
         DECLARE c CURSOR WITH HOLD FOR SELECT mine.steal()"
    );
    assert_eq!(tenants.run(&held).await.outcome, "succeeded");
    tenants.assert_apart("a cursor with hold").await;
    tenants.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_worker_never_calls_objects_that_a_task_puts_in_the_search_path() {
    let database = Database::new().await;
    let tenants = Tenants::new(&database).await;
    let shadows = "CREATE TEMP TABLE pg_roles (rolname name, rolsuper boolean);
         CREATE FUNCTION mine.pg_current_xact_id() RETURNS xid8 LANGUAGE sql AS $$ SELECT '3'::xid8 $$;
         CREATE FUNCTION mine.pg_advisory_unlock_all() RETURNS void LANGUAGE plpgsql AS
             $$ BEGIN INSERT INTO public.secret VALUES (1); END $$;
         CREATE FUNCTION mine.set_config(text, text, boolean) RETURNS text LANGUAGE plpgsql AS
             $$ BEGIN INSERT INTO public.secret VALUES (1); RETURN ''; END $$;
         CREATE FUNCTION mine.now() RETURNS timestamptz LANGUAGE sql AS $$ SELECT 'infinity'::timestamptz $$;
         SET search_path = mine, pg_temp, pg_catalog";
    for statement in
        [shadows.to_owned(), "SET search_path = mine, pg_temp, pg_catalog; SELECT 1".to_owned()]
    {
        let ran = tenants.run(&statement).await;
        assert_eq!(ran.outcome, "succeeded", "{ran:?}");
        let sane =
            "SELECT finished_at < 'infinity' FROM mill.attempts ORDER BY finished_at DESC LIMIT 1";
        assert!(database.value::<bool>(sane).await);
        tenants.assert_apart("a shadow").await;
    }
    tenants.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_ends_nobody_elses_session_and_forges_no_completion() {
    let database = Database::new().await;
    let tenants = Tenants::new(&database).await;
    database.execute("SELECT pg_advisory_lock(1)").await;
    let waits = "SELECT pg_advisory_xact_lock_shared(1)";
    let victim = database.enqueue(waits, ", run_as => 'other', max_attempts => 1").await;
    database.until_waiting_for_lock(victim).await;
    // Except those of the pool, which a worker opens and closes by its need.
    let sessions = "SELECT array_agg(concat_ws(' ', pid, backend_start, application_name)) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name LIKE 'pgmill%'
        AND application_name NOT LIKE 'pgmill pool %'
        AND usename <> (SELECT usename FROM pg_stat_activity WHERE pid = pg_backend_pid())";
    let before: Vec<String> = database.value(sessions).await;
    for function in ["pg_terminate_backend", "pg_cancel_backend"] {
        let end = format!(
            "DO $$ DECLARE s record; BEGIN
                 FOR s IN SELECT pid FROM pg_stat_activity
                     WHERE usename <> session_user AND application_name LIKE 'pgmill%' LOOP
                     BEGIN
                         -- False: the session has ended by itself.
                         IF {function}(s.pid) THEN RAISE 'ended %', s.pid USING ERRCODE = 'MT900'; END IF;
                     EXCEPTION WHEN insufficient_privilege THEN NULL; END;
                 END LOOP;
             END $$"
        );
        let ran = tenants.run(&end).await;
        assert_eq!(ran.outcome, "succeeded", "{ran:?}");
    }
    let after: Vec<String> = database.value(sessions).await;
    assert!(before.iter().all(|session| after.contains(session)), "{before:?} {after:?}");
    // A task cannot read the places that could contain its own token.
    for read in [
        "SELECT token FROM mill.tasks",
        "SELECT * FROM mill.running",
        "SELECT statement FROM mill.attempts",
    ] {
        tenants.run(read).await.assert_failed("42501", "");
    }
    let forged = format!(
        "SELECT mill.complete(ARRAY[{victim}]::bigint[], ARRAY[gen_random_uuid()], pg_current_xact_id(), NULL, NULL, NULL)"
    );
    tenants.run(&forged).await.assert_failed("MT001", "");
    // A task finds the token of another tenant's task neither in its session nor in the server's
    // views.
    let token: String =
        database.value(&format!("SELECT token::text FROM mill.tasks WHERE id = {victim}")).await;
    let search = format!(
        "SELECT count(*)::text FROM pg_settings WHERE setting LIKE '%{token}%'
         UNION ALL SELECT count(*)::text FROM pg_stat_activity WHERE query LIKE '%{token}%' AND pid <> pg_backend_pid()
         UNION ALL SELECT count(*)::text FROM pg_prepared_statements WHERE statement LIKE '%{token}%'"
    );
    let found = tenants.run(&search).await;
    assert_eq!([found.row(0), found.row(1), found.row(2)], [["0"], ["0"], ["0"]]);
    database.execute("SELECT pg_advisory_unlock(1)").await;
    assert_eq!(database.outcome(victim).await, "succeeded");
    tenants.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_reads_no_other_tenants_statement() {
    let database = Database::new().await;
    let tenants = Tenants::new(&database).await;
    database.execute("SELECT pg_advisory_lock(1)").await;
    let secret = "SELECT pg_advisory_xact_lock_shared(1), 'the code is 4711'";
    let victim = database.enqueue(secret, ", run_as => 'other'").await;
    database.until_waiting_for_lock(victim).await;
    for look in [
        "SELECT query FROM pg_stat_activity WHERE query LIKE '%the code is%' AND pid <> pg_backend_pid()",
        "SELECT string_agg(a.query, '') FROM pg_stat_get_activity(NULL) a WHERE a.query LIKE '%4711%' AND a.pid <> pg_backend_pid() HAVING count(*) > 0",
    ] {
        let ran = tenants.run(look).await;
        assert_eq!((ran.outcome.as_str(), ran.rows), ("succeeded", Some(0)), "{look}: {ran:?}");
    }
    for look in [
        "SELECT * FROM mill.tasks",
        "SELECT * FROM mill.history",
        "SELECT mill.why(1)",
        "TABLE mill.job_tasks",
    ] {
        tenants.run(look).await.assert_failed("42501", "");
    }
    database.execute("SELECT pg_advisory_unlock(1)").await;
    assert_eq!(database.outcome(victim).await, "succeeded");
    tenants.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_of_dblink_that_a_task_leaves_open_is_closed() {
    let database = Database::new().await;
    let available = "SELECT count(*) FROM pg_available_extensions WHERE name = 'dblink'";
    if database.value::<i64>(available).await == 0 {
        println!("skipped: the server has no dblink");
        return;
    }
    database.execute("CREATE SCHEMA links; CREATE EXTENSION dblink SCHEMA links; GRANT USAGE ON SCHEMA links TO PUBLIC").await;
    // Test shared commits, too: another task of the same transaction must not use the connection.
    database.execute("SELECT mill.set_shared_commit('default', '100 milliseconds')").await;
    let tenants = Tenants::new(&database).await;
    let place = tenants.other.url();
    let (_, place) = place.rsplit_once('@').unwrap();
    let (host, rest) = place.split_once(':').unwrap();
    let (port, name) = rest.split_once('/').unwrap();
    let to = format!(
        "host={host} port={port} dbname={} user={} password={PASSWORD}",
        name.split('?').next().unwrap(),
        tenants.other.name
    );
    let count = "SELECT coalesce(cardinality(links.dblink_get_connections()), 0)::text, pg_backend_pid()::text";
    for name in ["'named', ", ""] {
        let before = tenants.run(count).await;
        let opened = tenants.run(&format!("SELECT links.dblink_connect({name}'{to}')")).await;
        assert_eq!(opened.outcome, "succeeded", "{opened:?}");
        let after = tenants.run(count).await;
        assert_eq!(after.row(0), before.row(0), "the same session, without leftover state");
        let lent = tenants
            .run(&format!("SELECT links.dblink_exec({name}'INSERT INTO secret VALUES (1)')"))
            .await;
        assert_eq!(lent.outcome, "failed", "{lent:?}");
        tenants.assert_apart("dblink").await;
    }
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE usename = '$' AND application_name NOT LIKE 'pgmill%'";
    let sessions = sessions.replace('$', &tenants.other.name);
    eventually("the sessions are closed", async || database.value::<i64>(&sessions).await == 0)
        .await;
    tenants.end().await;
}
