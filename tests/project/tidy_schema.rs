//! The files of `schema/`: schema.sql is their concatenation, and each file can be read as a whole.

use std::fs;
use std::process::Command;

use crate::project::tidy::{files, root};

/// Returns the files that schema.sql consists of.
fn parts() -> Vec<(String, String)> {
    let mut parts = files(&["schema"], &[".sql"]);
    parts.retain(|(path, _)| !path.starts_with("schema/migrations/"));
    parts
}

const MAX_LINES: usize = 600;
const MAX_CHARACTERS: usize = 120;

/// Number of lines of a body above which a function holds several steps, which have names of their own.
const MAX_BODY: usize = 70;

#[test]
fn schema_sql_is_what_make_schema_writes() {
    let written = std::env::temp_dir().join(format!("pgmill-schema-{}.sql", std::process::id()));
    let made = Command::new("make")
        .args(["-C", root().to_str().unwrap(), "--silent", "schema"])
        .arg(format!("TO={}", written.display()))
        // Do not pass the flags of an enclosing `make test` to this make.
        .env_remove("MAKEFLAGS")
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let expected = fs::read(&written).unwrap();
    fs::remove_file(&written).unwrap();
    let parts = parts();
    assert!(parts.len() > 10 && expected.len() > parts.iter().map(|(_, text)| text.len()).sum());
    let same = fs::read(root().join("schema.sql")).unwrap() == expected;
    assert!(same, "schema.sql is not the concatenation of schema/*.sql: run make schema");
}

#[test]
fn a_file_of_the_schema_is_short_and_begins_with_a_comment() {
    let mut found = Vec::new();
    for (path, text) in parts() {
        if !text.starts_with("-- ") {
            found.push(format!("{path}: does not begin with a comment"));
        }
        let lines = text.lines().count();
        if lines > MAX_LINES {
            found.push(format!("{path}: {lines} lines, at most {MAX_LINES}"));
        }
        let long = |(_, line): &(usize, &str)| line.chars().count() > MAX_CHARACTERS;
        let numbered = (1..).zip(text.lines()).filter(long);
        found
            .extend(numbered.map(|(n, _)| format!("{path}:{n}: over {MAX_CHARACTERS} characters")));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// A reader chooses a file by its number, which says when a task comes to it, and by its first line.
#[test]
fn the_contents_list_each_file_under_a_number_of_its_own() {
    let parts = parts();
    let (first, others) = parts.split_first().unwrap();
    for (number, (path, text)) in (1..).zip(others) {
        assert!(path.starts_with(&format!("schema/{number:02}_")), "{path} is number {number}");
        let name = path.trim_start_matches("schema/").trim_end_matches(".sql");
        let title = text.lines().next().and_then(|line| line.strip_prefix("-- "));
        let title = title.and_then(|line| line.strip_suffix('.'));
        let title = title.unwrap_or_else(|| panic!("{path}: the first line is no sentence"));
        let line = format!("\n--   {name:<26} {title}\n");
        assert!(first.1.contains(&line), "run make schema: {} lacks {line}", first.0);
    }
    let listed = first.1.lines().filter(|line| line.starts_with("--   ")).count();
    assert_eq!(listed, others.len(), "run make schema");
}

/// Returns the functions and procedures of a file, and the number of lines of each body.
fn bodies(text: &str) -> impl Iterator<Item = (&str, usize)> {
    let parts = text.split("\nCREATE OR REPLACE ").skip(1);
    let routines =
        parts.filter_map(|part| part.strip_prefix("FUNCTION ").or(part.strip_prefix("PROCEDURE ")));
    routines.map(|routine| {
        let name = routine.split('(').next().unwrap();
        let body = routine.split_once(" AS $").and_then(|(_, rest)| {
            let (tag, body) = rest.split_once("$\n")?;
            Some(body.split_once(&format!("\n${tag}$;"))?.0)
        });
        (name, body.unwrap_or_else(|| panic!("{name}: no body is found")).lines().count())
    })
}

#[test]
fn the_body_of_a_function_is_short() {
    let parts = parts();
    let all: Vec<(&str, usize)> = parts.iter().flat_map(|(_, text)| bodies(text)).collect();
    assert!(all.len() > 250, "the scan finds {} functions", all.len());
    let long: Vec<&str> =
        all.iter().filter(|(_, lines)| *lines > MAX_BODY).map(|(name, _)| *name).collect();
    assert_eq!(long, [""; 0], "functions with a body of more than {MAX_BODY} lines");
}

/// Everybody may take an advisory lock with any key, and hold it for as long as a session lasts. The one that is left
/// only avoids an error message.
#[test]
fn no_advisory_lock_decides_anything() {
    let sources = [
        "schema",
        "crates/queue/src",
        "crates/schedule/src",
        "worker/src",
        "pgmill/src",
        "crates/console/src",
        "enqueue/src",
    ];
    let mut found = Vec::new();
    for (path, text) in files(&sources, &[".sql", ".rs"]) {
        let calls =
            text.matches("_advisory_").count() - text.matches("pg_advisory_unlock_all").count();
        if calls > usize::from(path == "schema/00_begin.sql") {
            found.push(path);
        }
    }
    assert!(found.is_empty(), "lock a row of mill.locks instead: {found:?}");
}

/// A body of a function is parsed with the setting `standard_conforming_strings` of its caller, which
/// decides what a backslash in quotes means.
#[test]
fn a_backslash_is_in_dollar_quotes() {
    let mut found = Vec::new();
    for (path, text) in files(&["schema", "crates/queue/src/receipt"], &[".sql"]) {
        for (n, line) in (1..).zip(text.lines()) {
            let outside: Vec<&str> = line.split("$re$").step_by(2).collect();
            if outside.iter().any(|part| part.contains('\\')) {
                found.push(format!("{path}:{n}: {line}"));
            }
        }
    }
    assert!(found.is_empty(), "write these patterns as $re$…$re$:\n{}", found.join("\n"));
}
