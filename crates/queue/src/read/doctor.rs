//! Facts on which the health of the fleet depends and that are not in its own tables: the server
//! and its settings, roles, sessions, and transactions that prevent the removal of dead rows.
//! `pgmill doctor` evaluates these facts.

use conninfo::GenericClient;
use jiff::Timestamp;
use jiff::civil::Date;
use serde::Serialize;

use crate::error::QueueError;
use crate::row::{first, from_row, one, rows};

const SERVER: &str = "SELECT /* queue.doctor_server */ current_setting('server_version_num')::int4 AS version_number,
    current_setting('server_version') AS version, (now() AT TIME ZONE 'UTC')::date AS today,
    pg_is_in_recovery() AS in_recovery,
    current_user::text AS role, current_setting('max_connections')::int4
        - current_setting('superuser_reserved_connections')::int4 AS connections_allowed,
    (SELECT count(*) FROM pg_stat_activity a WHERE a.usesysid IS NOT NULL AND a.datid IS NOT NULL) AS connections";

/// The limits of transaction ids and multixact ids are the same, and apply to the whole server.
const OLDEST_DATABASE: &str = "SELECT /* queue.doctor_oldest_database */ d.datname::text AS name, greatest(age(d.datfrozenxid), mxid_age(d.datminmxid)) AS age
FROM pg_database d ORDER BY 2 DESC, 1 LIMIT 1";

const SETTINGS: &str = "SELECT /* queue.doctor_settings */ s.name, s.setting AS value FROM pg_settings s WHERE s.name IN ('fsync', 'synchronous_commit',
    'full_page_writes', 'autovacuum', 'track_activities', 'track_counts',
    'client_connection_check_interval')";

/// Settings of superusers are included, because a superuser counts as a member of every role. Of other
/// roles, those with sessions of readers run tasks.
const OVERRIDES: &str = "SELECT /* queue.doctor_overrides */ split_part(c.setting, '=', 1) AS name, substr(c.setting, strpos(c.setting, '=') + 1) AS value,
    CASE WHEN d.setdatabase = 0 THEN NULL ELSE current_database()::text END AS database,
    CASE WHEN d.setrole = 0 THEN NULL ELSE pg_get_userbyid(d.setrole)::text END AS role,
    d.setrole <> 0 AND NOT w.member AS only_tasks
FROM pg_db_role_setting d CROSS JOIN unnest(d.setconfig) AS c (setting) CROSS JOIN LATERAL (
    SELECT coalesce(pg_has_role(nullif(d.setrole, 0), to_regrole('mill_worker'), 'USAGE'), false) AS member) AS w
WHERE d.setdatabase IN (0, (SELECT b.oid FROM pg_database b WHERE b.datname = current_database()))
    AND (d.setrole = 0 OR w.member OR d.setrole IN (SELECT a.usesysid FROM pg_stat_activity a
        WHERE a.datname = current_database() AND a.application_name LIKE 'pgmill reader %'))
    AND split_part(c.setting, '=', 1) IN ('statement_timeout', 'lock_timeout',
        'idle_in_transaction_session_timeout', 'idle_session_timeout', 'transaction_timeout',
        'default_transaction_isolation', 'default_transaction_read_only', 'synchronous_commit')
UNION ALL
SELECT s.name, s.setting, NULL, NULL, false FROM pg_settings s
WHERE s.source = 'configuration file' AND s.name IN ('statement_timeout', 'lock_timeout',
    'idle_in_transaction_session_timeout', 'idle_session_timeout', 'transaction_timeout',
    'default_transaction_isolation', 'default_transaction_read_only')
ORDER BY 1, 3, 4";

const GRANTS: &str = "SELECT /* queue.doctor_grants */ wanted.role, wanted.granted, CASE WHEN to_regrole(wanted.role) IS NULL THEN false
    ELSE pg_has_role(to_regrole(wanted.role), to_regrole(wanted.granted), 'USAGE') END AS present
FROM (VALUES ('mill_worker', 'pg_read_all_stats'), ('mill_worker', 'pg_signal_backend'),
    ('mill_owner', 'pg_read_all_stats')) AS wanted (role, granted)";

