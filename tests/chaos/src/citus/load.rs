//! The tasks, and their effects.

use anyhow::Result;
use checker::{Answer, Finding, Op, OpKind};

use crate::session::Session;

/// `chaos.effect` is distributed, so a task that inserts a row writes one shard. A task may also
/// write a second shard, or only a table that Citus does not know.
pub(crate) const TABLES: &str =
    "SELECT /* chaos.citus_tables */ create_distributed_table('chaos.effect', 'task');
CREATE TABLE chaos.second (place bigint NOT NULL, task bigint NOT NULL);
SELECT create_distributed_table('chaos.second', 'place');
CREATE TABLE chaos.local_effect (LIKE chaos.effect INCLUDING DEFAULTS);
SELECT mill.set_shared_commit('shared', '20 ms')";

/// Statements of the tasks, in turn.
pub(crate) const ONE_SHARD: &str = "SELECT chaos.work()";
const TWO_SHARDS: &str = "SELECT chaos.work(); INSERT INTO chaos.second
    SELECT -current_setting('mill.task_id')::bigint, current_setting('mill.task_id')::bigint";
pub(crate) const LOCAL: &str =
    "INSERT INTO chaos.local_effect (started_at) VALUES (clock_timestamp())";
const STATEMENTS: [&str; 4] = [ONE_SHARD, TWO_SHARDS, ONE_SHARD, LOCAL];
/// Queues of the tasks, in turn: alone or in chains, and in shared commits.
const QUEUES: [&str; 2] = ["default", "shared"];

/// Number of tasks per call.
const MANY: usize = 100;

/// Enqueues the tasks before the faults begin. A crash of a node fails attempts, so there are many.
///
/// # Errors
/// Returns an error if a call is refused.
pub(crate) async fn enqueue(session: &mut Session, tasks: usize) -> Result<Vec<Op>> {
    let mut ops = Vec::new();
    for call in 0..tasks.div_ceil(MANY) {
        let statement = STATEMENTS[call % STATEMENTS.len()].replace('\'', "''");
        let queue = QUEUES[call / STATEMENTS.len() % QUEUES.len()];
        let count = MANY.min(tasks - call * MANY);
        let sql = format!(
            "SELECT mill.enqueue_many(array_fill('{statement}'::text, ARRAY[{count}]),
                names => ARRAY(SELECT '{call}.' || i FROM generate_series(1, {count}) AS i),
                queue => '{queue}', max_attempts => 100, retry_interval => '200 ms')"
        );
        for (n, row) in session.until_answered(&sql).await?.iter().enumerate() {
            let name = Some(format!("{call}.{}", n + 1));
            let task = Some(row.try_get(0)?);
            ops.push(Op { name, task, ..Op::new(OpKind::Enqueue, Answer::Ok) });
        }
    }
    Ok(ops)
}

/// Moves all effects into one local table, because the checker's queries are not queries that Citus
/// can distribute.
///
/// # Errors
/// Returns an error if a statement fails.
pub(crate) async fn collect_effects(session: &mut Session) -> Result<()> {
    let sql =
        "SELECT undistribute_table('chaos.effect'); SELECT undistribute_table('chaos.second');
        INSERT INTO chaos.effect SELECT * FROM chaos.local_effect";
    Ok(session.connected().await?.batch_execute(sql).await?)
}

/// Checks that each task that writes two shards has written the second one exactly once.
///
/// # Errors
/// Returns an error if the query fails.
pub(crate) async fn second_shard(session: &mut Session) -> Result<Finding> {
    let sql = "SELECT /* chaos.second_shard */ count(*) FROM (SELECT a.task_id, count(s.task) AS rows FROM mill.attempts a
                LEFT JOIN chaos.second s ON s.task = a.task_id
            WHERE a.outcome = 'succeeded' AND a.statement LIKE '%chaos.second%' GROUP BY a.task_id) AS t
        WHERE t.rows <> 1";
    let count = session.number(sql).await?;
    Ok(Finding { invariant: "second_shard_once", count, examples: Vec::new() })
}
