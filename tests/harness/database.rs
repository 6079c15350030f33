//! One database per test, copied from a template that contains the schema.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use conninfo::{ConnectionTarget, Environment};
use tokio::sync::Mutex;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{FromSqlOwned, ToSql};
use tokio_postgres::{Client, Row};

use super::login::create_logins;

/// Variable that `cluster run` sets.
const CLUSTER: &str = "PGMILL_TEST_URL";

/// Variable that `mutants` sets: a file with the schema to test instead of the product's own.
const SCHEMA: &str = "PGMILL_TEST_SCHEMA";

/// Maximum time that a test waits until its database is dropped.
const MAX_DROP: Duration = Duration::from_secs(5);

/// Interval between counts of the remaining tasks.
const BETWEEN_COUNTS: Duration = Duration::from_millis(100);

/// Creates a publication for every table of the schema that a publication FOR ALL TABLES would
/// include. It leaves out the tables of the tests, which may have no key.
const PUBLICATION: &str = "DO $$BEGIN EXECUTE (SELECT 'CREATE PUBLICATION everything FOR TABLE '
        || string_agg(c.oid::regclass::text, ', ') FROM pg_class c
    WHERE c.relnamespace = 'mill'::regnamespace AND c.relkind IN ('r', 'p')
        AND c.relpersistence = 'p' AND NOT c.relispartition); END$$";

/// Name of the newest template.
static TEMPLATE: Mutex<String> = Mutex::const_new(String::new());
static NEXT: AtomicU32 = AtomicU32::new(1);

/// Returns SQL that claims the pending tasks that meet the condition, as a worker without a backend does.
pub(crate) fn claim_as_worker(condition: &str) -> String {
    format!(
        "UPDATE mill.tasks SET state = 'running', attempt = attempt + 1, claimed_by = gen_random_uuid(),
             claimed_at = clock_timestamp(), token = gen_random_uuid(), session_pid = 1,
             session_started_at = now() WHERE state = 'pending' AND {condition}"
    )
}

/// A database with the schema, and a superuser session. Dropped with the value.
pub(crate) struct Database {
    name: String,
    /// Connection string of the database's cluster.
    cluster: String,
    client: Client,
}

impl Database {
    /// Creates a database.
    pub(crate) async fn new() -> Self {
        let admin = open(&target(&cluster_url())).await;
        let template = template(&admin).await;
        Self::create_as(next_name(), cluster_url(), &admin, &format!("TEMPLATE {template}")).await
    }

    /// Creates a database in the test's own cluster.
    pub(crate) async fn new_in(cluster: String) -> Self {
        let database = Self::create(cluster, "").await;
        install(&database.client).await;
        database
    }

    /// Renames a database of the test's own cluster.
    pub(crate) async fn renamed(cluster: String, from: &str) -> Self {
        super::print_failures_at_once();
        let name = next_name();
        let rename = format!("ALTER DATABASE {from} RENAME TO {name}");
        open(&target(&cluster)).await.batch_execute(&rename).await.unwrap();
        let client = open(&target(&url(&cluster, &name))).await;
        Self { name, cluster, client }
    }

    /// Opens the database of the same name in `cluster`, which is a copy of this database's cluster.
    pub(crate) async fn in_copy(&self, cluster: String) -> Self {
        let client = open(&target(&url(&cluster, &self.name))).await;
        Self { name: self.name.clone(), cluster, client }
    }

    /// Creates a database without the schema.
    pub(crate) async fn empty() -> Self {
        Self::create(cluster_url(), "").await
    }

    /// Creates a database without the schema, in another encoding.
    pub(crate) async fn with_encoding(encoding: &str) -> Self {
        let how = format!("ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0");
        Self::create(cluster_url(), &how).await
    }

    /// Creates a database whose texts are compared by ICU, without the schema.
    pub(crate) async fn with_icu() -> Self {
        let how =
            "LOCALE_PROVIDER icu ICU_LOCALE 'und' LOCALE 'C' ENCODING 'UTF8' TEMPLATE template0";
        Self::create(cluster_url(), how).await
    }

    /// Copies the database with its content. Terminates all sessions of this database, including
    /// that of this value.
    pub(crate) async fn copy(&self) -> Self {
        let admin = open(&target(&self.cluster)).await;
        let end =
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = $1";
        admin.query(end, &[&self.name]).await.unwrap();
        Self::create(self.cluster.clone(), &format!("TEMPLATE {}", self.name)).await
    }

