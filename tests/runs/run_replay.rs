//! Random walks through the model of runs, repeated on a real server: the tables are the same after
//! each step.
//!
//! The model is that of `crates/queue/tests/run_model/`, which checks every interleaving of small runs without
//! a database. Here one session performs the steps one after another.

use queue::Outcome;
use queue::run::{Expected, JoinMode, RunTaskState};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use serde_json::json;

use crate::guarantees::checker_mutants::plant;
use crate::harness::{Database, amount};
use crate::runs::run::{job, start};

#[path = "../../crates/queue/tests/run_model/control.rs"]
mod control;
#[expect(dead_code, reason = "only the interface of a model is used")]
#[path = "../../crates/queue/tests/model/explore.rs"]
mod explore;
#[path = "../../crates/queue/tests/run_model/model.rs"]
mod model;
#[path = "../../crates/queue/tests/run_model/random.rs"]
mod random;
#[path = "../../crates/queue/tests/run_model/tables.rs"]
mod tables;

use explore::System;
use model::{Action, Added, Graph, World};
use random::random_graph;
use tables::{Node, Settings, Tables, evaluate_join, is_failure, satisfies};

/// Bound of a pass of `mill.advance_run`, so that small runs reach it.
const MAX_COUNT: usize = 3;

/// Contents of the tables that a run uses, as one line per row.
const CONTENTS: &str = "WITH numbered AS (
    SELECT t.*, row_number() OVER (ORDER BY t.node) - 1 AS n FROM mill.run_tasks t WHERE t.run_id = $1)
SELECT concat_ws(E'\n',
    (SELECT format('%s cancelled=%s kill=%s open=%s rescan=%s', r.state, r.cancelled_at IS NOT NULL, r.kill,
        r.open, r.needs_rescan) FROM mill.runs r WHERE r.id = $1),
    (SELECT string_agg(format('%s %s of %s: %s, %s, failed=%s pending=%s to=%s started=%s', t.n, t.state, t.parents,
        t.satisfied, t.unsatisfied, t.parent_failed, t.pending_propagation,
        (SELECT max(c.n) + 1 FROM numbered c WHERE c.node = t.propagated_to), t.started_at IS NOT NULL),
        E'\n' ORDER BY t.n) FROM numbered t),
    (SELECT string_agg(format('task %s running=%s cancelled=%s', t.n, q.state = 'running', EXISTS (
        SELECT FROM mill.cancel_requests c WHERE c.task_id = q.id)), E'\n' ORDER BY t.n)
        FROM numbered t JOIN mill.tasks q ON q.run_id = $1 AND q.node = t.node),
    (SELECT string_agg(format('event %s %s %s', (SELECT t.n FROM numbered t WHERE t.node = e.node), e.outcome,
        e.started_at IS NOT NULL), E'\n' ORDER BY e.id) FROM mill.run_events e WHERE e.run_id = $1))";

/// Returns what [`CONTENTS`] returns for the same tables.
fn contents(tables: &Tables) -> String {
    let flag = |on: bool| if on { 't' } else { 'f' };
    let mut lines = vec![format!(
        "{} cancelled={} kill={} open={} rescan={}",
        tables.state,
        flag(tables.cancelled),
        flag(tables.kill),
        tables.open,
        flag(tables.needs_rescan)
    )];
    for (n, node) in tables.nodes.iter().enumerate() {
        let to = Some(node.propagated_to).filter(|to| *to > 0);
        lines.push(format!(
            "{n} {} of {}: {}, {}, failed={} pending={} to={} started={}",
            node.state,
            node.parents,
            node.satisfied,
            node.unsatisfied,
            flag(node.parent_failed),
            flag(node.pending_propagation),
            to.map(|to| to.to_string()).unwrap_or_default(),
            flag(node.started)
        ));
    }
    for (n, task) in tables.tasks.iter().enumerate() {
        let Some(task) = task else { continue };
        let (running, cancelled) = (flag(task.running), flag(task.cancel_requested));
        lines.push(format!("task {n} running={running} cancelled={cancelled}"));
    }
    for event in &tables.events {
        let node = event.node.map(|node| node.to_string()).unwrap_or_default();
        let outcome = event.outcome.map(Outcome::as_str).unwrap_or_default();
        lines.push(format!("event {node} {outcome} {}", flag(event.started)));
    }
    lines.join("\n")
}

