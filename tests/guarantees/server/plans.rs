//! The statements of operators are fast whatever the statistics of the tables say: a batch can arrive in a queue that
//! autovacuum saw empty, a table may never have been analyzed, and the statistics of yesterday are those of today.
//!
//! The server logs the plan of each statement that any command, screen, view or duty executes. So a new statement is
//! included by itself. The test counts rows and blocks instead of time.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;

use serde_json::Value;

use crate::guarantees::server::statistics::forget_statistics;
use crate::harness::console::Console;
use crate::harness::{Database, PrivateDatabase, amount, eventually, open_url};
use crate::project::json_documents::Shown;
use crate::screens::console_plans::{
    FILL, MORE, api_paths, inner, logged, name, number, pages, pages_of_one, plans, rows,
};
use crate::screens::pages::SCREENS;

/// Rows that one row of its tables may cost a statement: it may read each table a few times, and sort and join what it
/// has read.
const ROWS_PER_ROW: f64 = 12.0;

/// Blocks that one row of its tables may cost a statement, with a lookup in an index for each.
const BLOCKS_PER_ROW: f64 = 5.0;

/// How much more a statement may cost with one kind of statistics than with another.
const TIMES_THE_LEAST: f64 = 4.0;

/// Rows that each row costs a statement that reads its tables once: in the scan, in a sort and in an aggregate. So much
/// is never too much.
const ROWS_ONCE: f64 = 3.0;

/// Rows and blocks that cost nothing worth mentioning. A session reads more than 1,000 blocks of the catalogs when it
/// first plans the statements of a function.
const FEW: f64 = 3000.0;

/// Holds the tasks back, so that the tables stay as they are.
const PAUSE: &str = "SELECT mill.pause(q) FROM unnest('{default,etl,held}' || ARRAY(
    SELECT 'etl-' || n FROM generate_series(0, 19) AS n)) AS q;
SELECT mill.enqueue('SELECT 1', queue => 'held')";

/// Fills further tables with copies of their rows.
const COPIES: &str = "
CREATE FUNCTION pg_temp.copy(of regclass, kept text, count integer, changed text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('INSERT INTO %1$s OVERRIDING SYSTEM VALUE SELECT r.* FROM %1$s o
        CROSS JOIN generate_series(1, %3$s) AS n
        CROSS JOIN LATERAL jsonb_populate_record(o, jsonb_build_object(%4$s)) AS r WHERE %2$s',
        of, kept, count, changed);
END $$;
SELECT pg_temp.copy('mill.runs', 'o.id = 1', {count}, $$'id', 100000 + n$$),
    pg_temp.copy('mill.run_tasks', 'o.run_id = 1', {count}, $$'run_id', 100000 + n$$),
    pg_temp.copy('mill.run_edges', 'o.run_id = 1', {count}, $$'run_id', 100000 + n$$),
    pg_temp.copy('mill.audit', 'o.id = 1', {count}, $$'id', 100000 + n$$),
    pg_temp.copy('mill.schedule_log', 'o.id = 1', {count}, $$'id', 100000 + n, 'schedule_id', 1 + n % 200$$),
    pg_temp.copy('mill.worker_starts', 'true', {count}, $$'id', md5(n::text)$$),
    pg_temp.copy('mill.notifications', 'o.id = (SELECT min(id) FROM mill.notifications)', {count},
        $$'id', 100000 + n, 'dead_at', now()$$)";

/// Settings of the server. `session_preload_libraries` follows when the database is filled.
const SETTINGS: [(&str, &str); 10] = [
    ("fsync", "off"),
    ("autovacuum", "off"),
    ("max_wal_size", "4GB"),
    ("max_connections", "60"),
    ("auto_explain.log_min_duration", "0"),
    ("auto_explain.log_analyze", "on"),
    ("auto_explain.log_buffers", "on"),
    ("auto_explain.log_timing", "off"),
    ("auto_explain.log_nested_statements", "on"),
    ("auto_explain.log_format", "json"),
];

/// Has the server log the plans of all sessions that begin from now on.
const LOG_PLANS: &str =
    "ALTER SYSTEM SET session_preload_libraries = 'auto_explain'; SELECT pg_reload_conf()";

/// Makes tables look as a vacuum saw them when they were empty. It removes the empty pages of most tables, and
/// the planner then guesses the number of rows from the size.
const AS_IF_EMPTY: &str =
    "UPDATE pg_class SET reltuples = 0, relpages = CASE WHEN relkind IN ('i', 'I')
        OR 'vacuum_truncate=off' = ANY (reloptions) THEN relpages ELSE 0 END
    WHERE relnamespace = 'mill'::regnamespace";

/// Reads each view, and calls each function that only reads and needs no argument.
const READ_ALL: &str =
    "SELECT 'SELECT * FROM mill.' || quote_ident(viewname) FROM pg_views WHERE schemaname = 'mill'
UNION ALL SELECT 'SELECT * FROM mill.' || quote_ident(p.proname) || '()' FROM pg_proc p
    WHERE p.pronamespace = 'mill'::regnamespace AND p.prokind = 'f' AND p.provolatile = 's'
        AND p.pronargs = p.pronargdefaults AND p.prorettype <> 'trigger'::regtype";

/// What a statement has cost, the most of all its executions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Cost {
    rows: f64,
    blocks: f64,
}

