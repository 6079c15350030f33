//! Installs peers into the scratch folder with their own package managers, and nowhere else.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::process::Command;
use tokio::time::timeout;

use super::adapter::{Adapter, last_lines};
use super::catalog::{PEERS, PackageManager, Peer};
use crate::context::RunContext;

/// Time limit of one command of an installation. The first build of the two Rust peers takes
/// minutes.
const TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// Marker file with the files on which the installation depends; the peer is reinstalled if it is
/// missing or differs.
const STAMP: &str = "installed";

/// The installed peers, and the reasons for those that could not be installed.
pub(crate) struct Participants {
    pub(super) adapters: Vec<Adapter>,
    /// For each peer that could not be installed: its name with the version, and the reason.
    pub(super) missing: Vec<(String, String)>,
}

/// Installs the peers of these names, or all, into the scratch folder.
///
/// # Errors
/// Returns an error if the scratch folder has no valid path. A peer's own failure is part of
/// the results.
pub(crate) async fn gather(
    context: &RunContext,
    names: &[String],
    scratch: Option<&Path>,
) -> Result<Participants> {
    let scratch = scratch.map_or_else(default_scratch, Path::to_owned);
    let scratch = std::path::absolute(scratch)?;
    let mut participants = Participants { adapters: Vec::new(), missing: Vec::new() };
    for peer in PEERS.iter() {
        if !names.is_empty() && !names.contains(&peer.name) {
            continue;
        }
        let name = format!("{} {}", peer.name, peer.version);
        context.progress.stage(&format!("installing {name} into {}", scratch.display()));
        match install(&scratch, peer).await {
            Ok(adapter) => participants.adapters.push(adapter),
            Err(error) => {
                let reason = format!("{error:#}");
                context.progress.line(&format!("{name} is not installed: {reason}"));
                participants.missing.push((name, reason));
            }
        }
    }
    Ok(participants)
}

/// Returns the default folder for peers, writable only by the user.
fn default_scratch() -> PathBuf {
    match std::env::home_dir() {
        Some(home) => home.join(".cache/pgmill-loadtest-peers"),
        None => PathBuf::from("pgmill-loadtest-peers"),
    }
}

/// Writes the adapter and installs its dependencies, once for each set of versions.
///
/// # Errors
/// Returns the reason for the report if the installation fails.
async fn install(scratch: &Path, peer: &'static Peer) -> Result<Adapter> {
    let folder = scratch.join(&peer.name);
    for (path, text) in peer.files() {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().unwrap_or(&folder))
            .context("could not create a folder")?;
        // cargo rebuilds files newer than its last build.
        if fs::read_to_string(&path).ok().as_deref() != Some(text) {
            fs::write(&path, text).context("could not write the adapter")?;
        }
    }
    let wanted: String = match peer.package_manager {
        PackageManager::Npm | PackageManager::Pip => peer.files().take(1).map(|it| it.1).collect(),
        PackageManager::Cargo => peer.files().map(|it| it.1).collect(),
    };
    let stamp = folder.join(STAMP);
    if fs::read_to_string(&stamp).ok().as_deref() != Some(wanted.as_str()) {
        match peer.package_manager {
            PackageManager::Npm => node(&folder).await?,
            PackageManager::Pip => python(&folder).await?,
            PackageManager::Cargo => rust(scratch, &folder).await?,
        }
        fs::write(&stamp, &wanted).context("could not write the stamp")?;
    }
    Ok(adapter(scratch, &folder, peer))
}

async fn node(folder: &Path) -> Result<()> {
    let quiet = ["--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error"];
    tool(folder, "npm", &[&["install"], &quiet[..]].concat()).await
}

async fn python(folder: &Path) -> Result<()> {
    tool(folder, "python3", &["-m", "venv", "venv"]).await?;
    tool(folder, "venv/bin/python", &["-m", "pip", "install", "--quiet", "-r", "requirements.txt"])
        .await
}

async fn rust(scratch: &Path, folder: &Path) -> Result<()> {
    let target = target(scratch);
    let target = target.to_str().context("the scratch folder's path is not UTF-8")?;
    tool(folder, "cargo", &["build", "--release", "--quiet", "--target-dir", target]).await
}

fn target(scratch: &Path) -> PathBuf {
    scratch.join("target")
}

fn adapter(scratch: &Path, folder: &Path, peer: &'static Peer) -> Adapter {
    match peer.package_manager {
        PackageManager::Npm => {
            let own = folder.join("node_modules/node/bin/node");
            let node = if own.is_file() { own } else { PathBuf::from("node") };
            Adapter::new(peer, node, Some(folder.join("adapter.mjs")))
        }
        PackageManager::Pip => {
            let python = folder.join("venv/bin/python");
            Adapter::new(peer, python, Some(folder.join("adapter.py")))
        }
        PackageManager::Cargo => {
            let name = format!("peer-{}", peer.name.replace('_', "-"));
            Adapter::new(peer, target(scratch).join("release").join(name), None)
        }
    }
}

/// Runs a package manager in the folder.
async fn tool(folder: &Path, program: &str, arguments: &[&str]) -> Result<()> {
    let log = folder.join("install.log");
    let file = File::create(&log).context("could not create a log file")?;
    let path = if program.contains('/') { folder.join(program) } else { PathBuf::from(program) };
    let mut child = Command::new(path)
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("could not run {program}"))?;
    let Ok(status) = timeout(TIMEOUT, child.wait()).await else {
        bail!("{program} took more than {TIMEOUT:?}");
    };
    let status = status?;
    if !status.success() {
        let text = fs::read_to_string(&log).unwrap_or_default();
        bail!("{program} ended with {status}: {}", last_lines(&text, 3));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_missing_package_manager_is_named() {
        let folder = std::env::temp_dir().join(format!("loadtest-peers-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let missing = tool(&folder, "no-such-program", &[]).await.unwrap_err();
        assert!(format!("{missing:#}").starts_with("could not run no-such-program: "));
        let failed = tool(&folder, "sh", &["-c", "echo one; echo two >&2; exit 3"]).await;
        let failed = failed.unwrap_err().to_string();
        assert!(failed.contains("exit status: 3: one; two"), "{failed}");
        fs::remove_dir_all(folder).unwrap();
    }
}
