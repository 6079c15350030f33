//! Style checks of the texts: module docs, transitions that they name, numbers that the docs state.

use std::collections::BTreeSet;

use crate::tidy::files;

const CODE: &[&str] = &["."];

fn root_file(name: &str) -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../");
    std::fs::read_to_string(format!("{path}{name}")).unwrap()
}

/// A riddle makes the reader look for the subject.
#[test]
fn a_module_doc_says_what_the_module_is() {
    const RIDDLES: [&str; 8] = ["What", "That", "How", "Who", "Where", "When", "Why", "Whoever"];
    let mut found = Vec::new();
    let mut docs = 0;
    for (path, text) in files(CODE, &[".rs"]) {
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

/// Pairs of states in the picture of ARCHITECTURE.md.
fn state_graph() -> BTreeSet<(String, String)> {
    let text = root_file("ARCHITECTURE.md");
    let (_, rest) = text.split_once("```states\n").unwrap();
    let (graph, _) = rest.split_once("```").unwrap();
    let pair = |line: &str| {
        let (from, rest) = line.split_once("->").unwrap();
        (from.trim().to_owned(), rest.split_whitespace().next().unwrap().to_owned())
    };
    graph.lines().map(pair).collect()
}

/// The states of one side of an arrow, as far as they lead up to it or away from it.
fn states(side: &str) -> Vec<String> {
    let known = ["scheduled", "blocked", "pending", "running", "finished"];
    let words = side.split([' ', '|', '.', ',', ';']).filter(|word| !word.is_empty());
    words.take_while(|word| known.contains(word)).map(str::to_owned).collect()
}

/// A task that some limit applies to is blocked where another one is pending.
#[test]
fn transitions_in_module_docs_are_those_of_the_state_graph() {
    let graph = state_graph();
    let mut named = 0;
    for (path, text) in files(&["queue/src"], &[".rs"]) {
        let Some(doc) = text.lines().next().and_then(|line| line.strip_prefix("//! ")) else {
            continue;
        };
        let Some((from, to)) = doc.split_once('→') else { continue };
        let (from, to) = (states(from), states(to.trim()));
        named += 1;
        for target in &to {
            for source in &from {
                let pair = (source.clone(), target.clone());
                assert!(
                    graph.contains(&pair),
                    "{path}: {source} → {target} is not in the state graph"
                );
            }
        }
        let permit = from.iter().any(|source| source == "blocked");
        if to.iter().any(|target| target == "pending") && !permit {
            assert!(doc.contains("blocked"), "{path}: {doc}: a task with a limit becomes blocked");
        }
    }
    assert!(named >= 8, "the scan finds {named} transitions");
}

#[test]
fn the_changelog_counts_the_scenarios_of_the_load_test() {
    let kinds = root_file("loadtest/src/scenarios.rs");
    let (_, rest) =
        kinds.split_once("pub enum Kind {").or_else(|| kinds.split_once("enum Kind {")).unwrap();
    let (variants, _) = rest.split_once("\n}").unwrap();
    let variant = |line: &&str| line.trim().chars().next().is_some_and(char::is_uppercase);
    let count = variants.lines().filter(variant).count();
    let stated = format!("{count} scenarios");
    assert!(root_file("CHANGELOG.md").contains(&stated), "CHANGELOG.md should say {stated}");
}
