//! Commands about the database: its schema, its condition, and the logins that tasks may run as.

pub(crate) mod doctor;
pub(crate) mod init;
pub(crate) mod profiles;
pub(crate) mod targets;
