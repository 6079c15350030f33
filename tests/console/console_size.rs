//! Number of pages that the console reads with many tasks and a long history. The test counts
//! buffers instead of time, so its bounds hold on any machine. `loadtest run console` measures the
//! times.

use crate::harness::console::Console;
use crate::harness::{Database, PrivateDatabase, amount, eventually};

/// A page of the table of live tasks holds about 45 of these rows, a page of history about 30, and a
/// page of runs about 40. In the short form, the attempts are fewer and wider, so that they fill about
/// as many pages. They ended within 12 hours, more and more of them per second: 14 % of them within
/// the last two minutes, and 5 % within the last five seconds.
const FILL: &str = "
INSERT INTO mill.tasks (queue, priority, state, due_at, name, statement)
SELECT 'etl-' || n % 20, (ARRAY['low', 'normal', 'high'])[1 + n % 3]::mill.priority,
    CASE WHEN n % 10 = 0 THEN 'scheduled' ELSE 'pending' END::mill.state,
    now() + CASE WHEN n % 10 = 0 THEN interval '1 day' ELSE '0' END, 'task ' || n % 500, 'SELECT 1'
FROM generate_series(1, {live}) AS n;
INSERT INTO mill.attempts (finished_at, task_id, enqueued_at, due_at, started_at, attempt, outcome,
    priority, final, queue, name, sqlstate, message,
    statement)
SELECT at, nextval('mill.tasks_id_seq'), at, at, at, 1,
    CASE WHEN n % 100 = 0 THEN 'failed' ELSE 'succeeded' END::mill.outcome, 'normal', true, 'etl-' || n % 20,
        'task ' || n % 500,
    CASE WHEN n % 100 = 0 THEN '22012' END, CASE WHEN n % 100 = 0 THEN 'division by zero' END, rpad('SELECT 1', {width})
FROM generate_series(1, {ended}) AS n,
    LATERAL (SELECT now() - interval '12 hours' * (1 - n::float8 / {ended}) ^ 3) AS t (at);
INSERT INTO mill.runs (jobs, params, state, tasks, succeeded, failed, started_at, finished_at)
SELECT ARRAY['job ' || n % 300], jsonb_build_object('n', n), CASE WHEN n % 3 = 0 THEN 'failed' ELSE 'succeeded' END::mill.run_state,
    5, CASE WHEN n % 3 = 0 THEN 4 ELSE 5 END, CASE WHEN n % 3 = 0 THEN 1 ELSE 0 END, now(), now()
FROM generate_series(1, {runs}) AS n;
SELECT mill.set_job('wide', (SELECT jsonb_agg(jsonb_build_object('name', 'n' || n, 'statement', 'SELECT 1', 'after',
    '[]'::jsonb))
    FROM generate_series(1, 200) n));
SELECT mill.start_run(ARRAY['wide']) FROM generate_series(1, 20);
UPDATE mill.run_tasks SET state = 'failed', finished_at = now(), task_id = NULL WHERE name = 'n7';
SELECT mill.set_group('group ' || n) FROM generate_series(1, 50) AS n;
SELECT mill.set_max_running('queue', 'narrow', 0);
SELECT mill.enqueue_many(array_fill('SELECT 1'::text, ARRAY[12000]), queue => 'narrow')";

/// Names of the statements that read the last hour in the background, whichever page is requested.
const BACKGROUND: [&str; 3] = ["throughput", "backlog_changes", "live_changes"];

/// Statements by name, and the number of pages that one call reads. The statement that reads most
/// comes first.
const READ: &str = r"SELECT coalesce(substring(query FROM '/\* (\S+) \*/'), left(query, 40)),
    ((shared_blks_hit + shared_blks_read) / calls)::bigint
FROM pg_stat_statements WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND query ~ '/\* (queue|console)[.]'
    AND coalesce(substring(query FROM '/\* queue[.]insight_(\S+) \*/'), '') <> ALL ($1)
ORDER BY 2 DESC";

/// Maximum number of pages that one screen may read. The overview counts 20,000 tasks, and reads
/// 2,900 pages. A read of every live task would take 4,700 pages (7,800 in the long form), and a read
/// of that history 9,000 (12,000).
const MAX_PAGES: i64 = 4000;

/// Maximum number of pages that a search without a suitable index may read: every live task, but no
/// more.
const MAX_SEARCH_PAGES: i64 = 12_000;

