//! Compares the fires of some hundred cadences with a table that another implementation computed.
//!
//! `cases.py` describes the table. Its walk through the calendar shares no code with this crate.

use jiff::Timestamp;
use schedule::{Cadence, Timing};

const TABLE: &str = include_str!("cases.txt");

const LEAST_CASES: usize = 230;

/// One line `cadence | after | fire fire fire`. It ends with a `-` if there are no more fires.
struct Case {
    line: usize,
    text: &'static str,
    after: Timestamp,
    fires: Vec<Option<Timestamp>>,
}

fn cases() -> Vec<Case> {
    let lines = (1..).zip(TABLE.lines());
    lines.filter(|(_, text)| !text.starts_with('#')).map(|(line, text)| case(line, text)).collect()
}

fn case(line: usize, text: &'static str) -> Case {
    let parts: Vec<&str> = text.split(" | ").collect();
    let [text, after, fires] = parts[..] else {
        panic!("line {line} of the table is not a case: {text}");
    };
    let instant = |word: &str| word.parse::<Timestamp>().expect("an instant");
    let fires = fires.split(' ').map(|word| (word != "-").then(|| instant(word)));
    Case { line, text, after: instant(after), fires: fires.collect() }
}

/// Returns up to `count` fires of the cadence after an instant. If there are fewer, the list ends
/// with `None`.
fn fires(cadence: &Cadence, after: Timestamp, count: usize) -> Vec<Option<Timestamp>> {
    let mut found = Vec::new();
    let mut last = Some(after);
    while let (Some(after), true) = (last, found.len() < count) {
        last = cadence.next_fire(after);
        found.push(last);
    }
    found
}

fn words(fires: &[Option<Timestamp>]) -> String {
    let word = |fire: &Option<Timestamp>| fire.map_or("-".to_string(), |fire| fire.to_string());
    fires.iter().map(word).collect::<Vec<_>>().join(" ")
}

/// Returns the difference between a case and the crate's result, if any.
fn difference(case: &Case) -> Option<String> {
    let Case { line, text, after, fires: expected } = case;
    let found = match Timing::parse(text) {
        Ok(Timing::Scheduled(cadence)) => words(&fires(&cadence, *after, expected.len())),
        Ok(_) => "no cadence".to_string(),
        Err(error) => format!("an error at {}: {}", error.at, error.message),
    };
    let expected = words(expected);
    (found != expected).then(|| {
        format!(
            "line {line}: {text}\n  after    {after}\n  expected {expected}\n  found    {found}"
        )
    })
}

#[test]
fn cadences_fire_as_computed_by_a_walk_through_the_calendar() {
    let cases = cases();
    assert!(cases.len() >= LEAST_CASES, "the table has only {} cases", cases.len());
    let found: Vec<String> = cases.iter().filter_map(difference).collect();
    let (wrong, all) = (found.len(), cases.len());
    assert!(found.is_empty(), "{wrong} of {all} cases differ:\n{}", found.join("\n"));
}
