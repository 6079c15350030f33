//! A server with a queue, what belongs to others in it, and a digest of everything that no act may change.

use std::collections::BTreeSet;

use tokio_postgres::Client;

use crate::harness::login::PASSWORD;
use crate::harness::{Database, PrivateDatabase, Worker, open_url};

/// Rows that an act may add, because they are its own: tables of the schema.
pub(super) type OwnRows = &'static [&'static str];

/// One line for everything that no act may change.
pub(super) type Protected = BTreeSet<String>;

/// Catalogs of the server, with a column expression and a condition. Left out are counters and statistics, and
/// what belongs to the login `etl`: its schema, its password and its own defaults.
const CATALOGS: [(&str, &str, &str); 33] = [
    ("pg_authid", "t.rolname, t.rolsuper, t.rolinherit, t.rolcreaterole, t.rolcreatedb, t.rolcanlogin, t.rolreplication,
        t.rolbypassrls, t.rolconnlimit, t.rolvaliduntil, CASE WHEN t.rolname <> 'etl' THEN t.rolpassword END", "true"),
    ("pg_auth_members", "t", "true"),
    ("pg_db_role_setting", "t", "t.setrole <> 'etl'::regrole"),
    ("pg_database", "t.datname, t.datdba, t.datacl, t.datallowconn, t.datconnlimit, t.dattablespace", "true"),
    ("pg_tablespace", "t", "true"),
    ("pg_namespace", "t", "t.nspname !~ '^pg_(toast_)?temp_|^mine$'"),
    ("pg_default_acl", "t", "true"),
    ("pg_proc", "t", "t.pronamespace <> ALL (ARRAY(SELECT n.oid FROM pg_namespace n WHERE n.nspname ~ '^pg_temp|^mine$'))"),
    ("pg_class", "t.oid, t.relname, t.relnamespace, t.relowner, t.relacl, t.relkind, t.relpersistence, t.relhasrules,
        t.relhastriggers, t.relrowsecurity, t.relforcerowsecurity, t.reloptions, t.relispartition, t.reltablespace",
        "t.relnamespace::regnamespace::text IN ('mill', 'theirs', 'public', 'pg_catalog', 'information_schema')"),
    ("pg_attribute", "t.attrelid, t.attname, t.atttypid, t.attnotnull, t.attisdropped, t.attacl, t.attoptions",
        "t.attrelid IN (SELECT c.oid FROM pg_class c WHERE c.relnamespace::regnamespace::text IN ('mill', 'theirs'))"),
    ("pg_attrdef", "t", "t.adrelid IN (SELECT c.oid FROM pg_class c WHERE c.relnamespace = 'mill'::regnamespace)"),
    ("pg_index", "t.indexrelid, t.indrelid, t.indisvalid, t.indisunique", "t.indrelid IN
        (SELECT c.oid FROM pg_class c WHERE c.relnamespace = 'mill'::regnamespace)"),
    ("pg_constraint", "t", "t.connamespace::regnamespace::text <> ALL ('{mine}')"),
    ("pg_trigger", "t", "true"),
    ("pg_rewrite", "t", "t.ev_class NOT IN (SELECT c.oid FROM pg_class c WHERE c.relnamespace = 'mine'::regnamespace)"),
    ("pg_policy", "t", "true"),
    ("pg_inherits", "t", "true"),
    ("pg_type", "t", "t.typnamespace::regnamespace::text IN ('mill', 'theirs', 'public', 'pg_catalog')"),
    ("pg_enum", "t", "true"),
    ("pg_cast", "t", "true"),
    ("pg_operator", "t", "t.oprnamespace::regnamespace::text <> ALL ('{mine}')"),
    ("pg_aggregate", "t", "t.aggfnoid::oid < 16384"),
    ("pg_event_trigger", "t", "true"),
    ("pg_extension", "t", "true"),
    ("pg_language", "t", "true"),
    ("pg_foreign_server", "t", "true"),
    ("pg_publication", "t", "true"),
    ("pg_publication_rel", "t", "true"),
    ("pg_replication_slots", "t.slot_name", "true"),
    ("pg_largeobject_metadata", "t", "true"),
    ("pg_largeobject", "t", "true"),
    ("pg_description", "t", "t.objoid NOT IN (SELECT c.oid FROM pg_class c WHERE c.relnamespace = 'mine'::regnamespace)"),
    ("pg_shdescription", "t", "true"),
];

/// What else belongs to others: settings of the server, sessions, and data.
const OTHERS: [(&str, &str); 5] = [
    ("postgresql.auto.conf", "SELECT pg_read_file('postgresql.auto.conf')"),
    (
        "settings",
        "SELECT name || ' ' || coalesce(reset_val, '') FROM pg_settings
        WHERE source IN ('configuration file', 'command line') AND name !~ 'application_name'",
    ),
    (
        "sessions",
        "SELECT pid || ' ' || backend_start FROM pg_stat_activity WHERE usename IN ('other', 'bystander')",
    ),
    ("prepared", "SELECT gid FROM pg_prepared_xacts"),
    ("data of others", "SELECT n::text FROM theirs.secret"),
];

/// Tables whose rows a worker writes by itself.
pub(super) const OF_WORKERS: OwnRows =
    &["workers", "worker_starts", "progress", "wal_positions", "limit_reconciliation"];

/// A private server with one queue, in which every role has a login.
pub(super) struct World {
    pub(super) private: PrivateDatabase,
    /// Sessions of others, which no act may end.
    _bystanders: Vec<Client>,
    /// Values for the placeholders of acts.
    values: Vec<(&'static str, String)>,
}

impl World {
    pub(super) async fn new() -> Self {
        let private = PrivateDatabase::new(&[("fsync", "off")]).await;
        let database = &private.database;
        let logins = ["etl", "other", "bystander", "producer", "viewer", "operator", "worker"];
        for login in logins {
            database.execute(&format!("CREATE ROLE {login} LOGIN PASSWORD '{PASSWORD}'")).await;
        }
        database
            .execute(
                "GRANT mill_producer TO producer; GRANT mill_viewer TO viewer; GRANT mill_operator TO operator;
                 GRANT mill_worker TO worker, bystander;
                 CREATE SCHEMA mine AUTHORIZATION etl; CREATE SCHEMA theirs AUTHORIZATION other;
                 GRANT USAGE ON SCHEMA theirs TO PUBLIC;
                 CREATE TABLE theirs.secret (n int); ALTER TABLE theirs.secret OWNER TO other;
                 INSERT INTO theirs.secret VALUES (4711);
                 CREATE FUNCTION theirs.pay() RETURNS void LANGUAGE sql SECURITY DEFINER AS 'DELETE FROM theirs.secret';
                 ALTER FUNCTION theirs.pay OWNER TO other; REVOKE EXECUTE ON FUNCTION theirs.pay FROM PUBLIC;
                 SELECT lo_from_bytea(4711, 'secret'); ALTER LARGE OBJECT 4711 OWNER TO other;
                 SELECT mill.set_profile('open', allowed => '{mill_producer}'), mill.set_profile('closed', allowed => '{other}');
                 SELECT mill.prepare_history(), mill.set_max_running('queue', 'other', 1),
                     mill.set_job('work', '[{\"name\": \"t\", \"statement\": \"SELECT 1\", \"queue\": \"held\"}]'),
                     mill.set_job('pays', '[{\"name\": \"t\", \"statement\": \"SELECT 1\", \"queue\": \"held\", \"run_as\": \"closed\"}]'),
                     mill.set_schedule('yearly', 'yearly(01-01 00:00)', 'SELECT 1'),
                     mill.set_subscription('s', '{\"events\": [\"run_failed\"], \"channel\": \"c\"}');
                 SELECT mill.pause('held')",
            )
            .await;
        let waiting =
            database.enqueue("SELECT 'theirs'", ", queue => 'held', run_as => 'closed'").await;
        let running = database.enqueue("SELECT 'running'", ", queue => 'held', key => 'k'").await;
        let ended = database.enqueue("SELECT 'ended'", ", queue => 'held'").await;
        database.execute(&format!("SELECT mill.cancel({ended})")).await;
        database.run_as_worker(&format!("id = {running}")).await;
        let run: i64 = database.value("SELECT run_id FROM mill.start_run(ARRAY['work'])").await;
        database.execute(&format!("SELECT mill.advance_run({run})")).await;
        let token: String = database
            .value(&format!("SELECT token::text FROM mill.tasks WHERE id = {running}"))
            .await;
        let mut bystanders = Vec::new();
        for login in ["other", "bystander"] {
            bystanders.push(open_url(&database.url_as(login, PASSWORD)).await);
        }
        let pid = async |client: &Client| {
            client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get::<_, i32>(0)
        };
        // The worker of the running task is alive.
        database
            .execute(
                "INSERT INTO mill.workers (id, readers, heartbeat_interval, orphan_timeout, session_pid, session_started_at)
                 SELECT t.claimed_by, 1, '1 day', '3 days', a.pid, a.backend_start
                 FROM mill.tasks t, pg_stat_activity a WHERE t.state = 'running' AND a.usename = 'bystander'",
            )
            .await;
        let values = vec![
            ("{waiting}", waiting.to_string()),
            ("{running}", running.to_string()),
            ("{ended}", ended.to_string()),
            ("{run}", run.to_string()),
            ("{token}", token),
            ("{pid}", pid(&bystanders[0]).await.to_string()),
            ("{worker_pid}", pid(&bystanders[1]).await.to_string()),
        ];
        Self { private, _bystanders: bystanders, values }
    }

    pub(super) fn database(&self) -> &Database {
        &self.private.database
    }

    /// Returns the statement of an act with the values for its placeholders.
    pub(super) fn statement(&self, act: &str) -> String {
        let values = self.values.iter();
        values.fold(act.to_owned(), |text, (name, value)| text.replace(name, value))
    }

    /// Starts a worker that runs the tasks of the queue `default` as `etl`.
    pub(super) async fn worker(&self) -> Worker {
        let database = self.database();
        let task_url = database.url_as("etl", PASSWORD);
        let flags =
            ["--readers", "1", "--task-url", &task_url, "--queues", "default", "--no-scheduler"];
        let variables = [("PGMILL_ALLOW_SUPERUSER", "false")];
        let worker = Worker::start_with(&database.url_as("worker", PASSWORD), &flags, &variables);
        worker.until_logged("ready").await;
        worker
    }

    /// Returns one line for everything that no act may change.
    pub(super) async fn protected(&self) -> Protected {
        let database = self.database();
        let tables = "SELECT c.relname::text FROM pg_class c WHERE c.relnamespace = 'mill'::regnamespace AND c.relkind = 'r'";
        let mut lines = BTreeSet::new();
        let mut add = async |name: &str, query: &str| {
            for row in database.rows(query, &[]).await {
                lines.insert(format!(
                    "{name}: {}",
                    row.get::<_, Option<String>>(0).unwrap_or_default()
                ));
            }
        };
        for row in database.rows(tables, &[]).await {
            let table: String = row.get(0);
            add(&table, &format!("SELECT t::text FROM mill.{table} t")).await;
        }
        for (catalog, columns, condition) in CATALOGS {
            let columns = if columns == "t" { "t.*" } else { columns };
            // The server itself has thousands of rows.
            let digest = format!(
                "SELECT count(*) || ' rows ' || md5(string_agg(r::text, '' ORDER BY r::text COLLATE \"C\"))
                 FROM (SELECT {columns} FROM {catalog} t WHERE {condition}) AS r"
            );
            add(catalog, &digest).await;
        }
        for (name, query) in OTHERS {
            add(name, query).await;
        }
        lines
    }
}

/// Returns the lines by which `after` differs, except for rows that were added to tables of `own`. What has
/// another row in tables of `written` does not count at all.
pub(super) fn differences(
    before: &Protected,
    after: &Protected,
    own: OwnRows,
    written: OwnRows,
) -> Vec<String> {
    let table = |line: &str| line.split(':').next().unwrap_or_default().to_owned();
    let is_of = |line: &str, tables: OwnRows| {
        let name = table(line);
        tables.iter().any(|it| name == *it || (*it == "attempts" && name.starts_with("attempts_")))
    };
    let gone = before.difference(after).filter(|line| !is_of(line, written));
    let new = after.difference(before).filter(|line| !is_of(line, written) && !is_of(line, own));
    gone.map(|line| format!("- {line}")).chain(new.map(|line| format!("+ {line}"))).collect()
}
