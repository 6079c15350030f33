use crate::timing::Timing;

fn described(text: &str) -> String {
    Timing::parse(text).unwrap().describe()
}

#[test]
fn cadences_are_described() {
    for (text, words) in [
        ("manual", "only on demand"),
        ("daily(03:15)", "every day at 03:15"),
        ("daily(09:00, 12:30, 17:00)", "every day at 09:00, 12:30 and 17:00"),
        (
            "daily(03:15, days: mon-fri, zone: Europe/Berlin)",
            "every weekday at 03:15 Europe/Berlin",
        ),
        ("daily(03:15, days: sat mon)", "every Monday and Saturday at 03:15"),
        (
            "daily(09:00, every: 3, from: 2026-01-05, days: weekdays)",
            "every 3 days at 09:00 on Monday to Friday, from 2026-01-05",
        ),
        ("every(1 minute)", "every minute"),
        (
            "every(5 minutes, days: mon-fri, between: 09:00-17:00)",
            "every 5 minutes between 09:00 and 17:00 on Monday to Friday",
        ),
        ("every(7 hours, zone: Asia/Tokyo)", "every 7 hours Asia/Tokyo"),
        ("weekly(mon, thu, 09:00)", "every Monday and Thursday at 09:00"),
        ("weekly(weekend, 09:00)", "every Saturday and Sunday at 09:00"),
        (
            "weekly(mon, thu, 09:00, every: 2, from: 2026-01-05)",
            "every 2 weeks on Monday and Thursday at 09:00, from 2026-01-05",
        ),
        ("monthly(1, 15, last, 06:00)", "on day 1, 15 and the last of the month at 06:00"),
        ("monthly(last, 06:00)", "on the last day of the month at 06:00"),
        ("monthly(1, 15, 06:00, every: 3)", "every 3 months on day 1 and 15 of the month at 06:00"),
        ("nth(first, last, mon, 09:00)", "on the first and last Monday of the month at 09:00"),
        ("once(2026-06-01 09:00)", "once at 2026-06-01 09:00"),
        ("cron(30 2 * * 1-5)", "cron 30 2 * * 1-5"),
        (
            "daily(09:00, months: jan jun, weeks: first last)",
            "every day at 09:00 in the first and last week of the month in January and June",
        ),
    ] {
        assert_eq!(described(text), words, "{text}");
    }
}

#[test]
fn triggers_are_described() {
    assert_eq!(
        described(
            "trigger(table: staging.orders, filter: \"import_status = 0\", age: created_at, \
             rows: 500, idle: 10 min, new_rows: true)"
        ),
        "when staging.orders (import_status = 0) has 500 rows, or its oldest is 10 min old, or any \
         is new, at least 60 s after the last fire; checked every 10 s"
    );
    assert_eq!(
        described("trigger(probe: SELECT 1, rows: 1, every: 1 min)"),
        "when the probe counts 1 row; checked every 60 s"
    );
    assert_eq!(
        described("trigger(table: orders, age: at, idle: 1h)"),
        "when the oldest row of orders is 60 min old; checked every 10 s"
    );
    assert_eq!(
        described("trigger(table: orders, new_rows: true, debounce: 5 min)"),
        "when any row of orders is new, at least 5 min after the last fire; checked every \
         10 s"
    );
}
