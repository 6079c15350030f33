use proptest::prelude::*;
use serde_json::json;

use super::*;

fn keys(found: &Annotations) -> Vec<String> {
    found.timings.iter().map(Timing::key).collect()
}

fn messages(found: &Annotations) -> Vec<(usize, &str)> {
    found.errors.iter().map(|error| (error.at, error.message.as_str())).collect()
}

#[test]
fn prose_without_annotations_yields_nothing() {
    for prose in [
        "",
        "Cleans up. @param days how many (of them)",
        "Ask me@daily(03:15) or ops@example.org",
        "@ (x) @(y) @2(z) a(@)",
        "See @job 7 and @task (x); the @dailyreport",
    ] {
        assert_eq!(read(prose), Annotations::default(), "{prose}");
    }
}

#[test]
fn a_known_word_without_arguments_is_an_error() {
    let found = read("Runs @daily (03:15) or @weekly. @manual() @retry");
    assert_eq!(
        messages(&found),
        [
            (6, "@daily has no arguments in parentheses"),
            (24, "@weekly has no arguments in parentheses"),
            (43, "@retry has no arguments in parentheses"),
        ]
    );
    assert_eq!(found.timings.len(), 1);
}

#[test]
fn the_text_before_between_and_after_annotations_is_kept() {
    let comment = "Removes old rows.\n  @daily(03:15) of\t@param x @job(\"a (b)\")\nand logs.";
    assert_eq!(read(comment).text, "Removes old rows. of @param x and logs.");
    assert_eq!(read("@daily(03:15) @manual()").text, "");
    let long = read(&format!("{} @daily(03:15)", "ä ".repeat(5000))).text;
    assert!(long.chars().count() == MAX_TEXT + 1 && long.ends_with('…'), "{long}");
}

#[test]
fn the_error_of_an_annotation_that_is_too_long_states_the_limit() {
    let found = read(&format!("@job(\"{}\") @daily(03:15)", "x".repeat(4000)));
    assert_eq!(messages(&found), [(5, "unclosed quote, or more than 4000 characters")]);
}

#[test]
fn annotations_are_found_in_prose() {
    let found = read(
        "Cleans up the sessions (@daily(03:15), and @Weekly(mon,\n  09:00, zone: Europe/Berlin)).\n\
         @retry(max_attempts: 3, interval: 60s, backoff: Fixed, jitter: true)\n\
         @job(\"Nightly cleanup (all)\", category: Ops)\n\
         @task(queue: ops, priority: high, group: g, concurrency_key: \"a, b\", timeout: 5 min,\n\
         mode: autocommit, isolation: serializable, external: true, store_output: false) @fire(overlap: skip, catch_up: 2, max_lateness: 1h, jitter: 30s)\n\
         @manual() @trigger(table: staging.orders, new_rows: true)",
    );
    assert_eq!(messages(&found), []);
    assert_eq!(
        keys(&found),
        ["daily_03_15", "weekly_mon_09_00", "manual", "trigger_staging_orders"]
    );
    assert_eq!(found.title.as_deref(), Some("Nightly cleanup (all)"));
    assert_eq!(
        Value::Object(found.task),
        json!({
            "max_attempts": 3, "retry_interval": "60 seconds", "backoff": "fixed", "jitter": true,
            "queue": "ops", "priority": "high", "group": "g", "concurrency_key": "a, b",
            "timeout": "300 seconds", "mode": "autocommit", "isolation": "serializable",
            "external": true, "store_output": false,
        })
    );
    assert_eq!(
        Value::Object(found.settings),
        json!({
            "category": "Ops", "overlap": "skip", "catch_up": 2, "max_lateness": "3600 seconds",
            "jitter": "30 seconds",
        })
    );
}

#[test]
fn max_attempts_has_two_aliases_and_one_value() {
    for (text, attempts) in [("max_attempts: 3", 3), ("attempts: 3", 3), ("max_retries: 2", 3)] {
        let found = read(&format!("@daily(09:00) @retry({text})"));
        assert_eq!(found.task["max_attempts"], attempts, "{text}");
        assert_eq!(messages(&found), [], "{text}");
    }
    let twice = read("@daily(09:00) @retry(attempts: 3, max_retries: 2)");
    assert_eq!(messages(&twice), [(47, "attempts and max_retries are the same setting")]);
    assert!(twice.shared_error);
}

