//! The console's plots of the last hours, compared with an SQL query that counts every task.

use std::fmt::Write;

use serde_json::Value;

use crate::harness::console::Console;
use crate::harness::{Database, amount, eventually};

/// Inserts attempts of three queues that became due, were claimed and ended at random times within
/// eight hours, and live tasks in every state. Some attempts became due and ended within one
/// minute; one in ten was never claimed.
const RANDOM: &str = "
SELECT setseed({seed});
INSERT INTO mill.attempts (finished_at, task_id, enqueued_at, due_at, started_at, attempt, outcome,
    priority, final, queue, statement)
SELECT r.due + r.wait + r.run, n, r.due, CASE WHEN n % 20 = 1 THEN r.due + interval '9 hours' ELSE r.due END,
    CASE WHEN n % 10 <> 1 THEN r.due + r.wait END, 1,
    CASE WHEN n % 10 = 1 THEN 'cancelled' ELSE 'succeeded' END::mill.outcome, 'normal', true, 'queue-' || n % 3,
        'SELECT 1'
FROM generate_series(1, {attempts}) AS n,
    LATERAL (SELECT n AS of_n, now() - random() * interval '8 hours' AS due, random() ^ 4 * interval '3 hours' AS wait,
        random() ^ 6 * interval '2 hours' AS run) AS r
WHERE r.due + r.wait + r.run < now();
INSERT INTO mill.tasks (queue, priority, due_at, state, blocking_limit_id, statement)
SELECT 'queue-' || n % 3, (ARRAY['low', 'normal', 'high'])[1 + n % 3]::mill.priority,
    now() - random() ^ 3 * interval '10 hours',
    (ARRAY['pending', 'pending', 'blocked', 'scheduled'])[1 + n % 4]::mill.state,
    CASE WHEN n % 4 = 2 THEN 1 END, 'SELECT 1' FROM generate_series(1, 300) AS n;
INSERT INTO mill.tasks (queue, due_at, state, statement)
SELECT 'queue-0', now() + n * interval '1 hour', 'scheduled', 'SELECT 1' FROM generate_series(1, 20) AS n;
INSERT INTO mill.tasks (queue, due_at, claimed_at, state, attempt, token, claimed_by, session_pid,
    session_started_at, statement)
SELECT 'queue-' || n % 3, r.due, r.due + (now() - r.due) * random(), 'running', 1, gen_random_uuid(), gen_random_uuid(),
    1, now(), 'SELECT 1'
FROM generate_series(1, 30) AS n, LATERAL (SELECT n AS of_n, now() - random() * interval '8 hours' AS due) AS r";

/// Number of tasks that waited at the end of each minute: they were due, and neither claimed nor
/// ended.
const COUNTED: &str = "
WITH every AS MATERIALIZED (
    SELECT a.due_at, coalesce(a.started_at, a.finished_at) AS until FROM mill.attempts a
    WHERE $2 = '' OR a.queue = $2
    UNION ALL
    SELECT t.due_at, coalesce(t.claimed_at, 'infinity') FROM mill.tasks t
    WHERE t.due_at <= now() AND ($2 = '' OR t.queue = $2)
)
SELECT (SELECT count(*) FROM every e
    WHERE e.due_at < to_timestamp(m.at) + interval '1 minute' AND e.until >= to_timestamp(m.at) + interval '1 minute')
FROM unnest($1::int8[]) WITH ORDINALITY AS m (at, n) ORDER BY m.n";

/// Returns the columns when every minute is known. A minute that has just begun is not known yet.
async fn columns(console: &Console, query: &str) -> Value {
    let mut columns = Value::Null;
    eventually("every minute is known", async || {
        let answer = console.get(&format!("/api/v1/throughput?{query}")).await;
        assert_eq!(answer.status, 200, "{query}: {}", answer.body);
        columns = serde_json::from_str(&answer.body).unwrap();
        columns["waiting"].as_array().unwrap().iter().all(|it| !it.is_null())
    })
    .await;
    columns
}

