//! Results of a run: the numbers and everything needed to interpret them later. `--json` writes
//! them as JSON; `report` and `--compare` read them.

use serde::{Deserialize, Serialize};

/// Version of the JSON format.
pub const FORMAT: u32 = 1;

/// One `loadtest run`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// [`FORMAT`] of the program that wrote it.
    pub format: u32,
    /// Start by the database's clock, RFC 3339.
    pub started_at: String,
    /// Arguments that repeat this run.
    pub command: String,
    /// Version of the programs under test.
    pub version: String,
    /// Machine that ran the load test.
    pub machine: Machine,
    /// Server under test.
    pub server: Server,
    /// Scenarios in the order of the run.
    pub scenarios: Vec<Scenario>,
}

/// The machine shared by server and fleet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Processors available to this process.
    pub cores: usize,
    /// Model of the processor.
    pub processor: String,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Kernel name and release.
    pub kernel: String,
}

/// The PostgreSQL server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Server {
    /// `server_version`.
    pub version: String,
    /// Settings that affect speed: name, value with unit.
    pub settings: Vec<(String, String)>,
    /// Median of a durable one-row commit on one connection, in milliseconds.
    pub commit_ms: f64,
}

/// One scenario: cases measured in alternating rounds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Scenario {
    /// Name on the command line.
    pub name: String,
    /// One-line description.
    pub title: String,
    /// Measured cases, including the references.
    pub cases: Vec<Case>,
    /// Conditions that must hold afterwards.
    pub checks: Vec<Check>,
    /// Notes for the reader: non-default settings, omitted cases with the reason.
    pub notes: Vec<String>,
}

/// One measured case, with one value per round.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// Unique name within the scenario: `pgmill`, `ceiling`, `10M pending`.
    pub name: String,
    /// Unit: `tasks/s`, `ms`, `kB/min`, …
    pub unit: String,
    /// Direction of improvement.
    pub better: Better,
    /// One value per round.
    pub rounds: Vec<f64>,
    /// Name of the case that serves as the reference.
    pub reference: Option<String>,
    /// Bound for the ratio to the reference, or for the value if there is no reference.
    pub goal: Option<f64>,
    /// Percentiles, if single events were timed.
    pub percentiles: Option<Percentiles>,
    /// Series sampled during the rounds, for the plots.
    pub series: Vec<Series>,
}

/// Direction in which a number improves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    /// Rates.
    #[default]
    Higher,
    /// Latencies, bytes, statements.
    Lower,
}

/// Latency distribution in milliseconds, over all rounds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// Number of timed events.
    pub count: u64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// Maximum.
    pub max: f64,
    /// Percentile curve: percentile (0 to 100), milliseconds.
    pub curve: Vec<(f64, f64)>,
}

/// A number sampled once a second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// `throughput`, `dead rows`, `claim buffers`, `worker memory`.
    pub name: String,
    /// Unit of the values.
    pub unit: String,
    /// Round of the series, from 1.
    pub round: usize,
    /// Seconds since the start of the round, value.
    pub points: Vec<(f64, f64)>,
}

impl Series {
    /// Returns a series of counts in each full second; the last second is incomplete, and left out.
    pub(crate) fn by_second(
        name: &str,
        unit: &str,
        round: usize,
        (counts, seconds): (Vec<(f64, f64)>, f64),
    ) -> Self {
        let full = counts.into_iter().filter(|(second, _)| *second < seconds.floor());
        let points = full.map(|(second, count)| (second + 0.5, count)).collect();
        Self { name: name.to_owned(), unit: unit.to_owned(), round, points }
    }
}

/// A condition that must hold regardless of speed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// Condition, for example `every effect exactly once`.
    pub what: String,
    /// Whether the condition holds.
    pub passed: bool,
    /// Counts that the verdict follows from.
    pub detail: String,
}

impl Results {
    /// Every case with its scenario, in the order of the run.
    pub fn cases(&self) -> impl Iterator<Item = (&Scenario, &Case)> {
        let scenarios = self.scenarios.iter();
        scenarios.flat_map(|scenario| scenario.cases.iter().map(move |case| (scenario, case)))
    }