/// Every role may use types, and PUBLIC may execute what `schema.sql` allows; the comparison with
/// `schema.sql` reports other routines of PUBLIC.
const FOREIGN_GRANTS: &str = "WITH /* queue.doctor_foreign_grants */ object AS (
    SELECT c.relname::text AS name, c.relowner AS owner, c.relacl AS acl FROM pg_class c
        WHERE c.relnamespace = to_regnamespace('mill')
    UNION ALL SELECT format('%s.%s', c.relname, a.attname), c.relowner, a.attacl
        FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND NOT a.attisdropped
        WHERE c.relnamespace = to_regnamespace('mill')
    UNION ALL SELECT p.proname, p.proowner, p.proacl FROM pg_proc p WHERE p.pronamespace = to_regnamespace('mill')
    UNION ALL SELECT 'schema', n.nspowner, n.nspacl FROM pg_namespace n WHERE n.nspname = 'mill'
)
SELECT CASE x.grantee WHEN 0 THEN 'PUBLIC' ELSE pg_get_userbyid(x.grantee)::text END AS role,
    string_agg(DISTINCT x.privilege_type, ', ') AS privileges, count(DISTINCT o.name) AS objects, min(o.name) AS example
FROM object o CROSS JOIN aclexplode(o.acl) x
WHERE x.grantee <> o.owner AND NOT (x.grantee = 0 AND x.privilege_type IN ('EXECUTE', 'USAGE'))
    AND pg_get_userbyid(x.grantee) NOT IN ('mill_worker', 'mill_operator', 'mill_producer', 'mill_viewer')
GROUP BY x.grantee ORDER BY role";

/// Finds the control session of a worker by its registration, and a task session by its task. Every
/// role can see the pid and the user of these sessions.
const SESSION_ROLES: &str = "SELECT /* queue.doctor_session_roles */ a.usename::text AS name, bool_or(s.running) AS runs_tasks, count(*) AS sessions,
    r.rolsuper AS superuser, pg_has_role(a.usesysid, to_regrole('mill_owner'), m.rights) AS owner,
    pg_has_role(a.usesysid, to_regrole('mill_worker'), m.rights) AS worker
FROM (SELECT mill.membership_rights() AS rights) AS m CROSS JOIN (
    SELECT t.session_pid, true FROM mill.tasks t WHERE t.state = 'running'
    UNION ALL
    SELECT w.session_pid, false FROM mill.workers w
) AS s (pid, running)
    JOIN pg_stat_activity a ON a.pid = s.pid JOIN pg_roles r ON r.oid = a.usesysid
WHERE a.datname = current_database()
GROUP BY a.usename, a.usesysid, r.rolsuper, m.rights ORDER BY a.usename";

/// Returns the oldest transaction ids that are still needed. Dead rows of this database cannot be
/// removed while a standby's feedback or a prepared transaction needs them. A running vacuum and
/// sessions of other databases do not prevent the removal.
fn horizon_statement(sessions: &str) -> String {
    format!(
        "SELECT /* queue.doctor_horizon */ * FROM (
    SELECT CASE s.kind WHEN 'walsender' THEN 'standby' ELSE 'session' END AS kind,
        s.pid::text AS name, s.login AS user, s.application_name AS application, s.age_xids, s.xact_start AS since,
        extract(epoch FROM now() - s.xact_start)::float8 AS age_seconds, s.state,
        (SELECT left(regexp_replace(a.query, '^.*?/\\* worker[.]begin \\*/.*?;\\n', ''), 200)
            FROM pg_stat_activity a
            WHERE a.pid = s.pid AND a.query <> '<insufficient privilege>') AS query
    FROM {sessions} AS s WHERE s.pid <> pg_backend_pid() AND s.age_xids IS NOT NULL
    UNION ALL
    SELECT 'prepared transaction', p.gid, p.owner::text, NULL, age(p.transaction), p.prepared,
        extract(epoch FROM now() - p.prepared)::float8, NULL, NULL
    FROM pg_prepared_xacts p WHERE p.database = current_database()
    UNION ALL
    SELECT 'replication slot', s.slot_name::text, NULL, s.plugin::text,
        greatest(age(s.xmin), age(s.catalog_xmin)), NULL, NULL,
        CASE WHEN s.active THEN 'active' ELSE 'inactive' END, NULL
    FROM pg_replication_slots s WHERE coalesce(s.xmin, s.catalog_xmin) IS NOT NULL
) AS holders ORDER BY age_xids DESC NULLS LAST, age_seconds DESC NULLS LAST LIMIT 5"
    )
}

/// Null without the function.
const SESSIONS_VISIBLE: &str = "SELECT /* queue.sessions_visible */ has_function_privilege(to_regprocedure('mill.sessions()')::oid, 'EXECUTE')";

const OWN_SESSIONS: &str = "(SELECT a.pid, a.backend_start, a.backend_type AS kind, a.usename::text AS login,
    a.application_name, a.state, a.xact_start, greatest(age(a.backend_xmin), age(a.backend_xid)) AS age_xids
    FROM pg_stat_activity a
    WHERE a.datname = current_database() AND a.usesysid IS NOT NULL OR a.backend_type = 'walsender')";