    /// Creates a database with a readable name, for screenshots; replaces an existing one.
    pub(crate) async fn named(name: &str) -> Self {
        let admin = open(&target(&cluster_url())).await;
        let template = template(&admin).await;
        let drop = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
        admin.batch_execute(&drop).await.unwrap();
        let how = format!("TEMPLATE {template}");
        Self::create_as(name.to_owned(), cluster_url(), &admin, &how).await
    }

    async fn create(cluster: String, how: &str) -> Self {
        let admin = open(&target(&cluster)).await;
        Self::create_as(next_name(), cluster, &admin, how).await
    }

    async fn create_as(name: String, cluster: String, admin: &Client, how: &str) -> Self {
        super::print_failures_at_once();
        let create = format!("CREATE DATABASE {name} {how}");
        // The server waits for five seconds until no session uses the template, such as one of autovacuum.
        super::eventually("no session uses the template", async || {
            let Err(error) = admin.batch_execute(&create).await else { return true };
            assert_eq!(error.code(), Some(&SqlState::OBJECT_IN_USE), "{error:?}");
            false
        })
        .await;
        let client = open(&target(&url(&cluster, &name))).await;
        Self { name, cluster, client }
    }

    /// Returns the major version of the server.
    pub(crate) async fn major(&self) -> i32 {
        self.value("SELECT current_setting('server_version_num')::integer / 10000").await
    }

    /// Returns a superuser's URL for programs.
    pub(crate) fn url(&self) -> String {
        url(&self.cluster, &self.name)
    }

    /// Returns the name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns a connection target.
    pub(crate) fn target(&self) -> ConnectionTarget {
        target(&self.url())
    }

    /// Returns the superuser's session.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Opens another superuser session.
    pub(crate) async fn connect(&self) -> Client {
        open(&self.target()).await
    }

    /// Reopens the superuser's session after the server has terminated it.
    pub(crate) async fn reconnect(&mut self) {
        self.client = self.connect().await;
    }

    /// Runs statements that return nothing.
    pub(crate) async fn execute(&self, sql: &str) {
        self.client.batch_execute(sql).await.unwrap_or_else(|error| panic!("{error:?} in {sql}"));
    }

    /// Replaces the function `refuse` of a test's trigger by one that refuses nothing. DROP TRIGGER would
    /// lock the tables of the queue in another order than the workers do.
    pub(crate) async fn refuse_no_more(&self) {
        self.execute(
            "CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN RETURN NEW; END $$",
        )
        .await;
    }

    /// Creates the partition of history of a day (UTC) before today, unless it exists.
    pub(crate) async fn create_day(&self, days_ago: i32) {
        self.execute(&format!(
            "DO $$ DECLARE
                day date := (now() AT TIME ZONE 'UTC')::date - {days_ago};
                name text := 'attempts_' || to_char(day, 'YYYYMMDD');
            BEGIN
                IF to_regclass('mill.' || name) IS NULL THEN
                    EXECUTE format('CREATE TABLE mill.%I (LIKE mill.attempts INCLUDING DEFAULTS)', name);
                    EXECUTE format('ALTER TABLE mill.%I REPLICA IDENTITY FULL', name);
                    EXECUTE format('ALTER TABLE mill.attempts ATTACH PARTITION mill.%I FOR VALUES FROM (%L) TO (%L)',
                        name, day || ' UTC', (day + 1) || ' UTC');
                END IF;
            END $$"
        ))
        .await;
    }

    /// Creates the partitions of the three days before today. A test that moves attempts into the past
    /// needs them: shortly after midnight, even the last minutes belong to the day before.
    pub(crate) async fn create_days_before(&self) {
        for days_ago in 1..=3 {
            self.create_day(days_ago).await;
        }
    }