fn name(n: usize) -> String {
    format!("t{n}")
}

/// A run on the server.
struct Replay<'a> {
    database: &'a Database,
    run: i64,
    /// Number of tasks with which the run starts. An added task comes after them.
    declared: usize,
}

impl<'a> Replay<'a> {
    async fn new(database: &'a Database, seed: u64, graph: &Graph) -> Self {
        let task = |(n, join): (usize, &JoinMode)| {
            let edges = graph.edges.iter().filter(|edge| edge.child == n);
            let after: Vec<_> = edges
                .map(|edge| json!({"task": name(edge.parent), "expected": edge.expected}))
                .collect();
            json!({"name": name(n), "statement": "SELECT 1", "join": join, "after": after})
        };
        let tasks = graph.joins.iter().enumerate().map(task).collect();
        let label = format!("job {seed}");
        job(database, &label, tasks).await;
        let run = start(database, &label).await;
        Self { database, run, declared: graph.joins.len() }
    }

    /// Performs the step. Returns whether the server accepts it.
    async fn perform(&self, action: Action, added: Option<&Added>) -> bool {
        let run = self.run;
        let node = |n: usize| {
            let of_run = format!("(SELECT node FROM mill.run_tasks WHERE run_id = {run}");
            format!("t.run_id = {run} AND t.node = {of_run} ORDER BY node OFFSET {n} LIMIT 1)")
        };
        let sql = match action {
            Action::Commit { .. } => format!("SELECT mill.advance_run({run})"),
            Action::Claim(n) => format!(
                "UPDATE mill.tasks t SET state = 'running', attempt = attempt + 1, claimed_by = gen_random_uuid(),
                     claimed_at = clock_timestamp(), token = gen_random_uuid(), session_pid = 1,
                     session_started_at = now() WHERE {}",
                node(n)
            ),
            Action::Succeed(n) => format!(
                "SELECT mill.complete(ARRAY[t.id], ARRAY[t.token]::uuid[], pg_current_xact_id(), NULL, ARRAY[0]::bigint[], ARRAY[NULL]::jsonb[]) FROM mill.tasks t WHERE {}",
                node(n)
            ),
            Action::Fail(n) => format!(
                "SELECT mill.fail(t.id, t.token, 'failed', 'final', '0', '{{}}') FROM mill.tasks t WHERE {}",
                node(n)
            ),
            Action::StopCancelled(n) => format!(
                "SELECT mill.fail(t.id, t.token, 'cancelled', 'final', '0', '{{}}') FROM mill.tasks t WHERE {}",
                node(n)
            ),
            Action::Release(n) => format!(
                "SELECT mill.release_claim(t.id, t.token, '0') FROM mill.tasks t WHERE {}",
                node(n)
            ),
            Action::CancelTask(n) => {
                format!("SELECT mill.cancel_task(t.id, false) FROM mill.tasks t WHERE {}", node(n))
            }
            Action::CancelRun { kill } => format!("SELECT mill.cancel_run({run}, {kill})"),
            Action::AddTask => return self.add(added.unwrap(), &node(0)).await,
            Action::Restart { never_run, downstream } => format!(
                "SELECT mill.restart_run({run}, true, {never_run}, {downstream}, true)"
            ),
            Action::Rerun { task, downstream } => {
                format!("SELECT mill.rerun_run({run}, ARRAY['{}'], {downstream})", self.name(task))
            }
            Action::Retry(n) => format!(
                "SELECT 1 / (mill.retry_run_task({run}, '{}') = 'retried')::integer",
                self.name(n)
            ),
            Action::Begin | Action::Count { .. } | Action::Crash { .. } => return true,
        };
        self.database.client().batch_execute(&sql).await.is_ok()
    }

    fn name(&self, n: usize) -> String {
        if n == self.declared { "added".to_owned() } else { name(n) }
    }

    async fn add(&self, added: &Added, first: &str) -> bool {
        let names = |nodes: &[usize]| {
            let names: Vec<String> = nodes.iter().map(|n| format!("'{}'", name(*n))).collect();
            format!("ARRAY[{}]::text[]", names.join(", "))
        };
        let caller = match added.by {
            Some(_) => format!("(SELECT t.id::text FROM mill.tasks t WHERE {first})"),
            None => "''".to_owned(),
        };
        let sql = format!(
            "BEGIN; SELECT set_config('mill.task_id', {caller}, true);
             SELECT mill.add_run_task('added', 'SELECT 1', after => {}, before => {}, run_id => {}); COMMIT",
            names(&added.after),
            names(&added.before),
            self.run
        );
        let accepted = self.database.client().batch_execute(&sql).await.is_ok();
        self.database.execute("ROLLBACK").await;
        accepted
    }