const TABLES: &str = "SELECT /* queue.doctor_tables */ s.n_live_tup AS live_rows, s.n_dead_tup AS dead_rows, pg_total_relation_size(s.relid) AS bytes,
    greatest(s.last_vacuum, s.last_autovacuum) AS vacuumed_at,
    ARRAY(SELECT day::date::text FROM generate_series((now() AT TIME ZONE 'UTC')::date,
            (now() AT TIME ZONE 'UTC')::date + 1, '1 day') AS day
        WHERE NOT EXISTS (SELECT FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
            WHERE i.inhparent = 'mill.attempts'::regclass
                AND c.relname = 'attempts_' || to_char(day, 'YYYYMMDD'))) AS missing_days,
    (SELECT count(*) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'mill.attempts'::regclass
            AND c.relname > 'attempts_' || to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD')) AS days_ahead,
    (SELECT count(*) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid CROSS JOIN mill.settings x
        WHERE i.inhparent = 'mill.attempts'::regclass AND c.relname
            < 'attempts_' || to_char((now() - x.history_retention) AT TIME ZONE 'UTC' - interval '1 day', 'YYYYMMDD')) AS days_overdue
FROM pg_stat_user_tables s WHERE s.relid = 'mill.tasks'::regclass";

/// The server.
#[derive(Clone, Debug)]
pub struct Server {
    /// Version number such as 150018.
    pub version_number: i32,
    /// Version text such as `15.18 (Debian …)`.
    pub version: String,
    /// Today, by the clock of the server.
    pub today: Date,
    /// Whether the server is a standby.
    pub in_recovery: bool,
    /// The current role.
    pub role: String,
    /// Maximum number of connections for roles that are not superusers.
    pub connections_allowed: i32,
    /// Current number of connections.
    pub connections: i64,
}

from_row! {
    Server { version_number, version, today, in_recovery, role, connections_allowed, connections }
}

/// The database whose rows are the closest to the limit of transaction ids.
#[derive(Clone, Debug)]
pub struct OldestDatabase {
    /// Name of the database.
    pub name: String,
    /// Age of the oldest row that is not frozen, in transaction ids or, if that is more, in
    /// multixact ids.
    pub age: i32,
}

from_row! { OldestDatabase { name, age } }

/// A setting and its value.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Name of the setting.
    pub name: String,
    /// Value of the setting, in the unit of `pg_settings`.
    pub value: String,
}

from_row! { Setting { name, value } }

/// A setting changed for a database, a role or the whole server.
#[derive(Clone, Debug)]
pub struct Override {
    /// The setting and its value.
    pub setting: Setting,
    /// The database to which the change is limited; `None` means every database.
    pub database: Option<String>,
    /// The role to which the change is limited; `None` means every role.
    pub role: Option<String>,
    /// Whether this role runs tasks, and is not a member of `mill_worker`.
    pub only_tasks: bool,
}

from_row! { row => Override { setting: Setting::from_row(row)?, database, role, only_tasks } }

/// A role membership that the fleet requires.
#[derive(Clone, Debug)]
pub struct Membership {
    /// The role that must be a member.
    pub role: String,
    /// The role of which it must be a member.
    pub granted: String,
    /// Whether the membership exists.
    pub present: bool,
}

from_row! { Membership { role, granted, present } }

/// A role under which sessions of the fleet run.
#[derive(Clone, Debug)]
pub struct SessionRole {
    /// Name of the role.
    pub name: String,
    /// Whether tasks run under this role, in addition to control sessions.
    pub runs_tasks: bool,
    /// Number of sessions.
    pub sessions: i64,
    /// Whether the role is a superuser.
    pub superuser: bool,
    /// Whether the role may change the schema.
    pub owner: bool,
    /// Whether the role has the privileges of a worker.
    pub worker: bool,
}

from_row! { SessionRole { name, runs_tasks, sessions, superuser, owner, worker } }

/// A holder of the xmin horizon: something that prevents the removal of dead rows.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct HorizonHolder {
    /// `session`, `standby`, `prepared transaction` or `replication slot`.
    pub kind: String,
    /// Process id of a session, or name of a prepared transaction, slot or standby.
    pub name: String,
    /// Login of the holder, if it has one.
    pub user: Option<String>,
    /// `application_name` of the session; for a replication slot, its output plugin.
    pub application: Option<String>,
    /// Age of the horizon that it holds, in transaction ids.
    pub age_xids: Option<i32>,
    /// Start of the holder's transaction; `None` if there is none or the current role may not see
    /// it.
    pub since: Option<Timestamp>,
    /// Age of the holder's transaction, in seconds.
    pub age_seconds: Option<f64>,
    /// State of the session, as in `pg_stat_activity`.
    pub state: Option<String>,
    /// First 200 characters of the session's last statement.
    pub query: Option<String>,
}

