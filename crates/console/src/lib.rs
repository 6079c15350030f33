//! Web console: HTML screens and a JSON API for operators.
//!
//! | task | file |
//! |---|---|
//! | options, flags, access rules, and errors at the start | `options` |
//! | listener, router, startup and shutdown | `server` |
//! | files that are read again while the console serves | `reload` |
//! | error of a handler: status, message and hint | `error` |
//! | TLS, access checks, sign-in, requests, error pages, embedded files | `http` |
//! | database sessions with statement timeouts and the role of the user | `database` |
//! | one file per screen: data, template, routes; grouped by topic | `screens` |
//! | layout, formats, SQL highlighting, graphs and plots of a page | `page` |
//! | escaping of texts in HTML and SVG | `escape` |
//! | filter language of the Tasks screen; durations and times in searches | `filter` |
//! | throughput and backlog of the last hours, read minute by minute and cached | `throughput` |
//! | JSON API and its OpenAPI description | `api`, `openapi` |
//!
//! A new screen needs a file in a folder of `screens/`, a template in `templates/`, and a line in
//! `screens.rs`, or in the file of its topic if the navigation does not list the screen.
//!
//! Invariant: this crate contains no SQL on the schema; all statements are in the crate `queue`.
//!
//! Invariant: reads run in a read-only transaction with a statement timeout. Writes require a
//! `FormRequest` with a CSRF token, or an `ApiRequest` with a JSON body. Both exist only after the
//! origin check, and begin no transaction in read-only mode.

mod api;
mod database;
mod error;
mod escape;
mod filter;
mod http;
mod openapi;
mod options;
mod page;
mod reload;
mod screens;
mod server;
mod throughput;

pub use http_server::{Refusal, RefusalObserver};

pub use filter::parse_public as check_filter;
pub use options::contexts::{ContextDatabase, context_name};
pub use options::environment::{Environment, EnvironmentColor, environment_name};
pub use options::flags::{ConsoleFlags, WorkerConsoleFlags, base_path};
pub use options::rights::{Rights, Scope};
pub use options::{AccessRules, Options, ProxySignIn, StartError, TlsFiles, Token, UserRule};
pub use server::{BoundConsole, Console};
