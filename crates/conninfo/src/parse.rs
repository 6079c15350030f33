//! The way from a connection string, a service file and `PG*` variables to settings.
//!
//! | step | file |
//! |---|---|
//! | the process environment as a value, without later reads | `environment` |
//! | choice of the connection string, given directly or in a file | `source` |
//! | known keywords, their variables, and those that are ignored or refused | `keyword` |
//! | parser of `key=value` pairs; decision between the three forms of a string | `key_value` |
//! | parser of `postgresql://` URIs with several hosts | `uri` |
//! | section of the connection service file | `service` |
//! | all settings, each from the first source that has it | `settings` |
//! | search of the password file for a host | `passfile` |

pub(crate) mod environment;
pub(crate) mod key_value;
pub(crate) mod keyword;
pub(crate) mod passfile;
pub(crate) mod service;
pub(crate) mod settings;
pub(crate) mod source;
pub(crate) mod uri;
