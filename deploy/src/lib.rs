//! Man pages and completions for the package, and the dashboards for the tests. `make deploy-check` checks
//! the deployment files with the programs that will read them; `tests/` compares them with the
//! documentation and with pgmill.
//!
//! - `dashboard`: the panels of the dashboards
//! - `man_pages`: man pages and completions

pub mod dashboard;
pub mod man_pages;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Returns the repository that this program was built from.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// Returns the text files of a repository folder with this extension, ordered by path from the
/// root.
///
/// # Errors
/// Returns an error if a folder or file cannot be read.
pub fn files(folder: &str, ending: &str) -> Result<Vec<(String, String)>> {
    let entries = std::fs::read_dir(root().join(folder)).with_context(|| folder.to_owned())?;
    let mut paths: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    paths.retain(|path| path.to_string_lossy().ends_with(ending));
    paths.sort();
    let read = |path: PathBuf| {
        let name = path.strip_prefix(root())?.display().to_string();
        let text = std::fs::read_to_string(&path).with_context(|| name.clone())?;
        Ok((name, text))
    };
    paths.into_iter().map(read).collect()
}
