//! Where the programs for people connect to, and what they say about it.

use queue::connect::{ConnectError, ConnectionSource, Environment, Layer, Target};

use crate::print_stderr;

/// What was given, or else what variables and files say. Tells what is odd about it.
///
/// # Errors
/// A malformed connection string, service file or variable; a file of a string that cannot be read.
pub fn target(given: Option<&(ConnectionSource, Layer)>) -> Result<Target, ConnectError> {
    let in_arguments = matches!(given, Some((ConnectionSource::Text(_), Layer::Arguments)));
    let url = given.map(|(given, _)| given.clone().read()).transpose()?;
    let target = Target::resolve(url.as_deref(), &Environment::from_process())?;
    for warning in target.warnings() {
        print_stderr(format_args!("warning: {warning}"));
    }
    if in_arguments && target.password_given_inline() {
        print_stderr(
            "warning: every user of this machine can read the password in --database-url; put it \
             in ~/.pgpass, or name another such file in PGPASSFILE",
        );
    }
    Ok(target)
}
