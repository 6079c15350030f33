//! Rules of the code base that a machine can check.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Crates whose code is the product.
pub(crate) const PRODUCT: &[&str] = &[
    "worker",
    "enqueue",
    "pgmill",
    "clients/rust",
    "crates/cli",
    "crates/cluster",
    "crates/conninfo",
    "crates/console",
    "crates/fleet-decisions",
    "crates/health",
    "crates/http-server",
    "crates/import",
    "crates/notification",
    "crates/queue",
    "crates/schedule",
    "crates/terminal",
    "samples/demo",
    "loadtest",
];

/// Number of lines above which a file may hold two things. A quarter more is too long.
const MANY_LINES: usize = 600;
const MAX_LINES: usize = 750;

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

/// Returns every text file below these places: its path from the root, and its text.
pub(crate) fn files(places: &[&str], endings: &[&str]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut left: Vec<PathBuf> = places.iter().map(|place| root().join(place)).collect();
    while let Some(path) = left.pop() {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            if name != "target" && !(name.starts_with('.') && name.len() > 1) {
                left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            }
        } else if endings.iter().any(|ending| name.ends_with(ending)) {
            let text = fs::read_to_string(&path).unwrap();
            let path = path.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
            found.push((path, text));
        }
    }
    found.sort();
    found
}

pub(crate) fn assert_none(what: &str, found: &[String]) {
    assert!(found.is_empty(), "{what}:\n  {}", found.join("\n  "));
}

/// Returns the text without its tests module.
pub(crate) fn without_tests(text: &str) -> &str {
    text.split("\n#[cfg(test)]\n").next().unwrap()
}

/// Returns each place where `word` stands as a separate word, as `path:line`.
pub(crate) fn places(path: &str, text: &str, word: &str) -> Vec<String> {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    let stands_alone = |line: &str| {
        line.match_indices(word).any(|(at, _)| {
            let after = &line[at + word.len()..];
            !(line[..at].ends_with(part) || word.ends_with(part) && after.starts_with(part))
        })
    };
    let numbered = (1..).zip(text.lines());
    numbered.filter(|(_, line)| stands_alone(line)).map(|(n, _)| format!("{path}:{n}")).collect()
}

/// Returns the string literals of Rust code with their lines, without those in comments.
pub(crate) fn literals(text: &str) -> Vec<(usize, &str)> {
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &text.as_bytes()[at..];
        let end = match rest {
            [b'/', b'/', ..] => at + text[at..].find('\n').unwrap_or(rest.len()),
            [b'/', b'*', ..] => at + text[at..].find("*/").unwrap_or(rest.len()),
            [b'\'', b'"' | b'\\', ..] => at + 3,
            [b'r', b'#', b'"', ..] => {
                let end = at + 3 + text[at + 3..].find("\"#").unwrap();
                found.push((at + 3, end));
                end + 2
            }
            [b'"', ..] => {
                let mut end = at + 1;
                while bytes[end] != b'"' {
                    end += if bytes[end] == b'\\' { 2 } else { 1 };
                }
                found.push((at + 1, end));
                end + 1
            }
            _ => at + 1,
        };
        at = end;
    }
    let line = |at: usize| text[..at].matches('\n').count() + 1;
    found.into_iter().map(|(from, to)| (line(from), &text[from..to])).collect()
}

#[test]
fn no_source_file_is_too_long() {
    let files = files(&[PRODUCT, &["tests"]].concat(), &[".rs"]);
    let longer_than = |limit: usize| -> Vec<String> {
        let lines = files.iter().map(|(path, text)| (path, without_tests(text).lines().count()));
        let long = lines.filter(|(_, lines)| *lines > limit);
        long.map(|(path, lines)| format!("{path}: {lines} lines")).collect()
    };
    println!("files of more than {MANY_LINES} lines: {:?}", longer_than(MANY_LINES));
    assert_none(
        &format!("files of more than {MAX_LINES} lines without their tests"),
        &longer_than(MAX_LINES),
    );
}