impl Cost {
    fn most(self, other: Self) -> Self {
        Self { rows: self.rows.max(other.rows), blocks: self.blocks.max(other.blocks) }
    }

    fn least(self, other: Self) -> Self {
        Self { rows: self.rows.min(other.rows), blocks: self.blocks.min(other.blocks) }
    }

    /// Returns whether it is more than so many rows and blocks.
    fn exceeds(self, rows: f64, blocks: f64) -> bool {
        self.rows > FEW + rows || self.blocks > FEW + blocks
    }
}

/// Returns the rows that all nodes of a plan have handled, and collects its tables. A join also handles the pairs of
/// rows that do not match.
fn handled<'a>(node: &'a Value, tables: &mut BTreeSet<&'a str>) -> f64 {
    tables.extend(node["Relation Name"].as_str());
    let pairs = number(node, "Rows Removed by Join Filter") * number(node, "Actual Loops");
    rows(node) + pairs + inner(node).map(|it| handled(it, tables)).sum::<f64>()
}

/// A statement with its costs.
#[derive(Default)]
struct Statement {
    costs: BTreeMap<&'static str, Cost>,
    /// Number of rows in all tables of the plan.
    table_rows: f64,
}

/// Adds the plans in a part of the log.
fn add(
    log: &str,
    state: &'static str,
    sizes: &BTreeMap<String, f64>,
    known: &mut BTreeMap<String, Statement>,
) {
    for plan in plans(log) {
        let mut tables = BTreeSet::new();
        let rows = handled(&plan["Plan"], &mut tables);
        #[expect(clippy::cast_precision_loss, reason = "a number of blocks")]
        let blocks = pages(&plan["Plan"]) as f64;
        let statement = known.entry(name(plan["Query Text"].as_str().unwrap())).or_default();
        let cost = statement.costs.entry(state).or_default();
        *cost = cost.most(Cost { rows, blocks });
        let table_rows = tables.iter().filter_map(|table| sizes.get(*table)).sum();
        statement.table_rows = statement.table_rows.max(table_rows);
    }
}

impl Statement {
    /// Returns the fault of the statement, if it has one.
    fn fault(&self) -> Option<String> {
        let most = self.costs.values().copied().reduce(Cost::most)?;
        let least = self.costs.values().copied().reduce(Cost::least)?;
        let rows = self.table_rows;
        let too_much = most.exceeds(rows * ROWS_PER_ROW, rows * BLOCKS_PER_ROW);
        let more = (least.rows * TIMES_THE_LEAST, least.blocks * TIMES_THE_LEAST);
        // The statements of functions have plans of their own.
        let fault =
            rows > 0.0 && (too_much || most.exceeds(rows * ROWS_ONCE + more.0, rows + more.1));
        fault.then(|| format!("of {rows} rows, {:?}", self.costs))
    }
}

