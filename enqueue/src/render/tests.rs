use super::*;

use proptest::prelude::*;
use serde_json::json;

#[test]
fn the_caret_stands_below_the_error() {
    assert_eq!(caret("SELECT x", 8).as_deref(), Some("LINE 1: SELECT x\n               ^"));
    assert_eq!(
        caret("SELECT 1;\n\tSELECT ü, x FROM t;\r\nSELECT 2", 22).as_deref(),
        Some("LINE 2:  SELECT ü, x FROM t;\n                   ^")
    );
    assert_eq!(
        caret("SELECT '漢字', x", 14).as_deref(),
        Some("LINE 1: SELECT '漢字', x\n                       ^")
    );
    // At the end of the input, and behind it.
    assert_eq!(caret("SELECT (", 9).as_deref(), Some("LINE 1: SELECT (\n                ^"));
    assert_eq!(caret("SELECT (", 10), None);
    assert_eq!(caret("SELECT", 0), None);
    assert_eq!(caret("", 1), None);
}

#[test]
fn a_long_line_is_shown_around_the_error() {
    let statement = format!("SELECT {}x{}", "1, ".repeat(1000), ", 1".repeat(1000));
    let shown = caret(&statement, 3008).unwrap();
    let (line, below) = shown.split_once('\n').unwrap();
    assert!(line.len() < 150, "{line}");
    assert_eq!(line.as_bytes()[below.len() - 1], b'x');
}

#[test]
fn rows_are_a_table() {
    let result = json!({"columns": ["n", "word"], "rows": [["1", null], ["22", "a\u{1b}b"]], "truncated": false});
    assert_eq!(
        rows(&result).unwrap(),
        "\
┌────┬──────────┐
│ n  ┆ word     │
╞════╪══════════╡
│ 1  ┆ NULL     │
│ 22 ┆ a\\u{1b}b │
└────┴──────────┘
(2 rows)"
    );
    let cut = json!({"columns": ["n"], "rows": [["1"]], "truncated": true});
    assert!(rows(&cut).unwrap().ends_with("(the first 1 row)"));
    for other in [json!(null), json!([]), json!({"columns": [], "rows": []}), json!({"rows": 1})] {
        assert_eq!(rows(&other), None, "{other}");
    }
}

#[test]
fn notices_are_lines() {
    let kept = json!([{"severity": "NOTICE", "message": "half"}, {"dropped": 7}]);
    assert_eq!(notices(&kept), ["NOTICE: half", "(7 more notices were not kept)"]);
    assert!(notices(&json!({"odd": 1})).is_empty());
}

#[test]
fn spans_are_as_exact_as_needed() {
    assert_eq!(span(0.0123), "12ms");
    assert_eq!(span(2.5), "2s 500ms");
    assert_eq!(span(3661.7), "1h 1m 2s");
}

proptest! {
    #[test]
    fn no_place_panics(statement in "(?s).{0,40}", position in 0_u32..50) {
        let _ = caret(&statement, position);
    }
}
