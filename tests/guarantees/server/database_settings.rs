//! Everything works whatever the settings of the database are. Settings that do not affect each other share a
//! database, in which the schema is installed with them.

use futures_util::future::join_all;

use crate::harness::login::create_logins;
use crate::harness::receiver::TemporaryFile;
use crate::harness::{Database, Program, Worker, amount};

/// How values are read and written, which strings and names the server accepts, transactions, time
/// limits and new objects.
const FORMATS_AND_TRANSACTIONS: &[&str] = &[
    "DateStyle = 'German, DMY'",
    "IntervalStyle = 'sql_standard'",
    "TimeZone = 'Asia/Kathmandu'",
    "bytea_output = 'escape'",
    "extra_float_digits = -15",
    "standard_conforming_strings = off",
    "escape_string_warning = off",
    "backslash_quote = off",
    "quote_all_identifiers = on",
    "xmloption = 'document'",
    "xmlbinary = 'hex'",
    "array_nulls = off",
    "transform_null_equals = on",
    "lc_monetary = 'C'",
    "default_text_search_config = 'pg_catalog.german'",
    "default_transaction_isolation = 'serializable'",
    "default_transaction_deferrable = on",
    "synchronous_commit = off",
    "row_security = off",
    "check_function_bodies = off",
    "client_min_messages = 'debug1'",
    "statement_timeout = '2min'",
    "lock_timeout = '1min'",
    "idle_in_transaction_session_timeout = '1min'",
    "idle_session_timeout = '2min'",
    "default_table_access_method = 'heap'",
    "default_toast_compression = 'pglz'",
    "default_tablespace = 'pg_default'",
    "temp_tablespaces = 'pg_default'",
    "default_with_oids = off",
    "search_path = 'evil, public'",
    "plpgsql.variable_conflict = 'use_column'",
    "plpgsql.extra_errors = 'all'",
    "plpgsql.extra_warnings = 'all'",
    "plpgsql.check_asserts = off",
    "plpgsql.print_strict_params = on",
];

/// The planner takes other plans than usual.
const PLANS: &[&str] = &[
    "jit_above_cost = 0",
    "jit_inline_above_cost = 0",
    "jit_optimize_above_cost = 0",
    "force_parallel_mode = on",
    "debug_parallel_query = on",
    "parallel_setup_cost = 0",
    "parallel_tuple_cost = 0",
    "min_parallel_table_scan_size = 0",
    "enable_seqscan = off",
    "enable_nestloop = off",
    "enable_sort = off",
    "enable_partition_pruning = off",
    "constraint_exclusion = off",
    "plan_cache_mode = 'force_custom_plan'",
    "geqo_threshold = 2",
    "from_collapse_limit = 1",
    "join_collapse_limit = 1",
    "work_mem = '64kB'",
    "search_path = ''",
    "client_min_messages = 'error'",
    "plpgsql.variable_conflict = 'use_variable'",
];

/// The planner takes the opposite plans, and triggers and foreign keys do nothing.
const OTHER_PLANS: &[&str] = &[
    "enable_indexscan = off",
    "enable_bitmapscan = off",
    "enable_indexonlyscan = off",
    "enable_hashjoin = off",
    "enable_mergejoin = off",
    "enable_hashagg = off",
    "enable_material = off",
    "enable_memoize = off",
    "constraint_exclusion = on",
    "plan_cache_mode = 'force_generic_plan'",
    "session_replication_role = 'replica'",
    "default_statistics_target = 1",
    "cursor_tuple_fraction = 0",
    "track_activity_query_size = 100",
    "plpgsql.variable_conflict = 'error'",
];

/// Sets those of the settings that this version of the server has. Returns their number.
async fn set(database: &Database, settings: &[&str]) -> usize {
    let mut count = 0;
    for setting in settings {
        let (name, _) = setting.split_once(" = ").unwrap();
        let known = "SELECT count(*) FROM pg_settings WHERE lower(name) = lower($1) AND context IN ('user', 'superuser')";
        let known: i64 = database.rows(known, &[&name]).await[0].get(0);
        if known == 1 || name.starts_with("plpgsql.") {
            database.execute(&format!("ALTER DATABASE {} SET {setting}", database.name())).await;
            count += 1;
        }
    }
    count
}

const JOB: &str = "[job.load]
[job.load.task.extract]
statement = 'INSERT INTO public.done SELECT $1'
params = ['load']
[job.load.task.report]
statement = 'SELECT count(*) FROM public.done'
after = ['extract']
[job.load.task.broken]
statement = 'SELECT 1 / 0'
max_attempts = 1
";

/// Arguments of `enqueue`, and its exit code: a task of each kind, one that fails, and one for later.
const TASKS: [(&[&str], i32); 7] = [
    (&["--wait=60s", "INSERT INTO public.done SELECT 'plain'"], 0),
    (
        &[
            "--wait=60s",
            "--param",
            "7",
            "--param",
            "[\"a\", null]",
            "SELECT $1::int8, $2::text::jsonb, E'\\\\'",
        ],
        0,
    ),
    (
        &[
            "--wait=60s",
            "--mode",
            "autocommit",
            "VACUUM public.done; CREATE INDEX CONCURRENTLY IF NOT EXISTS d ON public.done (name)",
        ],
        0,
    ),
    (&["--wait=60s", "--explain", "SELECT count(*) FROM public.done"], 0),
    (
        &[
            "--wait=60s",
            "--isolation",
            "serializable",
            "--concurrency-key",
            "k",
            "--timeout",
            "1min",
            "SELECT now(), interval '1 day', 'a'::bytea",
        ],
        0,
    ),
    (&["--wait=60s", "--max-attempts", "1", "SELECT 1 / 0"], 3),
    (&["--at", "2031-12-01T03:00:00Z", "--key", "later", "--tag", "a", "SELECT 1"], 0),
];

