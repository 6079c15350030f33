//! Whether the flags and variables that stand under deploy/ are ones that the programs know.

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

/// Files whose text holds command lines; objects of Kubernetes and Compose are read as such.
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
                errors.push(format!("{}: nobody reads {name}", short(path)));
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

/// What is wrong with the calls of our programs in these lines.
///
/// # Errors
/// A program does not start.
pub(crate) fn errors(tools: &Tools, lines: &[String]) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for line in lines {
        let words: Vec<&str> = line
            .split([' ', '"', '\'', '[', ']', ',', '`', '='])
            .filter(|it| !it.is_empty())
            .collect();
        for (n, word) in words.iter().enumerate() {
            let program = Path::new(word).file_name().and_then(|name| name.to_str());
            // A path, or the first word: elsewhere these are words of a sentence.
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
        return Ok(vec![format!("there is no {program} {}", verbs.join(" "))]);
    };
    let unknown = |word: &&&str| {
        word.starts_with("--") && !help.split([' ', '=', '[', ',']).any(|it| it.trim() == **word)
    };
    let ends = |word: &&&str| !["&&", "||", ";", "|"].contains(*word);
    Ok(words
        .iter()
        .take_while(ends)
        .filter(unknown)
        .map(|flag| format!("{program} {} has no {flag}", verbs.join(" ")))
        .collect())
}

/// What the program says of itself; `None`: it has no such subcommand.
fn help(tools: &Tools, program: &str, verbs: &[&str]) -> Result<Option<String>> {
    let mut command = Command::new(cluster::sibling_program(program)?);
    let output = tools.run(command.args(verbs).arg("--help"), "")?;
    Ok(output.filter(|output| output.success).map(|output| output.out))
}

/// Each `PGMILL_…` in a text.
fn variables(text: &str) -> BTreeSet<String> {
    let part = |c: char| c.is_ascii_uppercase() || c == '_';
    let starts = text.match_indices("PGMILL_").filter(|(at, _)| !text[..*at].ends_with(part));
    let names = starts.map(|(at, _)| text[at..].split(|c| !part(c)).next().unwrap_or_default());
    // `PGMILL_…` stands for all of them.
    names.filter(|name| !name.ends_with('_')).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_found_wherever_they_stand() {
        let text = "Environment=PGMILL_READERS=8\n\"${PGMILL_SHUTDOWN_TIMEOUT}\" XPGMILL_NOT PGMILL_… PGMILL_HTTP";
        let expected = ["PGMILL_SHUTDOWN_TIMEOUT", "PGMILL_HTTP", "PGMILL_READERS"];
        assert_eq!(variables(text), expected.map(str::to_owned).into());
    }
}
