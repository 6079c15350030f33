//! Checks man pages and completions: warnings of man, and the completions that a shell offers.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::scratch::Scratch;
use crate::{Check, Tools, man_pages};

const SUBJECT: &str = "man-pages";

/// Typed command lines with the completions expected after one press of Tab.
const COMPLETED: [(&str, &str, &[&str]); 5] = [
    ("pgmill", "ta", &["task", "target"]),
    ("pgmill", "task c", &["cancel"]),
    ("pgmill", "task list --st", &["--state"]),
    ("pgmill-worker", "--database-url-f", &["--database-url-file"]),
    ("pgmill-enqueue", "--priority res", &["reserved"]),
];

/// Sources $1, types the words after it, and prints the completions.
const TYPED: &str = r#"
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
function=$(complete -p "$1" | sed -n 's/.*-F \([^ ]*\).*/\1/p')
"$function" "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\n' "${COMPREPLY[@]}"
"#;

pub(crate) fn run(tools: &Tools) -> Result<Vec<Check>> {
    let scratch = Scratch::new("pages")?;
    let written = man_pages::write(scratch.path())?;
    let of = |folder: &str| -> Vec<PathBuf> {
        written
            .iter()
            .filter(|path| path.starts_with(scratch.path().join(folder)))
            .cloned()
            .collect()
    };
    Ok(vec![
        manual(tools, &of("man"))?,
        read_by(tools, ("bash", &["-n"], "apt-get install bash"), &of("bash"))?,
        read_by(tools, ("zsh", &["-n"], "apt-get install zsh"), &of("zsh"))?,
        read_by(tools, ("fish", &["--no-execute"], "apt-get install fish"), &of("fish"))?,
        completed(tools, &scratch.path().join("bash"))?,
    ])
}

/// Formats every page with man, and collects the warnings.
fn manual(tools: &Tools, files: &[PathBuf]) -> Result<Check> {
    let (what, tool) = ("man pages", "man");
    let mut errors = Vec::new();
    for file in files {
        let mut command = tools.command(tool);
        // Without these flags man selects the machine's language and starts a pager.
        command.args(["--warnings", "--encoding=UTF-8", "--local-file"]).arg(file);
        command.env("MANWIDTH", "90").env("LC_ALL", "C.UTF-8");
        let Some(output) = tools.run(&mut command, "")? else {
            return Ok(Check::skipped(SUBJECT, what, tool, "apt-get install man-db groff"));
        };
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !output.success || !output.err.trim().is_empty() {
            errors.push(format!("{name}: {}", output.err.trim()));
        }
        for heading in ["NAME", "SYNOPSIS", "OPTIONS", "DESCRIPTION"] {
            if !output.out.lines().any(|line| line == heading) {
                errors.push(format!("{name} has no section {heading}"));
            }
        }
    }
    Ok(counted(what, tool, files.len(), &errors))
}

/// Checks that a shell can parse the scripts.
fn read_by(
    tools: &Tools,
    (shell, flags, hint): (&str, &[&str], &str),
    files: &[PathBuf],
) -> Result<Check> {
    let what = format!("completions of {shell}");
    let mut errors = Vec::new();
    for file in files {
        match tools.run(tools.command(shell).args(flags).arg(file), "")? {
            None => return Ok(Check::skipped(SUBJECT, &what, shell, hint)),
            Some(output) if output.success && output.err.trim().is_empty() => {}
            Some(output) => errors.push(output.combined()),
        }
    }
    Ok(counted(&what, shell, files.len(), &errors))
}

/// Types command lines in a shell and presses Tab.
fn completed(tools: &Tools, folder: &Path) -> Result<Check> {
    let (what, tool) = ("completions offered by Tab", "bash");
    let mut errors = Vec::new();
    for (program, line, offers) in COMPLETED {
        let mut command = tools.command(tool);
        command.args(["--norc", "-c", TYPED, tool]).arg(folder.join(program)).arg(program);
        let Some(output) = tools.run(command.args(line.split(' ')), "")? else {
            return Ok(Check::skipped(SUBJECT, what, tool, "apt-get install bash"));
        };
        if output.out.lines().ne(offers.iter().copied()) {
            errors.push(format!(
                "{program} {line}: {}, expected {}",
                output.combined(),
                offers.join(" ")
            ));
        }
    }
    Ok(counted(what, tool, COMPLETED.len(), &errors))
}

fn counted(what: &str, tool: &str, count: usize, errors: &[String]) -> Check {
    match errors {
        [] => Check::passed(SUBJECT, what, tool, format!("{count}")),
        _ => Check::found(SUBJECT, what, tool, errors),
    }
}