/// Returns the pages that a request reads, and the statements that read most of them. A session can
/// read thousands of pages of the catalog when it first plans a statement, and a request can be the
/// first of a new session. So if there are more than `most`, another request counts, up to five times.
async fn pages_of(database: &Database, console: &Console, path: &str, most: i64) -> (i64, String) {
    let mut read = pages_of_request(database, console, path).await;
    for _ in 1..5 {
        if read.0 <= most {
            break;
        }
        read = pages_of_request(database, console, path).await;
    }
    read
}

async fn pages_of_request(database: &Database, console: &Console, path: &str) -> (i64, String) {
    database.execute("SELECT pg_stat_statements_reset()").await;
    let answer = console.get(path).await;
    assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    // A statement is counted when its portal is closed, which is at the end of the transaction,
    // after the response.
    eventually("its transactions have ended", async || {
        let open = "SELECT count(*) FROM pg_stat_activity
            WHERE datname = current_database() AND application_name = 'pgmill console' AND state <> 'idle'";
        database.value::<i64>(open).await == 0
    })
    .await;
    let rows = database.rows(READ, &[&&BACKGROUND[..]]).await;
    let read: Vec<(String, i64)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert!(!read.is_empty(), "{path} reads nothing that is counted");
    let worst: Vec<String> = read.iter().take(3).map(|(name, n)| format!("{name} {n}")).collect();
    (read.iter().map(|(_, pages)| pages).sum(), worst.join(", "))
}

/// Returns the paths in the navigation.
async fn screens(console: &Console) -> Vec<String> {
    let page = console.get("/").await.body;
    let nav = page.split("<nav").nth(1).unwrap().split("</nav>").next().unwrap();
    nav.split("href=\"").skip(1).map(|it| it.split('"').next().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_page_reads_all_that_waits_or_ever_ended() {
    let shared = Database::new().await;
    let there = "SELECT count(*) FROM pg_available_extensions WHERE name = 'pg_stat_statements'";
    if shared.value::<i64>(there).await == 0 {
        return println!("skipped: the server has no pg_stat_statements");
    }
    let counting = [("shared_preload_libraries", "pg_stat_statements"), ("autovacuum", "off")];
    let quick = [("fsync", "off"), ("max_wal_size", "4GB")];
    let private = PrivateDatabase::new(&[counting, quick].concat()).await;
    let database = &private.database;
    database.execute("CREATE EXTENSION pg_stat_statements").await;
    database.create_days_before().await;
    let (live, ended, runs, width) =
        amount(("240000", "100000", "180000", "500"), ("400000", "300000", "200000", "8"));
    let fill = FILL.replace("{live}", live).replace("{ended}", ended).replace("{runs}", runs);
    database.execute(&fill.replace("{width}", width)).await;
    for table in ["mill.tasks", "mill.attempts", "mill.runs", "mill.run_tasks"] {
        database.execute(&format!("VACUUM (ANALYZE) {table}")).await;
    }
    let id: i64 =
        database.value("SELECT max(task_id) FROM mill.attempts WHERE outcome = 'failed'").await;
    let console = Console::start(database, &[]).await;
    eventually("the console has read the last hour", async || {
        console.get("/api/v1/overview").await.body.contains("\"minutes_read\":60")
    })
    .await;
    for name in BACKGROUND {
        let called = format!(
            "SELECT EXISTS (SELECT FROM pg_stat_statements WHERE query LIKE '%/* queue.insight_{name} */%')"
        );
        assert!(database.value::<bool>(&called).await, "there is no statement of the name {name}");
    }
    let mut paths = screens(&console).await;
    assert!(paths.len() >= 7, "{paths:?}");
    paths.extend([
        "/tasks/1".to_owned(),
        format!("/tasks/{id}"),
        "/tasks?q=state:pending+queue:etl-3".to_owned(),
        "/tasks?q=state:scheduled".to_owned(),
        "/tasks?q=state:finished".to_owned(),
        "/api/v1/throughput".to_owned(),
    ]);
    let searches =
        ["/tasks?q=nobodys", "/tasks?q=priority:high+name:nobodys*", "/tasks/bulk?q=state:pending"];
    let pages = paths.iter().map(|path| (path.as_str(), MAX_PAGES));
    let mut above = Vec::new();
    for (path, most) in pages.chain(searches.map(|path| (path, MAX_SEARCH_PAGES))) {
        let (pages, worst) = pages_of(database, &console, path, most).await;
        println!("{path}: {pages} pages; {worst}");
        if pages > most {
            above.push(format!("{path}: {pages} pages; {worst}"));
        }
    }
    assert!(above.is_empty(), "{}", above.join("\n"));
}
