//! Private PostgreSQL clusters: finds or installs the server's programs, starts and stops clusters.
//!
//! | task | file |
//! |---|---|
//! | search for the server's programs, and their major version | `binaries` |
//! | installation of a missing server with apt-get, or advice on the command | `install` |
//! | account that the server runs as, because PostgreSQL refuses root | `account` |
//! | directory of a cluster, removal of directories whose owner died | `directory` |
//! | TCP port, kept from other clusters while the server is down | `port` |
//! | one cluster: initdb, start, stop, crash, freeze and removal | `server` |
//! | next transaction id and pg_upgrade, on a stopped server | `offline` |
//! | copies of a running cluster: base backup, point-in-time recovery | `backup` |
//! | standby with streaming replication, and its promotion | `standby` |
//! | state and signals of processes that are not child processes | `process` |
//! | signals that end a program, which first removes its clusters | `signals` |
//! | parsing of a command line, paths of programs built together | `program` |
//! | the program `cluster`: runs a command against a private cluster | `command` |
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
