//! Mutants of the product: the checker must find a fault that is planted in one of the product's
//! functions. The unchanged product must pass the same scenario.

use std::time::Duration;

use checker::{Answer, Expect, Op, OpKind, record};
use jiff::Timestamp;
use queue::claim::{ClaimSession, Lane, LaneRange, SessionIdentity};
use queue::complete::{Success, complete};
use queue::fail::Report;
use queue::reclaim::{DeadWorker, reclaim};
use queue::{Claim, Priority, WorkerId};
use serde_json::json;
use tokio_postgres::Client;

use crate::guarantees::checker_detection::{broken, requested};
use crate::harness::{Database, Worker};
use crate::runs::run::{end, job, start};

/// Sequence of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scenario {
    /// The task's worker is considered dead and its backend is not listed, but both are alive.
    ReclaimedWhileAlive,
    /// The same in a shared commit, which completes its tasks by another function.
    ReclaimedInSharedCommit,
    /// The same, but in autocommit mode, and the backend is listed.
    ReclaimedTooEarly,
    /// The worker of the task dies, nine times in a row.
    CrashLoop,
    /// An at-most-once task whose worker dies after the start.
    KilledMidTask,
    /// The task's statement always fails.
    Fails,
    /// Several tasks with one concurrency key.
    Limited,
    /// The task is cancelled while it waits.
    Cancelled,
    /// The task is enqueued twice with one key.
    Deduplicated,
    /// A run with a child of two parents.
    Run,
}

struct Mutant {
    function: &'static str,
    from: &'static str,
    to: &'static str,
    scenario: Scenario,
    finds: &'static [&'static str],
}

const MUTANTS: &[Mutant] = &[
    Mutant {
        function: "complete_with_proof",
        from: "AND encode(sha256(uuid_send(t.token) || xid8send(xact)), 'hex') = proof",
        to: "",
        scenario: Scenario::ReclaimedWhileAlive,
        finds: &["effect_iff_succeeded"],
    },
    Mutant {
        function: "complete_with_proof",
        from: "IF NOT FOUND THEN",
        to: "IF NOT FOUND THEN RETURN; END IF; IF false THEN",
        scenario: Scenario::ReclaimedWhileAlive,
        finds: &["no_effect_twice", "effect_iff_succeeded"],
    },
    Mutant {
        function: "complete",
        from: "AND t.token = claim_tokens[array_position(task_ids, t.id)]",
        to: "",
        scenario: Scenario::ReclaimedInSharedCommit,
        finds: &["effect_iff_succeeded"],
    },
    Mutant {
        function: "complete",
        from: "IF cardinality(done) IS DISTINCT FROM cardinality(task_ids) THEN",
        to: "IF false THEN",
        scenario: Scenario::ReclaimedInSharedCommit,
        finds: &["no_effect_twice", "effect_iff_succeeded"],
    },
    Mutant {
        function: "reclaim",
        from: "THEN NOT EXISTS (SELECT FROM pg_stat_activity a",
        to: "THEN true OR NOT EXISTS (SELECT FROM pg_stat_activity a",
        scenario: Scenario::ReclaimedTooEarly,
        finds: &["one_holder"],
    },
    Mutant {
        function: "fail",
        from: "crashes = t.crashes + (verdict = 'crash')::integer",
        to: "crashes = t.crashes",
        scenario: Scenario::CrashLoop,
        finds: &["attempts_bounded"],
    },
    Mutant {
        function: "fail",
        from: "state = next_state,",
        to: "state = next_state, attempt = t.attempt - 1,",
        scenario: Scenario::CrashLoop,
        finds: &["attempts_increase"],
    },
    Mutant {
        function: "reclaim",
        from: "WHEN once OR",
        to: "WHEN",
        scenario: Scenario::KilledMidTask,
        finds: &["at_most_once"],
    },
    Mutant {
        function: "fail",
        from: "failures = t.failures + (verdict = 'failure')::integer",
        to: "failures = t.failures + 2 * (verdict = 'failure')::integer",
        scenario: Scenario::Fails,
        finds: &["attempts_bounded"],
    },
    Mutant {
        function: "record_attempt",
        from: "IF record_attempt.final AND task.key IS NOT NULL THEN",
        to: "IF record_attempt.final THEN DELETE FROM mill.attempts a WHERE a.task_id = task.id; END IF;
            IF record_attempt.final AND task.key IS NOT NULL THEN",
        scenario: Scenario::Fails,
        finds: &["nothing_lost"],
    },
    Mutant {
        function: "free_places",
        from: "least(1000, terms.max_running - count(*)",
        to: "least(1000, 1 + terms.max_running - count(*)",
        scenario: Scenario::Limited,
        finds: &["limits_kept"],
    },
    Mutant {
        function: "cancel_task",
        from: "DELETE FROM mill.tasks t WHERE t.id = task.id;",
        to: "",
        scenario: Scenario::Cancelled,
        finds: &["ends_once", "cancelled_stays"],
    },
    Mutant {
        function: "claim_key",
        from: "RETURN live;",
        to: "RETURN NULL;",
        scenario: Scenario::Deduplicated,
        finds: &["key_is_one_task"],
    },
    Mutant {
        function: "evaluate_join",
        from: "WHEN satisfied = parents",
        to: "WHEN satisfied > 0",
        scenario: Scenario::Run,
        finds: &["graph_order"],
    },
];

