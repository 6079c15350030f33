//! `pgmill completions`: shell completion scripts, generated from the definition of the command
//! line.

use ::queue::exit;

use crate::args::CompletionsArgs;
use crate::failure::Failure;
use crate::output::Output;

/// Prints the completion script.
pub(crate) fn run(out: &Output, args: &CompletionsArgs) -> Result<u8, Failure> {
    let mut script = Vec::new();
    // Into memory first: `generate` panics when its output is closed.
    clap_complete::generate(args.shell, &mut crate::command(), "pgmill", &mut script);
    out.text(String::from_utf8_lossy(&script).trim_end())?;
    Ok(exit::OK)
}
