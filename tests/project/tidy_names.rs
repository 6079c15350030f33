//! Each thing has one name: the field's term for it. Older names are forbidden.

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::project::tidy::{assert_none, files, places};

/// Old names, each with the field's term. An old name is forbidden as an identifier and as a part of an
/// identifier. For example, `beat` forbids `beat_at`, `last_beat` and `BeatsFailing`, but not `heartbeat`.
const RENAMED: &[(&str, &str)] = &[
    ("adjust_schedule", "override_schedule"),
    ("admits", "has_group_permit"),
    ("beat", "heartbeat"),
    ("beaten", "heartbeat_sent"),
    ("beats", "heartbeats"),
    ("collect_success", "fleet_scrape_success"),
    ("confused", "protocol"),
    ("doorbell", "wakeup"),
    ("end_run", "finish_run"),
    ("ended_at", "finished_at"),
    ("fill_params", "substitute_params"),
    ("fill_results", "substitute_results"),
    ("first_instant", "resolve_local_time"),
    ("first_state", "initial_state"),
    ("give_back", "release"),
    ("given_back", "released"),
    ("glance", "peer_sampling"),
    ("goes_on", "in_progress"),
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
    ("make_run", "create_run"),
    ("max_concurrency", "max_running"),
    ("measure_query", "probe_query"),
    ("mistake", "error"),
    ("mistakes", "errors"),
    ("moved_back", "shift_position_back"),
    ("orphans_reclaimed", "tasks_reclaimed"),
    ("plan_anew", "replan_schedule"),
    ("presences", "live_sessions"),
    ("put_own_job", "put_schedule_job"),
    ("record_act", "record_audit"),
    ("record_settings", "audit_settings"),
    ("regulate", "reconcile_limits"),
    ("regulation", "limit_reconciliation"),
    ("rescue", "reclaim"),
    ("rescuer", "reclaimer"),
    ("retire_own_job", "retire_schedule_job"),
    ("run_add", "add_run_task"),
    ("rung", "notified"),
    ("said", "reported"),
    ("sayings", "progress"),
    ("schedule_mistakes", "schedule_declaration_errors"),
    ("share_commits", "set_shared_commit"),
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
    ("works_with", "min_compatible_version"),
    ("zombie", "fenced_attempt"),
];

/// The old names above by the first of their parts.
static BY_FIRST_PART: LazyLock<HashMap<&str, Vec<(&str, &str)>>> = LazyLock::new(|| {
    let mut by_part: HashMap<&str, Vec<(&str, &str)>> = HashMap::new();
    for &(old, new) in RENAMED {
        by_part.entry(old.split('_').next().unwrap()).or_default().push((old, new));
    }
    by_part
});

/// Old names that are good words for other things. They are forbidden as names of declarations in Rust and of
/// files.
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

/// Old names of locals and fields. In Rust they are forbidden as whole names, but not as parts of
/// names.
const NOT_ALONE: &[(&str, &str)] =
    &[("least", "min"), ("met", "goal_met or satisfied"), ("most", "max or limit")];

/// Old names of files, except the names that the list above has.
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

/// Maximum number of parts of a name that is checked. A name with more parts is a sentence: the
/// name of a test.
const MAX_PARTS: usize = 4;

/// Places in which an old name is permitted, because it is the term of another system: file, name,
/// reason.
const FOREIGN_NAMES: &[(&str, &str, &str)] = &[
    ("crates/cluster/src/process.rs", "zombie", "a process that nobody has waited for"),
    ("ARCHITECTURE.md", "lease", "tells what is deliberately absent"),
];

/// Files that need not use the glossary's words: adapters for other queues, which use the terms of these queues;
/// libraries; texts of released versions; and this file, which contains the forbidden words.
const FOREIGN: &[&str] = &[
    "loadtest/peers/",
    "loadtest/src/peers/",
    "crates/console/static/vendor/",
    "schema/migrations/",
    "tests/project/tidy_names.rs",
];

