//! Alternates pgmill and the peers, and compares pgmill with the best peer.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::Result;
use queue::operate::set_shared_commit;

use super::adapter::Adapter;
use super::catalog::Variant;
use super::round::fresh_database;
use crate::context::RunContext;
use crate::context::database::{Database, QUEUE};
use crate::result::{Better, Case, Scenario};
use crate::scenarios::throughput::drain::BUDGET;

/// pgmill's configurations for a backlog: label, budget of shared commits.
pub(crate) const OWN: [(&str, Option<Duration>); 2] =
    [("pgmill, one commit per task", None), ("pgmill, shared commits, 50 ms", Some(BUDGET))];

/// A participant of a scenario.
#[derive(Clone, Copy)]
pub(crate) enum Candidate<'a> {
    /// pgmill, in one of its own configurations.
    Own(usize),
    Peer(&'a Adapter, &'static Variant),
}

/// A candidate with its results.
pub(crate) struct Entry<'a> {
    pub(crate) candidate: Candidate<'a>,
    name: String,
    /// One case for each number that a round produces.
    pub(crate) cases: Vec<Case>,
    /// Reason why the candidate dropped out.
    pub(crate) failed: Option<String>,
}

impl<'a> Entry<'a> {
    pub(crate) fn own(way: usize, name: &str, cases: Vec<Case>) -> Self {
        Self { candidate: Candidate::Own(way), name: name.to_owned(), cases, failed: None }
    }

    /// Creates the entry of a peer with the cases for its name.
    pub(crate) fn peer(
        adapter: &'a Adapter,
        variant: &'static Variant,
        cases: impl Fn(&str) -> Vec<Case>,
    ) -> Self {
        let name = adapter.peer.case(variant);
        Self {
            candidate: Candidate::Peer(adapter, variant),
            cases: cases(&name),
            name,
            failed: None,
        }
    }

    fn own_case(&self) -> bool {
        matches!(self.candidate, Candidate::Own(_))
    }

    /// Drops the candidate; earlier rounds are kept.
    fn give_up(&mut self, round: usize, error: &anyhow::Error) {
        self.failed = Some(format!("{} failed in round {round}: {error:#}", self.name));
        for case in &mut self.cases {
            let _ = write!(case.name, ": failed in round {round}");
        }
    }
}

