//! Other job queues ("peers"), which run the same SQL work as pgmill's own workers. pgmill and the
//! peers take turns in one cluster; each round has a new database.
//!
//! `catalog` lists the peers and their settings, `install` installs them into a scratch folder,
//! `adapter` runs the adapter program of each peer, `turns` alternates the candidates. `backlog`
//! and `latency` are the measurements.

mod adapter;
pub(crate) mod backlog;
pub(crate) mod catalog;
pub(crate) mod install;
pub(crate) mod latency;
mod turns;
