use super::*;

use serde_json::json;

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
fn durations_have_the_needed_precision() {
    assert_eq!(exact_span(0.0123), "12ms");
    assert_eq!(exact_span(2.5), "2s 500ms");
    assert_eq!(exact_span(3661.7), "1h 1m 2s");
}
