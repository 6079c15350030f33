//! Private PostgreSQL clusters: find the server's binaries, install them, start a cluster, stop it.
//!
//! For the demo, the tests and the load test; never for data that anybody wants to keep. A cluster
//! lives in a directory of its own, listens on loopback only and goes away with its [`Cluster`] value.

mod account;
mod backup;
mod binaries;
mod command;
mod directory;
mod install;
mod process;
mod program;
mod server;
mod signals;
mod standby;

pub use backup::{ARCHIVING, Backup};
pub use binaries::Binaries;
pub use command::main;
pub use program::{arguments, sibling_program};
pub use server::{Cluster, Mode, Options};
pub use signals::{Signals, signal_exit_code};
