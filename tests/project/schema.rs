//! schema.sql is the contract: any tool can apply it, any number of times, and the result is the
//! same schema. Its enums and transitions match those of the programs.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use cli::exit;
use jiff::Timestamp;
use queue::claim::{ClaimSession, Lane, LaneRange, SessionIdentity};
use queue::complete::{Success, complete};
use queue::fail::{Report, fail};
use queue::release::release;
use queue::retry::RetryDecision;
use queue::run::{Expected, JoinMode, RunState, RunTaskState};
use queue::subscription::NotifyEvent;
use queue::{
    Backoff, Claim, Isolation, LimitKind, Mode, Outcome, Priority, ReservedCapacity, State,
    WorkerId, cancel, drift, limit, promote, reclaim, schema,
};
use schedule::enums::{BackfillState, DeclaredIn, Event, FireMode, Overlap};

use crate::harness::private::server_programs;
use crate::harness::{Database, Worker, eventually};

/// Returns the path of a server program, if installed.
fn program(name: &str) -> Option<PathBuf> {
    let found = server_programs().map(|folder| folder.join(name));
    let found = found.filter(|path| path.is_file()).unwrap_or_else(|| PathBuf::from(name));
    Command::new(&found).arg("--version").output().is_ok().then_some(found)
}

/// Returns the schema in pg_dump's format, without parts that differ between dumps.
pub(crate) fn dump(database: &Database) -> Option<String> {
    let Some(pg_dump) = program("pg_dump") else {
        println!("skipped: pg_dump is not installed");
        return None;
    };
    let output =
        Command::new(pg_dump).args(["-s", "-n", "mill"]).arg(database.url()).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stderr);
    if printed.contains("server version mismatch") {
        println!("skipped: pg_dump is older than the server");
        return None;
    }
    assert!(output.status.success(), "{printed}");
    let text = String::from_utf8(output.stdout).unwrap();
    // Newer versions enclose the dump in a random token.
    let stable = |line: &&str| !line.contains("restrict ");
    Some(text.lines().filter(stable).collect::<Vec<_>>().join("\n"))
}

/// Asserts that the catalogs match schema.sql, without external programs.
pub(crate) async fn no_drift(database: &Database) {
    let differences = drift::differences(&mut database.connect().await).await.unwrap().unwrap();
    assert!(differences.is_empty(), "{differences:?}");
}

#[tokio::test]
async fn psql_and_the_programs_apply_the_same_schema() {
    let (by_psql, by_program) = (Database::empty().await, Database::empty().await);
    let Some(psql) = program("psql") else { return println!("skipped: psql is not installed") };
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../schema.sql");
    let output = Command::new(psql)
        .args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", file, "-d", &by_psql.url()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "a schema without a warning");
    schema::init(by_program.client()).await.unwrap();
    no_drift(&by_program).await;
    let Some(dumped) = dump(&by_psql) else { return no_drift(&by_psql).await };
    assert!(dumped.contains("CREATE TABLE mill.tasks"), "{dumped}");
    assert_eq!(dump(&by_program), Some(dumped));
}

#[tokio::test]
async fn applying_the_schema_again_changes_nothing() {
    let database = Database::new().await;
    database.enqueue("SELECT 1", ", key => 'k'").await;
    database.execute("UPDATE mill.settings SET max_crashes = 7; SELECT mill.pause('q')").await;
    let rows = "SELECT concat_ws(' ', (SELECT s FROM mill.settings s),
        (SELECT v FROM mill.schema_version v), (SELECT t FROM mill.tasks t),
        (SELECT k FROM mill.dedup_keys k), (SELECT q FROM mill.queues q))";
    let before: String = database.value(rows).await;
    let dumped = dump(&database);
    schema::init(database.client()).await.unwrap();
    assert_eq!(database.value::<String>(rows).await, before);
    no_drift(&database).await;
    assert_eq!(dump(&database), dumped);
}

