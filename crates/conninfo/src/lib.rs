//! Resolves connection strings as `psql` does, and opens connections.
//!
//! The steps from a connection string to a connection, one file per step:
//!
//! | step | file |
//! |---|---|
//! | the process environment as a value | `parse/environment` |
//! | the string itself, or the file that contains it | `parse/source` |
//! | parse a URI, `key=value` pairs or a bare database name | `parse/key_value`, `parse/uri` |
//! | the known settings, and the refused ones | `parse/keyword` |
//! | defaults from the service file, then from `PG*` variables | `parse/service`, `parse/settings` |
//! | hosts, ports and typed values | `endpoint`, `resolve` |
//! | a password for each host | `parse/passfile` |
//! | the resolved target, safe to print | `connection_target` |
//! | the TLS rules of `sslmode` | `open/tls`, `open/verify` |
//! | try the hosts, with and without TLS, in order | `open`, `open/attempt`, `open/target_session_attrs` |
//! | the same for a pool | `open/pool` |
//! | statements behind a pooler that drops the search_path | `client` |
//!
//! The rules are those of libpq. `tests/psql_agrees.rs` and `tests/tls_ladder` compare this crate
//! with the installed `psql`.
//!
//! Invariant: no password and no `options` text appears in `Debug`, in `Display`, in an error or in
//! a log line. For that reason syntax errors report positions, not contents.
//!
//! Invariant: no code except `Environment::from_process` reads the process environment.
//!
//! Invariant: a password leaves this process only as an answer to the server's request for it, over
//! a channel that libpq would have used with the same settings.

mod client;
mod connection_target;
mod endpoint;
mod error;
mod open;
mod origin;
mod parse;
mod resolve;
mod secret;

pub use client::{Client, GenericClient};
pub use connection_target::ConnectionTarget;
pub use endpoint::ServerAddress;
pub use error::ConnectError;
pub use open::connection::Connection;
pub use open::pool::{PoolConnect, pool_error, pool_manager, pool_manager_until};
pub use open::{cancel, open, open_client};
pub use origin::Origin;
pub use parse::environment::Environment;
pub use parse::source::{ConnectionSource, Layer, SourceNames};
pub use secret::{conceal, may_contain_password, shown};
