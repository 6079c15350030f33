//! Alternates pgmill and the peers, and compares pgmill with the best peer.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::Result;
use queue::operate::set_shared_commit;

use super::adapter::Adapter;
use super::catalog::{Peer, Variant};
use super::install::Participants;
use crate::context::RunContext;
use crate::context::database::{Database, QUEUE};
use crate::measure::rounds::{Measured, alternate};
use crate::result::{Better, Case, Scenario};
use crate::scenarios::throughput::drain::BUDGET;

/// pgmill's configurations: label, budget of shared commits.
const OWN: [(&str, Option<Duration>); 2] =
    [("pgmill, one commit per task", None), ("pgmill, shared commits, 50 ms", Some(BUDGET))];

/// Tables for the peers in addition to those of the other scenarios. Start times come from the
/// server's clock; each task of pgmill and of a peer writes one row.
const TABLES: &str = "ALTER /* loadtest.peer_tables */ TABLE loadtest.effects ADD at timestamptz NOT NULL DEFAULT clock_timestamp();
CREATE TABLE loadtest.starts (task bigint NOT NULL, at timestamptz NOT NULL)";

/// A participant of a scenario.
#[derive(Clone, Copy)]
pub(super) enum Candidate<'a> {
    Pgmill,
    Peer(&'a Adapter, &'static Variant),
}

/// What a scenario compares.
pub(super) struct Comparison<'a> {
    pub(super) participants: &'a Participants,
    /// The configurations of a peer in this scenario.
    pub(super) variants: fn(&Peer) -> &[Variant],
    /// A case without a name.
    pub(super) case: Case,
    /// Goals of pgmill's configurations for the ratio to the best peer.
    pub(super) goals: [Option<f64>; 2],
}

impl Comparison<'_> {
    /// Measures each candidate once per round. A peer that fails takes no further turns, and its
    /// case is labelled with the failure; a failure of pgmill is an error. `measure` receives a new
    /// database.
    pub(super) async fn run(
        self,
        context: &RunContext,
        mut measure: impl AsyncFnMut(&Database, Candidate<'_>, usize) -> Result<Measured>,
    ) -> Result<Scenario> {
        let mut names: Vec<String> = OWN.iter().map(|(name, _)| (*name).to_owned()).collect();
        let mut peers = Vec::new();
        for adapter in &self.participants.adapters {
            for variant in (self.variants)(adapter.peer) {
                names.push(adapter.peer.case(variant));
                peers.push((adapter, variant));
            }
        }
        let mut failed = vec![None; names.len()];
        let cases = names.into_iter().map(|name| Case { name, ..self.case.clone() });
        let mut scenario = alternate(context, cases.collect(), async |n, round| {
            if failed[n].is_some() {
                return Ok(Measured::default());
            }
            let database = context.database(&format!("peers_{n}_{round}")).await?;
            database.session.batch_execute(TABLES).await?;
            let measured = match n.checked_sub(OWN.len()) {
                None => {
                    set_shared_commit(&*database.session, QUEUE, OWN[n].1).await?;
                    measure(&database, Candidate::Pgmill, round).await?
                }
                Some(n_peer) => {
                    let (adapter, variant) = peers[n_peer];
                    let candidate = Candidate::Peer(adapter, variant);
                    measure(&database, candidate, round).await.unwrap_or_else(|error| {
                        let peer = adapter.peer.case(variant);
                        let note = format!("{peer} failed in round {round}: {error:#}");
                        context.progress.line(&note);
                        failed[n] = Some(round);
                        Measured { note: Some(note), ..Measured::default() }
                    })
                }
            };
            context.drop_database(database).await?;
            Ok(measured)
        })
        .await?;
        set_references(&mut scenario.cases, self.goals, &failed);
        for (adapter, variant) in peers {
            let (name, promise) = (adapter.peer.case(variant), &adapter.peer.promise);
            scenario.notes.push(format!("{name}: {}; {promise}", variant.settings));
        }
        for (name, reason) in &self.participants.missing {
            scenario.cases.push(Case { name: format!("{name}: not installed"), ..Case::default() });
            scenario.notes.push(format!("{name} is not installed: {reason}"));
        }
        Ok(scenario)
    }
}

/// Makes the best peer that did not fail the reference of pgmill's cases, which are the first;
/// without a peer there is no goal. Labels the cases that failed with the round.
fn set_references(cases: &mut [Case], goals: [Option<f64>; 2], failed: &[Option<usize>]) {
    let peers = cases.iter().zip(failed).skip(OWN.len()).filter(|(_, failed)| failed.is_none());
    let peers = peers.filter_map(|(case, _)| Some((case.median()?, case)));
    let best = peers.max_by(|(a, case), (b, _)| match case.better {
        Better::Higher => a.total_cmp(b),
        Better::Lower => b.total_cmp(a),
    });
    let best = best.map(|(_, case)| case.name.clone());
    for (case, goal) in cases.iter_mut().zip(goals) {
        case.reference.clone_from(&best);
        case.goal = goal.filter(|_| best.is_some());
    }
    for (case, round) in cases.iter_mut().zip(failed) {
        if let Some(round) = round {
            let _ = write!(case.name, ": failed in round {round}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::rounds::rate;

    #[test]
    fn pgmill_is_compared_with_the_best_peer_that_did_not_fail() {
        let case = |name: &str, rounds: &[f64]| Case { rounds: rounds.to_vec(), ..rate(name) };
        let mut cases = vec![
            case("pgmill", &[400.0]),
            case("pgmill, shared", &[500.0]),
            case("slow", &[100.0]),
            case("fast", &[200.0]),
            case("broken", &[900.0]),
        ];
        let failed = [None, None, None, None, Some(2)];
        set_references(&mut cases, [None, Some(2.5)], &failed);
        assert_eq!(cases[4].name, "broken: failed in round 2");
        let scenario = Scenario { cases, ..Scenario::default() };
        assert_eq!(scenario.cases[1].reference.as_deref(), Some("fast"));
        assert_eq!(scenario.goal_met(&scenario.cases[1]), Some(true));
        assert_eq!(scenario.goal_met(&scenario.cases[0]), None);

        let mut alone = [case("pgmill", &[400.0]), case("pgmill, shared", &[500.0])];
        set_references(&mut alone, [None, Some(2.5)], &[None, None]);
        assert_eq!((alone[1].reference.clone(), alone[1].goal), (None, None));
    }
}
