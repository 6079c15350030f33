//! The way from a connection string, a service file and `PG*` variables to settings.

pub(crate) mod environment;
pub(crate) mod key_value;
pub(crate) mod keyword;
pub(crate) mod passfile;
pub(crate) mod service;
pub(crate) mod settings;
pub(crate) mod source;
pub(crate) mod uri;