    async fn contents(&self) -> String {
        self.database.rows(CONTENTS, &[&self.run]).await[0].get(0)
    }
}

/// Completes the advance that the model has begun. Returns the world after it.
fn complete(graph: &Graph, mut world: World) -> World {
    loop {
        let next = graph.steps(&world).into_iter().find_map(|(action, next)| match action {
            Action::Count { .. } | Action::Commit { .. } => Some(next.unwrap()),
            _ => None,
        });
        let Some(next) = next else { return world };
        world = next;
    }
}

/// Takes random steps in the model and on the server, and compares the tables. Returns the number of
/// steps.
async fn replay(database: &Database, seed: u64, count: usize) -> usize {
    let mut random = StdRng::seed_from_u64(seed);
    let graph = random_graph(&mut random);
    let graph = Graph { settings: Settings { max_count: MAX_COUNT, ..graph.settings }, ..graph };
    let replay = Replay::new(database, seed, &graph).await;
    let mut world = graph.initial();
    let (mut trace, mut before) = (Vec::new(), String::new());
    for taken in 0..count {
        let (expected, found) = (contents(&world.tables), replay.contents().await);
        assert_eq!(expected, found, "before:\n{before}\nseed {seed}: {trace:?}\n{graph:?}");
        before = found;
        let steps = graph.steps(&world);
        let Some((action, next)) = steps.choose(&mut random) else { return taken };
        trace.push(*action);
        world = complete(&graph, next.clone().unwrap());
        let action = match *action {
            Action::Begin => Action::Commit { advance: 0 },
            action => action,
        };
        if let Action::CancelRun { .. } = action {
            // The server has made the same passes.
            while !world.tables.events.is_empty() {
                let steps = graph.steps(&world);
                let (_, begun) = steps.iter().find(|step| step.0 == Action::Begin).unwrap();
                world = complete(&graph, begun.clone().unwrap());
            }
        }
        let accepted = replay.perform(action, graph.added.as_ref()).await;
        assert!(accepted, "seed {seed}: {action:?}: {trace:?}\n{graph:?}");
    }
    count
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_does_what_the_model_of_runs_does() {
    let database = Database::new().await;
    let bound = format!("max_count CONSTANT integer := {MAX_COUNT};");
    plant(&database, "mill.advance_run", ("max_count CONSTANT integer := 2000;", &bound)).await;
    let (seeds, min_steps) = amount((10, 100), (30, 300));
    let mut steps = 0;
    for seed in 1..=seeds {
        steps += replay(&database, seed, 100).await;
    }
    println!("{steps} steps");
    assert!(steps > min_steps, "{steps} steps");
}

/// Compares every value of the pure functions.
#[tokio::test]
async fn the_verdicts_of_the_server_are_those_of_the_model() {
    let database = Database::new().await;
    for state in RunTaskState::ALL {
        let failure = format!("SELECT mill.is_failure('{state}')");
        assert_eq!(database.value::<bool>(&failure).await, is_failure(*state), "{state}");
        for expected in Expected::ALL {
            let sql = format!("SELECT mill.satisfies('{state}', '{expected}')");
            let fits = satisfies(*state, *expected);
            assert_eq!(database.value::<bool>(&sql).await, fits, "{state} {expected}");
        }
    }
    let node = Tables::new(&[JoinMode::All], &[]).nodes[0];
    for (join, parent_failed) in [
        (JoinMode::All, false),
        (JoinMode::All, true),
        (JoinMode::Any, false),
        (JoinMode::Any, true),
    ] {
        for parents in 0..4 {
            for satisfied in 0..=parents {
                for unsatisfied in 0..=parents - satisfied {
                    let node =
                        Node { join, parents, satisfied, unsatisfied, parent_failed, ..node };
                    let sql = format!(
                        "SELECT mill.evaluate_join('{join}', {parents}, {satisfied}, {unsatisfied}, \
                         {parent_failed})::text"
                    );
                    let found: String = database.value(&sql).await;
                    assert_eq!(found, evaluate_join(&node).as_str(), "{node:?}");
                }
            }
        }
    }
}
