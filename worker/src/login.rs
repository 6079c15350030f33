//! A login that task SQL runs as.
//!
//! Each login has its own readers, and the session of a reader keeps its login. If a task changes
//! its role, it starts from that login, and the reset after the task returns to it.

use std::sync::Arc;

use conninfo::ConnectionTarget;

use crate::control::Control;

/// A login and its number of readers.
#[derive(Clone)]
pub(crate) struct Login {
    /// Name of the profile; empty for the login of tasks without a profile.
    pub(crate) profile: Arc<str>,
    /// Name of the setting that the login comes from.
    pub(crate) setting: Arc<str>,
    pub(crate) target: ConnectionTarget,
    pub(crate) readers: u32,
    pub(crate) superuser_allowed: bool,
    /// Control sessions in the database of the login.
    pub(crate) host: Arc<Control>,
}

impl Login {
    /// Returns the login with another `application_name`.
    pub(crate) fn with_application_name(&self, name: &str) -> Self {
        Self { target: self.target.with_application_name(name), ..self.clone() }
    }
}
