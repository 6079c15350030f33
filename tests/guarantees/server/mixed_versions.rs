//! Workers of the previous schema version and of this version work together before, during and after a
//! migration.
//!
//! The previous version has no program any more: an [`OldWorker`] is the part of its worker that claims,
//! runs, ends and promotes tasks, with the statements as they were recorded in `tests/upgrade/`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::{join, join_all};
use jiff::Timestamp;
use serde_json::Value;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, Row, Statement};
use uuid::Uuid;

use crate::harness::{Database, Program, Worker, amount, eventually};
use crate::project::versions::{at_version, recorded};
use crate::schedules::schedule::daily_in_half_a_day;

const EFFECT: &str = "INSERT INTO effect SELECT current_setting('mill.task_id')::bigint";
const WAITS_FOR_LOCK: &str = "INSERT INTO effect SELECT current_setting('mill.task_id')::bigint;
    SELECT pg_advisory_xact_lock_shared(1)";

/// A task that fails in its first attempt.
const FAILS_ONCE: &str = "INSERT INTO effect SELECT current_setting('mill.task_id')::bigint;
    SELECT 1 / (current_setting('mill.attempt')::integer - 1)";

const VERSION: i32 = queue::schema::VERSION - 1;

/// One reader of a worker of the previous version. The statements are prepared before the migration.
struct OldWorker {
    id: Uuid,
    control: Client,
    session: Client,
    pid: i32,
    control_pid: i32,
    started_at: Timestamp,
    claim: Statement,
    complete: Statement,
    fail: Statement,
    heartbeat: Statement,
    promote: Statement,
}

impl OldWorker {
    async fn register(database: &Database, statements: &BTreeMap<String, String>) -> Self {
        let (control, session) = (database.connect().await, database.connect().await);
        let id = Uuid::new_v4();
        let key = i64::from_be_bytes(id.as_bytes()[..8].try_into().unwrap());
        let (queues, profiles): (Option<Vec<String>>, Value) = (None, serde_json::json!({"": 1}));
        control
            .query(
                &statements["queue.register"],
                &[
                    &id, &1_i32, &"old", &"0.0.1", &key, &1_i32, &queues, &0.3_f64, &30.0_f64,
                    &profiles, &VERSION,
                ],
            )
            .await
            .unwrap();
        let own = "SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()";
        let control_pid = control.query_one(own, &[]).await.unwrap().get(0);
        let own = session.query_one(own, &[]).await.unwrap();
        let prepare = async |name: &str| control.prepare(&statements[name]).await.unwrap();
        let types = [Type::UUID, Type::INT4, Type::INT8_ARRAY, Type::UUID_ARRAY];
        let heartbeat = &statements["queue.heartbeat"];
        let heartbeat = control.prepare_typed(heartbeat, &types).await.unwrap();
        Self {
            id,
            pid: own.get(0),
            control_pid,
            started_at: own.get(1),
            claim: prepare("queue.claim").await,
            complete: session.prepare(&statements["queue.complete"]).await.unwrap(),
            fail: prepare("queue.fail").await,
            heartbeat,
            promote: prepare("queue.promote").await,
            control,
            session,
        }
    }

    /// Claims and runs tasks of both queues until `stop` is set, or until the claimed task is the one
    /// with this id, which is then left claimed.
    async fn work(&self, stop: &AtomicBool, leave: i64) {
        while !stop.load(Ordering::Relaxed) {
            self.heartbeat(&[]).await;
            self.control.query(&self.promote, &[]).await.unwrap();
            let Some(task) = self.claim().await else { continue };
            if task.get::<_, i64>("id") == leave {
                return;
            }
            self.run(&task).await;
        }
    }

    async fn heartbeat(&self, running: &[i64]) {
        let (busy, tokens) = (i32::from(!running.is_empty()), Vec::<Uuid>::new());
        let params: [&(dyn ToSql + Sync); 4] = [&self.id, &busy, &running, &tokens];
        let known = self.control.query(&self.heartbeat, &params).await.unwrap();
        assert_eq!(known.len(), 1, "the worker is still registered");
    }

    async fn claim(&self) -> Option<Row> {
        let queues = ["default", "narrow"];
        let rows = self
            .control
            .query(
                &self.claim,
                &[
                    &queues.to_vec(),
                    &vec!["normal"; 2],
                    &vec![0_i64; 2],
                    &1_i64,
                    &self.id,
                    &vec![self.pid],
                    &vec![self.started_at],
                    &vec![1_i64; 2],
                    &vec![""; 2],
                ],
            )
            .await
            .unwrap();
        rows.into_iter().next()
    }

