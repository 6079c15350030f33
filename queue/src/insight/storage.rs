//! Where the schema's data lies, who waits for a lock, and who is connected.
//!
//! The first two read no table of the schema, so that they answer while somebody has locked one.

use jiff::Timestamp;
use serde::Serialize;
use tokio_postgres::{GenericClient, Row};

use crate::error::QueueError;

/// What a session does and which relation it wants, not what its statement is: that may be hidden.
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

/// Partitions stand under the name of their table. The size of a locked table has to be waited for.
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
    /// Its process.
    pub pid: i32,
    /// Whose session it is.
    pub user: Option<String>,
    /// What the session calls itself.
    pub application: Option<String>,
    /// `relation`, `transactionid`, `advisory`, … as in `pg_locks`.
    pub kind: String,
    /// The mode it wants.
    pub mode: String,
    /// The table or index, if it is one.
    pub relation: Option<String>,
    /// For how long; `None`: it has only begun.
    pub seconds: Option<f64>,
    /// Who it waits for; 0 is a prepared transaction.
    pub blocked_by: Vec<i32>,
}

/// Sessions of one kind.
#[derive(Clone, Debug, Serialize)]
pub struct Connections {
    /// What they call themselves.
    pub application: Option<String>,
    /// Whose they are.
    pub user: Option<String>,
    /// As in `pg_stat_activity`; `None`: not shown to this login.
    pub state: Option<String>,
    /// How many.
    pub count: i64,
    /// The longest time that a transaction of theirs is open.
    pub transaction_seconds: Option<f64>,
}

/// A table of the schema.
#[derive(Clone, Debug, Serialize)]
pub struct Table {
    /// Its name.
    pub name: String,
    /// How many partitions it has.
    pub partitions: i64,
    /// Rows, as the statistics know.
    pub live_rows: i64,
    /// Rows that nobody sees any more, likewise.
    pub dead_rows: i64,
    /// Size without indexes.
    pub bytes: i64,
    /// Size of its indexes.
    pub index_bytes: i64,
    /// When it was last vacuumed.
    pub vacuumed_at: Option<Timestamp>,
}

/// How long what is kept.
#[derive(Clone, Debug, Serialize)]
pub struct Retention {
    /// Of attempts.
    pub history: String,
    /// Of the log of schedules.
    pub schedule_log: String,
    /// Of what operators did.
    pub audit: String,
    /// Days that have a partition of history.
    pub days: i64,
    /// The first of them.
    pub oldest_day: Option<String>,
    /// The last of them.
    pub newest_day: Option<String>,
}

/// Who waits for a lock, the longest first, 50 of them.
///
/// # Errors
/// Database trouble.
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

/// Who is connected to this database, the most numerous first, 50 lines.
///
/// # Errors
/// Database trouble.
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

/// Every table of the schema, the largest first.
///
/// # Errors
/// Database trouble; a table that is locked for longer than the session waits.
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

/// How long what is kept.
///
/// # Errors
/// Database trouble.
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
