//! The programs of Patroni and etcd.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use cluster::Account;

/// The first version of Patroni that never overwrites the lock of another leader: pull requests
/// 2689 and 2787 of Patroni. With an older version and the protocol of etcd 3, a leader that was
/// frozen while it renewed its lock takes the lock back when it resumes, and the cluster discards
/// what its successor has acknowledged.
const MIN_VERSION: [u32; 2] = [3, 1];

/// How the programs are run.
pub(crate) struct Programs {
    etcd: PathBuf,
    patroni: Installation,
}

/// Where Patroni comes from.
enum Installation {
    /// A package of the system: the paths of `patroni` and `patronictl`.
    System { patroni: PathBuf, patronictl: PathBuf },
    /// A Python environment. The account of the servers may not be able to reach it, so a copy of
    /// its packages and scripts is used.
    Environment { folder: PathBuf, python: PathBuf },
}

impl Programs {
    /// Searches etcd in PATH, and Patroni in a Python environment or in PATH.
    ///
    /// # Errors
    /// Returns an error with the command that installs the programs if one is missing, or if Patroni
    /// is too old.
    pub(crate) fn find(environment: Option<&Path>) -> Result<Self> {
        let etcd = find("etcd").context("run: apt-get install -y etcd-server")?;
        let patroni = match environment {
            Some(folder) => {
                let python = folder.join("bin/python").canonicalize();
                let python =
                    python.with_context(|| format!("no Python in {}", folder.display()))?;
                Installation::Environment { folder: folder.to_owned(), python }
            }
            None => {
                let find = |name| find(name).context("run: make ha-check, or name --patroni DIR");
                Installation::System { patroni: find("patroni")?, patronictl: find("patronictl")? }
            }
        };
        let program = match &patroni {
            Installation::System { patroni, .. } => patroni.clone(),
            Installation::Environment { folder, .. } => folder.join("bin/patroni"),
        };
        let output = Command::new(&program).arg("--version").output();
        let output = output.with_context(|| format!("cannot run {}", program.display()))?;
        check_version(&String::from_utf8_lossy(&output.stdout))?;
        Ok(Self { etcd, patroni })
    }

    /// Copies what the account of the servers may not be able to reach into a folder.
    pub(crate) fn copied_to(self, folder: &Path) -> Result<Self> {
        let Installation::Environment { folder: from, python } = self.patroni else {
            return Ok(self);
        };
        let to = folder.join("python");
        let version = python.file_name().context("no name")?.to_string_lossy().into_owned();
        let packages = from.join("lib").join(&version).join("site-packages");
        let copied = Command::new("cp").arg("-r").args([&packages, &to]).status()?;
        ensure!(copied.success(), "cannot copy {}", packages.display());
        for script in ["patroni", "patronictl"] {
            std::fs::copy(from.join("bin").join(script), to.join(format!("{script}.script")))?;
        }
        Ok(Self { patroni: Installation::Environment { folder: to, python }, ..self })
    }

    /// Returns the path of etcd.
    pub(crate) fn etcd(&self) -> &Path {
        &self.etcd
    }

    /// Returns the program `patroni` with its first arguments.
    pub(crate) fn patroni(&self) -> Vec<String> {
        let path = |path: &Path| path.to_string_lossy().into_owned();
        match &self.patroni {
            Installation::System { patroni, .. } => vec![path(patroni)],
            Installation::Environment { folder, python } => {
                vec![path(python), path(&folder.join("patroni.script"))]
            }
        }
    }

    /// Returns the folder with the packages that Patroni needs, unless Python finds them by itself.
    pub(crate) fn packages(&self) -> Option<&Path> {
        match &self.patroni {
            Installation::System { .. } => None,
            Installation::Environment { folder, .. } => Some(folder),
        }
    }

    /// Returns the command `patronictl`.
    pub(crate) fn patronictl(&self, account: &Account, directory: &Path) -> Command {
        match &self.patroni {
            Installation::System { patronictl, .. } => account.command(patronictl, directory),
            Installation::Environment { folder, python } => {
                let mut command = account.command(python, directory);
                command.arg(folder.join("patronictl.script")).env("PYTHONPATH", folder);
                command
            }
        }
    }
}

fn find(name: &str) -> Result<PathBuf> {
    let output = Command::new("sh").args(["-c", "command -v \"$1\"", "sh", name]).output()?;
    ensure!(output.status.success(), "program {name} not found");
    Ok(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()))
}

/// Returns an error for the output of an old `patroni --version`.
fn check_version(output: &str) -> Result<()> {
    let version = output.trim().trim_start_matches("patroni ");
    let mut numbers = version.split('.').map(|number| number.parse().unwrap_or(0));
    let found = [numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)];
    if found < MIN_VERSION {
        bail!(
            "Patroni {version} is too old: with etcd 3, a leader that was frozen may take its lock back and \
             discard what its successor has acknowledged. Version 3.1 or later is required"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::check_version;

    #[test]
    fn old_versions_are_refused() {
        assert!(check_version("patroni 3.0.2\n").is_err());
        for version in ["patroni 3.1.0\n", "patroni 4.1.5\n"] {
            check_version(version).unwrap();
        }
    }
}
