//! Style checks of texts: module docs, the transitions that they name, and the numbers that the
//! docs state.

use queue::State;

use crate::project::tidy::{files, root};

fn root_file(name: &str) -> String {
    std::fs::read_to_string(root().join(name)).unwrap()
}

/// A module doc that begins with a question word makes the reader look for the subject.
#[test]
fn a_module_doc_says_what_the_module_is() {
    const RIDDLES: [&str; 8] = ["What", "That", "How", "Who", "Where", "When", "Why", "Whoever"];
    let mut found = Vec::new();
    let mut docs = 0;
    for (path, text) in files(&["."], &[".rs"]) {
        let Some(doc) = text.lines().next().and_then(|line| line.strip_prefix("//! ")) else {
            continue;
        };
        docs += 1;
        if RIDDLES.iter().any(|riddle| doc.split_whitespace().next() == Some(riddle)) {
            found.push(format!("{path}: {doc}"));
        }
    }
    assert!(docs > 300, "the scan finds {docs} module docs");
    assert!(
        found.is_empty(),
        "module docs that begin with a question word:\n  {}",
        found.join("\n  ")
    );
}

/// Returns the states at the beginning of one side of an arrow. `None` stands for `finished`.
fn states(side: &str) -> Vec<Option<State>> {
    let words = side.split([' ', '|', '.', ',', ';']).filter(|word| !word.is_empty());
    let state = |word: &str| match word {
        "finished" => Some(None),
        word => word.parse().ok().map(Some),
    };
    words.map_while(state).collect()
}

/// Module docs that name transitions name `blocked` too: a task with a limit is `blocked` where a task
/// without a limit is `pending`.
#[test]
fn transitions_in_module_docs_are_those_of_the_state_graph() {
    let mut named = 0;
    for (path, text) in files(&["crates/queue/src"], &[".rs"]) {
        let Some(doc) = text.lines().next().and_then(|line| line.strip_prefix("//! ")) else {
            continue;
        };
        let Some((from, to)) = doc.split_once('→') else { continue };
        let (from, to) = (states(from), states(to.trim()));
        named += 1;
        for (source, target) in from.iter().flat_map(|source| to.iter().map(move |to| (source, to)))
        {
            let Some(source) = source else { panic!("{path}: a finished task does not change") };
            assert!(
                source.can_transition_to(*target),
                "{path}: {source} → {target:?} is not in the state graph"
            );
        }
        if to.contains(&Some(State::Pending)) && !from.contains(&Some(State::Blocked)) {
            assert!(doc.contains("blocked"), "{path}: {doc}: a task with a limit becomes blocked");
        }
    }
    assert!(named >= 8, "the scan finds {named} transitions");
}

/// Pages that people read from top to bottom: file, maximum number of lines, maximum number of words.
const BUDGETS: &[(&str, usize, usize)] = &[
    ("README.md", 130, 1_200),
    ("ARCHITECTURE.md", 260, 4_000),
    ("CONTRIBUTING.md", 130, 2_000),
    ("CHANGELOG.md", 60, 1_000),
];

/// Maximum number of words of all pages. docs/reference/ is generated.
const MAX_WORDS: usize = 70_000;

/// What is too long is not read.
#[test]
fn the_documentation_is_short_enough_to_be_read() {
    let words = |text: &str| text.split_whitespace().count();
    let mut found = Vec::new();
    let mut all = 0;
    for (path, text) in files(&["."], &[".md"]) {
        let path = path.trim_start_matches("./");
        let budget = match BUDGETS.iter().find(|(page, ..)| *page == path) {
            Some((_, lines, words)) => (*lines, *words),
            None if path.starts_with("docs/decisions/") => (40, 300),
            None => (usize::MAX, usize::MAX),
        };
        let size = (text.lines().count(), words(&text));
        if size.0 > budget.0 || size.1 > budget.1 {
            found.push(format!("{path}: {} lines, {} words", size.0, size.1));
        }
        if !path.starts_with("docs/reference/") {
            all += size.1;
        }
    }
    assert!(found.is_empty(), "too long:\n  {}", found.join("\n  "));
    assert!((30_000..=MAX_WORDS).contains(&all), "{all} words");
}

#[test]
fn the_changelog_counts_the_scenarios_of_the_load_test() {
    let scenarios = root_file("loadtest/src/scenarios.rs");
    let count = scenarios.matches("    scenario!(").count();
    let stated = format!("{count} scenarios");
    assert!(root_file("CHANGELOG.md").contains(&stated), "CHANGELOG.md should say {stated}");
}
