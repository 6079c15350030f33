//! Privileges, logins and secrets.

pub(crate) mod console;
pub(crate) mod foreign_schema;
pub(crate) mod managed;
pub(crate) mod membership;
pub(crate) mod planted;
pub(crate) mod privilege;
pub(crate) mod redaction;
pub(crate) mod roles;
pub(crate) mod routines;
pub(crate) mod run_as;
pub(crate) mod secrets;
pub(crate) mod tenant_isolation;
pub(crate) mod unstored;