    /// Returns all rows.
    pub(crate) async fn rows(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Vec<Row> {
        self.client.query(sql, params).await.unwrap_or_else(|error| panic!("{error:?} in {sql}"))
    }

    /// Returns the only value of the only row.
    pub(crate) async fn value<T: FromSqlOwned>(&self, sql: &str) -> T {
        let rows = self.rows(sql, &[]).await;
        assert_eq!(rows.len(), 1, "one row from {sql}");
        rows[0].get(0)
    }

    /// Executes the statement and returns how many blocks it read, cached or not. Compare the fewest
    /// of several calls: one in a session without cached catalog entries reads about 1,000 blocks
    /// more, and any database that is created or removed on the server can empty the cache.
    pub(crate) async fn blocks_of(&self, sql: &str) -> i64 {
        let explain = format!("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}");
        let plan: serde_json::Value = self.value(&explain).await;
        ["Shared Hit Blocks", "Shared Read Blocks"]
            .map(|kind| plan[0]["Plan"][kind].as_i64().unwrap())
            .iter()
            .sum()
    }

    /// Enqueues with `mill.enqueue('statement', …)`; `options` has the form `, name => value`.
    pub(crate) async fn enqueue(&self, statement: &str, options: &str) -> i64 {
        let sql = format!("SELECT mill.enqueue($1{options})");
        self.rows(&sql, &[&statement]).await[0].get(0)
    }

    /// Enqueues the statement this many times in one call of `mill.enqueue_many`.
    pub(crate) async fn enqueue_many(&self, count: i32, statement: &str) {
        let sql = "SELECT mill.enqueue_many(array_fill($1::text, ARRAY[$2::integer]))";
        self.rows(sql, &[&statement, &count]).await;
    }

    /// Claims the pending tasks that meet the condition, as a worker without a backend does.
    pub(crate) async fn run_as_worker(&self, condition: &str) {
        self.execute(&claim_as_worker(condition)).await;
    }

    /// Waits until a session waits for a lock of another session, or the condition is true.
    pub(crate) async fn until_a_session_waits_or(&self, condition: &str) {
        let sql = format!(
            "SELECT EXISTS (SELECT FROM pg_stat_activity
                 WHERE datname = current_database() AND wait_event_type = 'Lock') OR {condition}"
        );
        super::eventually("a session waits for a lock", async || self.value(&sql).await).await;
    }

    /// Returns the rows of a query that waits for a lock of another transaction. The transaction first
    /// executes `locks`. When the query waits, a third session executes `meanwhile`, and the transaction
    /// commits.
    pub(crate) async fn rows_after(
        &self,
        locks: &str,
        query: &str,
        meanwhile: &str,
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        let (holder, caller) = (self.connect().await, self.connect().await);
        holder.batch_execute(&format!("BEGIN; {locks}")).await.unwrap();
        let commit = async {
            self.until_a_session_waits_or("false").await;
            self.execute(meanwhile).await;
            holder.batch_execute("COMMIT").await.unwrap();
        };
        tokio::join!(caller.query(query, &[]), commit).0
    }

    /// Waits until the task has ended and returns its outcome.
    pub(crate) async fn outcome(&self, id: i64) -> String {
        let sql = "SELECT outcome::text FROM mill.attempts WHERE task_id = $1 AND final
                   AND NOT EXISTS (SELECT FROM mill.tasks WHERE id = $1)
                   ORDER BY finished_at DESC LIMIT 1";
        super::eventually(&format!("task {id} ends"), async || {
            !self.rows(sql, &[&id]).await.is_empty()
        })
        .await;
        self.rows(sql, &[&id]).await[0].get(0)
    }

    /// Waits until the task is in this state.
    pub(crate) async fn until_state(&self, id: i64, state: &str) {
        let sql = "SELECT FROM mill.tasks WHERE id = $1 AND state = $2::text::mill.state";
        super::eventually(&format!("task {id} is {state}"), async || {
            !self.rows(sql, &[&id, &state]).await.is_empty()
        })
        .await;
    }

    /// Waits until the task's statement waits for an advisory lock.
    pub(crate) async fn until_waiting_for_lock(&self, id: i64) {
        let sql = "SELECT FROM mill.running WHERE id = $1 AND wait_event = 'advisory'";
        super::eventually(&format!("task {id} waits for its lock"), async || {
            !self.rows(sql, &[&id]).await.is_empty()
        })
        .await;
    }

