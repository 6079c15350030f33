//! Writes the man pages and shell completions of the installed programs.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

/// Writes man pages to man/ and completions to bash/, zsh/ and fish/ in a folder.
#[derive(Parser)]
#[command(
    name = "deploy-man-pages",
    version,
    after_help = "Examples:\n  deploy-man-pages target/release/pages"
)]
struct Arguments {
    /// Output folder; the contents of these four folders are replaced
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

fn main() -> ExitCode {
    let arguments: Arguments = match cluster::arguments() {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    match deploy::man_pages::write(&arguments.folder) {
        Ok(pages) => {
            println!("{} files in {}", pages.len(), arguments.folder.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