#[tokio::test]
async fn a_privilege_on_a_partition_is_found_and_taken_back_by_applying_the_schema_again() {
    let database = Database::new().await;
    let grant = "DO $$ BEGIN EXECUTE format('GRANT SELECT ON %s TO mill_viewer', (SELECT max(inhrelid)::regclass
        FROM pg_inherits WHERE inhparent = 'mill.attempts'::regclass)); END $$";
    database.execute(grant).await;
    let differences = drift::differences(&mut database.connect().await).await.unwrap().unwrap();
    let found: Vec<&str> = differences.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(found, ["partitions of attempts to mill_viewer"]);
    schema::init(database.client()).await.unwrap();
    no_drift(&database).await;
}

#[tokio::test]
async fn changes_of_types_and_sequences_and_of_their_privileges_are_found() {
    let database = Database::new().await;
    let changes = "ALTER DOMAIN mill.queue_name DROP CONSTRAINT queue_name;
        ALTER TYPE mill.backoff ADD VALUE 'linear';
        ALTER TYPE mill.task_options ADD ATTRIBUTE added text;
        ALTER SEQUENCE mill.added_nodes CYCLE;
        GRANT USAGE ON TYPE mill.backoff TO mill_viewer;
        GRANT UPDATE ON SEQUENCE mill.target_epochs TO mill_viewer;
        REVOKE USAGE ON SEQUENCE mill.target_epochs FROM mill_worker";
    for change in changes.split(';') {
        database.execute(change).await;
    }
    let differences = drift::differences(&mut database.connect().await).await.unwrap().unwrap();
    let found: Vec<String> =
        differences.iter().map(|it| format!("{} {}", it.kind, it.name)).collect();
    let expected = [
        "grant sequence target_epochs to mill_worker",
        "sequence added_nodes",
        "type backoff",
        "type queue_name",
        "type task_options",
        "grant sequence target_epochs to mill_viewer",
        "grant type backoff to mill_viewer",
    ];
    assert_eq!(found, expected);
}

