//! Table sizes, lock waits, and connections.
//!
//! Lock waits and connections read no table of the schema, so that they answer while a session has
//! locked one.

use jiff::Timestamp;
use serde::Serialize;
use tokio_postgres::{GenericClient, Row};

use crate::error::QueueError;

/// Shows the state of a session and the relation it waits for, not its statement, which may be
/// hidden.
const WAITS: &str = "/* queue.insight_lock_waits */
SELECT l.pid, a.usename::text, a.application_name, l.locktype, l.mode,
    CASE WHEN l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
        THEN l.relation::regclass::text END,
    extract(epoch FROM now() - l.waitstart)::float8, pg_blocking_pids(l.pid)
FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
WHERE NOT l.granted AND a.datname = current_database()
ORDER BY l.waitstart NULLS LAST, l.pid LIMIT 50";

const CONNECTIONS: &str = "/* queue.insight_connections */
SELECT a.application_name, a.usename::text, a.state, count(*),
    max(extract(epoch FROM now() - a.xact_start))::float8
FROM pg_stat_activity a
WHERE a.datname = current_database() AND a.backend_type = 'client backend'
GROUP BY 1, 2, 3 ORDER BY count(*) DESC, 1, 2, 3 LIMIT 50";

/// Partitions count towards their table. Reading the size of a locked table waits for the lock.
const TABLES: &str = "/* queue.insight_tables */
SELECT coalesce(p.relname, s.relname)::text, count(p.oid), sum(s.n_live_tup)::int8,
    sum(s.n_dead_tup)::int8, sum(pg_table_size(s.relid))::int8, sum(pg_indexes_size(s.relid))::int8,
    max(greatest(s.last_vacuum, s.last_autovacuum))
FROM pg_stat_user_tables s LEFT JOIN pg_inherits i ON i.inhrelid = s.relid
    LEFT JOIN pg_class p ON p.oid = i.inhparent
WHERE s.schemaname = 'mill'
GROUP BY 1 ORDER BY sum(pg_total_relation_size(s.relid)) DESC, 1";

const RETENTION: &str = "/* queue.insight_retention */
SELECT s.history_retention::text, s.schedule_log_retention::text, s.audit_retention::text,
    d.days, to_date(d.oldest, 'YYYYMMDD')::text, to_date(d.newest, 'YYYYMMDD')::text
FROM mill.settings s CROSS JOIN (SELECT count(*) AS days, min(substr(c.relname, 10)) AS oldest,
        max(substr(c.relname, 10)) AS newest
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'mill.attempts'::regclass) AS d";

/// A session that waits for a lock.
#[derive(Clone, Debug, Serialize)]
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

/// Sessions with the same attributes.
#[derive(Clone, Debug, Serialize)]
pub struct Connections {
    /// `application_name` of the sessions.
    pub application: Option<String>,
    /// Login of the sessions.
    pub user: Option<String>,
    /// As in `pg_stat_activity`; `None` if the role may not see it.
    pub state: Option<String>,
    /// Number of sessions.
    pub count: i64,
    /// Age of the oldest transaction of the sessions, in seconds.
    pub transaction_seconds: Option<f64>,
}

/// A table of the schema.
#[derive(Clone, Debug, Serialize)]
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

/// Retention periods.
#[derive(Clone, Debug, Serialize)]
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

/// Returns the 50 longest lock waits, longest first.
pub async fn waits(client: &impl GenericClient) -> Result<Vec<Wait>, QueueError> {
    let wait = |row: &Row| {
        Ok(Wait {
            pid: row.try_get(0)?,
            user: row.try_get(1)?,
            application: row.try_get(2)?,
            kind: row.try_get(3)?,
            mode: row.try_get(4)?,
            relation: row.try_get(5)?,
            seconds: row.try_get(6)?,
            blocked_by: row.try_get(7)?,
        })
    };
    client.query_typed(WAITS, &[]).await?.iter().map(wait).collect()
}

/// Returns the connections to this database in groups, largest first, up to 50.
pub async fn connections(client: &impl GenericClient) -> Result<Vec<Connections>, QueueError> {
    let connections = |row: &Row| {
        Ok(Connections {
            application: row.try_get(0)?,
            user: row.try_get(1)?,
            state: row.try_get(2)?,
            count: row.try_get(3)?,
            transaction_seconds: row.try_get(4)?,
        })
    };
    client.query_typed(CONNECTIONS, &[]).await?.iter().map(connections).collect()
}

/// Returns every table of the schema, largest first.
///
/// # Errors
/// Fails if a table is locked for longer than the session's `lock_timeout`.
pub async fn tables(client: &impl GenericClient) -> Result<Vec<Table>, QueueError> {
    let table = |row: &Row| {
        Ok(Table {
            name: row.try_get(0)?,
            partitions: row.try_get(1)?,
            live_rows: row.try_get(2)?,
            dead_rows: row.try_get(3)?,
            bytes: row.try_get(4)?,
            index_bytes: row.try_get(5)?,
            vacuumed_at: row.try_get(6)?,
        })
    };
    client.query_typed(TABLES, &[]).await?.iter().map(table).collect()
}

/// Returns the retention periods.
pub async fn retention(client: &impl GenericClient) -> Result<Retention, QueueError> {
    let row = &client.query_typed(RETENTION, &[]).await?[0];
    Ok(Retention {
        history: row.try_get(0)?,
        schedule_log: row.try_get(1)?,
        audit: row.try_get(2)?,
        days: row.try_get(3)?,
        oldest_day: row.try_get(4)?,
        newest_day: row.try_get(5)?,
    })
}
