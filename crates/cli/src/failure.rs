//! The error that ends a program.

use std::{fmt, io};

use clap::error::ContextValue;
use conninfo::{ConnectError, conceal, may_contain_password, shown};
use queue::QueueError;
use queue::session::Refusal;
use terminal::report_error;

use crate::exit;

/// The end of a command: its exit code, or the error that ended it.
pub type Exit = Result<u8, Failure>;

/// An error message with its detail, hint and exit code.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    message: String,
    detail: Option<String>,
    hint: Option<String>,
    refusal: Option<Refusal>,
    /// An error of the command line, which prints itself with the colours of `--help`.
    command_line: Option<Box<clap::Error>>,
    /// Further errors, which are reported after this one.
    further: Vec<Failure>,
}

impl Failure {
    /// Returns a failure with one of the codes of [`exit`].
    pub fn new(code: u8, message: impl Into<String>) -> Self {
        Self {
            code,
            message: conceal(&message.into()).into_owned(),
            detail: None,
            hint: None,
            refusal: None,
            command_line: None,
            further: Vec::new(),
        }
    }

    /// Combines failures, which are reported in their order; the first one determines the exit code.
    /// `None` if there are none.
    #[must_use]
    pub fn all(failures: impl IntoIterator<Item = Self>) -> Option<Self> {
        let mut failures = failures.into_iter();
        let first = failures.next()?;
        Some(Self { further: failures.collect(), ..first })
    }

    /// Returns the failure of a COMMIT, or of a statement in a transaction of its own. If the server may have
    /// committed, the code is not that of an error after which the command may simply be repeated.
    #[must_use]
    pub fn of_commit(error: QueueError) -> Self {
        if !error.commit_in_doubt() {
            return error.into();
        }
        Self::new(
            exit::FAILURE,
            format!("connection lost, and it is not known whether the change was made: {error}"),
        )
        .hint("pgmill audit shows the last changes.")
    }

    /// Adds the DETAIL of a server error.
    #[must_use]
    pub fn detail(self, detail: Option<&str>) -> Self {
        Self { detail: detail.map(str::to_owned), ..self }
    }

    /// Returns the exit code.
    #[must_use]
    pub fn code(&self) -> u8 {
        self.code
    }

    /// Returns the failure for a command line or a file that is wrong.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(exit::USAGE, message)
    }

    /// Returns the failure for a named object that does not exist.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(exit::NOT_FOUND, message)
    }

    /// Returns the message without detail and hint.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Adds a hint.
    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// Adds a hint, if there is one.
    #[must_use]
    pub fn maybe_hint(self, hint: Option<impl Into<String>>) -> Self {
        Self { hint: hint.map(Into::into).or(self.hint), ..self }
    }

    /// If the failure has no code of its own, makes it a usage error.
    #[must_use]
    pub fn or_usage(self) -> Self {
        let code = if self.code == exit::FAILURE { exit::USAGE } else { self.code };
        Self { code, ..self }
    }

    /// Prefixes the message with a location, for example `file:line:column`.
    #[must_use]
    pub fn at(self, place: &str) -> Self {
        let message = format!("{place}: {}", self.message);
        Self { message: conceal(&message).into_owned(), ..self }
    }

    /// Returns whether a setting of the session can have caused the failure.
    #[must_use]
    pub fn refusal(&self) -> Option<Refusal> {
        self.refusal
    }

    fn lacks_privilege(&self) -> bool {
        self.refusal == Some(Refusal::Unprivileged)
    }

    /// Adds what has caused the error to the message, in place of the hint.
    #[must_use]
    pub fn because(self, cause: &str) -> Self {
        Self { message: format!("{}: {cause}", self.message), hint: None, refusal: None, ..self }
    }

    /// If a privilege is missing, adds a hint with the GRANT of the role that has the privilege.
    #[must_use]
    pub fn with_missing_role(self, role: Option<&str>, user: &str) -> Self {
        match role {
            Some(role) if self.lacks_privilege() && self.hint.is_none() => {
                self.hint(format!("GRANT {role} TO {};", quoted_name(user)))
            }
            _ => self,
        }
    }

    /// If a privilege is missing, adds this hint.
    #[must_use]
    pub fn hint_if_unprivileged(self, hint: &str) -> Self {
        if self.lacks_privilege() { self.hint(hint) } else { self }
    }

    /// Returns message and hint on one line.
    #[must_use]
    pub fn summary(&self) -> String {
        match &self.hint {
            Some(hint) => format!("{} ({hint})", self.message),
            None => self.message.clone(),
        }
    }

    /// Prints the error to standard error, and returns the exit code.
    pub fn report(&self) -> u8 {
        if let Some(error) = &self.command_line {
            // If the message cannot be written, there is nothing else to do.
            let _ = error.print();
            return self.code;
        }
        report_error(&self.message, self.detail.as_deref(), self.hint.as_deref());
        for failure in &self.further {
            failure.report();
        }
        self.code
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

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
        let detail = error.detail().map(str::to_owned);
        let hint = error.hint();
        let refusal = Refusal::of(&error);
        Self { detail, hint, refusal, ..Self::new(exit::of(&error), error.to_string()) }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::new(exit::FAILURE, error.to_string())
    }
}