/// Measures each entry once per round, in order in odd rounds and in reverse order in even rounds.
/// A peer that fails takes no further turns, and its cases are labelled with the failure; a failure
/// of pgmill is an error. `measure` receives a new database, the entry's index, the candidate and
/// the round, and returns one value per case.
pub(crate) async fn take_turns(
    context: &RunContext,
    scenario: &str,
    entries: &mut [Entry<'_>],
    mut measure: impl AsyncFnMut(&Database, usize, Candidate<'_>, usize) -> Result<Vec<f64>>,
) -> Result<()> {
    let rounds = context.rounds();
    for (round, n) in turns(rounds, entries.len()) {
        let entry = &mut entries[n];
        if entry.failed.is_some() {
            continue;
        }
        let when = format!("round {round} of {rounds}");
        context.progress.stage(&format!("{scenario}: {}, {when}", entry.name));
        // A server error is not a failure of the candidate.
        let database = fresh_database(context, &format!("{n}_{round}")).await?;
        let measured = measure(&database, n, entry.candidate, round).await;
        context.drop_database(database).await?;
        match measured {
            Ok(values) => {
                for (case, value) in entry.cases.iter_mut().zip(values) {
                    let Case { name, unit, .. } = &case;
                    context
                        .progress
                        .line(&format!("{scenario}: {name}, {when}: {value:.2} {unit}"));
                    case.rounds.push(value);
                }
            }
            Err(error) if entry.own_case() => return Err(error),
            Err(error) => {
                entry.give_up(round, &error);
                context.progress.line(entry.failed.as_deref().unwrap_or_default());
            }
        }
        let cases: Vec<Case> = entries.iter().flat_map(|entry| entry.cases.clone()).collect();
        context.keep(&cases);
    }
    Ok(())
}

/// Yields the turns: each is a round, counted from 1, and the index of an entry.
fn turns(rounds: usize, entries: usize) -> impl Iterator<Item = (usize, usize)> {
    (1..=rounds).flat_map(move |round| {
        (0..entries).map(move |n| (round, if round % 2 == 1 { n } else { entries - 1 - n }))
    })
}

/// Sets the shared commits of the queue as in this configuration of [`OWN`].
pub(crate) async fn choose_way(database: &Database, way: usize) -> Result<()> {
    let (_, budget) = OWN[way];
    Ok(set_shared_commit(&*database.session, QUEUE, budget).await?)
}

/// Builds the scenario from the entries. The reference of each pgmill case is the best peer of the
/// same measurement; without a peer there is no goal.
pub(crate) fn into_scenario(mut entries: Vec<Entry<'_>>) -> Scenario {
    let max_cases = entries.iter().map(|entry| entry.cases.len()).max().unwrap_or(0);
    for place in 0..max_cases {
        let best = best_peer(&entries, place);
        let own = entries.iter_mut().filter(|entry| entry.own_case());
        for case in own.filter_map(|entry| entry.cases.get_mut(place)) {
            case.reference.clone_from(&best);
            case.goal = case.goal.filter(|_| best.is_some());
        }
    }
    let mut scenario = Scenario::default();
    for entry in entries {
        scenario.notes.extend(entry.failed);
        if let Candidate::Peer(adapter, variant) = entry.candidate {
            let settings: Vec<&str> = variant.settings.split_whitespace().collect();
            let (settings, promise) = (settings.join(" "), adapter.peer.promise);
            scenario.notes.push(format!("{}: {settings}; {promise}", entry.name));
        }
        scenario.cases.extend(entry.cases);
    }
    scenario
}

fn best_peer(entries: &[Entry<'_>], place: usize) -> Option<String> {
    let peers = entries.iter().filter(|entry| !entry.own_case() && entry.failed.is_none());
    let cases = peers.filter_map(|entry| entry.cases.get(place));
    let best = cases.reduce(|best, case| {
        let (Some(a), Some(b)) = (case.median(), best.median()) else { return best };
        let better = match case.better {
            Better::Higher => a > b,
            Better::Lower => a < b,
        };
        if better { case } else { best }
    });
    best.map(|case| case.name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::rounds::rate;
    use crate::peers::catalog::PEERS;

    fn case(name: &str, rounds: &[f64]) -> Case {
        Case { rounds: rounds.to_vec(), ..rate(name) }
    }

    fn own(goal: Option<f64>) -> Entry<'static> {
        Entry::own(0, "pgmill", vec![Case { goal, ..case("pgmill", &[500.0]) }])
    }

    fn peer<'a>(adapter: &'a Adapter, name: &str, rounds: &[f64]) -> Entry<'a> {
        Entry::peer(adapter, &PEERS[0].backlog[0], |_| vec![case(name, rounds)])
    }

    #[test]
    fn odd_rounds_go_forth_and_even_ones_back() {
        let all: Vec<_> = turns(2, 3).collect();
        assert_eq!(all, [(1, 0), (1, 1), (1, 2), (2, 2), (2, 1), (2, 0)]);
    }

    #[test]
    fn pgmill_is_compared_with_the_best_peer_that_did_not_fail() {
        let adapter = Adapter::new(PEERS[0], "true".into(), None);
        let mut failed = peer(&adapter, "broken", &[900.0]);
        failed.give_up(2, &anyhow::anyhow!("it broke"));
        let slow = peer(&adapter, "slow", &[100.0]);
        let fast = peer(&adapter, "fast", &[200.0]);
        let scenario = into_scenario(vec![own(Some(2.5)), slow, fast, failed]);
        assert_eq!(scenario.cases[0].reference.as_deref(), Some("fast"));
        assert_eq!(scenario.goal_met(&scenario.cases[0]), Some(true));
        assert_eq!(scenario.cases[3].name, "broken: failed in round 2");
        assert_eq!(scenario.cases[3].rounds, [900.0]);
        assert!(scenario.notes.iter().any(|note| note.ends_with("failed in round 2: it broke")));
    }

    #[test]
    fn without_a_peer_there_is_nothing_to_be_better_than() {
        let alone = into_scenario(vec![own(Some(2.5))]);
        assert_eq!((alone.cases[0].reference.clone(), alone.cases[0].goal), (None, None));
    }
}
