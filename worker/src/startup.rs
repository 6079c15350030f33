//! Configuration, startup checks and the life cycle of the process.
//!
//! | step | file |
//! |---|---|
//! | declaration of every setting: flag, variable, default, help | `settings` |
//! | resolved settings, from command line, environment and configuration file | `config` |
//! | life cycle of the process | `process` |
//! | checks before the first claim | `checks` |
//! | parts of the process, made from the settings | `parts` |
//! | duties and other services | `services` |
//! | readers, by login | `readers` |
//! | shutdown: drain, wait for the running tasks, cancel, deregister | `shutdown` |
//! | `[run_as.NAME]` and `[targets.NAME]`: connection string and readers | `profile` |
//! | login of each reader: the default one, or that of a profile or target | `logins` |
//! | destinations of notifications, checked and opened | `destinations` |
//! | traces and their exporter, from the settings | `traces` |
//! | web console in a thread of its own; `no_console.rs` in a build without it | `console` |

pub(crate) mod checks;
pub(crate) mod config;
#[cfg_attr(not(feature = "console"), path = "startup/no_console.rs")]
pub(crate) mod console;
pub(crate) mod destinations;
pub(crate) mod logins;
pub(crate) mod parts;
pub(crate) mod process;
pub(crate) mod profile;
pub(crate) mod readers;
pub(crate) mod services;
pub(crate) mod settings;
pub(crate) mod shutdown;
pub(crate) mod traces;
