//! Drains a backlog. A job of a peer has a handler, which runs one INSERT through a connection pool
//! of its own; a task of pgmill is this INSERT itself.
//!
//! Times come from the server's clock, in the rows themselves: the measurement starts at the effect
//! that completes the first tenth and ends at the last effect. Process start and runtime warm-up
//! are therefore excluded.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::adapter::{Done, Installed, TIMEOUT, WorkSummary};
use super::install::Participants;
use super::turns::{Candidate, Comparison};
use crate::context::RunContext;
use crate::context::database::{Database, EFFECT};
use crate::fleet::FleetSpec;
use crate::measure::drain::{Until, drain};
use crate::measure::effects;
use crate::measure::rounds::{Measured, rate};
use crate::result::{Check, Scenario};

/// Time limit of a worker per round, in seconds.
const LIMIT: u64 = 120;

/// Goal: the minimum ratio of pgmill with shared commits to the best peer. pgmill with one commit
/// per task has no goal here.
const GOAL: f64 = 2.5;

const RATE: &str = "WITH /* loadtest.peer_rate */ effects AS (SELECT e.at, row_number() OVER (ORDER BY e.at) AS n FROM loadtest.effects e),
    tenth AS (SELECT e.at, e.n FROM effects e WHERE e.n = $1)
SELECT ((SELECT count(*) FROM effects) - t.n)::float8,
    extract(epoch FROM (SELECT max(e.at) FROM effects e) - t.at)::float8
FROM tenth t";

const COUNTS: &str = "SELECT /* loadtest.peer_effects */ count(*), count(DISTINCT e.task), count(*) FILTER (WHERE e.task NOT BETWEEN 1 AND $1)
FROM loadtest.effects e";

pub(crate) async fn run(
    context: &RunContext,
    participants: &Participants,
    tasks: i64,
) -> Result<Scenario> {
    let fleet_spec = FleetSpec::from_options(context);
    let comparison = Comparison {
        participants,
        variants: |peer| &peer.backlog,
        case: rate(""),
        goals: [None, Some(GOAL)],
    };
    let mut scenario = comparison
        .run(context, async |database, candidate, round| {
            let (tasks, check) = match candidate {
                Candidate::Pgmill => {
                    database.refill(&context.progress, (1, tasks), EFFECT).await?;
                    drain(context, database, &fleet_spec, Until::Empty, round).await?;
                    (tasks, effects::all(&*database.session, 1, tasks).await?)
                }
                Candidate::Peer(adapter, variant) => {
                    let tasks = tasks / variant.share;
                    (tasks, of_peer(database, adapter.on(database, variant), tasks).await?)
                }
            };
            Ok(Measured::new(rate_of(database, tasks).await?).check(check))
        })
        .await?;
    scenario.notes.push(format!(
        "{tasks} tasks per round, fewer for slow peers; pgmill: {}, each task's INSERT in one \
         transaction with its completion, so exactly once, and back within seconds when a worker \
         dies; peers: one process, the INSERT goes through a pool of the handler's own",
        fleet_spec.describe()
    ));
    Ok(scenario)
}

async fn of_peer(database: &Database, peer: Installed<'_>, tasks: i64) -> Result<Check> {
    peer.set_up().await?;
    let Done {} = peer.step(&format!("enqueue 1 {tasks}"), TIMEOUT).await?;
    database.vacuum_and_checkpoint().await?;
    let patience = Duration::from_secs(LIMIT) + TIMEOUT;
    let worked: WorkSummary = peer.step(&format!("work effects {tasks} {LIMIT}"), patience).await?;
    let row = database.session.query_one(COUNTS, &[&tasks]).await?;
    let [effects, distinct, strange] = [0, 1, 2].map(|n| row.get(n));
    Ok(effects_check([tasks, worked.done, effects, distinct, strange]))
}

/// Checks the peer's promise of at-least-once execution: every job whose handler finished has had
/// its effect. Duplicate effects, and jobs not run within the time limit, are reported but are not
/// failures.
fn effects_check(counts: [i64; 5]) -> Check {
    let [tasks, done, effects, distinct, strange] = counts;
    let (numbered, doubled) = (distinct - strange, effects - distinct);
    let lost = (done.min(tasks) - doubled - numbered).max(0);
    let left = (tasks - numbered - lost).max(0);
    Check {
        what: "every effect at least once".to_owned(),
        passed: lost == 0 && strange == 0,
        detail: format!(
            "{tasks} jobs, {effects} effects: {lost} lost, {doubled} doubled, {left} not run in \
             {LIMIT} s, {strange} without a job"
        ),
    }
}

/// Returns effects per second after the first tenth.
async fn rate_of(database: &Database, tasks: i64) -> Result<f64> {
    let rows = database.session.query(RATE, &[&(tasks / 10)]).await?;
    let Some(row) = rows.first() else {
        anyhow::bail!("less than a tenth of the jobs finished within {LIMIT} s");
    };
    let (effects, seconds): (f64, f64) = (row.get(0), row.get(1));
    ensure!(effects > 0.0 && seconds > 0.0, "too few effects for a rate");
    Ok(effects / seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_doubled_and_left_are_told_apart() {
        let verdict = |counts| {
            let check = effects_check(counts);
            (check.passed, check.detail)
        };
        let text = |counts: &str| format!("100 jobs, {counts} in 120 s, 0 without a job");
        let all = "100 effects: 0 lost, 0 doubled, 0 not run";
        assert_eq!(verdict([100, 100, 100, 100, 0]), (true, text(all)));
        let doubled = "102 effects: 0 lost, 2 doubled, 0 not run";
        assert_eq!(verdict([100, 102, 102, 100, 0]), (true, text(doubled)));
        let early = "100 effects: 0 lost, 2 doubled, 2 not run";
        assert_eq!(verdict([100, 100, 100, 98, 0]), (true, text(early)));
        let lost = "97 effects: 3 lost, 0 doubled, 0 not run";
        assert_eq!(verdict([100, 100, 97, 97, 0]), (false, text(lost)));
        let slow = "40 effects: 0 lost, 0 doubled, 60 not run";
        assert_eq!(verdict([100, 40, 40, 40, 0]), (true, text(slow)));
    }
}