/// Arguments of `pgmill` for commands that read.
const READS: [&[&str]; 16] = [
    &["status"],
    &["doctor"],
    &["task", "list"],
    &["history"],
    &["failures"],
    &["durations"],
    &["queue", "list"],
    &["job", "show", "load"],
    &["run", "list"],
    &["schedule", "list"],
    &["schedule", "next", "nightly"],
    &["limit", "list"],
    &["group", "list"],
    &["priority", "list"],
    &["worker", "list"],
    &["audit"],
];

/// Returns the commands that read in a database with these settings. In the short form, each of them
/// runs with one of the two kinds of plans.
fn reads(settings: &[&str]) -> Vec<&'static [&'static str]> {
    let (first, step) = if settings == FORMATS_AND_TRANSACTIONS {
        (0, 1)
    } else {
        amount((usize::from(settings == PLANS), 2), (0, 1))
    };
    let reads = READS.into_iter().skip(first).step_by(step);
    // With other plans, the comparison of the whole schema takes long.
    reads.filter(|it| *it != ["doctor"] || settings == FORMATS_AND_TRANSACTIONS).collect()
}

/// Installs the schema, runs a task of each kind, and reads with the tools.
async fn works(settings: &[&str]) -> usize {
    let mut database = Database::empty().await;
    let count = set(&database, settings).await;
    database.reconnect().await;
    let ran = async |program: Program, wanted: i32| {
        let (code, stdout, stderr) = program.run().await;
        assert_eq!(code, wanted, "{settings:?}: {stdout}{stderr}");
        stdout
    };
    let pgmill = async |arguments: &[&str]| ran(Program::pgmill(&database, arguments), 0).await;
    ran(Program::init(&database), 0).await;
    create_logins(database.client()).await;
    database
        .execute("CREATE TABLE public.done (name text); ALTER TABLE public.done OWNER TO mill_test_tasks")
        .await;
    let mut worker = Worker::start(&database, &["--readers", "4"]);
    for (arguments, code) in TASKS {
        ran(Program::enqueue(&database, arguments), code).await;
    }
    let due = "SELECT extract(epoch FROM due_at)::int8 FROM mill.tasks WHERE key = 'later'";
    assert_eq!(database.value::<i64>(due).await, 1_953_860_400, "{settings:?}");
    let file = TemporaryFile::with_suffix(JOB, ".toml");
    pgmill(&["apply", file.path()]).await;
    assert!(pgmill(&["apply", file.path()]).await.contains("no changes"), "{settings:?}");
    let schedule =
        ["schedule", "set", "nightly", "--timing", "daily(03:15)", "--statement", "SELECT 1"];
    pgmill(&schedule).await;
    ran(Program::enqueue(&database, &["--job", "load", "--wait=60s"]), 3).await;
    for arguments in reads(settings) {
        pgmill(arguments).await;
    }
    pgmill(&["pause", "--reason", "x"]).await;
    pgmill(&["resume"]).await;
    assert!(worker.terminate().await.success(), "{settings:?}");
    let outcomes = "SELECT string_agg(outcome || ' ' || n, ', ' ORDER BY outcome)
        FROM (SELECT outcome, count(*) AS n FROM mill.attempts GROUP BY outcome) AS x";
    assert_eq!(database.value::<String>(outcomes).await, "succeeded 7, failed 2", "{settings:?}");
    assert_eq!(database.value::<i64>("SELECT count(*) FROM public.done").await, 2, "{settings:?}");
    let log = worker.log();
    let expected =
        ["task SQL runs as a superuser", "attempt failed outcome=failed sqlstate=\"22012\""];
    let unexpected = |line: &&str| {
        (line.contains(" WARN ") || line.contains(" ERROR "))
            && !expected.iter().any(|it| line.contains(it))
    };
    assert_eq!(log.lines().find(unexpected), None, "{settings:?}");
    count
}

#[tokio::test(flavor = "multi_thread")]
async fn every_setting_of_the_database_leaves_the_fleet_working() {
    let counts = join_all([FORMATS_AND_TRANSACTIONS, PLANS, OTHER_PLANS].map(works)).await;
    let count: usize = counts.iter().sum();
    assert!(count >= 60, "{count} settings");
}

/// In a database that is read-only by default, the fleet works, and programs that write say why they cannot.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_read_only_by_default_is_named_as_the_cause() {
    let database = Database::new().await;
    let id = database.enqueue("CREATE TABLE made (a int)", "").await;
    set(&database, &["default_transaction_read_only = on"]).await;
    let mut worker = Worker::start(&database, &["--readers", "1"]);
    assert_eq!(database.outcome(id).await, "succeeded");
    Program::pgmill(&database, &["status"]).succeeds().await;
    let (code, _, stderr) = Program::enqueue(&database, &["SELECT 1"]).run().await;
    assert!(
        code != 0 && stderr.contains("default_transaction_read_only is on for the database"),
        "{stderr}"
    );
    assert!(worker.terminate().await.success());
}
