//! Runs mdBook.

use std::fs;
use std::path::{Path, absolute};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::{check, root};

/// Builds the book with the version in its title, and checks it.
pub(crate) fn build(mdbook: &Path, folder: &Path) -> Result<()> {
    let folder = absolute(folder)?;
    let mut command = Command::new(mdbook);
    command.arg("build").arg(root().join("docs/book")).arg("--dest-dir").arg(&folder);
    command.env("MDBOOK_BOOK__TITLE", concat!("pgmill ", env!("CARGO_PKG_VERSION")));
    // Instead of a cargo, which would build this program once more.
    let own = std::env::current_exe()?;
    command
        .env("MDBOOK_PREPROCESSOR__REPOSITORY__COMMAND", format!("{} preprocess", own.display()));
    let status = command.status().with_context(|| format!("{}", mdbook.display()))?;
    ensure!(status.success(), "mdBook failed");
    // mdBook copies every file of docs/ that is no page.
    fs::remove_dir_all(folder.join("book")).context("could not remove the copy of docs/book")?;
    check::check(&folder)
}
