//! The web console: what an operator opens at night.
//!
//! | step | file |
//! |---|---|
//! | from a listener to answers | `app` |
//! | who may ask at all: host, origin, token, the headers of every answer | `access_control`, `login` |
//! | TLS of its own | `tls` |
//! | sessions of the database, each look bounded in time | `database` |
//! | one visit: who asks, and the frame around every screen | `request`, `layout` |
//! | one screen each: data, template, routes | `screens` |
//! | the same data as JSON, and what it looks like | `api`, `openapi` |
//! | the last hours, read a minute at a time and kept; how many tasks waited in them | `throughput_cache`, `backlog_history` |
//! | the same as columns, for plots | `plots` |
//! | what people write and read: `filter`, `highlight`, `format` | |
//! | its flags, the same in each program that serves it | `flags` |
//! | why there is no answer | `http_error` |
//! | scripts and styles, which lie in the program | `assets` |
//!
//! A new screen is a file in `screens/`, a template in `templates/`, and a line in `screens.rs`.
//!
//! Invariant: there is no SQL on the schema here; every statement is in the crate `queue`.
//!
//! Invariant: what only looks does so in a read-only transaction under a statement timeout; what acts
//! takes a `FormRequest`, which exists only behind the checks of origin and CSRF token and begins nothing in
//! read-only mode.

mod access_control;
mod api;
mod app;
mod assets;
mod backlog_history;
mod database;
mod filter;
mod flags;
mod format;
mod highlight;
mod http_error;
mod layout;
mod login;
mod openapi;
mod plots;
mod request;
mod screens;
mod throughput_cache;
mod tls;

use std::fmt;
use std::net::SocketAddr;

pub use app::{BoundConsole, Console, StartError};
pub use filter::parse_public as check_filter;
pub use flags::{ConsoleFlags, WorkerConsoleFlags, base_path};
pub use openapi::PATHS as API_PATHS;
pub use tls::TlsFiles;

/// What somebody knows who may sign in.
#[derive(Clone)]
pub struct Token {
    /// The token itself.
    pub secret: String,
    /// Whose it is: who signs in with it acts in this name.
    pub label: Option<String>,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").field("label", &self.label).finish_non_exhaustive()
    }
}

/// How a console is served.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it listens.
    pub listen: SocketAddr,
    /// Nobody acts through it.
    pub read_only: bool,
    /// What has to be known to sign in, any of them; empty: whoever reaches it may look.
    pub tokens: Vec<Token>,
    /// What stands in front of every path, as `/pgmill`; empty: nothing.
    pub base_path: String,
    /// Names by which it is reached, beside `localhost` and addresses.
    pub hosts: Vec<String>,
    /// Its own TLS; none: HTTP.
    pub tls: Option<TlsFiles>,
    /// There is a proxy with TLS in front of it, and nobody comes another way.
    pub behind_proxy: bool,
    /// How its flags begin where it was started: hints name them.
    pub flag_prefix: &'static str,
}
