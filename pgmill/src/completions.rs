//! `pgmill completions`: for a shell, from the definition of the command line.

use ::queue::exit;

use crate::args::CompletionsArgs;
use crate::failure::Failure;
use crate::output::Output;

/// Prints the script.
///
/// # Errors
/// Standard output takes no more.
pub(crate) fn run(out: &Output, args: &CompletionsArgs) -> Result<u8, Failure> {
    let mut script = Vec::new();
    // Into memory first: it panics where its output is closed.
    clap_complete::generate(args.shell, &mut crate::command(), "pgmill", &mut script);
    out.text(String::from_utf8_lossy(&script).trim_end())?;
    Ok(exit::OK)
}
