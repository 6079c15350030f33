//! Finds the server's programs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{Account, install};

/// Oldest supported major version.
const OLDEST_MAJOR: u32 = 14;

/// Programs needed to run a cluster. npm's embedded packages contain only these three.
const PROGRAMS: [&str; 3] = ["initdb", "pg_ctl", "postgres"];

/// A client program of complete installations.
const CLIENT_PROGRAM: &str = "pg_dump";

/// A folder with `initdb`, `pg_ctl` and `postgres` of one supported version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binaries {
    directory: PathBuf,
    major: u32,
}

impl Binaries {
    /// Searches `explicit` only, if given: a folder of programs, or a folder with the programs in
    /// `bin/` or `native/bin/`. Otherwise searches PATH, the folder reported by `pg_config
    /// --bindir`, the folders that the usual packages install into, and the one that
    /// `crates/cluster/servers/install` installs into. Takes the newest major version; of several folders
    /// with this version, the first one with the client programs.
    ///
    /// # Errors
    ///
    /// Returns an error if no server is found, or if the explicit one is older than version 14.
    /// Older servers found during the search are skipped with a note on stderr.
    pub fn find(explicit: Option<&Path>) -> Result<Self> {
        match explicit {
            Some(directory) => Self::in_explicit(directory),
            None => newest_supported(places()).with_context(|| {
                format!(
                    "no PostgreSQL server (initdb, pg_ctl and postgres, version {OLDEST_MAJOR} or \
                     newer) found in PATH, by pg_config, or in the usual folders"
                )
            }),
        }
    }

    /// Like [`find`](Self::find), but installs the system's package if no server is found and
    /// installation is possible without interaction. An installation never replaces `explicit`.
    ///
    /// # Errors
    ///
    /// Returns an error if nothing could be installed; the message contains the command to run.
    pub fn find_or_install(explicit: Option<&Path>) -> Result<Self> {
        match Self::find(explicit) {
            Ok(found) => Ok(found),
            Err(error) if explicit.is_some() => Err(error),
            Err(error) => {
                eprintln!("cluster: {error:#}");
                install::install(&path_folders())?;
                Self::find(None)
            }
        }
    }

    /// Returns the folder with the programs.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the server's major version, for example 17.
    pub fn major(&self) -> u32 {
        self.major
    }

    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn in_explicit(directory: &Path) -> Result<Self> {
        let candidates =
            [directory.to_path_buf(), directory.join("bin"), directory.join("native/bin")];
        let Some(complete) = candidates.iter().find(|candidate| complete(candidate)) else {
            bail!(
                "initdb, pg_ctl and postgres not found in {}, its bin/ or its native/bin/",
                directory.display()
            );
        };
        Self::inspect(complete)
    }

    /// Reads the version, as the account that the server will run as, and resolves links: a PATH
    /// folder may contain links to some of the programs.
    fn inspect(directory: &Path) -> Result<Self> {
        let directory = resolve(directory)?;
        let postgres = directory.join("postgres");
        let output = Account::of_server()?
            .command(&postgres, Path::new("/"))
            .arg("--version")
            .output()
            .with_context(|| format!("cannot run {}", postgres.display()))?;
        let version = String::from_utf8_lossy(&output.stdout);
        let Some(major) = parse_major(&version) else {
            let error = String::from_utf8_lossy(&output.stderr);
            bail!("{} reports no version: {}{}", postgres.display(), version.trim(), error.trim());
        };
        if major < OLDEST_MAJOR {
            bail!(
                "{} is version {major}, {OLDEST_MAJOR} or newer is required",
                directory.display()
            );
        }
        Ok(Self { directory, major })
    }
}

fn complete(directory: &Path) -> bool {
    PROGRAMS.iter().all(|program| directory.join(program).is_file())
}

/// Returns the real folder that contains all programs.
fn resolve(directory: &Path) -> Result<PathBuf> {
    let directory = std::path::absolute(directory)?;
    let real = fs::canonicalize(directory.join("postgres"))?;
    Ok(match real.parent() {
        Some(parent) if complete(parent) => parent.to_path_buf(),
        _ => directory,
    })
}

/// Returns the folder with the newest supported server; reports unsuitable ones on stderr.
fn newest_supported(places: impl Iterator<Item = PathBuf>) -> Option<Binaries> {
    let mut skipped: Vec<String> = Vec::new();
    let mut newest: Option<Binaries> = None;
    let rank = |it: &Binaries| (it.major, it.program(CLIENT_PROGRAM).is_file());
    for place in places.filter(|place| complete(place)) {
        match Binaries::inspect(&place) {
            Ok(found) => {
                if newest.as_ref().is_none_or(|newest| rank(&found) > rank(newest)) {
                    newest = Some(found);
                }
            }
            Err(error) => {
                let reason = format!("{error:#}");
                if !skipped.contains(&reason) {
                    eprintln!("cluster: skipped: {reason}");
                    skipped.push(reason);
                }
            }
        }
    }
    newest
}

/// Returns the folders to search, in order.
fn places() -> impl Iterator<Item = PathBuf> {
    path_folders()
        .into_iter()
        .chain(std::iter::once_with(pg_config).flatten())
        .chain(versions("/usr/lib/postgresql", ""))
        .chain(versions("/usr", "pgsql-"))
        .chain(["/usr/local/pgsql/bin".into()])
        .chain(versions("/opt/homebrew/opt", "postgresql@"))
        .chain(["/opt/homebrew/bin".into()])
        .chain(versions("/usr/local/opt", "postgresql"))
        .chain(versions("/Applications/Postgres.app/Contents/Versions", ""))
        .chain(installed_tools())
}

