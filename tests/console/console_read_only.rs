//! A GET request never writes, and all of its statements have a time limit. A POST request may
//! write, with time limits too.

use serde_json::Value;

use crate::harness::console::Console;
use crate::harness::login::Login;
use crate::harness::routes::{filled, post_routes, routes};
use crate::harness::{Database, Worker};

/// Row security policies that call `watch()` whenever a row of the schema is read, also through a view or a function.
const WATCH: &str = "
CREATE FUNCTION public.watch() RETURNS boolean LANGUAGE plpgsql STABLE PARALLEL UNSAFE AS $$
BEGIN
    IF current_setting('application_name') NOT LIKE 'pgmill console%' THEN
        RETURN true;
    ELSIF current_setting('statement_timeout') = '0' OR current_setting('lock_timeout') = '0' THEN
        RAISE EXCEPTION 'a statement without a time limit' USING ERRCODE = 'XX001';
    ELSIF current_setting('transaction_read_only') = 'off' AND NOT pg_catalog.pg_try_advisory_xact_lock_shared(77) THEN
        RAISE EXCEPTION 'a read that could write' USING ERRCODE = 'XX001';
    END IF;
    RETURN true;
END
$$;
GRANT EXECUTE ON FUNCTION public.watch TO PUBLIC;
DO $$
DECLARE
    it regclass;
BEGIN
    FOR it IN SELECT c.oid FROM pg_class c
        WHERE c.relnamespace = 'mill'::regnamespace AND c.relkind IN ('r', 'p') LOOP
        EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY', it);
        EXECUTE format('CREATE POLICY watched ON %s USING (public.watch()) WITH CHECK (true)', it);
    END LOOP;
END
$$";

/// Returns every address that can be read, including those of the API description.
pub(crate) async fn every_request(console: &Console, values: &[(&str, &str)]) -> Vec<String> {
    let document: Value =
        serde_json::from_str(&console.get("/api/v1/openapi.json").await.body).unwrap();
    let described = document["paths"].as_object().unwrap().keys().cloned();
    let reads = routes().into_iter().filter(|it| it.get).map(|it| it.path);
    let named = |path: String| match values.iter().find(|(name, _)| *name == "name") {
        Some((_, name)) if !path.contains('{') => format!("{path}?name={name}"),
        _ => path,
    };
    reads.chain(described).map(|path| named(filled(&path, values))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_statement_has_a_timeout_and_no_read_can_write() {
    let database = Database::new().await;
    let operator = Login::new(&database, "watched", "mill_operator").await;
    let worker = Worker::start(&database, &["--readers", "2", "--poll-interval", "50ms"]);
    // A job, a task, a schedule, a group and a run with the same name, and history.
    database
        .execute(
            r#"SELECT mill.set_job('it', '[{"name": "it", "statement": "SELECT 1"}]');
               SELECT mill.set_schedule('it', 'manual', jobs => ARRAY['it']);
               SELECT mill.set_group('g'); SELECT mill.start_run(ARRAY['it']);
               SELECT mill.enqueue('SELECT 1/0', name => 'it', max_attempts => 1)"#,
        )
        .await;
    database.until_empty().await;
    drop(worker);
    database.until_no_other_session().await;
    // Unlike superusers, the owners of the tables are subject to the policies, too.
    database.execute(WATCH).await;
    let console = Console::start_at(&database, &operator.url(), &[]).await;
    // While this lock is held, no write is permitted.
    database.execute("SELECT pg_advisory_lock(77)").await;
    let before: i64 = database.value("SELECT count(*) FROM mill.audit").await;
    let values = [("id", "1"), ("queue", "default"), ("group", "g"), ("name", "it")];
    for path in every_request(&console, &values).await {
        let answer = console.get(&path).await;
        assert!(answer.status < 500, "{path}: {} {}", answer.status, answer.body);
    }
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.audit").await, before);
    // Check the policy itself: it refuses an action while the lock is held, and permits it
    // afterwards.
    let refused = console.post("/groups/g/concurrency", "max_running=1").await;
    assert!(refused.status == 500 && refused.body.contains("could write"), "{}", refused.body);
    database.execute("SELECT pg_advisory_unlock(77)").await;
    for path in post_routes() {
        let path = filled(&path, &values);
        let form = "q=id:1&capacity=high&max_running=1&name=it&enabled=true&draining=true&low=1\
                    &task=it&paused=true";
        let answer = console.post(&path, form).await;
        assert!(answer.status < 500, "{path}: {} {}", answer.status, answer.body);
    }
    drop(console);
    operator.gone().await;
}
