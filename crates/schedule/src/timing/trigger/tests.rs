use proptest::prelude::*;
use serde_json::json;

use crate::timing::Timing;

fn error_of(text: &str) -> String {
    Timing::parse(text).unwrap_err().message
}

fn json(text: &str) -> serde_json::Value {
    Timing::parse(text).unwrap().trigger().unwrap().to_json()
}

#[test]
fn a_trigger_has_defaults() {
    assert_eq!(
        json("trigger(table: orders, new_rows: TRUE)"),
        json!({"table": ["orders"], "new_rows": true, "debounce_secs": 60.0,
            "every_secs": 10.0, "timeout_secs": 5.0})
    );
    assert_eq!(
        json("trigger(probe: \"SELECT count(*), min(at) FROM o\", idle: 90 s)"),
        json!({"probe": "SELECT count(*), min(at) FROM o", "idle_secs": 90.0,
            "every_secs": 10.0, "timeout_secs": 5.0})
    );
    assert_eq!(
        json(
            "trigger(table: staging.orders, filter: \"import_status = 0\", age: created_at, \
             rows: 500, idle: 10 min, new_rows: true, debounce: 0 s, every: 1.5 s, timeout: 100 ms)"
        ),
        json!({"table": ["staging", "orders"], "filter": "import_status = 0", "age": "created_at",
            "rows": 500, "idle_secs": 600.0, "new_rows": true, "debounce_secs": 0.0,
            "every_secs": 1.5, "timeout_secs": 0.1})
    );
}

#[test]
fn names_may_be_quoted_as_in_sql() {
    let table = |text: &str| json(&format!("trigger(table: {text}, rows: 1)"))["table"].clone();
    assert_eq!(table("Staging.Orders"), json!(["Staging", "Orders"]));
    assert_eq!(table(r#""""Odd"".""Table""""#), json!(["Odd", "Table"]));
    assert_eq!(table(r#""""a.b"" . ""c""""d""""#), json!(["a.b", "c\"d"]));
    assert_eq!(table("my table"), json!(["my table"]));
    for wrong in ["a.b.c", ".a", "a.", r#""""a""#, r#""""a""b""#, r#""""""""#, "a..b"] {
        let message = error_of(&format!("trigger(table: {wrong}, rows: 1)"));
        assert_eq!(message, "invalid table name", "{wrong}");
    }
}

#[test]
fn a_missing_trigger_argument_is_reported() {
    let message = error_of("trigger(table: a)");
    assert_eq!(message, "trigger needs a condition");
    assert_eq!(error_of("trigger(table: a, new_rows: false)"), message);
    assert_eq!(
        Timing::parse("trigger(table: a)").unwrap_err().hint.as_deref(),
        Some("add rows, idle or new_rows")
    );
    assert_eq!(error_of("trigger(rows: 1)"), "trigger needs a table or a probe");
    assert_eq!(error_of("trigger"), "trigger needs a table or a probe");
    for (wrong, message) in [
        ("table: a, probe: b, rows: 1", "table and probe cannot be combined"),
        ("probe: a, filter: b, rows: 1", "filter and age require table instead of probe"),
        ("probe: a, age: b, rows: 1", "filter and age require table instead of probe"),
        ("table: a, idle: 1 s", "idle requires age"),
        ("table: a, rows: 1, debounce: 1 s", "debounce requires new_rows"),
        ("table: a, rows: 0", "rows is not an integer in the allowed range"),
        ("table: a, rows: 1000000000001", "rows is not an integer in the allowed range"),
        ("table: a, rows: 1, every: 999 ms", "every is out of range"),
        ("table: a, rows: 1, every: 86401 s", "every is out of range"),
        ("table: a, rows: 1, timeout: 99 ms", "timeout is out of range"),
        ("table: a, rows: 1, timeout: 301 s", "timeout is out of range"),
        ("table: a, age: b.c, rows: 1", "invalid column name"),
        ("table: \" \", rows: 1", "table is empty"),
        ("table: a, new_rows: maybe", "unknown new_rows \"maybe\""),
        ("a, rows: 1", "argument \"a\" has no name"),
        ("table: a, rows: 1, zone: UTC", "unknown argument of trigger \"zone\""),
    ] {
        assert_eq!(error_of(&format!("trigger({wrong})")), message, "{wrong}");
    }
}

proptest! {
    #[test]
    fn the_canonical_text_parses_as_an_equal_trigger(
        names in prop::collection::vec(r#"[aB. "'é]{1,6}"#, 1..3),
        filter in prop::option::of(r#"[a-c(),:" =']{0,12}[a-c]"#),
        age in prop::option::of("[a-z .]{0,5}[a-z]"),
        rows in prop::option::of(1_u64..1_000_000_000_000),
        times in prop::array::uniform4(prop::option::of(1_u64..400_000)),
    ) {
        let sql = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
        let arg = |name: &str, value: &str| format!("{name}: {}", sql(value));
        let table = names.iter().map(|name| sql(name)).collect::<Vec<_>>().join(".");
        let mut args = vec![arg("table", &table), "new_rows: true".to_owned()];
        args.extend(filter.as_ref().map(|filter| arg("filter", filter)));
        args.extend(age.as_ref().map(|age| arg("age", &sql(age))));
        args.extend(rows.map(|rows| format!("rows: {rows}")));
        let spans = ["idle", "debounce", "every", "timeout"].into_iter().zip(times);
        for (name, ms) in spans.filter(|(name, _)| age.is_some() || *name != "idle") {
            let ms = ms.map(|ms| if name == "every" { ms.max(1_000) } else { ms });
            let ms = ms.map(|ms| if name == "timeout" { ms.clamp(100, 300_000) } else { ms });
            args.extend(ms.map(|ms| format!("{name}: {ms} ms")));
        }
        let text = format!("trigger({})", args.join(", "));
        let timing = Timing::parse(&text).unwrap();
        let canonical = timing.to_string();
        prop_assert_eq!(&Timing::parse(&canonical).unwrap(), &timing, "{}", canonical);
        prop_assert_eq!(&timing.trigger().unwrap().to_json()["table"], &json!(names));
    }
}
