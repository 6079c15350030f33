//! Configuration, startup checks and the life cycle of the process.

pub(crate) mod config;
#[cfg_attr(not(feature = "console"), path = "startup/no_console.rs")]
pub(crate) mod console;
pub(crate) mod destinations;
pub(crate) mod login;
pub(crate) mod pooler_check;
pub(crate) mod privileges;
pub(crate) mod process;
pub(crate) mod profile;
pub(crate) mod sd_notify;
pub(crate) mod settings;
pub(crate) mod traces;
