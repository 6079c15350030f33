//! The rules of the house that a machine can check.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Crates whose code is the product.
const PRODUCT: &[&str] = &[
    "queue", "schedule", "worker", "enqueue", "pgmill", "console", "terminal", "cluster", "demo",
    "loadtest",
];

const MOST_LINES: usize = 500;

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

/// Every text file below these places, as path from the root and text.
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

fn assert_none(what: &str, found: &[String]) {
    assert!(found.is_empty(), "{what}:\n  {}", found.join("\n  "));
}

/// The text without its tests module.
pub(crate) fn without_tests(text: &str) -> &str {
    text.split("\n#[cfg(test)]\n").next().unwrap()
}

/// Each place where `word` stands as a word of its own, as `path:line`.
fn places(path: &str, text: &str, word: &str) -> Vec<String> {
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

/// The string literals of Rust code with their lines; comments are left out.
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
    let found: Vec<String> = files(&[PRODUCT, &["tests"]].concat(), &[".rs"])
        .iter()
        .map(|(path, text)| (path, without_tests(text).lines().count()))
        .filter(|(_, lines)| *lines > MOST_LINES)
        .map(|(path, lines)| format!("{path}: {lines} lines"))
        .collect();
    assert_none(&format!("files of more than {MOST_LINES} lines without their tests"), &found);
}

/// Literals that name an object of the schema without being SQL on it.
const NO_SQL: &[(&str, &str, &str)] = &[
    ("enqueue/src/source.rs", "mill.settings", "a hint for a person"),
    ("terminal/src/doctor_checks.rs", "mill.attempts", "a sentence for a person"),
    ("terminal/src/doctor_checks.rs", "mill.tasks", "a sentence for a person"),
    ("terminal/src/doctor_checks.rs", "mill.prepare_history", "a command for a person"),
];

/// Settings that a task can read; they are no part of the schema.
const SETTINGS: &[&str] =
    &["mill.task_id", "mill.attempt", "mill.pooler_check", "mill.queue", "mill.name"];

#[test]
fn sql_on_the_schema_stands_in_queue_and_schedule_only() {
    let elsewhere: Vec<&str> = PRODUCT
        .iter()
        .copied()
        .filter(|place| !["queue", "schedule", "demo", "loadtest"].contains(place))
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
    assert_none("SQL on the schema outside of queue/ and schedule/", &found);
}

/// `mill.something` wherever it stands as a qualified name.
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

