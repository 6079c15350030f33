//! Checks the Debian package built by `make deb`: content, dependencies, and the files left behind
//! by install and purge.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::scratch::Scratch;
use crate::{Check, Tools, man_pages};

const SUBJECT: &str = "debian";
const DPKG: &str = "dpkg-deb";
const HINT: &str = "apt-get install dpkg";

/// Required files in addition to man pages and completions, with their modes as listed by dpkg-deb.
const FILES: [(&str, &str); 9] = [
    ("-rwxr-xr-x", "usr/bin/pgmill"),
    ("-rwxr-xr-x", "usr/bin/pgmill-worker"),
    ("-rwxr-xr-x", "usr/bin/pgmill-enqueue"),
    ("-rw-r--r--", "usr/lib/systemd/system/pgmill-worker@.service"),
    ("-rw-r--r--", "etc/default/pgmill"),
    ("-rw-r--r--", "usr/share/pgmill/schema.sql"),
    ("-rw-r--r--", "usr/share/doc/pgmill/copyright"),
    ("-rw-r--r--", "usr/share/doc/pgmill/examples/enqueue.sql"),
    ("-rw-r--r--", "usr/share/zsh/vendor-completions/_pgmill"),
];

pub(crate) fn run(tools: &Tools) -> Result<Vec<Check>> {
    let Some(package) = package()? else {
        return Ok(vec![Check::skipped(SUBJECT, "the package", DPKG, "make deb PROFILE=dev")]);
    };
    let scratch = Scratch::new("debian")?;
    let checks = [
        contents(tools, &package),
        control(tools, &package),
        lint(tools, &package),
        installed(tools, &package, scratch.path()),
    ];
    // A failed check does not hide the results of the others.
    let broken = |error| Check::broken(SUBJECT, &error);
    Ok(checks.into_iter().map(|check| check.unwrap_or_else(broken)).collect())
}

/// Returns the latest package of this version: of the build that this program belongs to, or of the
/// release build.
fn package() -> Result<Option<PathBuf>> {
    let own = std::env::current_exe().context("cannot determine the path of this program")?;
    let version = format!("pgmill_{}-", env!("CARGO_PKG_VERSION"));
    let folders = own.ancestors().skip(1).take(2).map(|folder| folder.join("debian"));
    let entries = folders.filter_map(|folder| fs::read_dir(folder).ok()).flatten();
    let packages = entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(&version) && name.ends_with(".deb")
    });
    Ok(packages.max_by_key(|path| fs::metadata(path).and_then(|file| file.modified()).ok()))
}

/// Checks modes, owners and names of all files.
fn contents(tools: &Tools, package: &Path) -> Result<Check> {
    let what = "files, modes and owners";
    let Some(output) = tools.run(tools.command(DPKG).arg("--contents").arg(package), "")? else {
        return Ok(Check::skipped(SUBJECT, what, DPKG, HINT));
    };
    // -rwxr-xr-x root/root 123 2026-01-01 00:00 ./usr/bin/pgmill
    let rows: Vec<[&str; 3]> = output
        .out
        .lines()
        .filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            Some([*words.first()?, *words.get(1)?, words.get(5)?.trim_start_matches("./")])
        })
        .collect();
    let mut wanted: Vec<(&str, String)> =
        FILES.map(|(mode, name)| (mode, name.to_owned())).to_vec();
    for command in man_pages::programs() {
        let name = command.get_name();
        wanted.push(("-rw-r--r--", format!("usr/share/man/man1/{name}.1.gz")));
        wanted.push(("-rw-r--r--", format!("usr/share/bash-completion/completions/{name}")));
    }
    let mut errors = Vec::new();
    for (mode, name) in &wanted {
        if !rows.iter().any(|[it, _, path]| it == mode && path == name) {
            errors.push(format!("{name} with mode {mode} is missing"));
        }
    }
    for [mode, owner, name] in &rows {
        if !["root/root", "0/0"].contains(owner) {
            errors.push(format!("{name} belongs to {owner}"));
        }
        if mode.get(8..9) == Some("w") || mode.contains(['s', 't']) {
            errors.push(format!("{name} has mode {mode}"));
        }
        if !["", "usr", "etc"].contains(&name.split('/').next().unwrap_or_default()) {
            errors.push(format!("{name} is outside usr and etc"));
        }
    }
    Ok(match &*errors {
        [] => Check::passed(SUBJECT, what, DPKG, format!("{} entries", rows.len())),
        _ => Check::found(SUBJECT, what, DPKG, &errors),
    })
}