/// Removes what a scenario has left. Otherwise its violations would be found in the next one, too.
const FORGET: &str = "DELETE FROM mill.tasks; DELETE FROM mill.attempts; DELETE FROM mill.permits;
    DELETE FROM mill.runs; DELETE FROM mill.run_tasks; DELETE FROM mill.run_edges;
    DELETE FROM mill.run_events; DELETE FROM mill.dedup_keys; DELETE FROM mill.cancel_requests;
    DELETE FROM chaos.ops; DELETE FROM chaos.start; DELETE FROM chaos.effect;
    DELETE FROM chaos.limits";

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_in_the_product_is_found() {
    let database = &Database::new().await;
    database.execute(checker::INSTALL).await;
    for (n, mutant) in MUTANTS.iter().enumerate() {
        let Mutant { function, from, to, scenario, finds } = mutant;
        let name = format!("mill.{function}");
        for planted in [false, true] {
            // The unchanged product passes each scenario once.
            if !planted && MUTANTS[..n].iter().any(|earlier| earlier.scenario == *scenario) {
                continue;
            }
            let unchanged = definition(database, &name).await;
            if planted {
                plant(database, &name, (from, to)).await;
            }
            play(database, *scenario).await;
            let found = broken(database, &Expect::default()).await;
            database.execute(&unchanged).await;
            database.execute(FORGET).await;
            let names: Vec<&str> = found.iter().map(|(name, _)| *name).collect();
            let expected: &[&str] = if planted { finds } else { &[] };
            assert_eq!(names, expected, "{scenario:?}, {function}: {from} -> {to}: {found:#?}");
        }
    }
}

/// Changes one place in a function.
pub(crate) async fn plant(database: &Database, function: &str, (from, to): (&str, &str)) {
    let unchanged = definition(database, function).await;
    assert_eq!(unchanged.matches(from).count(), 1, "{from} in {unchanged}");
    database.execute(&unchanged.replace(from, to)).await;
}

async fn definition(database: &Database, function: &str) -> String {
    database.value(&format!("SELECT pg_get_functiondef('{function}'::regproc)")).await
}

async fn play(database: &Database, scenario: Scenario) {
    let ops = &mut Vec::new();
    match scenario {
        Scenario::ReclaimedWhileAlive => reclaimed_while_alive(database, ops, "", None).await,
        Scenario::ReclaimedInSharedCommit => {
            reclaimed_while_alive(database, ops, "", Some(Duration::ZERO)).await;
        }
        Scenario::ReclaimedTooEarly => {
            reclaimed_while_alive(database, ops, ", mode => 'autocommit'", None).await;
        }
        Scenario::CrashLoop => crash_loop(database, ops).await,
        Scenario::KilledMidTask => killed_mid_task(database, ops).await,
        Scenario::Fails => {
            let options = ", max_attempts => 3, retry_interval => '0'";
            requested(database, ops, "fails", ("SELECT 1/0", options)).await;
        }
        Scenario::Limited => {
            database.execute("INSERT INTO chaos.limits VALUES ('k', 1)").await;
            for name in ["a", "b", "c", "d"] {
                let work = "SELECT chaos.work(0.2, '{k}')";
                requested(database, ops, name, (work, ", concurrency_key => 'k'")).await;
            }
        }
        Scenario::Cancelled => {
            let id = requested(database, ops, "cancelled", ("SELECT chaos.work()", "")).await;
            let reply: String = database.value(&format!("SELECT mill.cancel({id})")).await;
            let op = Op::new(OpKind::Cancel, Answer::Ok);
            ops.push(Op { task: Some(id), reply: Some(reply), ..op });
        }
        Scenario::Deduplicated => {
            for name in ["first", "second"] {
                requested(database, ops, name, ("SELECT chaos.work()", ", key => 'k'")).await;
            }
        }
        Scenario::Run => run(database, ops).await,
    }
    // Two readers can exceed a limit of one task.
    let mut worker = Worker::start(database, &["--readers", "2", "--poll-interval", "50ms"]);
    database.until_empty().await;
    worker.terminate().await;
    record(database.client(), ops).await.unwrap();
}

/// Runs parents of different durations with a real worker.
async fn run(database: &Database, ops: &mut Vec<Op>) {
    let task = |name: &str, seconds: f64, after: &[&str]| {
        let statement = format!("SELECT chaos.work({seconds})");
        json!({"name": name, "statement": statement, "after": after})
    };
    let tasks = json!([
        task("quick", 0.0, &[]),
        task("slow", 0.5, &[]),
        task("child", 0.0, &["quick", "slow"])
    ]);
    job(database, "j", tasks).await;
    let run = start(database, "j").await;
    ops.push(Op { run: Some(run), ..Op::new(OpKind::StartRun, Answer::Ok) });
    let mut worker = Worker::start(database, &["--readers", "4", "--poll-interval", "20ms"]);
    end(database, run).await;
    worker.terminate().await;
}

