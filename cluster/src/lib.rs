//! Private PostgreSQL clusters: finds or installs the server's programs, starts and stops clusters.
//!
//! For the demo, the tests and the load test; never for data that must be kept. A cluster has its
//! own directory, listens on loopback only and is removed with its [`Cluster`] value.

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
