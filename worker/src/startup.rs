//! Configuration, startup checks and the life cycle of the process.
//!
//! | step | file |
//! |---|---|
//! | declaration of every setting: flag, variable, default, help | `settings` |
//! | resolved settings, from command line, environment and configuration file | `config` |
//! | life cycle: startup, duties, readers, shutdown | `process` |
//! | `[run_as.NAME]` and `[targets.NAME]`: connection string and readers | `profile` |
//! | login of each reader: the default one, or that of a profile or target | `login` |
//! | destinations of notifications, checked and opened | `destinations` |
//! | traces and their exporter, from the settings | `traces` |
//! | web console in a thread of its own; `no_console.rs` in a build without it | `console` |
//! | refusal to start behind a connection pooler | `pooler_check` |
//! | missing and excessive privileges of the control and task logins | `privileges` |
//! | messages to the service manager: ready, alive, stopping | `sd_notify` |

pub(crate) mod config;
#[cfg_attr(not(feature = "console"), path = "startup/no_console.rs")]
pub(crate) mod console;
pub(crate) mod destinations;
pub(crate) mod logins;
pub(crate) mod pooler_check;
pub(crate) mod privileges;
pub(crate) mod process;
pub(crate) mod profile;
pub(crate) mod settings;
pub(crate) mod shutdown;
pub(crate) mod traces;
