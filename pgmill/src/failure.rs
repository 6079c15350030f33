//! Errors of commands, with their hints and exit codes.

use std::{fmt, io};

use conninfo::ConnectError;
use queue::{QueueError, exit};
use terminal::report_error;
use tokio_postgres::error::SqlState;

/// An error message with its hint and exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    message: String,
    detail: Option<String>,
    hint: Option<String>,
    lacks_privilege: bool,
}

impl Failure {
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), detail: None, hint: None, lacks_privilege: false }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(exit::USAGE, message)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(exit::NOT_FOUND, message)
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    pub(crate) fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// Prefixes the message with a location, for example `file:line:column`.
    pub(crate) fn at(self, place: &str) -> Self {
        Self { message: format!("{place}: {}", self.message), ..self }
    }

    /// After a missing privilege: adds the GRANT of the role that has it.
    pub(crate) fn with_missing_role(self, role: Option<&str>, user: &str) -> Self {
        match role {
            Some(role) if self.lacks_privilege && self.hint.is_none() => {
                self.hint(format!("GRANT {role} TO {};", quoted_name(user)))
            }
            _ => self,
        }
    }

    /// After a missing privilege: adds this hint.
    pub(crate) fn hint_if_unprivileged(self, hint: &str) -> Self {
        if self.lacks_privilege { self.hint(hint) } else { self }
    }

    /// Returns message and hint on one line.
    pub(crate) fn summary(&self) -> String {
        match &self.hint {
            Some(hint) => format!("{} ({hint})", self.message),
            None => self.message.clone(),
        }
    }

    /// Prints the error to standard error, and returns the exit code.
    pub(crate) fn report(&self) -> u8 {
        report_error(&self.message, self.detail.as_deref(), self.hint.as_deref());
        self.code
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

fn quoted_name(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    if name.bytes().all(plain) && !name.starts_with(|first: char| first.is_ascii_digit()) {
        name.to_owned()
    } else {
        format!("\"{}\"", name.replace('"', "\"\""))
    }
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Self {
        Self { hint: error.hint(), ..Self::new(exit::of_connection(&error), error.to_string()) }
    }
}

impl From<QueueError> for Failure {
    fn from(error: QueueError) -> Self {
        let lacks_privilege = error.sqlstate() == Some(&SqlState::INSUFFICIENT_PRIVILEGE);
        let detail = error.detail().map(str::to_owned);
        let hint = error.hint();
        Self { detail, hint, lacks_privilege, ..Self::new(exit::of(&error), error.to_string()) }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::new(exit::FAILURE, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_privilege_names_the_role_to_grant() {
        let failure = Failure { lacks_privilege: true, ..Failure::new(exit::REFUSED, "denied") };
        let failure_with_role = failure.with_missing_role(Some("mill_viewer"), "Ann");
        assert_eq!(failure_with_role.hint.as_deref(), Some("GRANT mill_viewer TO \"Ann\";"));
        let other = Failure::usage("wrong").with_missing_role(Some("mill_viewer"), "ann");
        assert_eq!(other.hint, None);
    }
}
