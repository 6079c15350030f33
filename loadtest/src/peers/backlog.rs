//! Drains a backlog. A job of a peer has a handler, which runs one INSERT through a connection pool
//! of its own; a task of pgmill is this INSERT itself.
//!
//! Times come from the server's clock, in the rows themselves: the measurement starts at the effect
//! that completes the first tenth and ends at the last effect. Process start and runtime warm-up
//! are therefore excluded.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::adapter::{Adapter, EnqueueTime, StepContext, TIMEOUT, WorkSummary};
use super::catalog::Variant;
use super::install::Participants;
use super::round::{set_up, vacuum_and_checkpoint};
use super::turns::{Candidate, Entry, OWN, choose_way, into_scenario, take_turns};
use crate::context::RunContext;
use crate::context::database::{Database, EFFECT};
use crate::fleet::FleetSpec;
use crate::measure::drain::{Until, close_queue, drain};
use crate::measure::effects;
use crate::measure::rounds::rate;
use crate::result::{Case, Check, Scenario};

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

pub(super) async fn run(
    context: &RunContext,
    participants: &Participants,
    tasks: i64,
) -> Result<Scenario> {
    let fleet_spec = FleetSpec::from_options(context);
    let mut entries = entries(participants);
    let mut checks = Vec::new();
    take_turns(context, "peers", &mut entries, async |database, _, candidate, round| {
        let (rate, check) = match candidate {
            Candidate::Own(way) => {
                choose_way(database, way).await?;
                let (rate, check) = own_round(context, database, &fleet_spec, tasks, round).await?;
                let what = format!("{}, {}, round {round}", check.what, OWN[way].0);
                (rate, Check { what, ..check })
            }
            Candidate::Peer(adapter, variant) => {
                let tasks = tasks / variant.share;
                peer_round(database, (adapter, variant), tasks, round).await?
            }
        };
        checks.push(check);
        Ok(vec![rate])
    })
    .await?;
    let mut scenario = into_scenario(entries);
    scenario.checks = checks;
    scenario.notes.push(format!(
        "{tasks} tasks per round, fewer for slow peers; pgmill: {}, each task's INSERT in one \
         transaction with its completion, so exactly once, and back within seconds when a worker \
         dies; peers: one process, the INSERT goes through a pool of the handler's own",
        fleet_spec.describe()
    ));
    Ok(scenario)
}

fn entries(participants: &Participants) -> Vec<Entry<'_>> {
    let mut entries = Vec::new();
    for (way, (name, budget)) in OWN.into_iter().enumerate() {
        let case = Case { goal: budget.map(|_| GOAL), ..rate(name) };
        entries.push(Entry::own(way, name, vec![case]));
    }
    for adapter in &participants.adapters {
        for variant in adapter.peer.backlog {
            entries.push(Entry::peer(adapter, variant, |name| vec![rate(name)]));
        }
    }
    entries
}

async fn own_round(
    context: &RunContext,
    database: &Database,
    fleet_spec: &FleetSpec,
    tasks: i64,
    round: usize,
) -> Result<(f64, Check)> {
    close_queue(database).await?;
    database.fill(&context.progress, (1, tasks), EFFECT).await?;
    vacuum_and_checkpoint(database).await?;
    drain(context, database, fleet_spec, Until::Empty, round).await?;
    let check = effects::all(&*database.session, 1, tasks).await?;
    Ok((rate_of(database, tasks).await?, check))
}

async fn peer_round(
    database: &Database,
    (adapter, variant): (&Adapter, &'static Variant),
    tasks: i64,
    round: usize,
) -> Result<(f64, Check)> {
    set_up(database, adapter, variant).await?;
    let step_context = StepContext { url: database.url(), settings: variant.settings };
    let _: EnqueueTime = adapter.step(step_context, &format!("enqueue 1 {tasks}"), TIMEOUT).await?;
    vacuum_and_checkpoint(database).await?;
    let patience = Duration::from_secs(LIMIT) + TIMEOUT;
    let worked: WorkSummary =
        adapter.step(step_context, &format!("work effects {tasks} {LIMIT}"), patience).await?;
    let row = database.session.query_one(COUNTS, &[&tasks]).await?;
    let (effects, distinct, strange): (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
    let name = adapter.peer.case(variant);
    let check = effects_check(&name, round, [tasks, worked.done, effects, distinct, strange]);
    Ok((rate_of(database, tasks).await?, check))
}

/// Checks the peer's promise of at-least-once execution: every job whose handler finished has had
/// its effect. Duplicate effects, and jobs not run within the time limit, are reported but are not
/// failures.
fn effects_check(name: &str, round: usize, counts: [i64; 5]) -> Check {
    let [tasks, done, effects, distinct, strange] = counts;
    let (numbered, doubled) = (distinct - strange, effects - distinct);
    let lost = (done.min(tasks) - doubled - numbered).max(0);
    let left = (tasks - numbered - lost).max(0);
    Check {
        what: format!("every effect at least once, {name}, round {round}"),
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
            let check = effects_check("peer", 1, counts);
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
