//! The table of the worker's settings in docs/worker.md, which is generated from the worker's own
//! table; and the diagram of the worker's intervals.

use std::fs;

use clap::Arg;

use crate::project::tidy::root;

const PAGE: &str = "docs/worker.md";
const HEADER: &str = "| flag | file key | meaning | default |\n|---|---|---|---|\n";
/// Flags without a key in the configuration file.
const NOT_IN_FILE: [&str; 2] = ["config", "print_config"];

#[test]
fn the_table_of_the_documentation_is_that_of_the_worker() {
    let page = fs::read_to_string(root().join(PAGE)).unwrap();
    assert!(page.contains(&table()), "{PAGE} has another table of settings: run make settings");
}

#[test]
#[ignore = "writes docs/worker.md: make settings"]
fn settings_table_is_written() {
    let page = fs::read_to_string(root().join(PAGE)).unwrap();
    let (before, rest) = page.split_once(HEADER).unwrap();
    let (_, after) = rest.split_once("\n\n").unwrap();
    fs::write(root().join(PAGE), format!("{before}{}\n{after}", table())).unwrap();
}

#[test]
fn the_path_from_death_to_pending_is_that_of_the_code() {
    let code = fs::read_to_string(root().join("crates/fleet-decisions/src/timing.rs")).unwrap();
    let docs = code.lines().map_while(|line| line.strip_prefix("//!"));
    let docs: String =
        docs.map(|line| format!("{}\n", line.strip_prefix(' ').unwrap_or(line))).collect();
    let diagram = docs.split("```").nth(1).unwrap();
    let page = fs::read_to_string(root().join(PAGE)).unwrap();
    assert!(
        page.contains(diagram),
        "{PAGE} differs from crates/fleet-decisions/src/timing.rs:\n{diagram}"
    );
}

fn table() -> String {
    let command = pgmill_worker::command();
    HEADER.to_owned() + &command.get_arguments().map(row).collect::<String>()
}

fn row(arg: &Arg) -> String {
    let (flag, key) = (arg.get_long().unwrap(), arg.get_id().as_str());
    let key = if NOT_IN_FILE.contains(&key) { String::new() } else { format!("`{key}` ") };
    let help = arg.get_help().unwrap().to_string();
    let (meaning, default) = match help.split_once(" [default: ") {
        Some((meaning, default)) => (meaning, default.trim_end_matches(']').to_owned()),
        None => (&*help, default(arg)),
    };
    format!("| `--{flag}` | {key}| {} | {} |\n", code(meaning), code(&default))
}

fn default(arg: &Arg) -> String {
    let values: Vec<_> = arg.get_default_values().iter().map(|it| it.to_string_lossy()).collect();
    match values.concat() {
        given if !given.is_empty() => given,
        _ if arg.get_action().takes_values() => "none".to_owned(),
        _ => "off".to_owned(),
    }
}

/// Puts flags, names and paths into backticks.
fn code(text: &str) -> String {
    let word = |word: &str| {
        let name = word.trim_end_matches([',', ';', '.', ':']);
        let starts = ["--", "/", "mill."].iter().any(|start| name.starts_with(start));
        let code = starts || name.contains(['_', '*', '=']);
        match code {
            true => format!("`{name}`{}", &word[name.len()..]),
            false => word.to_owned(),
        }
    };
    text.split(' ').map(word).collect::<Vec<_>>().join(" ")
}