from_row! {
    HorizonHolder { kind, name, user, application, age_xids, since, age_seconds, state, query }
}

/// Privileges of a role on objects of the schema that were not granted by `schema.sql`.
#[derive(Clone, Debug)]
pub struct ForeignGrant {
    /// The role.
    pub role: String,
    /// Names of the privileges.
    pub privileges: String,
    /// Number of objects.
    pub objects: i64,
    /// Name of one of them.
    pub example: String,
}

from_row! { ForeignGrant { role, privileges, objects, example } }

/// The tables of tasks and attempts.
#[derive(Clone, Debug)]
pub struct Tables {
    /// Number of tasks, according to the statistics.
    pub live_rows: i64,
    /// Number of dead rows, according to the statistics.
    pub dead_rows: i64,
    /// Size with indexes, in bytes.
    pub bytes: i64,
    /// Time of the last vacuum.
    pub vacuumed_at: Option<Timestamp>,
    /// Which days, of today and tomorrow (UTC), history has no partition for.
    pub missing_days: Vec<String>,
    /// Number of partitions for future days.
    pub days_ahead: i64,
    /// Number of partitions that should have been dropped a day ago.
    pub days_overdue: i64,
}

from_row! {
    Tables { live_rows, dead_rows, bytes, vacuumed_at, missing_days, days_ahead, days_overdue }
}

/// Returns the server's version and connections.
pub async fn server(client: &impl GenericClient) -> Result<Server, QueueError> {
    one(client, SERVER, &[]).await
}

/// Returns the database of the server whose rows are the closest to the limit of transaction ids.
pub async fn oldest_database(client: &impl GenericClient) -> Result<OldestDatabase, QueueError> {
    one(client, OLDEST_DATABASE, &[]).await
}

/// Returns the server settings on which durability and maintenance depend.
pub async fn settings(client: &impl GenericClient) -> Result<Vec<Setting>, QueueError> {
    rows(client, SETTINGS, &[]).await
}

/// Returns the PostgreSQL settings that a new worker session starts with: timeouts, isolation and
/// durability, as set in the configuration file, by ALTER DATABASE or by ALTER ROLE.
pub async fn overrides(client: &impl GenericClient) -> Result<Vec<Override>, QueueError> {
    rows(client, OVERRIDES, &[]).await
}

/// Returns the memberships that the roles of pgmill require.
pub async fn memberships(client: &impl GenericClient) -> Result<Vec<Membership>, QueueError> {
    rows(client, GRANTS, &[]).await
}

/// Returns the roles that have privileges on objects of the schema and are no roles of pgmill.
pub async fn foreign_grants(client: &impl GenericClient) -> Result<Vec<ForeignGrant>, QueueError> {
    rows(client, FOREIGN_GRANTS, &[]).await
}

/// Returns the roles under which the fleet's sessions currently run.
pub async fn session_roles(client: &impl GenericClient) -> Result<Vec<SessionRole>, QueueError> {
    rows(client, SESSION_ROLES, &[]).await
}

/// Returns the five holders of the oldest transaction ids, oldest first.
pub async fn horizon(client: &impl GenericClient) -> Result<Vec<HorizonHolder>, QueueError> {
    let statement = horizon_statement(sessions(client).await?);
    rows(client, &statement, &[]).await
}

/// Returns the number of sessions of this database whose state and transaction the role cannot see.
pub async fn hidden_sessions(client: &impl GenericClient) -> Result<i64, QueueError> {
    let statement = format!(
        "SELECT /* queue.doctor_hidden_sessions */ count(*) FROM {} AS s WHERE s.state IS NULL AND s.kind IS NULL",
        sessions(client).await?
    );
    one(client, &statement, &[]).await
}

/// Returns the source of the sessions for a statement: the function of the schema, which sees all of
/// them, or the server's view if there is no such function or the role may not call it.
pub(crate) async fn sessions(client: &impl GenericClient) -> Result<&'static str, QueueError> {
    let usable: Option<bool> = one(client, SESSIONS_VISIBLE, &[]).await?;
    Ok(if usable == Some(true) { "mill.sessions()" } else { OWN_SESSIONS })
}

/// Returns the state of the tasks table and of history's partitions.
///
/// # Errors
/// Fails if the schema does not exist.
pub async fn tables(client: &impl GenericClient) -> Result<Option<Tables>, QueueError> {
    first(client, TABLES, &[]).await
}
