//! Resolves connection strings as `psql` does, and opens connections.
//!
//! The steps from a connection string to a connection:
//!
//! | step | file |
//! |---|---|
//! | connection string, service file and `PG*` variables → settings | `parse` |
//! | source of a setting: connection string, service file or variable | `origin` |
//! | lists of hosts, addresses and ports → one list of endpoints | `endpoint` |
//! | settings → target: defaults, passwords, checks of contradictions | `resolve` |
//! | TLS rules of a target, and the connector built from them | `tls` |
//! | requested kind of server | `target_session_attrs` |
//! | the resolved target, safe to print and to log | `connection_target` |
//! | search for a host that accepts a connection; cancel requests, pools | `open` |
//! | statements behind a pooler that drops the `search_path` | `client` |
//! | texts that are not printed, because they may contain a password | `secret` |
//! | errors of all steps, with hints | `error` |
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
mod target_session_attrs;
mod tls;

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
