//! Rows are read by the names of their columns. A column that cannot be read is an error with its
//! name.

use queue::row::{column, scalar};
use queue::{QueueError, State};

use crate::harness::Database;
use crate::project::tidy::files;

#[test]
fn no_row_is_read_by_position() {
    let mut found = Vec::new();
    for (path, text) in files(&["crates/queue/src", "crates/schedule/src"], &[".rs"]) {
        for (at, _) in text.match_indices("get").filter(|(at, _)| gets_position(&text[at + 3..])) {
            found.push(format!("{path}:{}", text[..at].matches('\n').count() + 1));
        }
    }
    assert!(found.is_empty(), "columns read by position:\n  {}", found.join("\n  "));
}

/// Returns whether the text after `get` is a call whose only argument is a number.
fn gets_position(rest: &str) -> bool {
    let types = rest.strip_prefix("::<").and_then(|types| types.split_once(">("));
    let argument = types.map(|(_, argument)| argument).or_else(|| rest.strip_prefix('('));
    let number = argument.and_then(|argument| argument.split_once(')'));
    number.is_some_and(|(number, _)| number.trim().parse::<usize>().is_ok())
}

#[tokio::test]
async fn a_column_that_cannot_be_read_is_named() {
    let database = Database::empty().await;
    let sql = "SELECT 1 AS one, NULL::text AS none, 'pending' AS known, 'far' AS unknown";
    let row = &database.rows(sql, &[]).await[0];
    assert_eq!(column::<i32>(row, "one").unwrap(), 1);
    assert_eq!(column::<Option<State>>(row, "none").unwrap(), None);
    assert_eq!(column::<State>(row, "known").unwrap(), State::Pending);
    fails(column::<i32>(row, "two"), "two: no such column");
    let types = "one: cannot convert between the Rust type `i64` and the Postgres type `int4`";
    fails(column::<i64>(row, "one"), types);
    fails(column::<&str>(row, "none"), "none: a Postgres value was `NULL`");
    let labels = "unknown: \"far\" is not one of scheduled, blocked, pending, running";
    fails(column::<State>(row, "unknown"), labels);
    fails(scalar::<i32>(row), "one, none, known, unknown: 4 columns instead of one");
}

fn fails<T: std::fmt::Debug>(read: Result<T, QueueError>, expected: &str) {
    let message = read.unwrap_err().to_string();
    assert_eq!(message, format!("unexpected value in column {expected}"));
}
