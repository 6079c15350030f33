//! Command lines, variables and times in the files are those of the programs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::Command;
use clap::error::ErrorKind;

use crate::read;

/// Variables of scripts, which no program reads.
const OF_SCRIPTS: [&str; 3] = ["PGMILL_SECRETS", "PGMILL_PG_BIN", "PGMILL_TEST_URL"];

/// Seconds that a worker may need after its shutdown timeout: up to 30 s to cancel statements, and up to
/// 5 s for the last heartbeat.
const AFTER_SHUTDOWN_TIMEOUT_S: u64 = 35;

fn programs() -> [(&'static str, Command); 3] {
    [
        ("worker", pgmill_worker::command()),
        ("pgmill", pgmill::command()),
        ("enqueue", enqueue::command()),
    ]
}

/// Returns the texts of all files of deploy/ that people deploy.
fn texts() -> Vec<(PathBuf, String)> {
    let (mut left, mut found) = (vec![deploy::root().join("deploy")], Vec::new());
    while let Some(path) = left.pop() {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !path.is_dir() {
            found.extend(std::fs::read_to_string(&path).ok().map(|text| (path, text)));
        } else if !["src", "tests", "secrets", "dashboards"].contains(&&*name) {
            left.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    found
}

fn variables_of(command: &Command) -> BTreeSet<String> {
    let own = command
        .get_arguments()
        .filter_map(|argument| Some(argument.get_env()?.to_string_lossy().into_owned()));
    own.chain(command.get_subcommands().flat_map(variables_of)).collect()
}

#[test]
fn a_program_reads_every_variable() {
    let mut known: BTreeSet<String> = OF_SCRIPTS.map(str::to_owned).into();
    known.extend(programs().iter().flat_map(|(_, command)| variables_of(command)));
    let part = |c: char| c.is_ascii_uppercase() || c == '_';
    let mut named = 0;
    for (path, text) in texts() {
        for (at, _) in text.match_indices("PGMILL_").filter(|(at, _)| !text[..*at].ends_with(part))
        {
            let name = text[at..].split(|c| !part(c)).next().unwrap();
            // `PGMILL_…` stands for all variables.
            assert!(
                name.ends_with('_') || known.contains(name),
                "{}: no program reads {name}",
                path.display()
            );
            named += 1;
        }
    }
    assert!(named > 30, "only {named} variables are found");
}

#[test]
fn the_programs_accept_every_command_line() {
    let mut parsed = 0;
    for (path, text) in texts() {
        // Long lines, and the arguments of a container, which are below its command.
        let text = text.replace("\\\n", " ");
        let mut lines: Vec<String> = Vec::new();
        for line in text.lines() {
            match (line.trim().strip_prefix("args: "), lines.last_mut()) {
                (Some(arguments), Some(last)) => last.push_str(arguments),
                _ => lines.push(line.to_owned()),
            }
        }
        for line in lines {
            let words: Vec<&str> = line
                .split([' ', '"', '\'', '[', ']', ',', '`'])
                .filter(|it| !it.is_empty())
                .collect();
            let program =
                |(_, word): &(usize, &&str)| word.starts_with('/') && word.contains("/bin/");
            for (n, word) in words.iter().enumerate().filter(program) {
                let name = Path::new(word).file_name().and_then(|name| name.to_str());
                let Some((_, program)) = programs().into_iter().find(|(it, _)| Some(*it) == name)
                else {
                    continue;
                };
                let wrong = program.try_get_matches_from(&words[n..]).err().filter(|error| {
                    !matches!(
                        error.kind(),
                        ErrorKind::MissingRequiredArgument | ErrorKind::DisplayVersion
                    )
                });
                assert!(wrong.is_none(), "{}: {line}: {}", path.display(), wrong.unwrap());
                parsed += 1;
            }
        }
    }
    assert!(parsed > 5, "only {parsed} command lines are found");
}

#[test]
fn systemd_waits_until_a_worker_has_stopped() {
    let unit = read("deploy/systemd/pgmill-worker@.service");
    let seconds = |text: &str| -> u64 { text.trim_end_matches('s').parse().unwrap() };
    let wait = unit.lines().find_map(|line| line.strip_prefix("TimeoutStopSec=")).unwrap();
    let worker = pgmill_worker::command();
    let mut arguments = worker.get_arguments();
    let timeout = arguments.find(|it| it.get_long() == Some("shutdown-timeout")).unwrap();
    let timeout = timeout.get_default_values()[0].to_str().unwrap();
    assert!(seconds(wait) > seconds(timeout) + AFTER_SHUTDOWN_TIMEOUT_S, "{wait} {timeout}");
    // The codes of an invalid configuration and of a refusal: a restart fixes neither.
    for line in ["Type=notify", "KillMode=mixed", "RestartPreventExitStatus=2 5"] {
        assert!(unit.lines().any(|it| it == line), "{line} is missing");
    }
}
