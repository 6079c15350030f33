//! Resolves connection strings as `psql` does, and opens connections.
//!
//! The steps from a connection string to a connection, one file per step:
//!
//! | step | file |
//! |---|---|
//! | the process environment as a value | `environment` |
//! | the string itself, or the file that contains it | `source` |
//! | parse a URI, `key=value` pairs or a bare database name | `conninfo`, `uri` |
//! | the known settings, and the refused ones | `keyword` |
//! | defaults from the service file, then from `PG*` variables | `service`, `settings` |
//! | hosts, ports and typed values | `endpoint`, `resolve` |
//! | a password for each host | `passfile` |
//! | the resolved target, safe to print | `connection_target` |
//! | the TLS rules of `sslmode` | `tls`, `verify` |
//! | try the hosts, with and without TLS, in order | `open`, `attempt`, `target_session_attrs` |
//! | the same for a pool | `pool` |
//!
//! The rules are those of libpq; `tests/psql_agrees.rs` and `tests/tls_ladder` compare them with
//! the installed `psql`.
//!
//! Invariant: no password and no `options` text appears in `Debug`, in `Display`, in an error or in
//! a log line. For that reason syntax errors report positions, not contents.
//!
//! Invariant: only `Environment::from_process` reads the process environment.
//!
//! Invariant: a password leaves this process only as an answer to the server's request for it, over
//! a channel that libpq would have used under the same settings.

mod attempt;
mod connection_target;
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
mod target_session_attrs;
mod tls;
mod uri;
mod verify;

pub use attempt::Connection;
pub use connection_target::ConnectionTarget;
pub use environment::Environment;
pub use error::ConnectError;
pub use open::{cancel, open};
pub use pool::{PoolConnect, pool_error, pool_manager, pool_manager_until};
pub use settings::Origin;
pub use source::{ConnectionSource, Layer, SourceNames};
