//! From what a `psql` user writes to an open connection.
//!
//! The way of a connection string, one file per step:
//!
//! | step | file |
//! |---|---|
//! | the process environment as a value | `environment` |
//! | the string itself, or the file that holds it | `source` |
//! | text → settings: URI, `key=value` or a bare database name | `conninfo`, `uri` |
//! | which settings exist, which are refused | `keyword` |
//! | the gaps filled from service file, then `PG*` variables | `service`, `settings` |
//! | settings → hosts, ports and typed values | `endpoint`, `resolve` |
//! | a password for each host | `passfile` |
//! | the result, safe to print | `target` |
//! | the TLS rules of `sslmode` | `tls`, `verify` |
//! | host by host, with and without TLS, until one answers | `open`, `attempt`, `target_session_attrs` |
//! | the same for a pool | `pool` |
//!
//! The rules are those of libpq; `tests/psql_agrees.rs` and `tests/tls_ladder` hold them against
//! the installed `psql`.
//!
//! Invariant: no password and no `options` text appears in `Debug`, in `Display`, in an error or in
//! a log line. For that reason errors about the syntax of a string name places, not contents.
//!
//! Invariant: nothing here reads the process environment but `Environment::from_process`.
//!
//! Invariant: a password leaves this process only as an answer to the server's request for it, over
//! a channel that libpq would have used under the same settings.

mod attempt;
mod conninfo;
mod endpoint;
mod environment;
mod error;
mod keyword;
mod open;
mod passfile;
mod pool;
mod resolve;
mod service;
mod settings;
mod source;
mod target;
mod target_session_attrs;
mod tls;
mod uri;
mod verify;

pub use attempt::Connection;
pub use environment::Environment;
pub use error::ConnectError;
pub use open::{cancel, open};
pub use pool::{PoolConnect, pool_error, pool_manager, pool_manager_until};
pub use settings::Origin;
pub use source::{ConnectionSource, Layer, SourceNames};
pub use target::Target;
