//! Builds the book: runs mdBook, for which this program is the preprocessor, and checks the built
//! pages.

mod build;
mod check;
mod links;
mod page;
mod preprocess;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Builds the documentation as a book with search, and checks it.
#[derive(Parser)]
#[command(
    name = "book",
    version,
    after_help = "Examples:\n  make book\n  book build target/book --mdbook ~/.cargo/bin/mdbook\n  \
                  book check target/book"
)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Build the book in a folder, and check it
    Build {
        /// Output folder; its contents are replaced
        #[arg(value_name = "DIR")]
        folder: PathBuf,
        /// The program mdBook
        #[arg(long, value_name = "FILE", default_value = "mdbook")]
        mdbook: PathBuf,
    },
    /// Check the links and the navigation of a built book
    Check {
        /// Folder of the built book
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
    /// Rewrite the links of the pages that mdBook passes on standard input
    #[command(hide = true)]
    Preprocess {
        #[command(subcommand)]
        question: Option<Question>,
    },
}

/// A question of mdBook before it passes the pages.
#[derive(Subcommand)]
enum Question {
    /// Whether the preprocessor supports a renderer
    Supports { renderer: String },
}

fn main() -> ExitCode {
    let arguments: Arguments = match cluster::arguments() {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    let done = match arguments.verb {
        Verb::Build { folder, mdbook } => build::build(&mdbook, &folder),
        Verb::Check { folder } => check::check(&folder),
        // The links suit every renderer.
        Verb::Preprocess { question: Some(Question::Supports { .. }) } => Ok(()),
        Verb::Preprocess { question: None } => preprocess::run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the root of the repository.
fn root() -> &'static Path {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    folder.ancestors().nth(2).unwrap_or(folder)
}
