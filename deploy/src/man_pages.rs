//! Generates man pages and completions from the definitions of the command lines.
//!
//! `worker` and `enqueue` are too general as names in a system-wide folder: they are installed as
//! `pgmill-worker` and `pgmill-enqueue`. Each verb of `pgmill` has its own page, such as
//! pgmill-task-list(1); groups of verbs have none, so that pgmill-worker(1) is the worker.

use std::fs;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use clap::Command;
use clap_complete::{Shell, generate};
use clap_mangen::Man;

/// The supported shells, each with the prefix and suffix of the completion file's name.
const SHELLS: [(Shell, &str, [&str; 2]); 3] = [
    (Shell::Bash, "bash", ["", ""]),
    (Shell::Zsh, "zsh", ["_", ""]),
    (Shell::Fish, "fish", ["", ".fish"]),
];

/// Returns the programs under their installed names.
#[must_use]
pub fn programs() -> [Command; 3] {
    [
        renamed(pgmill_worker::command(), "worker", "pgmill-worker"),
        renamed(enqueue::command(), "enqueue", "pgmill-enqueue"),
        pgmill::command(),
    ]
}

/// Writes all pages and completions into folders named man, bash, zsh and fish; returns their number.
///
/// # Errors
/// Returns an error if the folder cannot be written to.
pub fn write(folder: &Path) -> Result<usize> {
    let mut files = Vec::new();
    for command in programs() {
        let name = command.get_name();
        files.extend(
            man_pages(&command)?.into_iter().map(|(page, text)| (format!("man/{page}.1"), text)),
        );
        for (shell, folder, [before, after]) in SHELLS {
            let mut script = Vec::new();
            if name == "pgmill" {
                script = pgmill::completion_script(shell).into_bytes();
            } else {
                generate(shell, &mut command.clone(), name, &mut script);
            }
            files.push((format!("{folder}/{before}{name}{after}"), script));
        }
    }
    for sub in ["man", "bash", "zsh", "fish"].map(|sub| folder.join(sub)) {
        // Pages of removed verbs would otherwise still be packaged.
        if sub.exists() {
            fs::remove_dir_all(&sub).with_context(|| sub.display().to_string())?;
        }
        fs::create_dir_all(&sub).with_context(|| sub.display().to_string())?;
    }
    for (name, contents) in &files {
        fs::write(folder.join(name), contents).with_context(|| name.clone())?;
    }
    Ok(files.len())
}

/// Renames a command, also in its examples: lines that start with two spaces and the program name.
fn renamed(command: Command, from: &str, to: &'static str) -> Command {
    let in_examples = |text: &str| {
        text.replace(&format!("\n  {from} "), &format!("\n  {to} "))
            .replace(&format!(" {from} --"), &format!(" {to} --"))
    };
    let after = command.get_after_help().map(|text| in_examples(&text.to_string()));
    let command = command.name(to).display_name(to).bin_name(to);
    match after {
        Some(text) => command.after_help(text),
        None => command,
    }
}

/// Returns names and texts: the program's own page, then the pages of its verbs.
fn man_pages(command: &Command) -> Result<Vec<(String, Vec<u8>)>> {
    let mut command = command.clone();
    command.build();
    let name = command.get_name().to_owned();
    let mut verbs = Vec::new();
    leaves(&command, &name, &mut verbs);
    let mut pages = vec![(name.clone(), page(&command, &name, &verbs)?)];
    for (name, verb) in verbs {
        let verb = verb.clone().display_name(&name);
        let text = page(&verb, &name, &[])?;
        pages.push((name, text));
    }
    Ok(pages)
}

/// Finds the executable verbs, each with the name of its page.
fn leaves<'a>(command: &'a Command, page: &str, found: &mut Vec<(String, &'a Command)>) {
    for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
        let page = format!("{page}-{}", verb.get_name());
        if verb.has_subcommands() {
            leaves(verb, &page, found);
        } else {
            found.push((page, verb));
        }
    }
}

fn page(command: &Command, name: &str, verbs: &[(String, &Command)]) -> Result<Vec<u8>> {
    let version = env!("CARGO_PKG_VERSION");
    let man = Man::new(command.clone().version(version))
        .title(name.to_uppercase())
        .source(format!("pgmill {version}"))
        .manual("pgmill");
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    // No hyphenation and no justification of flags.
    writeln!(text, ".nh\n.ad l")?;
    man.render_name_section(&mut text)?;
    let mut synopsis = Vec::new();
    man.render_synopsis_section(&mut synopsis)?;
    // Permit a line break between the alternatives of an option.
    text.extend(String::from_utf8(synopsis)?.replace('|', "|\\:").into_bytes());
    man.render_description_section(&mut text)?;
    if command.get_arguments().next().is_some() {
        man.render_options_section(&mut text)?;
    }
    if !verbs.is_empty() {
        writeln!(text, ".SH COMMANDS")?;
        for (page, verb) in verbs {
            let about = verb.get_about().map(ToString::to_string).unwrap_or_default();
            writeln!(text, ".TP\n\\fB{}\\fR(1)\n{}", escaped(page), escaped(&about))?;
        }
    }
    if let Some(after) = command.get_after_help() {
        write_after(&mut text, &after.to_string())?;
    }
    Ok(text)
}

/// Writes the part of the help that follows the options, line by line: its layout already suits a
/// terminal.
fn write_after(text: &mut Vec<u8>, after: &str) -> Result<()> {
    const SECTIONS: [(&str, &str); 3] =
        [("Examples:", "EXAMPLES"), ("Signals:", "SIGNALS"), ("Exit codes:", "EXIT STATUS")];
    let mut open = false;
    for line in after.lines() {
        let section = SECTIONS.iter().find_map(|(head, title)| {
            line.strip_prefix(head).map(|rest| (*title, rest.trim_start()))
        });
        let (title, line) = match section {
            Some((title, rest)) => (Some(title), rest),
            None => ((!open).then_some("NOTES"), line),
        };
        if let Some(title) = title {
            let close = if open { ".fi\n" } else { "" };
            writeln!(text, "{close}.SH {title}\n.nf")?;
            open = true;
        }
        // Keep an empty line unless it follows a section heading.
        if !line.is_empty() || section.is_none() {
            writeln!(text, "{}", escaped(line))?;
        }
    }
    if open {
        writeln!(text, ".fi")?;
    }
    Ok(())
}

/// Escapes a line that roff would interpret as a request.
fn escaped(line: &str) -> String {
    let line = line.replace('\\', "\\e").replace('-', "\\-");
    if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_has_a_page_and_no_page_is_written_twice() {
        let mut names = Vec::new();
        for command in programs() {
            names.extend(man_pages(&command).unwrap().into_iter().map(|(name, _)| name));
        }
        for name in ["pgmill", "pgmill-worker", "pgmill-enqueue", "pgmill-task-list", "pgmill-why"]
        {
            assert!(names.iter().any(|it| it == name), "{name} is not in {names:?}");
        }
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn the_examples_use_the_installed_names() {
        let [worker, ..] = programs();
        let help = worker.get_after_help().unwrap().to_string();
        assert!(help.contains("\n  pgmill-worker --database-url"), "{help}");
        assert!(!help.contains(" worker --"), "{help}");
    }

    #[test]
    fn no_line_of_text_is_interpreted_as_a_roff_request() {
        assert_eq!(escaped(".profile"), "\\&.profile");
        assert_eq!(escaped("a \\b --c"), "a \\eb \\-\\-c");
    }
}
