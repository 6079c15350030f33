//! Checks of what surrounds the database: the connection pooler and the failover managers.

pub(super) mod failover;
pub(super) mod pgbouncer;
