//! Table sizes, lock waits, and connections.
//!
//! The queries on lock waits and connections read no table of the schema, so that they answer even
//! while a session has locked such a table.

use conninfo::GenericClient;
use jiff::Timestamp;
use serde::Serialize;

use crate::error::QueueError;
use crate::read::doctor;
use crate::row::{from_row, one, rows};

/// Shows the state of a session and the relation that it waits for. Does not show its statement,
/// because statements may be hidden from the role.
const WAITS: &str = "SELECT /* queue.insight_lock_waits */ l.pid, a.usename::text AS user, a.application_name AS application, l.locktype AS kind, l.mode,
    CASE WHEN l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
        THEN l.relation::regclass::text END AS relation,
    extract(epoch FROM now() - l.waitstart)::float8 AS seconds, pg_blocking_pids(l.pid) AS blocked_by
FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
WHERE NOT l.granted AND a.datname = current_database()
ORDER BY l.waitstart NULLS LAST, l.pid LIMIT 50";

fn connections_statement(sessions: &str) -> String {
    format!(
        "SELECT /* queue.insight_connections */ s.application_name AS application, s.login AS user, s.state, count(*) AS count,
    max(extract(epoch FROM now() - s.xact_start))::float8 AS transaction_seconds
FROM {sessions} AS s WHERE s.kind = 'client backend' OR s.kind IS NULL
GROUP BY 1, 2, 3 ORDER BY count(*) DESC, 1, 2, 3 LIMIT 50"
    )
}

/// Adds the sizes of partitions to their table. If a table is locked, reading its size waits for
/// the lock.
const TABLES: &str = "SELECT /* queue.insight_tables */ coalesce(p.relname, s.relname)::text AS name, count(p.oid) AS partitions,
    sum(s.n_live_tup)::int8 AS live_rows, sum(s.n_dead_tup)::int8 AS dead_rows,
    sum(pg_table_size(s.relid))::int8 AS bytes, sum(pg_indexes_size(s.relid))::int8 AS index_bytes,
    max(greatest(s.last_vacuum, s.last_autovacuum)) AS vacuumed_at
FROM pg_stat_user_tables s LEFT JOIN pg_inherits i ON i.inhrelid = s.relid
    LEFT JOIN pg_class p ON p.oid = i.inhparent
WHERE s.schemaname = 'mill'
GROUP BY 1 ORDER BY sum(pg_total_relation_size(s.relid)) DESC, 1";

const RETENTION: &str = "SELECT /* queue.insight_retention */ s.history_retention::text AS history, s.schedule_log_retention::text AS schedule_log,
    s.audit_retention::text AS audit, d.days, to_date(d.oldest, 'YYYYMMDD')::text AS oldest_day,
    to_date(d.newest, 'YYYYMMDD')::text AS newest_day
FROM mill.settings s CROSS JOIN (SELECT count(*) AS days, min(substr(c.relname, 10)) AS oldest,
        max(substr(c.relname, 10)) AS newest
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'mill.attempts'::regclass) AS d";

/// A session that waits for a lock.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct Wait {
    /// Process id of the backend.
    pub pid: i32,
    /// The session's login.
    pub user: Option<String>,
    /// The session's `application_name`.
    pub application: Option<String>,
    /// `relation`, `transactionid`, `advisory`, … as in `pg_locks`.
    pub kind: String,
    /// The requested lock mode.
    pub mode: String,
    /// The table or index, if the lock is on one.
    pub relation: Option<String>,
    /// Duration of the wait; `None` if it has only just begun.
    pub seconds: Option<f64>,
    /// Process ids of the blocking backends; 0 stands for a prepared transaction.
    pub blocked_by: Vec<i32>,
}

from_row! { Wait { pid, user, application, kind, mode, relation, seconds, blocked_by } }

/// Sessions with the same attributes.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct Connections {
    /// `application_name` of the sessions.
    pub application: Option<String>,
    /// Login of the sessions.
    pub user: Option<String>,
    /// State as in `pg_stat_activity`; `None` if the role may not see it.
    pub state: Option<String>,
    /// Number of sessions.
    pub count: i64,
    /// Age of the oldest transaction of the sessions, in seconds.
    pub transaction_seconds: Option<f64>,
}

from_row! { Connections { application, user, state, count, transaction_seconds } }

/// A table of the schema.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct Table {
    /// Name of the table.
    pub name: String,
    /// Number of partitions.
    pub partitions: i64,
    /// Number of rows, by the statistics.
    pub live_rows: i64,
    /// Number of dead rows, by the statistics.
    pub dead_rows: i64,
    /// Size without indexes, in bytes.
    pub bytes: i64,
    /// Size of its indexes, in bytes.
    pub index_bytes: i64,
    /// Time of the last vacuum.
    pub vacuumed_at: Option<Timestamp>,
}

from_row! { Table { name, partitions, live_rows, dead_rows, bytes, index_bytes, vacuumed_at } }

/// Retention periods.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct Retention {
    /// Retention of attempts.
    pub history: String,
    /// Retention of the schedule log.
    pub schedule_log: String,
    /// Retention of the audit log.
    pub audit: String,
    /// Number of days with a partition of history.
    pub days: i64,
    /// The first of these days.
    pub oldest_day: Option<String>,
    /// The last of these days.
    pub newest_day: Option<String>,
}

from_row! { Retention { history, schedule_log, audit, days, oldest_day, newest_day } }

/// Returns the 50 longest lock waits, longest first.
pub async fn waits(client: &impl GenericClient) -> Result<Vec<Wait>, QueueError> {
    rows(client, WAITS, &[]).await
}

/// Returns the connections to this database in groups, largest first, up to 50.
pub async fn connections(client: &impl GenericClient) -> Result<Vec<Connections>, QueueError> {
    let statement = connections_statement(doctor::sessions(client).await?);
    rows(client, &statement, &[]).await
}

/// Returns every table of the schema, largest first.
///
/// # Errors
/// Fails if a table is locked for longer than the session's `lock_timeout`.
pub async fn tables(client: &impl GenericClient) -> Result<Vec<Table>, QueueError> {
    rows(client, TABLES, &[]).await
}

/// Returns the retention periods.
pub async fn retention(client: &impl GenericClient) -> Result<Retention, QueueError> {
    one(client, RETENTION, &[]).await
}
