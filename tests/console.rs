//! The web console as a server: access, API, limits.

pub(crate) mod api_check;
pub(crate) mod console_access;
pub(crate) mod console_api;
pub(crate) mod console_audit;
pub(crate) mod console_database;
pub(crate) mod console_failures;
pub(crate) mod console_fuzz;
pub(crate) mod console_hostile;
pub(crate) mod console_read_only;
pub(crate) mod console_size;
pub(crate) mod console_tls;
pub(crate) mod console_users;
pub(crate) mod console_worker;
pub(crate) mod console_write;
pub(crate) mod seed;