#[test]
fn each_thing_has_one_word() {
    let mut found = Vec::new();
    let mut names = 0;
    let endings = [".rs", ".md", ".sql", ".json", ".yml", ".yaml", ".html", ".js", ".mjs", ".toml"];
    let texts = files(&["."], &endings);
    let mut old_of = HashMap::new();
    for (path, text) in &texts {
        let path = path.trim_start_matches("./");
        if FOREIGN.iter().any(|folder| path.starts_with(folder)) {
            continue;
        }
        let meant =
            |old: &str| FOREIGN_NAMES.iter().any(|(file, name, _)| *file == path && *name == old);
        for (number, name) in named(path, text) {
            names += 1;
            // Most names occur many times.
            let old = old_of.entry(name).or_insert_with(|| old_names(name));
            let old = old.iter().filter(|(old, _)| !meant(old));
            found.extend(
                old.map(|(old, new)| format!("{path}:{number}: {name} has {old}, say {new}")),
            );
        }
        for (old, new) in NOT_ALONE.iter().filter(|_| path.ends_with(".rs")) {
            let alone = ["let ", "let mut ", "(", ", ", "    "];
            let at = alone.iter().flat_map(|before| {
                let end = if before.starts_with("let") { " " } else { ": " };
                let word = format!("{before}{old}{end}");
                // Most files do not have it, and a search line by line takes long.
                if text.contains(&word) { places(path, text, &word) } else { Vec::new() }
            });
            found.extend(at.map(|at| format!("{at}: {old}, say {new}")));
        }
        for (number, line) in (1..).zip(text.lines()) {
            let Some(name) = declared(path, line) else { continue };
            let old = NOT_DECLARED.iter().find(|(old, _)| name.eq_ignore_ascii_case(old));
            found.extend(old.map(|(old, new)| format!("{path}:{number}: {old}, say {new}")));
        }
        let stem = path.rsplit('/').next().unwrap().split('.').next().unwrap();
        let file = NOT_DECLARED.iter().chain(OLD_FILES).find(|(old, _)| stem == *old);
        let old = old_names(stem).into_iter().chain(file.copied());
        found.extend(old.map(|(old, new)| format!("{path}: the file has {old}, say {new}")));
    }
    assert!(names > 100_000, "the scan finds {names} names");
    assert_none("old names", &found);
}

/// Returns the old names that a name has as parts.
fn old_names(name: &str) -> Vec<(&'static str, &'static str)> {
    let parts = name_parts(name);
    let mut found = Vec::new();
    if parts.len() > MAX_PARTS {
        return found;
    }
    let mut rest = &parts[..];
    while let [first, after @ ..] = rest {
        let begins = |old: &str| {
            let mut parts = rest.iter();
            old.split('_').all(|part| parts.next().is_some_and(|it| it == part))
        };
        let known = BY_FIRST_PART.get(first.as_str()).into_iter().flatten().copied();
        found.extend(known.filter(|(old, _)| begins(old)));
        rest = after;
    }
    found
}

/// Returns the parts of a name in lower case. `lastBeatAt`, `LAST_BEAT_AT` and `last_beat_at` have
/// the same parts.
fn name_parts(name: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut lower = false;
    for c in name.chars() {
        if begins_part(c, lower) {
            parts.push(String::new());
        }
        lower = c.is_lowercase() || c.is_numeric();
        if c != '_' && c != '-' {
            parts.last_mut().unwrap().extend(c.to_lowercase());
        }
    }
    parts
}

/// Returns whether a part of a name begins at this character. `after_lower`: it stands behind a
/// lower-case letter or a digit.
fn begins_part(c: char, after_lower: bool) -> bool {
    c == '_' || c == '-' || c.is_uppercase() && after_lower
}

/// Returns whether a name has several parts, without the memory that [`name_parts`] needs.
fn has_parts(name: &str) -> bool {
    let mut lower = false;
    name.chars().any(|c| {
        let begins = begins_part(c, lower);
        lower = c.is_lowercase() || c.is_numeric();
        begins
    })
}

/// Returns names with their lines. In code, each word is a name. In comments, in quoted text and in documents, a
/// name is a word in backticks, or a word of several parts.
fn named<'a>(path: &str, text: &'a str) -> Vec<(usize, &'a str)> {
    let in_name = |c: char| c.is_alphanumeric() || c == '_';
    let (comment, quote) = if path.ends_with(".rs") { ("//", '"') } else { ("--", '\'') };
    let has_code = path.ends_with(".rs") || path.ends_with(".sql");
    let mut found = Vec::new();
    let mut ticked = false;
    for (number, line) in (1..).zip(text.lines()) {
        let code = if has_code { line.split(comment).next().unwrap().len() } else { 0 };
        // Only in a document can text in backticks go over several lines.
        ticked &= path.ends_with(".md");
        let (mut quoted, mut at) = (false, 0);
        for word in line.split_inclusive(|c: char| !in_name(c)) {
            let name = word.trim_end_matches(|c: char| !in_name(c));
            let is_code = ticked || at < code && !quoted;
            if !name.is_empty() && (is_code || has_parts(name)) {
                found.push((number, name));
            }
            quoted ^= word.ends_with(quote);
            ticked ^= word.ends_with('`');
            at += word.len();
        }
    }
    found
}

/// Returns the name that a line of Rust declares.
fn declared<'a>(path: &str, line: &'a str) -> Option<&'a str> {
    if !path.ends_with(".rs") {
        return None;
    }
    let code = line.trim_start().strip_prefix("pub").unwrap_or(line).trim_start();
    let code = if code.starts_with('(') { code.split_once(") ")?.1 } else { code };
    let kinds =
        ["fn ", "async fn ", "struct ", "enum ", "mod ", "trait ", "type ", "macro_rules! "];
    let rest = kinds.iter().find_map(|kind| code.trim_start().strip_prefix(kind))?;
    let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
    Some(&rest[..end])
}