    /// Runs the task in one transaction with its completion.
    async fn run(&self, task: &Row) {
        let (id, token): (i64, Uuid) = (task.get("id"), task.get("token"));
        let Err(error) = self.attempt(task).await else { return };
        self.session.batch_execute("ROLLBACK").await.unwrap();
        let code = error.code().cloned().unwrap_or(SqlState::SUCCESSFUL_COMPLETION);
        let transient = [SqlState::T_R_DEADLOCK_DETECTED, SqlState::T_R_SERIALIZATION_FAILURE];
        let verdict = if transient.contains(&code) { "transient" } else { "failure" };
        let report = serde_json::json!({"sqlstate": code.code(), "message": error.to_string()});
        let failed: [&(dyn ToSql + Sync); 6] =
            [&id, &token, &"failed", &verdict, &0.0_f64, &report];
        self.control.query(&self.fail, &failed).await.unwrap();
    }

    async fn attempt(&self, task: &Row) -> Result<(), Error> {
        let (id, token): (i64, Uuid) = (task.get("id"), task.get("token"));
        let attempt: i32 = task.get("attempt");
        let begin = format!(
            "BEGIN; SELECT set_config('mill.task_id', '{id}', true), set_config('mill.attempt', '{attempt}', true)"
        );
        self.session.batch_execute(&begin).await?;
        let xact = "SELECT pg_current_xact_id()::text";
        let xact: String = self.session.query_one(xact, &[]).await?.get(0);
        self.session.batch_execute(task.get("statement")).await?;
        let (until, rows): (Option<Vec<f64>>, Option<Vec<i64>>) = (None, None);
        let reports: Option<Vec<Value>> = None;
        let (ids, tokens) = (vec![id], vec![token]);
        self.session
            .query(&self.complete, &[&ids, &tokens, &xact, &until, &rows, &reports])
            .await?;
        self.session.batch_execute("COMMIT").await
    }
}

/// Creates tasks in every state, with the functions of the previous version.
async fn tasks_in_every_state(database: &Database) -> [i64; 2] {
    database
        .execute(
            r#"CREATE TABLE effect (task bigint NOT NULL);
            SELECT mill.prepare_history();
            SELECT mill.set_max_running('queue', 'narrow', 1);
            SELECT mill.set_job('j', '[{"name": "a", "statement": "SELECT 1"}, {"name": "b", "statement": "SELECT 1", "after": ["a"]}]');
            SELECT mill.start_run('{j}')"#,
        )
        .await;
    let timing = daily_in_half_a_day(database).await;
    database.execute(&format!("SELECT mill.set_schedule('s', '{timing}', 'SELECT 1')")).await;
    database.enqueue(EFFECT, ", due_at => now() + interval '1 day'").await;
    database.enqueue(EFFECT, ", due_at => now() + interval '2 seconds'").await;
    database.enqueue(FAILS_ONCE, ", retry_interval => '1 second', backoff => 'fixed'").await;
    for _ in 0..20 {
        database.enqueue(EFFECT, ", queue => 'narrow', max_attempts => 1").await;
    }
    let held = database.enqueue(WAITS_FOR_LOCK, ", max_attempts => 1").await;
    let left = database.enqueue(EFFECT, ", max_attempts => 1").await;
    [held, left]
}

async fn submit(database: &Database, tasks: i32) {
    let sql =
        "SELECT count(mill.enqueue($1, max_attempts => 1)) FROM generate_series(1, $2::integer)";
    database.rows(sql, &[&EFFECT, &tasks]).await;
}

