//! Privileges, logins and secrets.

pub(crate) mod console;
pub(crate) mod default_privileges;
pub(crate) mod escape;
pub(crate) mod foreign_schema;
pub(crate) mod logins;
pub(crate) mod planted;
pub(crate) mod privilege;
pub(crate) mod redaction;
pub(crate) mod routines;
pub(crate) mod run_as;
pub(crate) mod secrets;
pub(crate) mod tenant_isolation;
pub(crate) mod token;
pub(crate) mod unstored;