fn numbers(columns: &Value, name: &str) -> Vec<Option<i64>> {
    columns[name].as_array().unwrap().iter().map(Value::as_i64).collect()
}

/// Waits until all six hours have been read.
async fn until_read(console: &Console) {
    eventually("the console has read the last hours", async || {
        columns(console, "hours=6").await["minutes_read"] == 360
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_backlog_plot_equals_a_count_of_every_task() {
    let attempts = amount("2000", "4000");
    for seed in amount(&["0.1"][..], &["0.1", "-0.5", "0.9"][..]) {
        let database = Database::new().await;
        database.create_days_before().await;
        let random = RANDOM.replace("{seed}", seed).replace("{attempts}", attempts);
        database.execute(&random).await;
        let console = Console::start(&database, &[]).await;
        until_read(&console).await;
        for queue in ["", "queue-0", "queue-1", "queue-2", "queue-none"] {
            for hours in [1, 3, 6] {
                let reported = columns(&console, &format!("hours={hours}&queue={queue}")).await;
                let at: Vec<i64> = numbers(&reported, "at").into_iter().flatten().collect();
                assert_eq!(at.len(), hours * 60);
                let rows = database.rows(COUNTED, &[&at, &queue]).await;
                let counted: Vec<Option<i64>> = rows.iter().map(|row| Some(row.get(0))).collect();
                assert_eq!(
                    numbers(&reported, "waiting"),
                    counted,
                    "{queue} in {hours} h, seed {seed}"
                );
                let bounds = reported["waiting_at_least"].as_array().unwrap();
                assert!(bounds.iter().all(|it| it == false), "{queue}: {bounds:?}");
                let waited = counted.iter().flatten().filter(|tasks| **tasks > 0).count();
                assert_eq!(waited > 30 * hours, queue != "queue-none", "{queue}: {counted:?}");
            }
        }
    }
}

/// Inserts more tasks than the count limit of a lane. They became due one after the other, a
/// hundred per minute.
const DEEP: &str = "INSERT INTO mill.tasks (queue, due_at, statement)
SELECT 'deep', date_trunc('minute', now()) - interval '120 minutes' + n * interval '600 milliseconds', 'SELECT 1'
FROM generate_series(0, 11999) AS n";

#[tokio::test(flavor = "multi_thread")]
async fn a_capped_count_is_shown_as_a_minimum() {
    let database = Database::new().await;
    database.execute(DEEP).await;
    let console = Console::start(&database, &[]).await;
    until_read(&console).await;
    let reported = columns(&console, "hours=6&queue=deep").await;
    let (at, waiting) = (numbers(&reported, "at"), numbers(&reported, "waiting"));
    let first = at.iter().position(|at| waiting[at_index(&reported, *at)] > Some(0)).unwrap();
    for n in first..360 {
        let due = i64::try_from(n - first + 1).unwrap() * 100;
        assert_eq!(waiting[n], Some(due.min(10_000)), "minute {n}");
        assert_eq!(reported["waiting_at_least"][n], due >= 10_000, "minute {n}");
    }
    let page = console.get("/?hours=6&queue=deep").await.body;
    assert!(page.contains("<td class=\"n\">10\u{202f}000+</td>"), "{page}");
    // A queue below the count limit is shown exactly.
    let all = columns(&console, "queue=other").await;
    assert!(all["waiting_at_least"].as_array().unwrap().iter().all(|it| it == false));
}

#[tokio::test(flavor = "multi_thread")]
async fn queues_with_few_tasks_do_not_change_a_capped_count() {
    let database = Database::new().await;
    database.execute(DEEP).await;
    let console = Console::start(&database, &[]).await;
    let counts = async || {
        let answer = console.get("/api/v1/queues").await.body;
        let answer: Value = serde_json::from_str(&answer).unwrap();
        let queues = answer["queues"].as_array().unwrap().clone();
        let count = |it: &Value| {
            let more = if it["pending"]["more"] == true { "+" } else { "" };
            format!("{} {}{more}", it["queue"].as_str().unwrap(), it["pending"]["count"])
        };
        queues.iter().map(count).collect::<Vec<_>>()
    };
    assert_eq!(counts().await, ["deep 10000+"]);
    let few = |n: i32| {
        format!(
            "INSERT INTO mill.tasks (queue, statement) SELECT 'few-' || q, 'SELECT 1'
         FROM generate_series(1, {n}) AS q, generate_series(1, 300)"
        )
    };
    database.execute(&few(3)).await;
    assert_eq!(counts().await, ["deep 10000+", "few-1 300", "few-2 300", "few-3 300"]);
    // Deep queues share the limit.
    let deep = "INSERT INTO mill.tasks (queue, statement) SELECT 'deeper', 'SELECT 1'
        FROM generate_series(1, 12000)";
    database.execute(deep).await;
    assert_eq!(counts().await[..2], ["deep 10000+", "deeper 10000+"]);
    database.execute(&deep.replace("deeper", "deepest")).await;
    assert_eq!(counts().await[..3], ["deep 5000+", "deeper 5000+", "deepest 5000+"]);
}

fn at_index(reported: &Value, at: Option<i64>) -> usize {
    numbers(reported, "at").iter().position(|it| *it == at).unwrap()
}

/// In each of the last five complete minutes, 60 tasks of the queue `rated-{added}` ended and `{added}`
/// tasks were added. 600 tasks are waiting.
const RATED: &str = "
INSERT INTO mill.attempts (finished_at, task_id, enqueued_at, due_at, started_at, attempt, outcome,
    priority, final, queue, statement)
SELECT m.at, {added} * 1000 + n, m.at, m.at - interval '1 hour', m.at, 1, 'succeeded', 'normal', true,
    'rated-{added}', 'SELECT 1'
FROM generate_series(0, 299) AS n,
    LATERAL (SELECT date_trunc('minute', now()) - interval '5 minutes' + n * interval '1 second' AS at) AS m;
INSERT INTO mill.tasks (queue, due_at, statement)
SELECT 'rated-{added}', date_trunc('minute', now()) - CASE WHEN n < 5 * {added}
    THEN (n / {added} + 1) * interval '1 minute' ELSE interval '1 hour' END, 'SELECT 1'
FROM generate_series(0, 599) AS n";

#[tokio::test(flavor = "multi_thread")]
async fn the_first_page_has_the_right_rate_or_none() {
    loop {
        let database = Database::new().await;
        database.create_days_before().await;
        let minute = "SELECT extract(epoch FROM date_trunc('minute', now()))::int8";
        let began: i64 = database.value(minute).await;
        database.execute(&RATED.replace("{added}", "1")).await;
        // While the history is locked, no rate is known.
        let locked = database.connect().await;
        locked.batch_execute("BEGIN; LOCK TABLE mill.attempts").await.unwrap();
        let console = Console::start(&database, &[]).await;
        let first = console.get("/api/v1/queues").await.body;
        let page = console.get("/").await.body;
        locked.batch_execute("ROLLBACK").await.unwrap();
        let first: Value = serde_json::from_str(&first).unwrap();
        let queue = first["queues"].as_array().unwrap().iter().find(|it| it["queue"] == "rated-1");
        let queue = queue.unwrap();
        for field in [&queue["hour"]["per_second"], &queue["time_to_empty_seconds"]] {
            assert!(field.is_null(), "{queue}");
        }
        assert!(page.contains("<dd>– <small>last 5 min</small></dd>"), "{page}");

        // As soon as the history can be read, the first answer of another console has the rate.
        let console = Console::start(&database, &[]).await;
        let page = console.get("/").await.body;
        let rate = page.split("<dt>Tasks per second</dt><dd>").nth(1).unwrap();
        let rate = rate.split(" <small>").next().unwrap();
        if database.value::<i64>(minute).await == began {
            assert!(["1.0", "–"].contains(&rate), "{page}");
            return;
        }
    }
}

/// Returns the row of each queue in Overview, as JSON and from the page. Tries again if a new minute
/// begins during the measurement.
async fn rated(added: &[u32]) -> Vec<(Value, String)> {
    loop {
        let database = Database::new().await;
        database.create_days_before().await;
        let minute = "SELECT extract(epoch FROM date_trunc('minute', now()))::int8";
        let began: i64 = database.value(minute).await;
        for number in added {
            database.execute(&RATED.replace("{added}", &number.to_string())).await;
        }
        let console = Console::start(&database, &[]).await;
        until_read(&console).await;
        let reported: Value =
            serde_json::from_str(&console.get("/api/v1/queues").await.body).unwrap();
        let page = console.get("/").await.body;
        if database.value::<i64>(minute).await == began {
            let row_of = |number: &u32| {
                let name = format!("rated-{number}");
                let mut queues = reported["queues"].as_array().unwrap().iter();
                let queue = queues.find(|it| it["queue"] == name.as_str()).unwrap();
                let row = page.split(&format!(">{name}</a>")).nth(1).unwrap();
                (queue.clone(), row.split("</tr>").next().unwrap().to_owned())
            };
            return added.iter().map(row_of).collect();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_draining_queue_shows_its_time_to_empty_and_a_growing_one_does_not() {
    let mut reported = String::new();
    let all = [1, 20, 60, 90];
    for (added, (queue, row)) in all.iter().zip(rated(&all).await) {
        assert_eq!(queue["hour"]["per_second"], 1.0, "{queue}");
        let cell = row.rsplit("<td>").next().unwrap().split("</td>").next().unwrap();
        writeln!(
            reported,
            "{added}: {} {} {cell}",
            queue["time_to_empty_seconds"], queue["growth_per_minute"]
        )
        .unwrap();
    }
    // 600 tasks wait, and 60 end per minute. If one is added per minute, the queue shrinks by 59
    // per minute, and so on.
    let expected = "\
1: 610.1694915254237 null about 10 min 10 s
20: 900.0 null about 15 min 0 s
60: null null 
90: null 30.0 <span class=\"dim\">growing by 30 per minute</span>
";
    assert_eq!(reported, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_address_contains_the_range_of_the_plots() {
    let database = Database::new().await;
    database.enqueue("SELECT 1", ", queue => 'a.b:c'").await;
    let console = Console::start(&database, &["--base-path", "/x"]).await;
    until_empty_hours(&console).await;
    let page = console.get("/x/?hours=3&queue=a.b%3Ac").await.body;
    for text in [
        "<a href=\"/x/?hours=1&#38;queue=a.b%3Ac#plots\">1 h</a>",
        "<a href=\"/x/?hours=3&#38;queue=a.b%3Ac#plots\" aria-current=\"true\">3 h</a>",
        "<a href=\"/x/?hours=3#plots\">all queues</a>",
        "data-source=\"/x/api/v1/throughput?hours=3&#38;queue=a.b%3Ac\"",
        "Queue a.b:c, last 3 hours",
        "<th>15 minutes starting at</th>",
    ] {
        assert!(page.contains(text), "{text} in {page}");
    }
    for path in ["/x/?hours=7", "/x/?hours=x", "/x/api/v1/throughput?hours=0"] {
        let answer = console.get(path).await;
        assert_eq!(answer.status, 400, "{path}");
        assert!(answer.body.contains("from 1 to 6"), "{path}: {}", answer.body);
    }
}

/// Waits until the console has read once.
async fn until_empty_hours(console: &Console) {
    eventually("the console has read once", async || {
        console.get("/x/api/v1/throughput").await.body.contains("\"minutes_read\":60")
    })
    .await;
}
