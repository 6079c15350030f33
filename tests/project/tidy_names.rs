//! Each thing has one name: the field's term for it. Words that come back by themselves are forbidden.

use crate::project::tidy::{assert_none, files};

/// Words that authors reach for, each with the glossary's term. A word is forbidden as a part of a name: `beat` forbids
/// `beat_at` and `lastBeat`, but not `heartbeat`.
const FORBIDDEN: &[(&str, &str)] = &[
    ("beat", "heartbeat"),
    ("beats", "heartbeats"),
    ("bell", "wakeup"),
    ("doorbell", "wakeup"),
    ("lease", "claim"),
    ("mistake", "error"),
    ("rescue", "reclaim"),
    ("tally", "throughput"),
    ("trouble", "error or problem"),
    ("zombie", "fenced attempt"),
];

/// Places in which a word is permitted, because it is the term of another system.
const PERMITTED: &[(&str, &str)] = &[
    ("crates/cluster/src/process.rs", "zombie"),
    ("ARCHITECTURE.md", "lease"),
    ("docs/glossary.md", "lease"),
    ("docs/glossary.md", "doorbell"),
    ("docs/glossary.md", "rescue"),
];

/// Files that need not use the glossary's words: adapters for other queues, libraries, and this file.
const FOREIGN: &[&str] = &[
    "loadtest/peers/",
    "loadtest/src/peers/",
    "crates/console/static/vendor/",
    "tests/project/tidy_names.rs",
];

/// Maximum number of parts of a name that is checked. A name with more parts is a sentence: the name of a test.
const MAX_PARTS: usize = 4;

#[test]
fn each_thing_has_one_word() {
    let mut found = Vec::new();
    let mut lines = 0;
    let endings = [".rs", ".md", ".sql", ".json", ".yml", ".yaml", ".html", ".js", ".mjs", ".toml"];
    for (path, text) in files(&["."], &endings) {
        let path = path.trim_start_matches("./");
        if FOREIGN.iter().any(|folder| path.starts_with(folder)) {
            continue;
        }
        for (number, line) in (1..).zip(text.lines()) {
            lines += 1;
            let lower = line.to_lowercase();
            if !FORBIDDEN.iter().any(|(word, _)| lower.contains(word)) {
                continue;
            }
            for name in line.split(|c: char| !(c.is_alphanumeric() || c == '_')) {
                let parts = parts(name);
                let known = FORBIDDEN.iter().filter(|(word, _)| {
                    parts.len() <= MAX_PARTS && parts.iter().any(|part| part == word)
                });
                let meant = |word: &str| PERMITTED.contains(&(path, word));
                found.extend(
                    known.filter(|(word, _)| !meant(word)).map(|(word, term)| {
                        format!("{path}:{number}: {name} has {word}, say {term}")
                    }),
                );
            }
        }
    }
    assert!(lines > 100_000, "the scan finds {lines} lines");
    assert_none("words that the glossary replaces", &found);
}

/// Returns the parts of a name in lower case. `lastBeatAt`, `LAST_BEAT_AT` and `last_beat_at` have the same parts.
fn parts(name: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut lower = false;
    for c in name.chars() {
        if c == '_' || c.is_uppercase() && lower {
            parts.push(String::new());
        }
        lower = c.is_lowercase() || c.is_numeric();
        if c != '_' {
            parts.last_mut().unwrap().extend(c.to_lowercase());
        }
    }
    parts
}

#[test]
fn a_word_is_found_in_every_way_to_write_a_name() {
    for name in ["lastBeatAt", "LAST_BEAT_AT", "last_beat_at"] {
        assert!(parts(name).contains(&"beat".to_owned()), "{name}");
    }
    assert_eq!(parts("heartbeat"), ["heartbeat"]);
}