/// Returns the text of the error, if it repeats an argument that may contain a password: without this
/// argument.
fn concealed(error: &clap::Error) -> Option<String> {
    let values = error.context().filter_map(|(_, value)| match value {
        ContextValue::String(value) if may_contain_password(value) => Some(value),
        _ => None,
    });
    let mut text = error.render().to_string();
    let mut found = false;
    for value in values {
        text = text.replace(value, shown(value));
        found = true;
    }
    found.then(|| text.trim_start_matches("error: ").trim_end().to_owned())
}

/// Includes the texts of `--help` and `--version`, which are printed to standard output and count
/// as success.
impl From<clap::Error> for Failure {
    fn from(error: clap::Error) -> Self {
        let code = u8::try_from(error.exit_code()).unwrap_or(exit::USAGE);
        if let Some(text) = concealed(&error) {
            return Self::new(code, text);
        }
        Self { command_line: Some(Box::new(error)), ..Self::new(code, "invalid command line") }
    }
}

/// Shows the chain of errors. Code, detail and hint are taken from the error in the chain that has
/// them.
impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        let mut causes = Vec::new();
        for cause in error.chain() {
            causes.push(cause.to_string());
            // The text of these errors contains their causes.
            if cause.is::<ConnectError>() || cause.is::<QueueError>() {
                break;
            }
        }
        let message = causes.join(": ");
        let known = error
            .downcast::<clap::Error>()
            .map(Self::from)
            .or_else(anyhow::Error::downcast::<Self>)
            .or_else(|error| error.downcast::<ConnectError>().map(Self::from))
            .or_else(|error| error.downcast::<QueueError>().map(Self::from));
        match known {
            Ok(failure) => Self { message: conceal(&message).into_owned(), ..failure },
            Err(_) => Self::new(exit::FAILURE, message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_privilege_names_the_role_to_grant() {
        let failure = Failure {
            refusal: Some(Refusal::Unprivileged),
            ..Failure::new(exit::REFUSED, "denied")
        };
        let failure_with_role = failure.with_missing_role(Some("mill_viewer"), "Ann");
        assert_eq!(failure_with_role.hint.as_deref(), Some("GRANT mill_viewer TO \"Ann\";"));
        let other = Failure::usage("wrong").with_missing_role(Some("mill_viewer"), "ann");
        assert_eq!(other.hint, None);
    }

    #[test]
    fn an_error_keeps_its_code_and_hint_below_its_context() {
        let error = anyhow::Error::from(Failure::usage("no such key").hint("Try another."));
        let failure = Failure::from(error.context("in worker.toml"));
        assert_eq!((failure.code, failure.message()), (exit::USAGE, "in worker.toml: no such key"));
        assert_eq!(failure.hint.as_deref(), Some("Try another."));
        let repeated = QueueError::Refused { message: "no".to_owned(), hint: None };
        let error = anyhow::Error::from(repeated).context("could not start");
        assert_eq!(Failure::from(error).message(), "could not start: no");
        let other = Failure::from(anyhow::anyhow!("disk full"));
        assert_eq!((other.code, other.message()), (exit::FAILURE, "disk full"));
    }
}