/// Checks the package's control fields.
fn control(tools: &Tools, package: &Path) -> Result<Check> {
    let what = "version, dependencies, configuration files";
    let mut asked = tools.command(DPKG);
    let asked = asked.arg("--field").arg(package).args(["Package", "Version", "Depends"]);
    let Some(output) = tools.run(asked, "")? else {
        return Ok(Check::skipped(SUBJECT, what, DPKG, HINT));
    };
    let field = |name: &str| {
        output
            .out
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
            .unwrap_or("")
    };
    let mut errors = Vec::new();
    if field("Package") != "pgmill" || !field("Version").starts_with(env!("CARGO_PKG_VERSION")) {
        errors.push(format!("name and version are {} {}", field("Package"), field("Version")));
    }
    // Dependencies determined by the linker; the programs contain everything else.
    let depends: Vec<&str> =
        field("Depends").split(", ").filter_map(|it| it.split(' ').next()).collect();
    if !depends.contains(&"libc6") {
        errors.push("the dependency on libc6 is missing".to_owned());
    }
    for other in depends.iter().filter(|it| !["libc6", "libgcc-s1"].contains(it)) {
        errors.push(format!("unexpected dependency: {other}"));
    }
    let conffiles =
        tools.run(tools.command(DPKG).arg("--info").arg(package).arg("conffiles"), "")?;
    let conffiles = conffiles.map(|output| output.out).unwrap_or_default();
    if conffiles.trim() != "/etc/default/pgmill" {
        errors.push(format!("unexpected configuration files: {}", conffiles.trim()));
    }
    Ok(match &*errors {
        [] => {
            let size = fs::metadata(package)?.len() / 1024;
            let detail = format!("{size} KiB, depends on {}", field("Depends"));
            Check::passed(SUBJECT, what, DPKG, detail)
        }
        _ => Check::found(SUBJECT, what, DPKG, &errors),
    })
}

/// Reports the errors of lintian, Debian's package checker.
fn lint(tools: &Tools, package: &Path) -> Result<Check> {
    let (what, tool) = ("Debian's policy", "lintian");
    let mut command = tools.command(tool);
    // The package is not part of Debian: it has no Debian changelog, and its maintainers have no
    // address.
    let without = "no-changelog,malformed-contact";
    command.args(["--fail-on", "error", "--allow-root", "--suppress-tags", without]).arg(package);
    Ok(match tools.run(&mut command, "")? {
        None => Check::skipped(SUBJECT, what, tool, "apt-get install lintian"),
        Some(output) => {
            let errors: Vec<String> =
                output.out.lines().filter(|it| it.starts_with("E:")).map(str::to_owned).collect();
            match (output.success, &*errors) {
                (true, []) => Check::passed(SUBJECT, what, tool, "no errors".to_owned()),
                (false, []) => Check::found(SUBJECT, what, tool, &[output.combined()]),
                (_, errors) => Check::found(SUBJECT, what, tool, errors),
            }
        }
    })
}

/// Installs the package into a folder, runs the programs, and purges the package.
fn installed(tools: &Tools, package: &Path, folder: &Path) -> Result<Check> {
    let (what, tool) = ("installing, running, purging", "dpkg");
    for state in ["updates", "info", "triggers"] {
        fs::create_dir_all(folder.join("var/lib/dpkg").join(state))?;
    }
    fs::write(folder.join("var/lib/dpkg/status"), "")?;
    let mut errors = Vec::new();
    let Some(output) = tools.run(dpkg(tools, folder).arg("--install").arg(package), "")? else {
        return Ok(Check::skipped(SUBJECT, what, tool, HINT));
    };
    if !output.success {
        return Ok(Check::found(SUBJECT, what, tool, &[output.combined()]));
    }
    for name in ["pgmill", "pgmill-worker", "pgmill-enqueue"] {
        let mut program = Command::new(folder.join("usr/bin").join(name));
        let output = tools.run(program.arg("--version"), "")?;
        let version = output.map(|output| output.combined()).unwrap_or_default();
        if !version.ends_with(env!("CARGO_PKG_VERSION")) {
            errors.push(format!("{name} --version: {version}"));
        }
    }
    // An administrator's own file survives a purge, an empty folder does not.
    let own = folder.join("etc/pgmill/main");
    fs::create_dir_all(&own)?;
    fs::write(own.join("env"), "PGMILL_READERS=2\n")?;
    purge(tools, folder, &mut errors)?;
    let left = left_behind(folder)?;
    if left != ["etc/pgmill/main/env"] {
        errors.push(format!("files left after a purge: {}", left.join(" ")));
    }
    fs::remove_dir_all(own)?;
    let again = tools.run(dpkg(tools, folder).arg("--install").arg(package), "")?;
    if again.is_none_or(|output| !output.success) {
        errors.push("the package cannot be installed again".to_owned());
    }
    purge(tools, folder, &mut errors)?;
    for folder in ["usr", "etc/default", "etc/pgmill"].map(|name| folder.join(name)) {
        if folder.exists() {
            errors.push(format!("{} still exists", folder.display()));
        }
    }
    Ok(Check::found(SUBJECT, what, tool, &errors))
}

fn purge(tools: &Tools, folder: &Path, errors: &mut Vec<String>) -> Result<()> {
    match tools.run(dpkg(tools, folder).args(["--purge", "pgmill"]), "")? {
        Some(output) if output.success => {}
        output => errors.push(output.map(|output| output.combined()).unwrap_or_default()),
    }
    Ok(())
}

/// Runs dpkg on the folder as a separate system, without a shell and libc6.
fn dpkg(tools: &Tools, folder: &Path) -> Command {
    let mut command = tools.command("dpkg");
    command.arg(format!("--root={}", folder.display()));
    command.args(["--force-depends", "--force-not-root", "--force-script-chrootless"]);
    command.arg(format!("--log={}", folder.join("var/dpkg.log").display()));
    command.env("LC_ALL", "C.UTF-8");
    command
}

/// Returns the files outside dpkg's own records.
fn left_behind(folder: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next)? {
            let path = entry?.path();
            let shown = path.strip_prefix(folder)?.display().to_string();
            if path.is_dir() {
                if shown != "var" {
                    folders.push(path);
                }
            } else {
                found.push(shown);
            }
        }
    }
    found.sort();
    Ok(found)
}