    /// Every case that has a goal.
    pub fn goals(&self) -> impl Iterator<Item = (&Scenario, &Case)> {
        self.cases().filter(|(_, case)| case.goal.is_some())
    }

    /// Every check.
    pub fn checks(&self) -> impl Iterator<Item = &Check> {
        self.scenarios.iter().flat_map(|scenario| &scenario.checks)
    }
}

/// Returns the median.
#[must_use]
pub fn median(rounds: &[f64]) -> Option<f64> {
    let mut rounds = rounds.to_vec();
    rounds.sort_by(f64::total_cmp);
    let middle = rounds.len() / 2;
    match rounds.len() {
        0 => None,
        n if n % 2 == 1 => Some(rounds[middle]),
        _ => Some(f64::midpoint(rounds[middle - 1], rounds[middle])),
    }
}

/// Returns the distance between the lowest and the highest round as a share of the median.
#[must_use]
pub fn spread(rounds: &[f64]) -> Option<f64> {
    let median = median(rounds)?;
    let low = rounds.iter().copied().min_by(f64::total_cmp)?;
    let high = rounds.iter().copied().max_by(f64::total_cmp)?;
    (median != 0.0).then(|| (high - low) / median)
}

impl Case {
    /// Returns the median of the rounds.
    #[must_use]
    pub fn median(&self) -> Option<f64> {
        median(&self.rounds)
    }
}

impl Scenario {
    /// Returns the judged number of each round: the ratio to the reference in the same round, because
    /// both sides ran under the same conditions, or the value of a case without a reference.
    #[must_use]
    pub fn judged(&self, case: &Case) -> Vec<f64> {
        let Some(name) = &case.reference else { return case.rounds.clone() };
        let reference = self.cases.iter().find(|other| other.name == *name);
        let pairs = case.rounds.iter().zip(reference.into_iter().flat_map(|it| &it.rounds));
        pairs.map(|(value, reference)| value / reference).collect()
    }

    /// Returns the median of the judged numbers; `None` if there is no such number.
    #[must_use]
    pub fn value(&self, case: &Case) -> Option<f64> {
        median(&self.judged(case)).filter(|value| value.is_finite())
    }

    /// Returns the ratio of the case to its reference.
    #[must_use]
    pub fn ratio(&self, case: &Case) -> Option<f64> {
        self.value(case).filter(|_| case.reference.is_some())
    }

    /// Returns whether the case meets its goal; `None` without a goal or without a number to judge.
    #[must_use]
    pub fn goal_met(&self, case: &Case) -> Option<bool> {
        let (goal, value) = (case.goal?, self.value(case)?);
        Some(match case.better {
            Better::Higher => value >= goal,
            Better::Lower => value <= goal,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_taken_round_by_round() {
        let ceiling =
            Case { name: "ceiling".into(), rounds: vec![100.0, 10.0, 50.0], ..Case::default() };
        let pgmill = Case {
            name: "pgmill".into(),
            rounds: vec![90.0, 8.0, 40.0],
            reference: Some("ceiling".into()),
            goal: Some(0.8),
            ..Case::default()
        };
        let scenario = Scenario { cases: vec![ceiling, pgmill], ..Scenario::default() };
        assert_eq!(scenario.cases[0].median(), Some(50.0));
        assert_eq!(spread(&scenario.cases[0].rounds), Some(1.8));
        assert_eq!(scenario.ratio(&scenario.cases[1]), Some(0.8));
        assert_eq!(scenario.goal_met(&scenario.cases[1]), Some(true));
    }

    #[test]
    fn a_ratio_without_a_reference_or_to_nothing_is_no_number() {
        let case = Case {
            rounds: vec![1.0],
            reference: Some("zero".into()),
            goal: Some(0.8),
            ..Case::default()
        };
        let zero = Case { name: "zero".into(), rounds: vec![0.0], ..Case::default() };
        for cases in [vec![case.clone()], vec![case.clone(), zero]] {
            let scenario = Scenario { cases, ..Scenario::default() };
            assert_eq!((scenario.value(&case), scenario.goal_met(&case)), (None, None));
        }
    }
}