/// String literals that contain the name of an object of the schema and are not SQL: file, name,
/// reason.
const NO_SQL: &[(&str, &str, &str)] = &[
    ("enqueue/src/source.rs", "mill.settings", "a hint for a person"),
    ("crates/health/src/doctor_checks.rs", "mill.attempts", "a sentence for a person"),
    ("crates/health/src/doctor_checks.rs", "mill.tasks", "a sentence for a person"),
    ("crates/health/src/doctor_checks.rs", "mill.prepare_history", "a command for a person"),
    ("crates/health/src/doctor_checks.rs", "mill.repair_sequences", "a command for a person"),
    ("pgmill/src/database/init.rs", "mill.repair_sequences", "a command for a person"),
];

/// Settings that a task can read; they are not part of the schema.
const SETTINGS: &[&str] =
    &["mill.task_id", "mill.attempt", "mill.pooler_check", "mill.queue", "mill.name"];

#[test]
fn sql_on_the_schema_stands_in_queue_schedule_and_client_only() {
    let elsewhere: Vec<&str> = PRODUCT
        .iter()
        .copied()
        .filter(|place| {
            !["crates/queue", "clients/rust", "crates/schedule", "samples/demo", "loadtest"]
                .contains(place)
        })
        .collect();
    let mut found = Vec::new();
    for (path, text) in files(&elsewhere, &[".rs"]) {
        if path.contains("/tests/") || path.ends_with("/tests.rs") {
            continue;
        }
        for (line, literal) in literals(without_tests(&text)) {
            for name in names_in_schema(literal) {
                let sentence =
                    NO_SQL.iter().any(|(file, known, _)| *file == path && *known == name);
                if !SETTINGS.contains(&name) && !sentence {
                    found.push(format!("{path}:{line}: {name}"));
                }
            }
        }
    }
    assert_none(
        "SQL on the schema outside of crates/queue/, crates/schedule/ and clients/rust/",
        &found,
    );
}

/// Returns each qualified name `mill.something`.
fn names_in_schema(literal: &str) -> Vec<&str> {
    let part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let named = |(at, _): (usize, &str)| {
        let rest = &literal[at + 5..];
        let end = rest.find(|c| !part(c)).unwrap_or(rest.len());
        let qualified = end > 0 && !literal[..at].ends_with(part);
        qualified.then(|| &literal[at..at + 5 + end])
    };
    literal.match_indices("mill.").filter_map(named).collect()
}

/// Returns the name of a statement: `queue.claim` for `SELECT /* queue.claim */ …`. Since version 18,
/// pg_stat_statements drops a comment in front of a statement.
pub(crate) fn statement_name(literal: &str) -> Option<&str> {
    let (keyword, rest) = literal.split_once(" /* ")?;
    let (name, _) = rest.split_once(" */")?;
    let begins = !keyword.is_empty() && keyword.chars().all(|c| c.is_ascii_uppercase() || c == ' ');
    begins.then_some(name)
}

#[test]
fn every_statement_has_a_name_of_its_own() {
    let mut seen: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut nameless = Vec::new();
    for (path, text) in files(PRODUCT, &[".rs"]) {
        if path.contains("/tests") {
            continue;
        }
        for (line, literal) in literals(without_tests(&text)) {
            if let Some(name) = statement_name(literal) {
                seen.entry(name.to_owned()).or_default().push(format!("{path}:{line}"));
            } else if path.starts_with("crates/queue/") && begins_statement(literal) {
                nameless.push(format!("{path}:{line}"));
            }
        }
    }
    assert!(seen.contains_key("queue.claim"), "the scan finds nothing");
    let twice: Vec<String> = seen
        .iter()
        .filter(|(_, places)| places.len() > 1)
        .map(|(name, places)| format!("{name}: {}", places.join(", ")))
        .collect();
    assert_none("names that two statements share", &twice);
    assert_none("statements on the schema without a name", &nameless);
}

fn begins_statement(literal: &str) -> bool {
    let verbs = ["SELECT ", "INSERT ", "UPDATE ", "DELETE ", "WITH "];
    verbs.iter().any(|verb| literal.starts_with(verb)) && literal.contains("mill.")
}