/// Runs every command, in sessions that cannot change anything, and requests every page.
async fn read_everything(database: &Database, shown: &Shown<'_>, console: &Console) {
    let read_only = format!("{}?options=-c%20default_transaction_read_only%3Don", database.url());
    let mut commands = shown.commands();
    while !commands.is_empty() {
        let four = commands.split_off(commands.len().saturating_sub(4));
        let runs = four.into_iter().map(|program| program.at(&read_only).run());
        futures_util::future::join_all(runs).await;
    }
    let of_one = pages_of_one(database).await;
    let task: i64 = of_one[0].rsplit('/').next().unwrap().parse().unwrap();
    let of_api = api_paths(console, task).await;
    for path in
        SCREENS.iter().chain(&MORE).copied().chain(of_one.iter().chain(&of_api).map(String::as_str))
    {
        console.get(path).await;
    }
    let session = open_url(&database.url()).await;
    for row in database.rows(READ_ALL, &[]).await {
        let read: &str = row.get(0);
        session.batch_execute(read).await.unwrap_or_else(|error| panic!("{error:?} in {read}"));
    }
    for _ in 0..2 {
        database.until_next_poll().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_of_an_operator_costs_the_same_whatever_the_statistics_say() {
    let private = PrivateDatabase::new(&SETTINGS).await;
    let database = &private.database;
    if database
        .client()
        .batch_execute("LOAD 'auto_explain'; SET auto_explain.log_min_duration = -1")
        .await
        .is_err()
    {
        return println!("skipped: the server has no auto_explain to log plans");
    }
    let begun = std::time::Instant::now();
    database.create_days_before().await;
    for part in LOG_PLANS.split("; ") {
        database.execute(part).await;
    }
    let shown = Shown::new(database).await;
    database.execute(PAUSE).await;
    let (live, ended, count) = amount(("14000", "12000", "2000"), ("50000", "40000", "10000"));
    database
        .execute(
            &FILL.replace("{live}", live).replace("{ended}", ended).replace("{period}", "2 hours"),
        )
        .await;
    database.execute(&COPIES.replace("{count}", count)).await;
    database.execute("VACUUM (ANALYZE)").await;
    println!("filled in {:?}", begun.elapsed());
    let sizes = "SELECT c.relname::text, c.reltuples::float8 FROM pg_class c
        WHERE c.relnamespace = 'mill'::regnamespace AND c.relkind = 'r' AND c.reltuples > 0";
    let sizes = database.rows(sizes, &[]).await;
    let sizes = sizes.iter().map(|row| (row.get(0), row.get(1))).collect();
    let mut known = BTreeMap::new();
    let mut log = File::open(private.cluster.log()).unwrap();
    // The worst of the three is enough before each commit.
    for &state in amount::<&[&str]>(&["empty"], &["full", "empty", "none"]) {
        match state {
            "empty" => database.execute(AS_IF_EMPTY).await,
            "none" => forget_statistics(database).await,
            _ => {}
        }
        logged(&mut log);
        let console = Console::start(database, &[]).await;
        eventually("the console has read the last hours", async || {
            console.get("/api/v1/throughput?hours=6").await.body.contains("\"minutes_read\":360")
        })
        .await;
        read_everything(database, &shown, &console).await;
        add(&logged(&mut log), state, &sizes, &mut known);
        println!("{state} after {:?}", begun.elapsed());
    }
    for (name, it) in &known {
        println!("{name}: {} {:?}", it.table_rows, it.costs);
    }
    assert!(
        known.contains_key("queue.outcomes") && known.len() > 150,
        "{} statements",
        known.len()
    );
    let faults: Vec<String> =
        known.iter().filter_map(|(name, it)| Some(format!("{name}: {}", it.fault()?))).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