#[test]
fn every_statement_has_a_name_of_its_own() {
    let mut seen: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut nameless = Vec::new();
    for (path, text) in files(PRODUCT, &[".rs"]) {
        if path.contains("/tests") {
            continue;
        }
        for (line, literal) in literals(without_tests(&text)) {
            let name = literal.strip_prefix("/* ").and_then(|rest| rest.split_once(" */"));
            if let Some((name, _)) = name {
                seen.entry(name.to_owned()).or_default().push(format!("{path}:{line}"));
            } else if path.starts_with("queue/") && begins_statement(literal) {
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

/// Old names and the field's terms for them. An old name is banned as an identifier and as a part of one: `beat`
/// bans `beat_at`, `last_beat` and `BeatsFailing`, and leaves `heartbeat` alone.
const RENAMED: &[(&str, &str)] = &[
    ("admits", "has_group_permit"),
    ("beat", "heartbeat"),
    ("beaten", "heartbeat_sent"),
    ("beats", "heartbeats"),
    ("collect_success", "fleet_scrape_success"),
    ("confused", "protocol"),
    ("doorbell", "wakeup"),
    ("ended_at", "finished_at"),
    ("first_instant", "resolve_local_time"),
    ("give_back", "release"),
    ("given_back", "released"),
    ("glance", "peer_sampling"),
    ("group_guard", "shared_commit_supervisor"),
    ("impossible", "upstream_failed"),
    ("in_force", "is_active"),
    ("judge_trigger", "evaluate_trigger"),
    ("kept_plan", "saved_plan"),
    ("late_results", "fenced_attempts"),
    ("leads_to", "is_upstream_of"),
    ("lease", "claim"),
    ("limit_chain", "required_limits"),
    ("limit_terms", "effective_limits"),
    ("limits_tasks", "requires_permit"),
    ("looked", "polled"),
    ("looker", "poller"),
    ("looks", "polls"),
    ("max_concurrency", "max_running"),
    ("mistake", "error"),
    ("mistakes", "errors"),
    ("moved_back", "shift_position_back"),
    ("orphans_reclaimed", "tasks_reclaimed"),
    ("plan_anew", "replan_schedule"),
    ("presence", "session_lock_key"),
    ("presences", "live_sessions"),
    ("record_act", "record_audit"),
    ("regulate", "reconcile_limits"),
    ("regulation", "limit_reconciliation"),
    ("rescue", "reclaim"),
    ("rescuer", "reclaimer"),
    ("run_add", "add_run_task"),
    ("rung", "notified"),
    ("said", "reported"),
    ("sayings", "progress"),
    ("schedule_mistakes", "schedule_declaration_errors"),
    ("shown_attempts", "visible_attempts"),
    ("shown_job_tasks", "visible_job_tasks"),
    ("shown_schedule_log", "visible_schedule_log"),
    ("shown_tasks", "visible_tasks"),
    ("take_schedules", "lock_due_schedules"),
    ("tally", "throughput"),
    ("tell", "report"),
    ("tell_children", "propagate_completion"),
    ("tells", "pending_propagation"),
    ("told", "reported"),
    ("transients", "transient_failures"),
    ("trouble", "error"),
    ("troubles", "problems"),
    ("turns_at", "next_change_at"),
    ("undertaker", "reclaimer"),
    ("what_was_said", "visible_message"),
    ("zombie", "fenced_attempt"),
];

/// Old names of things that are good words elsewhere: banned where something is declared under them, in Rust and
/// as the name of a file.
const NOT_DECLARED: &[(&str, &str)] = &[
    ("bell", "wakeup"),
    ("bury", "reclaim_worker"),
    ("crowd", "simulated_fleet"),
    ("door", "access_control or sign_in"),
    ("glance", "peer_sampling"),
    ("guard", "supervise or access_control"),
    ("held", "in_flight"),
    ("holding", "in_flight_guard"),
    ("judge", "evaluate or classify"),
    ("look", "poll, refresh or query"),
    ("pace", "batch_size"),
    ("ring", "notify"),
    ("say", "report"),
    ("says", "report"),
    ("seat", "worker_slot"),
    ("settle", "resolve_commit"),
    ("shot", "snapshot"),
    ("sight", "peer_snapshot"),
    ("site", "environment"),
    ("stock", "dataset"),
    ("together", "shared_commit"),
    ("watch", "failure_detector or monitor"),
];

/// Old names of files, as far as the list above does not have them.
const OLD_FILES: &[(&str, &str)] = &[
    ("beside", "control_case"),
    ("direct", "pooler_check or director"),
    ("lately", "recent_attempts or duration_history"),
    ("manager", "sd_notify"),
    ("pick", "weights"),
    ("roster", "workers"),
    ("standing", "goal_check"),
    ("ticks", "schedule_metrics"),
    ("waits", "backlog_history"),
    ("words", "format, pg_enum or vocabulary"),
];

/// A name with more parts than this is a sentence: that of a test.
const MOST_PARTS: usize = 4;

/// Where such a name is somebody else's.
const FOREIGN_NAMES: &[(&str, &str, &str)] = &[
    ("cluster/src/process.rs", "zombie", "a process that nobody has waited for"),
    ("ARCHITECTURE.md", "lease", "tells what is deliberately absent"),
];

/// Adapters of other queues, in the words of those; libraries; what earlier releases have published; this list.
const FOREIGN: &[&str] = &[
    "loadtest/peers/",
    "loadtest/src/peers/",
    "console/static/vendor/",
    "migrations/",
    "tests/tidy.rs",
];

#[test]
fn each_thing_has_one_word() {
    let mut found = Vec::new();
    let mut names = 0;
    let endings = [".rs", ".md", ".sql", ".json", ".yml", ".yaml", ".html", ".js", ".mjs", ".toml"];
    for (path, text) in files(&["."], &endings) {
        let path = path.trim_start_matches("./");
        if FOREIGN.iter().any(|folder| path.starts_with(folder)) {
            continue;
        }
        let meant =
            |old: &str| FOREIGN_NAMES.iter().any(|(file, name, _)| *file == path && *name == old);
        for (number, name) in named(path, &text) {
            names += 1;
            let old = old_names(name).filter(|(old, _)| !meant(old));
            found.extend(
                old.map(|(old, new)| format!("{path}:{number}: {name} has {old}, say {new}")),
            );
        }
        for (number, line) in (1..).zip(text.lines()) {
            let Some(name) = declared(path, line) else { continue };
            let old = NOT_DECLARED.iter().find(|(old, _)| name.eq_ignore_ascii_case(old));
            found.extend(old.map(|(old, new)| format!("{path}:{number}: {old}, say {new}")));
        }
        let stem = path.rsplit('/').next().unwrap().split('.').next().unwrap();
        let file = NOT_DECLARED.iter().chain(OLD_FILES).find(|(old, _)| stem == *old);
        let old = old_names(stem).chain(file.copied());
        found.extend(old.map(|(old, new)| format!("{path}: the file has {old}, say {new}")));
    }
    assert!(names > 100_000, "the scan finds {names} names");
    assert_none("old names", &found);
}

fn old_names(name: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let parts = name_parts(name);
    let has = move |old: &str| {
        let old: Vec<&str> = old.split('_').collect();
        parts.len() <= MOST_PARTS && parts.windows(old.len()).any(|part| part == old)
    };
    RENAMED.iter().copied().filter(move |(old, _)| has(old))
}

/// `lastBeatAt`, `LAST_BEAT_AT` and `last_beat_at` alike.
fn name_parts(name: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut lower = false;
    for c in name.chars() {
        if c == '_' || c == '-' || c.is_uppercase() && lower {
            parts.push(String::new());
        }
        lower = c.is_lowercase() || c.is_numeric();
        if c != '_' && c != '-' {
            parts.last_mut().unwrap().extend(c.to_lowercase());
        }
    }
    parts
}

/// Names with their lines: all words of code; of prose, which a comment, a text in quotes and a document are, those
/// in backticks and those that no prose has.
fn named<'a>(path: &str, text: &'a str) -> Vec<(usize, &'a str)> {
    let in_name = |c: char| c.is_alphanumeric() || c == '_';
    let (comment, quote) = if path.ends_with(".rs") { ("//", '"') } else { ("--", '\'') };
    let has_code = path.ends_with(".rs") || path.ends_with(".sql");
    let mut found = Vec::new();
    let mut ticked = false;
    for (number, line) in (1..).zip(text.lines()) {
        let code = if has_code { line.split(comment).next().unwrap().len() } else { 0 };
        // A block of a document goes over lines.
        ticked &= path.ends_with(".md");
        let (mut quoted, mut at) = (false, 0);
        for word in line.split_inclusive(|c: char| !in_name(c)) {
            let name = word.trim_end_matches(|c: char| !in_name(c));
            let is_code = ticked || at < code && !quoted;
            if !name.is_empty() && (is_code || name_parts(name).len() > 1) {
                found.push((number, name));
            }
            quoted ^= word.ends_with(quote);
            ticked ^= word.ends_with('`');
            at += word.len();
        }
    }
    found
}

/// What a line of Rust declares.
fn declared<'a>(path: &str, line: &'a str) -> Option<&'a str> {
    let code = line.trim_start().strip_prefix("pub").unwrap_or(line).trim_start();
    let code = if code.starts_with('(') { code.split_once(") ")?.1 } else { code };
    let kinds =
        ["fn ", "async fn ", "struct ", "enum ", "mod ", "trait ", "type ", "macro_rules! "];
    let rest = kinds.iter().find_map(|kind| code.trim_start().strip_prefix(kind))?;
    let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
    path.ends_with(".rs").then_some(&rest[..end])
}

#[test]
fn nothing_is_left_undone_and_nothing_names_this_machine() {
    let mut found = Vec::new();
    for (path, text) in files(&["."], &[".rs", ".md", ".sql", ".toml", ".yml", ".yaml", "Makefile"])
    {
        if path.ends_with("tests/tidy.rs") || path == "tidy.rs" {
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

/// Where waiting is the purpose: `eventually`, and programs that let a fleet work for a while.
const NO_TESTS: &[&str] = &["tests/harness/", "tests/chaos/", "tests/tidy.rs"];

#[test]
fn no_test_sleeps_to_get_an_order_of_events() {
    let found: Vec<String> = files(&["tests"], &[".rs"])
        .iter()
        .filter(|(path, _)| !NO_TESTS.iter().any(|place| path.starts_with(place)))
        .flat_map(|(path, text)| places(path, text, "sleep("))
        .collect();
    assert_none("hold a task with an advisory lock, or wait with `eventually`", &found);
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
        "worker/src/startup/config.rs",
        "enqueue/src/args.rs",
        "pgmill/src/args.rs",
        "pgmill/src/args",
        "console/src/flags.rs",
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

/// `--name` of each field with `#[arg(long …)]` that help shows.
fn flags(source: &str) -> Vec<String> {
    let mut flags = Vec::new();
    for after in source.split("#[arg(").skip(1) {
        let Some((attribute, mut rest)) = after.split_once(")]") else { continue };
        // A second attribute of the same field.
        while let Some((_, behind)) =
            rest.trim_start().strip_prefix("#[arg(").and_then(|more| more.split_once(")]"))
        {
            rest = behind;
        }
        let long = attribute.split(',').map(str::trim).find(|option| option.starts_with("long"));
        let Some(long) = long else { continue };
        if attribute.contains("hide = true") {
            continue;
        }
        let named = long.split_once('"').map(|(_, name)| name.trim_end_matches('"').to_owned());
        let field = rest.trim_start().trim_start_matches("pub(crate) ").split(':').next().unwrap();
        flags.push(format!("--{}", named.unwrap_or_else(|| field.trim().replace('_', "-"))));
    }
    flags
}