#[test]
fn an_error_in_one_timing_does_not_affect_the_others() {
    let found = read("ä @daily(25:00)\n@weekly(mon, 09:00) @dialy(09:00) @every(5 minutes");
    assert_eq!(keys(&found), ["weekly_mon_09_00"]);
    assert_eq!(
        messages(&found),
        [
            (9, "\"25:00\" is not a time of day"),
            (37, "unknown annotation \"dialy\""),
            (56, "unclosed parenthesis"),
        ]
    );
    assert!(!found.shared_error);
    let found = read("@daily(09:00 @weekly(mon, 09:00)");
    assert_eq!((keys(&found), found.errors.len()), (vec!["weekly_mon_09_00".to_owned()], 1));
}

#[test]
fn annotations_inside_values_are_ignored() {
    let found =
        read("@job(\"See @daily(09:00)\") @trigger(probe: SELECT 1 (@daily(09:00)), rows: 1)");
    assert_eq!((keys(&found), messages(&found)), (vec!["trigger_probe".to_owned()], vec![]));
}

#[test]
fn a_duplicate_key_is_an_error_of_the_later_timing() {
    let found = read("@daily(09:00) @daily(09:00, days: mon)");
    assert_eq!(keys(&found), ["daily_09_00"]);
    assert_eq!(messages(&found), [(15, "two schedules have the key daily_09_00")]);
    assert_eq!(found.errors[0].hint.as_deref(), Some("add key: … to one of them"));
    let found = read("@daily(09:00) @daily(09:00, days: mon, key: other)");
    assert_eq!(keys(&found), ["daily_09_00", "other"]);
}

#[test]
fn an_error_in_a_shared_annotation_is_flagged() {
    for text in [
        "@retry(max_attempts: 0)",
        "@retry(interval: 400 days)",
        "@retry(backoff: linear)",
        "@retry(3)",
        "@retri(max_attempts: 3)",
        "@job(a, b)",
        "@job(a, categori: b)",
        "@task(queue: a b)",
        "@task(priority: urgent)",
        "@task(group: \"\")",
        "@task(timeout: 0 s)",
        "@task(mode: both)",
        "@task(at_most_once: yes)",
        "@task(at_most_once: true)",
        "@task(at_most_once: true, mode: autocommit) @retry(max_attempts: 2)",
        "@fire(overlap: none)",
        "@fire(catch_up: 1001)",
        "@fire(jitter: 2 days)",
        "@fire(jitter: 1 s) @fire(jitter: 1 s)",
        "@fire(jitter: 1 s",
    ] {
        let found = read(&format!("@daily(09:00) {text}"));
        assert_eq!((found.errors.len(), found.shared_error), (1, true), "{text}");
        assert_eq!(keys(&found), ["daily_09_00"]);
    }
}

/// An unclosed call may extend to the end of the comment. A comment that contained a megabyte of
/// such calls blocked a worker for seconds.
#[test]
fn a_comment_with_too_many_errors_is_not_parsed_to_its_end() {
    let found =
        read(&format!("@daily(09:00) {}@retry(max_attempts: 9)", "@daily( ".repeat(20_000)));
    assert_eq!((found.errors.len(), found.shared_error), (MAX_ERRORS + 1, true));
    assert!(found.errors.last().unwrap().message.contains("too many"));
    let twice = read(&"@daily(09:00) ".repeat(20_000));
    assert_eq!((twice.timings.len(), twice.errors.len()), (1, MAX_ERRORS + 1));
    let many: String = (0..20_000).map(|n| format!("@daily(09:00, key: k{n}) ")).collect();
    assert_eq!(read(&many).timings.len(), 20_000);
}

#[test]
fn a_position_has_a_line_and_a_column() {
    let text = "äb\nc\n";
    let places: Vec<_> = (0..7).map(|at| line_and_column(text, at)).collect();
    assert_eq!(places, [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (3, 1), (3, 1)]);
}

proptest! {
    #[test]
    fn any_comment_can_be_parsed(
        parts in prop::collection::vec(
            prop::sample::select(vec![
                "@", "daily", "(", ")", ",", "09:00", "\"", " ", "\n", "ä", "retry", "task", "max_attempts",
                ": ", "3", "trigger", "table: ", "rows: 1", "key: ", "@daily(09:00)", "@fire(", "job",
            ]),
            0..30,
        ),
    ) {
        let text = parts.concat();
        let found = read(&text);
        for error in &found.errors {
            prop_assert!(error.at < text.chars().count());
            let (line, column) = line_and_column(&text, error.at);
            prop_assert!(line >= 1 && column >= 1);
        }
    }
}
