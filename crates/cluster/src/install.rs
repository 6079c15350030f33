//! Installs the server where no interaction is needed: with apt-get as root or through
//! password-free sudo. Otherwise the message contains the command to run.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Debian's package would create and start a cluster "main" on port 5432, which is not wanted here.
/// The script switches this off in createcluster.conf. If this file exists already, it stays as it
/// is, and policy-rc.d keeps the server from starting.
const APT_SCRIPT: &str = r#"
exec >&2
export DEBIAN_FRONTEND=noninteractive
conf=/etc/postgresql-common/createcluster.conf
if [ ! -e "$conf" ]; then
    mkdir -p "${conf%/*}"
    echo 'create_main_cluster = false' > "$conf"
fi
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' > "$policy"
    chmod 755 "$policy"
fi
apt-get update
apt-get install -y --no-install-recommends postgresql
"#;

/// Package managers that need user interaction, with the command to run.
const COMMANDS: [(&str, &str); 5] = [
    ("apt-get", "apt-get install -y postgresql"),
    ("dnf", "dnf install -y postgresql-server"),
    ("pacman", "pacman -S --noconfirm postgresql"),
    ("apk", "apk add postgresql"),
    ("brew", "brew install postgresql@18"),
];

/// Installs the server. `folders` are searched for the package manager.
///
/// # Errors
///
/// Returns an error if nothing could be installed; the message contains the command to run.
pub(crate) fn install(folders: &[PathBuf]) -> Result<()> {
    let root = rustix::process::geteuid().is_root();
    let mut shell = match (root, on_path(folders, "apt-get")) {
        (true, true) => Command::new("sh"),
        (false, true) if password_free_sudo() => {
            let mut sudo = Command::new("sudo");
            sudo.args(["-n", "sh"]);
            sudo
        }
        _ => bail!("{}", advice(root, |program| on_path(folders, program))),
    };
    eprintln!("cluster: installing PostgreSQL with apt-get");
    // -x shows each command that changes the system.
    let status = shell
        .args(["-exc", APT_SCRIPT])
        .stdin(Stdio::null())
        .status()
        .context("cannot run apt-get")?;
    if !status.success() {
        bail!("apt-get could not install postgresql ({status}); see its messages above");
    }
    Ok(())
}

fn on_path(folders: &[PathBuf], program: &str) -> bool {
    folders.iter().map(|folder| Path::join(folder, program)).any(|path| path.is_file())
}

fn password_free_sudo() -> bool {
    let status = Command::new("sudo")
        .args(["-n", "true"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}

/// Returns the command to run by hand.
fn advice(root: bool, available: impl Fn(&str) -> bool) -> String {
    match COMMANDS.iter().find(|(program, _)| available(program)) {
        // Homebrew refuses to run under sudo.
        Some((program, command)) if root || *program == "brew" => format!("run: {command}"),
        Some((_, command)) => format!("run: sudo {command}"),
        None => "install PostgreSQL 14 or newer: https://www.postgresql.org/download/".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advice_is_one_command_for_this_system() {
        let cases = [
            (false, "apt-get", "run: sudo apt-get install -y postgresql"),
            (false, "dnf", "run: sudo dnf install -y postgresql-server"),
            (true, "pacman", "run: pacman -S --noconfirm postgresql"),
            (true, "apk", "run: apk add postgresql"),
            (false, "brew", "run: brew install postgresql@18"),
        ];
        for (root, manager, expected) in cases {
            assert_eq!(advice(root, |program| program == manager), expected);
        }
        assert!(advice(false, |_| false).contains("https://"));
    }
}
