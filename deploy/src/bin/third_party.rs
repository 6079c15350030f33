//! Writes the bill of materials and the licences of the crates inside the programs.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

/// Writes sbom.cdx.json (CycloneDX) and third-party-licences.txt into a folder.
#[derive(Parser)]
#[command(
    name = "deploy-third-party",
    version,
    after_help = "Examples:\n  deploy-third-party target/release/pages"
)]
struct Arguments {
    /// Output folder
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

fn main() -> ExitCode {
    let arguments: Arguments = match cluster::arguments() {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    match deploy::third_party::write(&arguments.folder) {
        Ok(crates) => {
            println!("{crates} crates in {}", arguments.folder.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
