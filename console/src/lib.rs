//! Web console: HTML screens and a read-only JSON API for operators.
//!
//! | task | file |
//! |---|---|
//! | listener, router, startup and shutdown | `server` |
//! | command-line flags, shared by all programs that serve the console | `flags` |
//! | host, origin and token checks; security headers; sign-in | `http/access_control`, `http/login` |
//! | TLS listener, embedded scripts and styles | `http/tls`, `http/assets` |
//! | request context, forms, error responses | `http/request`, `http/error` |
//! | database sessions with statement timeouts | `database` |
//! | history of the last hours, read minute by minute and cached | `throughput/` |
//! | the same history as columns for plots | `page/plots` |
//! | page layout, escaping, number and time formats, SQL highlighting, graphs | `page/` |
//! | filter language of the searches | `filter` |
//! | one file per screen: data, template, routes; grouped by topic | `screens/` |
//! | JSON API and its OpenAPI description | `api`, `openapi` |
//!
//! A new screen needs a file in a folder of `screens/`, a template in `templates/`, and a line in
//! `screens.rs`.
//!
//! Invariant: this crate contains no SQL on the schema; all statements are in the crate `queue`.
//!
//! Invariant: reads run in a read-only transaction with a statement timeout. Writes require a
//! `FormRequest`, which exists only after the origin and CSRF checks and begins no transaction in
//! read-only mode.

mod api;
mod database;
mod filter;
mod flags;
mod http;
mod openapi;
mod page;
mod screens;
mod server;
mod throughput;

use std::fmt;
use std::net::SocketAddr;

pub use filter::parse_public as check_filter;
pub use flags::{ConsoleFlags, WorkerConsoleFlags, base_path};
pub use http::tls::TlsFiles;
pub use openapi::PATHS as API_PATHS;
pub use server::{BoundConsole, Console, StartError};

/// A sign-in token.
#[derive(Clone)]
pub struct Token {
    /// The token itself.
    pub secret: String,
    /// The name under which holders of this token act.
    pub label: Option<String>,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").field("label", &self.label).finish_non_exhaustive()
    }
}

/// Options of a console server.
#[derive(Clone, Debug)]
pub struct Options {
    /// The address to listen on.
    pub listen: SocketAddr,
    /// Rejects all changes, whatever the login may do.
    pub read_only: bool,
    /// Accepted tokens. Empty: everyone who reaches the console has access.
    pub tokens: Vec<Token>,
    /// Prefix of every path, such as `/pgmill`; empty for none.
    pub base_path: String,
    /// Allowed host names in addition to `localhost` and IP addresses.
    pub hosts: Vec<String>,
    /// Certificate and key; `None` serves plain HTTP.
    pub tls: Option<TlsFiles>,
    /// All requests come through a proxy that terminates TLS.
    pub behind_proxy: bool,
    /// Prefix of the console's flags in this program, for hints: `--` or `--console-`.
    pub flag_prefix: &'static str,
}