/// Returns the folders of `tools/postgres` next to the folder of this program's build profile.
fn installed_tools() -> Vec<PathBuf> {
    let program = std::env::current_exe().ok();
    let target = program.as_deref().and_then(|path| path.parent()?.parent());
    let tools = target.map(|target| target.join("tools/postgres"));
    tools.as_deref().and_then(Path::to_str).map_or_else(Vec::new, |tools| versions(tools, ""))
}

/// Returns the folders of PATH.
#[expect(
    clippy::disallowed_methods,
    reason = "PATH is the system's, not a setting of this program"
)]
fn path_folders() -> Vec<PathBuf> {
    std::env::var_os("PATH").map_or_else(Vec::new, |path| std::env::split_paths(&path).collect())
}

fn pg_config() -> Option<PathBuf> {
    let output = Command::new("pg_config").arg("--bindir").output().ok()?;
    let directory = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| PathBuf::from(directory.trim()))
}

/// Returns the `bin` folders under `parent/<prefix><version>/`, highest version first.
fn versions(parent: &str, prefix: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(parent) else { return Vec::new() };
    let mut found: Vec<(u32, PathBuf)> = entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let name = entry.file_name().into_string().ok()?;
            let version = name.strip_prefix(prefix)?.trim_start_matches('@');
            Some((leading_number(version).unwrap_or(0), entry.path().join("bin")))
        })
        .collect();
    found.sort_by(|a, b| b.cmp(a));
    found.into_iter().map(|(_, path)| path).collect()
}

/// Parses the major version from the output of `postgres --version`.
fn parse_major(version: &str) -> Option<u32> {
    leading_number(version.trim().strip_prefix("postgres (PostgreSQL) ")?)
}

fn leading_number(text: &str) -> Option<u32> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Creates a folder with scripts that report this server version. A separate process writes the
    /// scripts: a file that this process holds open for writing is inherited by processes that
    /// other tests start at the same moment, and cannot be executed ("text file busy").
    fn pretend(directory: &Path, version: &str) {
        fs::create_dir_all(directory).unwrap();
        for program in PROGRAMS {
            let script = format!("#!/bin/sh\necho 'postgres (PostgreSQL) {version}'");
            let written = Command::new("sh")
                .args(["-c", r#"printf '%s\n' "$1" > "$0" && chmod 755 "$0""#])
                .args([directory.join(program).as_os_str(), script.as_ref()])
                .status()
                .unwrap();
            assert!(written.success());
        }
    }

    /// A folder for one test, removed on drop.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("pgmill-binaries-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(fs::canonicalize(path).unwrap())
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_major_version_is_read_from_every_spelling() {
        let cases = [
            ("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n", Some(15)),
            ("postgres (PostgreSQL) 18.4", Some(18)),
            ("postgres (PostgreSQL) 19beta1", Some(19)),
            ("postgres (PostgreSQL) 9.6.24", Some(9)),
            ("pg_ctl: broken", None),
            ("", None),
        ];
        for (text, major) in cases {
            assert_eq!(parse_major(text), major, "in {text:?}");
        }
    }

    #[test]
    fn the_newest_supported_version_with_the_client_programs_is_taken() {
        let scratch = Scratch::new("order");
        let at = |name: &str| scratch.0.join(name);
        pretend(&at("old"), "13.22");
        pretend(&at("partial"), "17.1");
        fs::remove_file(at("partial/pg_ctl")).unwrap();
        pretend(&at("good"), "16.2");
        pretend(&at("better"), "17.1");
        pretend(&at("best"), "17.0");
        let places = || ["missing", "old", "partial", "good", "better", "best"].map(at).into_iter();
        let found = newest_supported(places()).unwrap();
        assert_eq!(found, Binaries { directory: at("better"), major: 17 });
        fs::copy(at("best/postgres"), at("best").join(CLIENT_PROGRAM)).unwrap();
        let found = newest_supported(places()).unwrap();
        assert_eq!(found, Binaries { directory: at("best"), major: 17 });
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        let scratch = Scratch::new("versions");
        for version in ["9.6", "14", "17", "latest"] {
            fs::create_dir(scratch.0.join(version)).unwrap();
        }
        let expected = ["17", "14", "9.6", "latest"].map(|v| scratch.0.join(v).join("bin"));
        assert_eq!(versions(scratch.0.to_str().unwrap(), ""), expected);
    }

    #[test]
    fn an_explicit_folder_may_hold_the_programs_or_their_bin() {
        let scratch = Scratch::new("explicit");
        let native = scratch.0.join("npm/native/bin");
        pretend(&native, "18.4");
        for explicit in ["npm", "npm/native", "npm/native/bin"] {
            let found = Binaries::find(Some(&scratch.0.join(explicit))).unwrap();
            assert_eq!(found.directory(), native);
        }
        Binaries::find(Some(&scratch.0)).expect_err("nothing there");
        pretend(&scratch.0.join("old"), "13.1");
        let error = Binaries::find(Some(&scratch.0.join("old"))).expect_err("too old");
        assert!(error.to_string().contains("version 13"), "{error}");
    }

    #[test]
    fn links_are_followed_to_the_real_folder() {
        let scratch = Scratch::new("links");
        let real = scratch.0.join("real");
        pretend(&real, "15.0");
        let linked = scratch.0.join("linked");
        fs::create_dir(&linked).unwrap();
        for program in PROGRAMS {
            symlink(real.join(program), linked.join(program)).unwrap();
        }
        assert_eq!(Binaries::find(Some(&linked)).unwrap().directory(), real);
    }
}
