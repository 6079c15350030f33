//! Checks that the programs accept the flags and variables used under deploy/.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::documents::{files, folder, short};
use crate::{Check, Tools};

const SUBJECT: &str = "flags";
const PROGRAMS: &[&str] = &["worker", "pgmill", "enqueue"];

/// Variables of scripts under deploy/, which no program reads.
const OF_SCRIPTS: &[&str] = &["PGMILL_SECRETS"];

/// Files with command lines; Kubernetes and Compose objects are checked separately.
const ENDINGS: &[&str] = &[
    "Dockerfile",
    ".service",
    ".socket",
    ".timer",
    ".env",
    ".conf",
    ".sh",
    ".txt",
    ".default",
    ".md",
];

pub(crate) fn run(tools: &Tools) -> Result<Vec<Check>> {
    let mut known: BTreeSet<String> = OF_SCRIPTS.iter().map(|name| (*name).to_owned()).collect();
    for program in PROGRAMS {
        known.extend(variables(&help(tools, program, &[])?.unwrap_or_default()));
    }
    let (mut errors, mut lines) = (Vec::new(), Vec::new());
    let mut named = BTreeSet::new();
    for path in files(&folder()).iter().filter(|path| !path.starts_with(folder().join("src"))) {
        let Ok(text) = std::fs::read_to_string(path) else { continue };
        for name in variables(&text) {
            if !known.contains(&name) {
                errors.push(format!("{}: no program reads {name}", short(path)));
            }
            named.insert(name);
        }
        if ENDINGS.iter().any(|ending| path.to_string_lossy().ends_with(ending)) {
            lines.extend(text.replace("\\\n", " ").lines().map(str::to_owned));
        }
    }
    errors.extend(self::errors(tools, &lines)?);
    let what = "flags and PGMILL_ variables are known";
    let mut check = Check::found(SUBJECT, what, "own", &errors);
    if errors.is_empty() {
        check.detail = format!("{} variables", named.len());
    }
    Ok(vec![check])
}

/// Returns the errors in the calls of pgmill's programs in these lines.
///
/// # Errors
/// Returns an error if a program does not start.
pub(crate) fn errors(tools: &Tools, lines: &[String]) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for line in lines {
        let words: Vec<&str> = line
            .split([' ', '"', '\'', '[', ']', ',', '`', '='])
            .filter(|it| !it.is_empty())
            .collect();
        for (n, word) in words.iter().enumerate() {
            let program = Path::new(word).file_name().and_then(|name| name.to_str());
            // Only a path or the first word is a program name; elsewhere the same word may be
            // prose.
            let called = word.starts_with('/') || n == 0;
            if let Some(program) = PROGRAMS.iter().find(|it| called && Some(**it) == program) {
                found.extend(call(tools, program, &words[n + 1..])?);
            }
        }
    }
    Ok(found)
}

fn call(tools: &Tools, program: &str, words: &[&str]) -> Result<Vec<String>> {
    let verb = |word: &&&str| {
        word.chars().all(|c| c.is_ascii_lowercase() || c == '-') && !word.starts_with('-')
    };
    let verbs: Vec<&str> = match program {
        "pgmill" => words.iter().take_while(verb).copied().collect(),
        _ => Vec::new(),
    };
    let Some(help) = help(tools, program, &verbs)? else {
        return Ok(vec![format!("unknown command: {program} {}", verbs.join(" "))]);
    };
    let unknown = |word: &&&str| {
        word.starts_with("--") && !help.split([' ', '=', '[', ',']).any(|it| it.trim() == **word)
    };
    let ends = |word: &&&str| !["&&", "||", ";", "|"].contains(*word);
    Ok(words
        .iter()
        .take_while(ends)
        .filter(unknown)
        .map(|flag| format!("{program} {} does not accept {flag}", verbs.join(" ")))
        .collect())
}

/// Returns the help text of a program; `None` if the subcommand does not exist.
fn help(tools: &Tools, program: &str, verbs: &[&str]) -> Result<Option<String>> {
    let mut command = Command::new(cluster::sibling_program(program)?);
    let output = tools.run(command.args(verbs).arg("--help"), "")?;
    Ok(output.filter(|output| output.success).map(|output| output.out))
}

/// Returns each `PGMILL_…` in a text.
fn variables(text: &str) -> BTreeSet<String> {
    let part = |c: char| c.is_ascii_uppercase() || c == '_';
    let starts = text.match_indices("PGMILL_").filter(|(at, _)| !text[..*at].ends_with(part));
    let names = starts.map(|(at, _)| text[at..].split(|c| !part(c)).next().unwrap_or_default());
    // `PGMILL_…` stands for all variables.
    names.filter(|name| !name.ends_with('_')).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_found_in_any_context() {
        let text = "Environment=PGMILL_READERS=8\n\"${PGMILL_SHUTDOWN_TIMEOUT}\" XPGMILL_NOT PGMILL_… PGMILL_HTTP";
        let expected = ["PGMILL_SHUTDOWN_TIMEOUT", "PGMILL_HTTP", "PGMILL_READERS"];
        assert_eq!(variables(text), expected.map(str::to_owned).into());
    }
}