/// A worker with one reader. The test performs its statements.
struct Player {
    worker: WorkerId,
    session: Client,
    identity: SessionIdentity,
    claim: Option<Claim>,
}

impl Player {
    async fn new(database: &Database) -> Self {
        let session = database.connect().await;
        let own = "SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()";
        let row = session.query_one(own, &[]).await.unwrap();
        let identity = SessionIdentity { pid: row.get(0), started_at: row.get(1) };
        Self { worker: WorkerId::random(), session, identity, claim: None }
    }

    /// Claims the pending task if there is one; `hidden` simulates a backend that has ended.
    async fn claim(&mut self, database: &Database, hidden: bool) -> bool {
        let claimer = ClaimSession::new(database.connect().await, self.worker, None).await.unwrap();
        let lane =
            Lane { queue: "default".to_owned(), priority: Priority::Normal, run_as: String::new() };
        let started_at = if hidden { Timestamp::UNIX_EPOCH } else { self.identity.started_at };
        let identity = SessionIdentity { started_at, ..self.identity };
        let mut claimed = claimer.claim(&[LaneRange::whole(lane)], &[identity]).await.unwrap();
        self.claim = claimed.pop().map(|claimed| claimed.claim);
        if let Some(claim) = &self.claim {
            let (id, attempt) = (claim.id().to_string(), claim.attempt().to_string());
            let announce = "SELECT set_config('mill.task_id', $1, false),
                set_config('mill.attempt', $2, false)";
            self.session.query(announce, &[&id, &attempt]).await.unwrap();
        }
        self.claim.is_some()
    }

    /// Performs the end of the worker's part: the end of the statement, and the completion.
    async fn finish(&self, in_transaction: bool, ran_until: Option<Duration>) {
        let Some(claim) = &self.claim else { return };
        let xact = if in_transaction {
            self.session.batch_execute("BEGIN").await.unwrap();
            let xact = "SELECT pg_current_xact_id()::text";
            let xact: String = self.session.query_one(xact, &[]).await.unwrap().get(0);
            self.session.batch_execute("SELECT chaos.work(0.05)").await.unwrap();
            xact
        } else {
            self.session.batch_execute("SELECT chaos.end_work()").await.unwrap();
            String::new()
        };
        let report = Report::default();
        let success = [Success { claim, ran_until, report: &report }];
        let xact = in_transaction.then_some(xact.as_str());
        let completed = complete(&self.session, &success, xact).await.is_ok();
        let end = if completed { "COMMIT" } else { "ROLLBACK" };
        if in_transaction {
            self.session.batch_execute(end).await.unwrap();
        }
    }
}

/// Considers the worker dead and reclaims its task.
async fn reclaim_worker(database: &Database, player: &Player) {
    let dead = DeadWorker { worker: player.worker, last_heartbeat: None };
    reclaim(database.client(), dead).await.unwrap();
}

/// A live worker is considered dead, another worker gets its task, and both continue. `ran_until`:
/// as in [`Success`].
async fn reclaimed_while_alive(
    database: &Database,
    ops: &mut Vec<Op>,
    mode: &str,
    ran_until: Option<Duration>,
) {
    requested(database, ops, "reclaimed", ("SELECT chaos.work()", mode)).await;
    let in_transaction = mode.is_empty();
    let mut first = Player::new(database).await;
    let mut second = Player::new(database).await;
    assert!(first.claim(database, in_transaction).await);
    if !in_transaction {
        first.session.batch_execute("SELECT chaos.begin_work()").await.unwrap();
    }
    reclaim_worker(database, &first).await;
    if second.claim(database, false).await && !in_transaction {
        second.session.batch_execute("SELECT chaos.begin_work()").await.unwrap();
    }
    first.finish(in_transaction, ran_until).await;
    second.finish(in_transaction, ran_until).await;
}

async fn crash_loop(database: &Database, ops: &mut Vec<Op>) {
    requested(database, ops, "crashes", ("SELECT chaos.work()", "")).await;
    for _ in 0..9 {
        let mut player = Player::new(database).await;
        player.claim(database, true).await;
        reclaim_worker(database, &player).await;
    }
}

async fn killed_mid_task(database: &Database, ops: &mut Vec<Op>) {
    let body = "SELECT chaos.begin_work(); SELECT chaos.end_work()";
    let once = ", mode => 'autocommit', at_most_once => true";
    requested(database, ops, "once", (body, once)).await;
    let mut player = Player::new(database).await;
    player.claim(database, true).await;
    player.session.batch_execute("SELECT chaos.begin_work()").await.unwrap();
    reclaim_worker(database, &player).await;
}
