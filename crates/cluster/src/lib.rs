//! Private PostgreSQL clusters: finds or installs the server's programs, starts and stops clusters.
//!
//! The clusters serve the demo, the tests and the load test. They must not hold data that is to be
//! kept. A cluster has its own directory, listens on loopback only and is removed with its
//! [`Cluster`] value.

mod account;
mod backup;
mod binaries;
mod command;
mod directory;
mod install;
mod offline;
mod port;
mod process;
mod program;
mod server;
mod signals;
mod standby;

pub use account::Account;
pub use backup::{ARCHIVING, Backup};
pub use binaries::Binaries;
pub use command::{main, remove_variables_of_cargo};
pub use directory::{Directory, random_letters};
pub use port::Port;
pub use process::{alive, kill_with_children, signal_with_children};
pub use program::{arguments, sibling_program};
pub use server::{Cluster, Mode, Options};
pub use signals::{Signals, signal_exit_code, until_signal};