    /// Waits until a worker has begun a poll after now.
    pub(crate) async fn until_next_poll(&self) {
        let now: String = self.value("SELECT clock_timestamp()::text").await;
        let polled = format!(
            "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()
                 AND query LIKE '%/* queue.poll */%' AND query_start > '{now}' AND pid <> pg_backend_pid())"
        );
        super::eventually("a worker polls", async || self.value(&polled).await).await;
    }

    /// Returns the outcomes of the task's attempts, oldest first: `failed failed succeeded`. Their
    /// errors are in the output of a test that fails.
    pub(crate) async fn attempts(&self, id: i64) -> String {
        let sql = "SELECT coalesce(string_agg(outcome::text, ' ' ORDER BY finished_at), ''),
                       string_agg(concat_ws(' ', outcome, sqlstate, message), E'\n' ORDER BY finished_at)
                   FROM mill.attempts WHERE task_id = $1";
        let row = &self.rows(sql, &[&id]).await[0];
        println!("attempts of task {id}: {:?}", row.get::<_, Option<String>>(1));
        row.get(0)
    }

    /// Waits until this many workers have sent a heartbeat since this moment.
    pub(crate) async fn until_alive(&self, workers: i64) {
        let now: String = self.value("SELECT clock_timestamp()::text").await;
        let alive = format!("SELECT count(*) FROM mill.workers WHERE heartbeat_at > '{now}'");
        super::eventually(&format!("{workers} workers are alive"), async || {
            self.value::<i64>(&alive).await == workers
        })
        .await;
    }

    /// Waits until no other program has a session in this database. A statement of a killed worker can
    /// run on for a moment, and its locks can be part of a deadlock.
    pub(crate) async fn until_no_other_session(&self) {
        let others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
            AND backend_type = 'client backend' AND pid <> pg_backend_pid()";
        super::eventually("the other sessions are gone", async || {
            self.value::<i64>(others).await == 0
        })
        .await;
    }

    /// Waits until no live task is left. Fails if their number stops decreasing for too long.
    pub(crate) async fn until_empty(&self) {
        let mut left = i64::MAX;
        while left > 0 {
            let before = left;
            super::eventually(&format!("fewer than {before} tasks are left"), async || {
                left = self.value("SELECT count(*) FROM mill.tasks").await;
                left < before
            })
            .await;
            // Each count reads the whole table: continuous counting would slow down the workers.
            tokio::time::sleep(BETWEEN_COUNTS).await;
        }
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let (name, cluster) = (self.name.clone(), self.cluster.clone());
        let (sender, dropped) = mpsc::channel();
        // Use a separate runtime, because the test's runtime is about to end.
        std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let admin = open(&target(&cluster)).await;
                let _ = admin.batch_execute(&format!("DROP DATABASE {name} WITH (FORCE)")).await;
            });
            let _ = sender.send(());
        });
        // DROP DATABASE waits for sessions that log in, since PostgreSQL 18. This thread may drive such a
        // session, which would wait for the end of this function.
        let _ = dropped.recv_timeout(MAX_DROP);
    }
}

fn next_name() -> String {
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("mill_test_{}_{n}", std::process::id())
}

/// Returns a database with the schema, to copy. The history of a copy has the partitions of the day of
/// its template, so each day has its own.
async fn template(admin: &Client) -> String {
    let mut newest = TEMPLATE.lock().await;
    let day = "SELECT to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD')";
    let day: String = admin.query_one(day, &[]).await.unwrap().get(0);
    let name = format!("mill_template_{}_{day}", std::process::id());
    if *newest != name {
        create_template(&cluster_url(), &name).await;
        newest.clone_from(&name);
    }
    name
}

/// Creates a database with the schema, which remains until its cluster is removed.
pub(crate) async fn create_template(cluster: &str, name: &str) {
    let admin = open(&target(cluster)).await;
    admin.batch_execute(&format!("CREATE DATABASE {name}")).await.unwrap();
    install(&open(&target(&url(cluster, name))).await).await;
}

/// Installs the schema, and creates a publication for all its tables, as tools for replication and
/// change data capture do. The server then refuses changes of rows that have no replica identity.
async fn install(client: &Client) {
    #[expect(clippy::disallowed_methods, reason = "set by `mutants`")]
    match std::env::var_os(SCHEMA) {
        None => {
            queue::schema::init(client).await.unwrap();
        }
        Some(file) => {
            let schema = std::fs::read_to_string(file).unwrap();
            client.batch_execute(&schema).await.unwrap();
        }
    }
    client.batch_execute(PUBLICATION).await.unwrap();
    create_logins(client).await;
}

/// Opens a session that is driven in the background until dropped.
pub(crate) async fn open(target: &ConnectionTarget) -> Client {
    let (client, connection) = conninfo::open(target).await.unwrap();
    #[expect(clippy::disallowed_methods, reason = "a test ends with its runtime")]
    tokio::spawn(connection);
    client
}

/// Opens a session with the login of the URL.
pub(crate) async fn open_url(url: &str) -> Client {
    open(&target(url)).await
}

/// Returns a target with a time limit for connections that a busy machine does not reach.
fn target(url: &str) -> ConnectionTarget {
    let environment = Environment::from_variables([("PGCONNECT_TIMEOUT", "60")], None);
    ConnectionTarget::resolve(Some(url), &environment).unwrap()
}

fn url(cluster: &str, database: &str) -> String {
    let (place, _) = cluster.rsplit_once('/').unwrap();
    format!("{place}/{database}")
}

fn cluster_url() -> String {
    #[expect(clippy::disallowed_methods, reason = "the one setting of the tests")]
    std::env::var(CLUSTER).unwrap_or_else(|_| panic!("{CLUSTER} is not set: run `make test`"))
}
