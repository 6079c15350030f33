//! What a run leaves behind: the numbers, and all that is needed to read them later. Written as
//! JSON, read back by `report` and `--compare`.

use serde::{Deserialize, Serialize};

/// Version of this format.
pub const FORMAT: u32 = 1;

/// One `loadtest run`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// [`FORMAT`] of the program that wrote it.
    pub format: u32,
    /// By the database's clock, RFC 3339.
    pub started_at: String,
    /// The arguments that make this run again.
    pub command: String,
    /// Version of the programs under test.
    pub version: String,
    /// Where it ran.
    pub machine: Machine,
    /// On which server.
    pub server: Server,
    /// In the order of the run.
    pub scenarios: Vec<Scenario>,
}

/// The computer that server and fleet shared.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Processors that this process may use.
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
    /// Settings that bear on speed: name, value with unit.
    pub settings: Vec<(String, String)>,
    /// Median of a one-row commit that waits for the disk, on one connection, in milliseconds.
    pub commit_ms: f64,
}

/// One scenario: things measured side by side, in alternating rounds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Scenario {
    /// As on the command line.
    pub name: String,
    /// One line for people.
    pub title: String,
    /// What was measured, the references beside what is compared with them.
    pub cases: Vec<Case>,
    /// What had to be true afterwards.
    pub checks: Vec<Check>,
    /// What a reader has to know: settings other than the defaults, what was left out and why.
    pub notes: Vec<String>,
}

/// One thing measured, once per round.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// Unique in its scenario: `pgmill`, `ceiling`, `10M pending`.
    pub name: String,
    /// `tasks/s`, `ms`, `kB/min`, …
    pub unit: String,
    /// Which way is better.
    pub better: Better,
    /// One value per round.
    pub rounds: Vec<f64>,
    /// Name of the case that it is a ratio of.
    pub reference: Option<String>,
    /// Bound for the ratio to the reference, or for the value where there is no reference.
    pub goal: Option<f64>,
    /// Where single events were timed.
    pub percentiles: Option<Percentiles>,
    /// What was sampled while it ran, for the plots.
    pub series: Vec<Series>,
}

/// Which way a number gets better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    /// Rates.
    #[default]
    Higher,
    /// LatencyHistogram, bytes, statements.
    Lower,
}

/// A latency distribution in milliseconds, over all rounds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// How many were timed.
    pub count: u64,
    /// Half took no longer.
    pub p50: f64,
    /// Nine in ten.
    pub p90: f64,
    /// 99 in 100.
    pub p99: f64,
    /// 999 in 1,000.
    pub p999: f64,
    /// The slowest.
    pub max: f64,
    /// The curve: percentile (0 to 100), milliseconds.
    pub curve: Vec<(f64, f64)>,
}

/// A number that was looked at once a second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// `throughput`, `dead rows`, `claim buffers`, `worker memory`.
    pub name: String,
    /// Of the values.
    pub unit: String,
    /// Round it belongs to, from 1.
    pub round: usize,
    /// Seconds since the round began, value.
    pub points: Vec<(f64, f64)>,
}

/// Something that has to hold whatever the speed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// `every effect exactly once`.
    pub what: String,
    /// Whether it held.
    pub passed: bool,
    /// The counts that it was judged by.
    pub detail: String,
}

impl Case {
    /// The middle of the rounds.
    #[must_use]
    pub fn median(&self) -> Option<f64> {
        let mut rounds = self.rounds.clone();
        rounds.sort_by(f64::total_cmp);
        let middle = rounds.len() / 2;
        match rounds.len() {
            0 => None,
            n if n % 2 == 1 => Some(rounds[middle]),
            _ => Some(f64::midpoint(rounds[middle - 1], rounds[middle])),
        }
    }

    /// Distance of the lowest round from the highest, as a share of the median.
    #[must_use]
    pub fn spread(&self) -> Option<f64> {
        let median = self.median()?;
        let low = self.rounds.iter().copied().min_by(f64::total_cmp)?;
        let high = self.rounds.iter().copied().max_by(f64::total_cmp)?;
        (median != 0.0).then(|| (high - low) / median)
    }
}

impl Scenario {
    /// The median of the case's ratios to its reference, round by round: both met the same weather.
    #[must_use]
    pub fn ratio(&self, case: &Case) -> Option<f64> {
        let reference = case.reference.as_ref()?;
        let reference = self.cases.iter().find(|other| other.name == *reference)?;
        let pairs = case.rounds.iter().zip(&reference.rounds);
        let rounds = pairs.map(|(value, reference)| value / reference).collect();
        Case { rounds, ..Case::default() }.median()
    }

    /// Whether the case meets its goal; `None` if it has none, or nothing to judge it by.
    #[must_use]
    pub fn met(&self, case: &Case) -> Option<bool> {
        let goal = case.goal?;
        let value = match case.reference {
            Some(_) => self.ratio(case)?,
            None => case.median()?,
        };
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
        assert_eq!(scenario.cases[0].spread(), Some(1.8));
        assert_eq!(scenario.ratio(&scenario.cases[1]), Some(0.8));
        assert_eq!(scenario.met(&scenario.cases[1]), Some(true));
    }
}
