//! Commands about the database: its schema and condition, and the logins and databases of tasks.
//!
//! | command | file |
//! |---|---|
//! | `pgmill init`: installs the schema, or upgrades an older one | `init` |
//! | `pgmill doctor`: checks server, schema, workers, schedules and privileges | `doctor` |
//! | `pgmill profile`: logins that tasks may run as | `profiles` |
//! | `pgmill target`: other databases in which tasks may run | `targets` |

pub(crate) mod doctor;
pub(crate) mod init;
pub(crate) mod profiles;
pub(crate) mod targets;