#[test]
fn nothing_is_left_undone_and_nothing_names_this_machine() {
    let mut found = Vec::new();
    for (path, text) in files(&["."], &[".rs", ".md", ".sql", ".toml", ".yml", ".yaml", "Makefile"])
    {
        if path.ends_with("tests/project/tidy.rs") || path == "tidy.rs" {
            continue;
        }
        for word in ["TODO", "FIXME", "XXX", "dbg!"] {
            found.extend(places(&path, &text, word).iter().map(|at| format!("{at}: {word}")));
        }
        for place in ["/root/", "/work/", "/home/"] {
            let numbered = (1..).zip(text.lines());
            let named = numbered.filter(|(_, line)| {
                line.match_indices(place)
                    .any(|(at, _)| !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '}'))
            });
            found.extend(named.map(|(n, _)| format!("{path}:{n}: {place}")));
        }
    }
    assert_none("left over", &found);
}

/// Places in which sleeping is permitted: `eventually`, and programs that let a fleet work for a
/// while.
const NO_TESTS: &[&str] = &["tests/harness/", "tests/chaos/", "tests/ha/", "tests/project/tidy.rs"];

#[test]
fn no_test_sleeps_to_get_an_order_of_events() {
    let found: Vec<String> = files(&["tests"], &[".rs"])
        .iter()
        .filter(|(path, _)| !NO_TESTS.iter().any(|place| path.starts_with(place)))
        .flat_map(|(path, text)| places(path, text, "sleep("))
        .collect();
    assert_none("hold a task with an advisory lock, or wait with `eventually`", &found);
}

/// The server checks the conditions of a query in any order, also before it joins the names of the
/// databases: it would end sessions that the other conditions exclude.
#[test]
fn no_condition_ends_sessions() {
    let mut found = Vec::new();
    for (path, text) in files(&["."], &[".rs", ".sql", ".md"]) {
        for function in ["pg_terminate_backend", "pg_cancel_backend"] {
            found.extend(places(&path, &text, &format!("AND {function}(")));
        }
    }
    assert_none("call the function in the select list", &found);
}

#[test]
fn every_flag_is_in_the_documentation() {
    let Ok(readme) = fs::read_to_string(root().join("README.md")) else {
        return println!("skipped: there is no README.md");
    };
    let docs = files(&["docs"], &[".md"]);
    let text = docs.iter().fold(readme, |all, (_, text)| all + "\n" + text);
    let mut found = Vec::new();
    let places = [
        "worker/src/startup/settings.rs",
        "enqueue/src/args.rs",
        "pgmill/src/args.rs",
        "pgmill/src/args",
        "crates/console/src/options/flags.rs",
        "crates/import/src/args.rs",
    ];
    let mut all = 0;
    for (file, source) in files(&places, &[".rs"]) {
        let flags = flags(without_tests(&source));
        all += flags.len();
        let missing = flags.into_iter().filter(|flag| {
            !text.match_indices(flag.as_str()).any(|(at, _)| {
                !text[at + flag.len()..]
                    .starts_with(|c: char| c.is_ascii_alphanumeric() || c == '-')
            })
        });
        found.extend(missing.map(|flag| format!("{file}: {flag}")));
    }
    assert!(all > 50, "the scan finds {all} flags");
    assert_none("flags that neither README.md nor docs/ names", &found);
}

/// Returns the flags, as `--name`, of the fields with `#[arg(long …)]` that the help shows.
fn flags(source: &str) -> Vec<String> {
    let mut flags = Vec::new();
    for after in source.split("#[arg(").skip(1) {
        let Some((attribute, mut rest)) = after.split_once(")]") else { continue };
        // Skip a second attribute of the same field.
        while let Some((_, after)) =
            rest.trim_start().strip_prefix("#[arg(").and_then(|more| more.split_once(")]"))
        {
            rest = after;
        }
        let long = attribute.split(',').map(str::trim).find(|option| option.starts_with("long"));
        let Some(long) = long else { continue };
        if attribute.contains("hide = true") {
            continue;
        }
        let named = long.split_once('"').map(|(_, name)| name.trim_end_matches('"').to_owned());
        let field = rest.trim_start().trim_start_matches("pub(crate) ").trim_start_matches("pub ");
        let field = field.split(':').next().unwrap();
        flags.push(format!("--{}", named.unwrap_or_else(|| field.trim().replace('_', "-"))));
    }
    flags
}
