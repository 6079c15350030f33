//! Reference of the command lines, from their definitions.

use std::fmt::Write;

use clap::builder::PossibleValue;
use clap::{Arg, Command};

use super::{GENERATED, cell, prose};

const INTRODUCTION: &str = "
The programs `enqueue`, `pgmill` and `worker` print these texts with `--help`. The Debian
package installs `enqueue` as `pgmill-enqueue` and `worker` as `pgmill-worker`, with a man page for each verb.

## Exit codes

| code | meaning | worker | enqueue | pgmill |
|---|---|---|---|---|
| 0 | success | ✓ | ✓ | ✓ |
| 1 | any failure without a code of its own; a connection that was lost so that it is not known whether the change was made; `pgmill doctor`: a problem was found | ✓ | ✓ | ✓ |
| 2 | wrong usage or configuration | ✓ | ✓ | ✓ |
| 3 | `enqueue --wait`, `pgmill run show --watch`: the task or run ended without success | | ✓ | ✓ |
| 4 | no such task, queue or worker; nothing matched | | ✓ | ✓ |
| 5 | refused: an invalid value, an exceeded limit, a missing privilege, an unknown schema version, or a task login on another database | ✓ | ✓ | ✓ |
| 75 | the database cannot be reached; `pgmill`: a lock was not granted in time | ✓ | ✓ | ✓ |
| 124 | `enqueue --wait=DURATION`: the task did not end in this time, and continues | | ✓ | |
| 130 | interrupted (SIGINT): the task or run of `enqueue --wait` continues; `pgmill task cancel`, `retry`, `set` and `pgmill queue purge` have printed what is done | | ✓ | ✓ |
";

/// Returns the page.
pub(super) fn page() -> String {
    let mut page = format!("{GENERATED}\n# Command line\n{INTRODUCTION}");
    for mut program in [enqueue::command(), pgmill::command(), pgmill_worker::command()] {
        program.build();
        page += &format!("\n## {}\n", program.get_name());
        if program.get_name() == "worker" {
            page += "\nThe settings are a table of [Running workers](../worker.md).\n";
        }
        describe(&program, &mut page);
        verbs(&program, &mut page);
    }
    page
}

fn verbs(command: &Command, page: &mut String) {
    let shown = |verb: &&Command| !verb.is_hide_set() && verb.get_name() != "help";
    for verb in command.get_subcommands().filter(shown) {
        if verb.has_subcommands() {
            verbs(verb, page);
        } else {
            write!(page, "\n### {}\n", verb.get_bin_name().unwrap()).unwrap();
            describe(verb, page);
        }
    }
}

/// Adds description, usage, arguments and examples of a command.
fn describe(command: &Command, page: &mut String) {
    let about = command.get_long_about().or(command.get_about()).unwrap().to_string();
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ");
    write!(page, "\n{}.\n\n```text\n{usage}\n```\n", prose(about.trim_end_matches('.'))).unwrap();
    let is_verb = command.get_bin_name().unwrap_or_default().contains(' ');
    let shown = |arg: &&Arg| {
        let general = ["help", "version"].contains(&arg.get_id().as_str());
        // Options of all verbs are listed once, with the program.
        !(arg.is_hide_set() || general || is_verb && arg.is_global_set())
    };
    let rows: String = command.get_arguments().filter(shown).map(row).collect();
    // `make settings` writes the worker's.
    if !rows.is_empty() && command.get_name() != "worker" {
        write!(page, "\n| argument | meaning | default |\n|---|---|---|\n{rows}").unwrap();
    }
    if let Some(after) = command.get_after_help() {
        write!(page, "\n```text\n{}\n```\n", after.to_string().trim_end()).unwrap();
    }
}

fn row(arg: &Arg) -> String {
    let short = arg.get_short().map(|short| format!("-{short}"));
    let long = arg.get_long().map(|long| format!("--{long}"));
    let names: Vec<String> = short.into_iter().chain(long).collect();
    let mut name = names.join(", ");
    let mut meaning = arg.get_help().map(ToString::to_string).unwrap_or_default();
    if arg.get_action().takes_values() {
        for value in arg.get_value_names().unwrap_or_default() {
            write!(name, " <{value}>").unwrap();
        }
        let words = arg.get_possible_values();
        let words = words.iter().filter(|word| !word.is_hide_set()).map(PossibleValue::get_name);
        let words = words.collect::<Vec<_>>().join(", ");
        if !words.is_empty() {
            write!(meaning, " ({words})").unwrap();
        }
    }
    let default = default(arg, &mut meaning);
    let name = name.trim_start().replace('|', "\\|");
    format!("| `{name}` | {} | {} |\n", cell(&meaning), cell(&default))
}

/// Returns the default of an argument, which the help can describe in brackets at its end.
fn default(arg: &Arg, meaning: &mut String) -> String {
    if let Some((text, default)) = meaning.clone().split_once(" [default: ") {
        let (default, after) = default.split_once(']').unwrap();
        *meaning = format!("{text}{after}");
        return default.to_owned();
    }
    let values: Vec<_> = arg.get_default_values().iter().map(|it| it.to_string_lossy()).collect();
    match () {
        () if arg.is_required_set() => "required".to_owned(),
        () if arg.get_action().takes_values() => values.join(" "),
        () => "off".to_owned(),
    }
}
