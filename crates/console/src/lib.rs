//! Web console: HTML screens and a read-only JSON API for operators.
//!
//! | task | file |
//! |---|---|
//! | listener, router, startup and shutdown | `server` |
//! | command-line flags, shared by all programs that serve the console | `flags` |
//! | options, and errors at the start | `options` |
//! | name and colour of the environment | `environment` |
//! | state shared by all handlers | `http/app` |
//! | host, origin and token checks; security headers | `http/access_check`, `http/access_control` |
//! | sign-in, limit of wrong tokens, embedded scripts and styles | `http/login`, `http/guess_limit`, `http/assets` |
//! | certificate and key, limits of bodies | `http/tls`, `http/body_limit` |
//! | request context, forms, errors and their responses | `http/request`, `http/error`, `http/error_response` |
//! | database sessions with statement timeouts | `database` |
//! | history of the last hours, read minute by minute and cached | `throughput/` |
//! | the same history as columns for plots | `page/plots` |
//! | page layout, number and time formats, SQL highlighting, graphs | `page/` |
//! | HTML escaping | `escape` |
//! | filter language of the searches | `filter` |
//! | the front page of a console with several databases | `screens/databases` |
//! | one file per screen: data, template, routes; grouped by topic | `screens/` |
//! | JSON API and its OpenAPI description | `api`, `openapi` |
//!
//! A new screen needs a file in a folder of `screens/`, a template in `templates/`, and a line in
//! `screens.rs`, or in the file of its topic if the navigation does not list the screen.
//!
//! Invariant: this crate contains no SQL on the schema; all statements are in the crate `queue`.
//!
//! Invariant: reads run in a read-only transaction with a statement timeout. Writes require a
//! `FormRequest`, which exists only after the origin and CSRF checks and begins no transaction in
//! read-only mode.

mod api;
mod database;
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
