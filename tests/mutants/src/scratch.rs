//! A copy of the sources in which mutants of Rust code are built.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use tokio::process::Command;

use crate::catalog::Mutant;
use crate::suite::{cargo, executable};

/// The copy, and its build folder.
pub(crate) struct Scratch {
    sources: PathBuf,
    build: PathBuf,
}

impl Scratch {
    /// Copies the sources into a folder. Unchanged files are not written again, so that a later build
    /// compiles only what has changed.
    ///
    /// # Errors
    /// Returns an error if git or the file system refuses.
    pub(crate) async fn new(repository: &Path, folder: &Path) -> Result<Self> {
        let scratch = Self { sources: folder.join("sources"), build: folder.join("build") };
        let listed = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(repository)
            .stderr(Stdio::inherit())
            .output()
            .await
            .context("git ls-files")?;
        ensure!(listed.status.success(), "git cannot list the files");
        for name in String::from_utf8(listed.stdout)?.split_terminator('\0') {
            copy(&repository.join(name), &scratch.sources.join(name))?;
        }
        if !scratch.build.exists() {
            scratch.seed(folder).await?;
        }
        Ok(scratch)
    }

    /// Copies the compiled crates of other authors from the build folder of the tests, which contains
    /// `folder`. Cargo names files by crate, features and path, so it finds these crates, and
    /// compiles only those of the project.
    async fn seed(&self, folder: &Path) -> Result<()> {
        let built = folder.parent().context("no build folder")?.join("debug");
        let own = own_crates(&self.sources).await?;
        for part in ["deps", "build", ".fingerprint"] {
            let to = self.build.join("debug").join(part);
            fs::create_dir_all(&to).with_context(|| to.display().to_string())?;
            let Ok(entries) = fs::read_dir(built.join(part)) else { continue };
            let mut files = Vec::new();
            for entry in entries {
                let entry = entry?;
                let name = entry.file_name().to_string_lossy().into_owned();
                let (stem, _) = name.rsplit_once('-').unwrap_or((&name, ""));
                let stem = stem.replace('-', "_");
                if !own.contains(stem.strip_prefix("lib").unwrap_or(&stem)) && !own.contains(&stem)
                {
                    files.push(entry.path());
                }
            }
            for files in files.chunks(500) {
                let copied = Command::new("cp").arg("-a").args(files).arg(&to).status().await?;
                ensure!(copied.success(), "the compiled crates cannot be copied");
            }
        }
        Ok(())
    }

    /// Builds the worker.
    ///
    /// # Errors
    /// Returns an error if the build fails.
    pub(crate) async fn build(&self) -> Result<PathBuf> {
        let output = cargo()
            // The examples, of which there are none, make cargo select the features of the tests.
            .args(["build", "--locked", "--workspace", "--bin", "test-worker", "--examples"])
            .arg("--message-format=json-render-diagnostics")
            .current_dir(&self.sources)
            .env("CARGO_TARGET_DIR", &self.build)
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .output()
            .await
            .context("cargo build")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "the worker cannot be built:\n{errors}");
        executable(&output.stdout, "test-worker").context("cargo names no worker")
    }

    /// Builds the worker with a mutant, and restores the file.
    ///
    /// # Errors
    /// Returns an error if the mutant does not apply, or does not compile.
    pub(crate) async fn build_mutant(&self, mutant: &Mutant) -> Result<PathBuf> {
        let path = self.sources.join(&mutant.file);
        let mutated = mutant.mutated(&self.sources)?;
        let original = fs::read_to_string(&path)?;
        fs::write(&path, mutated)?;
        let built = self.build().await.with_context(|| mutant.name.clone());
        fs::write(&path, original)?;
        // The next build replaces the program.
        let worker = built?;
        let kept = self.build.join(&mutant.name);
        fs::copy(&worker, &kept).with_context(|| kept.display().to_string())?;
        Ok(kept)
    }
}

/// Returns the names of the crates and programs of the project, as rustc writes them.
async fn own_crates(sources: &Path) -> Result<HashSet<String>> {
    let output = cargo()
        .args(["metadata", "--locked", "--no-deps", "--format-version", "1"])
        .current_dir(sources)
        .stderr(Stdio::inherit())
        .output()
        .await
        .context("cargo metadata")?;
    let metadata: Metadata = serde_json::from_slice(&output.stdout).context("cargo metadata")?;
    let names = metadata
        .packages
        .into_iter()
        .flat_map(|package| package.targets.into_iter().chain([Named { name: package.name }]));
    Ok(names.map(|named| named.name.replace('-', "_")).collect())
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    targets: Vec<Named>,
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

/// Copies a file unless the copy has the same content. A changed copy gets the current time, because
/// cargo compares the times of files with the time of the last build, which may be that of a mutant.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let name = || from.display().to_string();
    // A file that was deleted and not yet committed.
    let Ok(content) = fs::read(from) else { return Ok(()) };
    if fs::read(to).is_ok_and(|copy| copy == content) {
        return Ok(());
    }
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).with_context(name)?;
    }
    fs::write(to, content).with_context(name)?;
    fs::set_permissions(to, fs::metadata(from)?.permissions()).with_context(name)
}
