//! The connection target of the interactive programs, and warnings about it.

use conninfo::{ConnectError, ConnectionSource, ConnectionTarget, Environment, Layer};

use crate::print_stderr;

/// Returns the target from the given source, or else from environment variables and files. Prints
/// warnings about the target.
///
/// # Errors
/// Returns an error for a malformed connection string, service file or variable, or if the file
/// with the connection string cannot be read.
pub fn connection_target(
    given: Option<&(ConnectionSource, Layer)>,
) -> Result<ConnectionTarget, ConnectError> {
    let in_arguments = matches!(given, Some((ConnectionSource::Text(_), Layer::Arguments)));
    let source = given.map(|(given, _)| given.clone());
    let target = ConnectionTarget::from_source(source, &Environment::from_process())?;
    for warning in target.warnings() {
        print_stderr(format_args!("warning: {warning}"));
    }
    if in_arguments && target.password_given_inline() {
        print_stderr(
            "warning: every user of this machine can read the password in --database-url; put it \
             in ~/.pgpass, or in another file named by PGPASSFILE",
        );
    }
    Ok(target.with_safe_search_path())
}