/// Waits until workers of this version, or of the previous one, have ended more tasks.
async fn more(database: &Database, old: &[Uuid], by_old: bool) {
    let sql = "SELECT count(*) FROM mill.attempts WHERE outcome = 'succeeded' AND (worker_id = ANY ($1)) = $2";
    let old = old.to_vec();
    let count = async || -> i64 { database.rows(sql, &[&old, &by_old]).await[0].get(0) };
    let before = count().await;
    eventually(&format!("tasks end by the previous version: {by_old}"), async || {
        let pending: i32 = amount(60, 200);
        if database.value::<i64>("SELECT count(*) FROM mill.tasks").await < i64::from(pending) {
            submit(database, pending).await;
        }
        count().await >= before + amount(15, 50)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn both_versions_work_together_while_the_schema_is_upgraded() {
    let text = recorded(&format!("statements_{VERSION}.json"));
    let statements = serde_json::from_str(&text).unwrap();
    let database = at_version(VERSION).await;
    let database = &database;
    database.execute("SELECT pg_advisory_lock(1)").await;
    let [held, left] = tasks_in_every_state(database).await;
    let register = || OldWorker::register(database, &statements);
    let old = [register().await, register().await, register().await];
    let ids = old.each_ref().map(|worker| worker.id);
    let stop = AtomicBool::new(false);
    let changes = async {
        more(database, &ids, true).await;
        let running =
            "SELECT count(*) = 2 FROM mill.tasks WHERE state = 'running' AND id = ANY ($1)";
        eventually("the held tasks run", async || {
            database.rows(running, &[&vec![held, left]]).await[0].get(0)
        })
        .await;
        // A worker of this version refuses the old schema.
        let mut early = Worker::start(database, &[]);
        assert!(!early.ended().await.success());
        let expected = format!("schema version {VERSION}");
        assert!(early.log().contains(&expected), "{}", early.log());
        let upgrading = Program::init(database).run();
        let ((code, printed, error), ()) = join(upgrading, more(database, &ids, true)).await;
        assert_eq!(code, 0, "{printed}{error}");
        // The workers of the previous version send no heartbeats while they run a task.
        let flags = ["--poll-interval", "50ms", "--orphan-timeout", "10m"];
        let workers = [(); 2].map(|()| Worker::start(database, &flags));
        more(database, &ids, false).await;
        more(database, &ids, true).await;
        // Two of the three have been silent since they got the tasks that they hold. `pgmill doctor` counts
        // a worker that is silent for too long among the dead.
        for worker in &old {
            worker.heartbeat(&[]).await;
        }
        let (_, printed, error) = Program::pgmill(database, &["doctor"]).run().await;
        let expected = "3 workers older than schema version";
        assert!(printed.contains(expected), "{printed}{error}");
        // The task that the previous version has begun ends on the new schema.
        database.execute("SELECT pg_advisory_unlock(1)").await;
        assert_eq!(database.outcome(held).await, "succeeded");
        stop.store(true, Ordering::Relaxed);
        // The worker that has claimed the other task dies. A worker of this version reclaims the task.
        let holder = format!("SELECT claimed_by FROM mill.tasks WHERE id = {left}");
        let holder: Uuid = database.value(&holder).await;
        let dead = old.iter().find(|worker| worker.id == holder).unwrap();
        let end = "SELECT pg_terminate_backend(pid) FROM unnest($1::integer[]) AS pid";
        database.rows(end, &[&vec![dead.pid, dead.control_pid]]).await;
        assert_eq!(database.outcome(left).await, "succeeded");
        assert_eq!(database.attempts(left).await, "lost succeeded");
        workers
    };
    let works = old.each_ref().map(|worker| worker.work(&stop, left));
    let (_, mut workers) = join(join_all(works), changes).await;
    each_task_once(database).await;
    for worker in &mut workers {
        assert!(worker.terminate().await.success(), "{}", worker.log());
    }
}

/// Asserts that all due tasks have ended successfully, with one effect each, and the run as well.
async fn each_task_once(database: &Database) {
    let due = "SELECT count(*) FROM mill.tasks WHERE state <> 'scheduled' OR due_at <= now()";
    eventually("all due tasks have ended", async || database.value::<i64>(due).await == 0).await;
    let odd =
        "SELECT coalesce(string_agg(DISTINCT concat_ws(' ', outcome, sqlstate, message), '; '), '')
        FROM mill.attempts WHERE final AND outcome <> 'succeeded'";
    assert_eq!(database.value::<String>(odd).await, "");
    let counts = "SELECT ARRAY[(SELECT count(*) FROM mill.attempts WHERE final AND node IS NULL),
        (SELECT count(*) FROM effect), (SELECT count(DISTINCT task) FROM effect)]";
    let counts: Vec<i64> = database.value(counts).await;
    assert!(counts.iter().all(|count| *count == counts[0]), "{counts:?}");
    println!("{} tasks, each once", counts[0]);
    let run = "SELECT string_agg(state::text, ' ') FROM mill.runs";
    eventually("the run ends", async || database.value::<String>(run).await == "succeeded").await;
    let left = "SELECT count(*) FROM mill.tasks WHERE state = 'scheduled' AND due_at > now()";
    assert_eq!(database.value::<i64>(left).await, 1);
    let next = "SELECT next_fire_at > now() FROM mill.schedules";
    assert!(database.value::<bool>(next).await);
}
