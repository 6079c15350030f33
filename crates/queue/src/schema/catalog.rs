//! Facts of the database that operations leave behind or use up: changed collations, invalid indexes, the
//! queue of NOTIFY and the lock table. `pgmill doctor` evaluates these facts.

use conninfo::GenericClient;

use crate::error::QueueError;
use crate::row::{from_row, one, rows};

/// Databases have a recorded version since PostgreSQL 15. Of the collations, the server has hundreds that
/// nothing uses.
const DATABASE_COLLATION: &str =
    "SELECT /* queue.database_collation */ 'DATABASE' AS kind, quote_ident(d.datname) AS name,
    d.datcollversion AS recorded, pg_database_collation_actual_version(d.oid) AS actual
FROM pg_database d WHERE d.datname = current_database()
    AND d.datcollversion <> pg_database_collation_actual_version(d.oid)";
const COLLATIONS: &str = "SELECT /* queue.collations */ 'COLLATION' AS kind, format('%I.%I', n.nspname, c.collname) AS name,
    c.collversion AS recorded, pg_collation_actual_version(c.oid) AS actual
FROM pg_collation c JOIN pg_namespace n ON n.oid = c.collnamespace
WHERE c.collversion <> pg_collation_actual_version(c.oid)
    AND EXISTS (SELECT FROM pg_depend d WHERE d.refclassid = 'pg_collation'::regclass AND d.refobjid = c.oid)
ORDER BY 2";

/// A session that builds an index locks its table. The index of a partitioned table is invalid until each
/// partition has one, which is how it is built.
const INVALID_INDEXES: &str = "SELECT /* queue.invalid_indexes */ format('%I.%I', n.nspname, c.relname)
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE NOT i.indisvalid AND c.relkind = 'i' AND NOT EXISTS (SELECT FROM pg_locks l
    WHERE l.relation = i.indrelid AND l.mode = 'ShareUpdateExclusiveLock'
        AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()))
ORDER BY i.indexrelid DESC";

const NOTIFY_USAGE: &str = "SELECT /* queue.notify_usage */ pg_notification_queue_usage()";

/// Each lock that is not in a session's own fast-path slots needs a slot.
const LOCKS: &str = "SELECT /* queue.lock_table */ current_setting('max_locks_per_transaction')::int8
        * (current_setting('max_connections')::int8 + current_setting('max_prepared_transactions')::int8) AS slots,
    (SELECT count(*) FROM pg_locks l WHERE NOT l.fastpath AND l.mode <> 'SIReadLock') AS used,
    (SELECT count(*) FROM pg_class c WHERE c.relnamespace = to_regnamespace('mill')
        AND c.relkind IN ('r', 'p', 'i', 'I') AND c.relname LIKE 'attempts%') AS history";

/// A database or a collation whose order may have changed since its indexes were built.
#[derive(Clone, Debug)]
pub struct ChangedCollation {
    /// `DATABASE` or `COLLATION`.
    pub kind: String,
    /// Name, quoted if necessary.
    pub name: String,
    /// Version with which it was created or last refreshed.
    pub recorded: String,
    /// Version of the library that the server uses.
    pub actual: String,
}

from_row! { ChangedCollation { kind, name, recorded, actual } }

/// The lock table of the server, in slots.
#[derive(Clone, Copy, Debug)]
pub struct LockTable {
    /// Number of slots, not counting a small reserve.
    pub slots: i64,
    /// Number of slots that are in use.
    pub used: i64,
    /// Number of slots that a query of the whole history needs.
    pub history: i64,
}

from_row! { LockTable { slots, used, history } }

/// The facts of a database.
#[derive(Clone, Debug)]
pub struct Catalog {
    /// The database and the collations in use whose versions differ from those of the server.
    pub changed_collations: Vec<ChangedCollation>,
    /// Names of the invalid indexes that no session is building, newest first.
    pub invalid_indexes: Vec<String>,
    /// Share of the queue of NOTIFY that is in use, from 0 to 1.
    pub notify_usage: f64,
    /// The lock table.
    pub locks: LockTable,
}

/// Reads the facts. `version_number` is the number of the server, such as 150018.
pub async fn catalog(
    client: &impl GenericClient,
    version_number: i32,
) -> Result<Catalog, QueueError> {
    let mut changed_collations: Vec<ChangedCollation> = rows(client, COLLATIONS, &[]).await?;
    if version_number >= 150_000 {
        changed_collations.extend(rows(client, DATABASE_COLLATION, &[]).await?);
    }
    Ok(Catalog {
        changed_collations,
        invalid_indexes: rows(client, INVALID_INDEXES, &[]).await?,
        notify_usage: one(client, NOTIFY_USAGE, &[]).await?,
        locks: one(client, LOCKS, &[]).await?,
    })
}