#[tokio::test]
async fn a_retention_beyond_the_times_of_the_server_is_refused() {
    let database = Database::new().await;
    let set = "UPDATE mill.settings SET history_retention = '9999 years'";
    let refused = database.client().batch_execute(set).await.unwrap_err();
    assert_eq!(refused.as_db_error().unwrap().message(), "a retention exceeds 1000 years");
    database.execute("UPDATE mill.settings SET audit_retention = '1000 years'").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn applying_the_schema_again_gives_way_to_a_transaction_that_needs_its_locks() {
    let database = Database::new().await;
    let (operator, holder) = (database.connect().await, database.connect().await);
    holder.batch_execute("BEGIN; LOCK TABLE mill.runs IN ROW EXCLUSIVE MODE").await.unwrap();
    // Other databases of the server, which are copies, have the same numbers of tables.
    let waiting =
        "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = 'mill.runs'::regclass
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))";
    let meanwhile = async {
        eventually("the script waits", async || database.value(waiting).await).await;
        // The script holds a lock on this table, so the two sessions wait for each other.
        holder.batch_execute("LOCK TABLE mill.tasks IN ROW EXCLUSIVE MODE; COMMIT").await.unwrap();
    };
    let (retries, ()) = tokio::join!(schema::init(&operator), meanwhile);
    assert!(retries.unwrap() >= 1);
    no_drift(&database).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_version_of_the_schema_is_refused_with_a_remedy() {
    let database = Database::new().await;
    let newer = (schema::VERSION + 1, "that the rest of the fleet runs");
    for (version, hint) in [newer, (0, "pgmill init")] {
        let set = format!(
            "UPDATE mill.schema_version SET (version, min_compatible_version) = ({version}, {version})"
        );
        database.execute(&set).await;
        let error = schema::init(database.client()).await.unwrap_err();
        assert!(error.to_string().contains(&format!("holds version {version}")), "{error}");
        assert!(error.hint().unwrap().contains("your version of pgmill"), "{error}");
        // The failed check must not leave the session in an aborted transaction.
        let found = schema::installed(database.client()).await.unwrap();
        assert_eq!(
            found,
            Some(schema::InstalledSchema { version, min_compatible_version: version })
        );
        let mut worker = Worker::start(&database, &["--readers", "1"]);
        assert_eq!(worker.ended().await.code(), Some(i32::from(exit::REFUSED)));
        let printed = format!("has schema version {version}");
        assert!(worker.log().contains(&printed), "{}", worker.log());
        let (_, reported) =
            worker.log().rsplit_once("hint: ").map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
        assert!(reported.contains(hint), "{reported}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_on_a_database_without_the_schema_names_the_command_that_creates_it() {
    let database = Database::empty().await;
    let mut worker = Worker::start_as_superuser(
        &database,
        "without the schema there is no role for logins",
        &["--readers", "1"],
    );
    assert_eq!(worker.ended().await.code(), Some(i32::from(exit::REFUSED)));
    let log = worker.log();
    assert!(
        log.contains("has no pgmill schema") && log.contains("hint: Install it with pgmill init")
    );
}

#[tokio::test]
async fn the_enums_of_the_schema_equal_the_enums_of_the_programs() {
    let database = Database::new().await;
    let words = [
        ("state", State::ALL.iter().map(|word| word.as_str()).collect::<Vec<_>>()),
        ("outcome", Outcome::ALL.iter().map(|word| word.as_str()).collect()),
        ("priority", Priority::ALL.iter().map(|word| word.as_str()).collect()),
        ("mode", Mode::ALL.iter().map(|word| word.as_str()).collect()),
        ("isolation", Isolation::ALL.iter().map(|word| word.as_str()).collect()),
        ("backoff", Backoff::ALL.iter().map(|word| word.as_str()).collect()),
        ("limit_kind", LimitKind::ALL.iter().map(|word| word.as_str()).collect()),
        ("expected", Expected::ALL.iter().map(|word| word.as_str()).collect()),
        ("join_mode", JoinMode::ALL.iter().map(|word| word.as_str()).collect()),
        ("run_state", RunState::ALL.iter().map(|word| word.as_str()).collect()),
        ("run_task_state", RunTaskState::ALL.iter().map(|word| word.as_str()).collect()),
        ("reserved_capacity", ReservedCapacity::ALL.iter().map(|word| word.as_str()).collect()),
        ("notify_event", NotifyEvent::ALL.iter().map(|word| word.as_str()).collect()),
        ("fire_mode", FireMode::ALL.iter().map(|word| word.as_str()).collect()),
        ("backfill_state", BackfillState::ALL.iter().map(|word| word.as_str()).collect()),
        ("overlap", Overlap::ALL.iter().map(|word| word.as_str()).collect()),
        ("declared_in", DeclaredIn::ALL.iter().map(|word| word.as_str()).collect()),
        ("schedule_event", Event::ALL.iter().map(|word| word.as_str()).collect()),
    ];
    for (name, expected) in words {
        let sql = format!("SELECT enum_range(NULL::mill.{name})::text[]");
        assert_eq!(database.value::<Vec<String>>(&sql).await, expected, "{name}");
    }
    let types = "SELECT count(*) FROM pg_type
        WHERE typnamespace = 'mill'::regnamespace AND typtype = 'e'";
    assert_eq!(
        database.value::<i64>(types).await,
        18,
        "the schema has an enum unknown to the programs"
    );
}

const GONE: SessionIdentity = SessionIdentity { pid: 1, started_at: Timestamp::UNIX_EPOCH };

/// Names of the operations that move a task to another state.
const MOVES: &[&str] = &[
    "grant",
    "revoke",
    "claim",
    "promote",
    "complete",
    "fail",
    "fail and retry",
    "fail and wait",
    "release",
    "release and wait",
    "reclaim",
    "cancel",
    "retry",
    "change",
];

/// Enqueue option by which a task needs a permit.
const KEYED: &str = ", concurrency_key => 'k'";

/// Returns the session in which a worker claims.
async fn session(database: &Database, worker: WorkerId) -> ClaimSession {
    ClaimSession::new(database.connect().await, worker, None).await.unwrap()
}

/// Creates a task in this state with these options, and a claim on it that is valid only if the
/// task runs.
async fn task_in(
    database: &Database,
    state: State,
    options: &str,
    claimer: &ClaimSession,
) -> Claim {
    database.enqueue("SELECT 1", options).await;
    limit::grant_waiting_permits(database.client(), None).await.unwrap();
    let claim = claim_one(claimer).await.unwrap();
    if state != State::Running {
        database
            .execute(&format!(
                "UPDATE mill.tasks SET state = '{state}', token = NULL, claimed_by = NULL,
                    claimed_at = NULL, session_pid = NULL, session_started_at = NULL,
                    blocking_limit_id = CASE WHEN '{state}' = 'blocked' THEN limits[1] END;
                 DELETE FROM mill.permits WHERE '{state}' <> 'pending'"
            ))
            .await;
    }
    claim
}

async fn claim_one(claimer: &ClaimSession) -> Option<Claim> {
    let lane =
        Lane { queue: "default".to_owned(), priority: Priority::Normal, run_as: String::new() };
    let claimed = claimer.claim(&[LaneRange::whole(lane)], &[GONE]).await.unwrap();
    claimed.into_iter().next().map(|claimed| claimed.claim)
}

async fn carry_out(
    database: &Database,
    what: &str,
    claim: Claim,
    (claimer, worker): (&ClaimSession, WorkerId),
) {
    let client = database.client();
    let (id, report) = (claim.id(), Report::default());
    let wait = Duration::from_secs(3600);
    let failed = async |claim: Claim, verdict| {
        fail(client, &claim, Outcome::Failed, verdict, &report).await.unwrap();
    };
    match what {
        "grant" => drop(limit::grant_waiting_permits(client, None).await.unwrap()),
        "revoke" => {
            limit::set_max_running(client, LimitKind::Key, "k", Some(0)).await.unwrap();
        }
        "claim" => drop(claim_one(claimer).await),
        "promote" => drop(promote::promote(client).await.unwrap()),
        // Completing a task with a lost claim is an error here, and changes nothing.
        "complete" => drop(complete(client, &[Success::now(&claim, &report)], None).await),
        "fail" => failed(claim, RetryDecision::Final).await,
        "fail and retry" => {
            failed(claim, RetryDecision::Failure { retry_in: Duration::ZERO }).await;
        }
        "fail and wait" => failed(claim, RetryDecision::Failure { retry_in: wait }).await,
        "release" => drop(release(client, &claim, Duration::ZERO).await.unwrap()),
        "release and wait" => drop(release(client, &claim, wait).await.unwrap()),
        "reclaim" => {
            let dead = reclaim::DeadWorker { worker, last_heartbeat: None };
            reclaim::reclaim(client, dead).await.unwrap();
        }
        "cancel" => drop(cancel::cancel(client, id).await.unwrap()),
        "retry" => drop(cancel::retry(client, id).await.unwrap()),
        "change" => {
            let later = r#"{"due_at": "2999-01-01T00:00:00Z"}"#;
            database.execute(&format!("SELECT mill.change_tasks('{{{id}}}', '{later}')")).await;
        }
        _ => panic!("unknown operation {what}"),
    }
}

fn name(state: Option<State>) -> &'static str {
    state.map_or("finished", State::as_str)
}

/// Returns the edges of [`State::can_transition_to`], with `finished` for leaving the queue.
fn graph() -> BTreeSet<(&'static str, &'static str)> {
    let targets = || State::ALL.iter().copied().map(Some).chain([None]);
    State::ALL
        .iter()
        .flat_map(|from| targets().map(move |to| (*from, to)))
        .filter(|(from, to)| from.can_transition_to(*to))
        .map(|(from, to)| (from.as_str(), name(to)))
        .collect()
}

#[tokio::test]
async fn a_task_moves_along_the_state_graph_and_nowhere_else() {
    let database = Database::new().await;
    let worker = WorkerId::random();
    let claimer = session(&database, worker).await;
    let mut seen = BTreeSet::new();
    for (from, options) in State::ALL.iter().flat_map(|from| [(from, ""), (from, KEYED)]) {
        if *from == State::Blocked && options.is_empty() {
            continue;
        }
        for what in MOVES {
            let claim = task_in(&database, *from, options, &claimer).await;
            carry_out(&database, what, claim, (&claimer, worker)).await;
            let sql = "SELECT state::text FROM mill.tasks";
            let to = database.rows(sql, &[]).await.first().map(|row| row.get::<_, String>(0));
            let to = to.map(|word| word.parse::<State>().unwrap());
            if to != Some(*from) {
                assert!(from.can_transition_to(to), "{what} led from {from} to {}", name(to));
                seen.insert((from.as_str(), name(to)));
            }
            // TRUNCATE takes long: mill.attempts has many partitions.
            database
                .execute(
                    "DELETE FROM mill.tasks; DELETE FROM mill.cancel_requests;
                     DELETE FROM mill.attempts; DELETE FROM mill.permits; DELETE FROM mill.limits",
                )
                .await;
        }
    }
    assert_eq!(seen, graph());
}

#[tokio::test]
async fn the_table_refuses_a_running_task_without_a_claim_and_a_claim_without_a_running_task() {
    let database = Database::new().await;
    let refused = async |sql: &str| {
        let error = database.client().batch_execute(sql).await.expect_err(sql);
        assert_eq!(error.code().map(tokio_postgres::error::SqlState::code), Some("23514"), "{sql}");
    };
    let claimer = session(&database, WorkerId::random()).await;
    drop(task_in(&database, State::Pending, "", &claimer).await);
    refused("UPDATE mill.tasks SET state = 'running'").await;
    refused("UPDATE mill.tasks SET token = gen_random_uuid()").await;
    let claim = claim_one(&claimer).await.unwrap();
    for state in ["pending", "scheduled", "blocked"] {
        refused(&format!("UPDATE mill.tasks SET state = '{state}'")).await;
    }
    for column in ["token", "claimed_by", "claimed_at", "session_pid", "session_started_at"] {
        refused(&format!("UPDATE mill.tasks SET {column} = NULL")).await;
    }
    refused("UPDATE mill.tasks SET attempt = 0").await;
    drop(claim);
}

#[test]
fn the_diagram_in_the_architecture_equals_the_state_graph() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../ARCHITECTURE.md");
    let Ok(text) = std::fs::read_to_string(path) else {
        return println!("skipped: ARCHITECTURE.md does not exist");
    };
    let edge = |line: &str| {
        let mut words = line.split_whitespace().map(str::to_owned);
        let (from, arrow, to) = (words.next()?, words.next()?, words.next()?);
        let state = from.parse::<State>().is_ok();
        (arrow == "->" && state).then_some((from, to))
    };
    let drawn: BTreeSet<(String, String)> = text.lines().filter_map(edge).collect();
    let graph = graph().into_iter().map(|(from, to)| (from.to_owned(), to.to_owned())).collect();
    assert_eq!(drawn, graph);
}

#[tokio::test]
async fn a_database_in_another_encoding_than_utf8_is_refused() {
    let database = Database::with_encoding("LATIN1").await;
    let error = schema::init(database.client()).await.unwrap_err().to_string();
    assert!(error.contains("of the database is LATIN1, not UTF8"), "{error}");
}
