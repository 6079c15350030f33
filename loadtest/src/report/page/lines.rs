//! Converts the samples of a scenario to plot lines: every round, and the median.

use crate::report::goal_check::is_reference_only;
use crate::report::plot::{Axis, Line, Plot, STYLES, Scale};
use crate::result::{Case, Scenario, Series};

/// Maximum number of points of a thick line.
const MAX_POINTS: f64 = 120.0;
/// Maximum number of spans of a thin line; each span keeps its lowest and highest point.
const SPANS: usize = 150;

/// Returns the style of each case: neutral for references, the others in turn.
#[must_use]
pub(crate) fn styles(scenario: &Scenario) -> Vec<usize> {
    let mut neutral_is_free = true;
    let mut next = 1;
    let style = |case: &Case| {
        if neutral_is_free && is_reference_only(scenario, case) {
            neutral_is_free = false;
            return 0;
        }
        let style = next;
        next = next % (STYLES - 1) + 1;
        style
    };
    scenario.cases.iter().map(style).collect()
}

/// Returns one plot per sampled series, in the order of the first case that has the series.
#[must_use]
pub(crate) fn plots(scenario: &Scenario) -> Vec<Plot> {
    let mut things: Vec<(&str, &str)> = Vec::new();
    for series in scenario.cases.iter().flat_map(|case| &case.series) {
        let thing = (series.name.as_str(), series.unit.as_str());
        if !things.contains(&thing) {
            things.push(thing);
        }
    }
    things.into_iter().filter_map(|thing| over_time(scenario, thing)).collect()
}

fn over_time(scenario: &Scenario, (name, unit): (&str, &str)) -> Option<Plot> {
    let cases = scenario.cases.iter().zip(styles(scenario));
    let lines: Vec<Line> = cases
        .filter_map(|(case, style)| {
            let of_it = |series: &&Series| series.name == name && series.unit == unit;
            line(case, style, &case.series.iter().filter(of_it).collect::<Vec<_>>())
        })
        .collect();
    let levels: Vec<f64> = lines.iter().filter_map(|line| level(&line.points)).collect();
    let points =
        || lines.iter().flat_map(|line| line.rounds.iter().chain([&line.points])).flatten();
    let lowest = points().map(|point| point.1).reduce(f64::min)?;
    let several = lines.iter().any(|line| !line.rounds.is_empty());
    Some(Plot {
        title: sentence(name),
        note: if several { "thin: each round, thick: their median" } else { "" }.to_owned(),
        x: Axis { label: "seconds".to_owned(), scale: Scale::Linear },
        y: Axis::fitting(unit, &levels, lowest),
        lines,
    })
}

/// Builds the line of a case from its rounds and their median.
fn line(case: &Case, style: usize, series: &[&Series]) -> Option<Line> {
    let mut rounds: Vec<Vec<(f64, f64)>> = Vec::new();
    for round in series {
        let finite = |point: &&(f64, f64)| point.0.is_finite() && point.1.is_finite();
        let points: Vec<_> = round.points.iter().filter(finite).copied().collect();
        if !points.is_empty() {
            rounds.push(points);
        }
    }
    let points = match &rounds[..] {
        [] => return None,
        [only] => thinned(only),
        several => middle(several),
    };
    let rounds =
        if rounds.len() > 1 { rounds.iter().map(|it| thinned(it)).collect() } else { vec![] };
    Some(Line { name: case.name.clone(), style, points, rounds })
}

/// Returns the median of the rounds in each span of time in which at least half of the rounds still
/// ran.
fn middle(rounds: &[Vec<(f64, f64)>]) -> Vec<(f64, f64)> {
    let end = rounds.iter().flatten().map(|point| point.0).fold(0.0, f64::max);
    let longest = rounds.iter().map(Vec::len).max().unwrap_or(1);
    let longest = f64::from(u32::try_from(longest).unwrap_or(u32::MAX));
    let spans = (longest - 1.0).clamp(1.0, MAX_POINTS).floor();
    let span = if end > 0.0 { end / spans } else { 1.0 };
    let mut points = Vec::new();
    let mut number = 0.0;
    while number <= spans {
        let within = |time: f64| ((time / span).round() - number).abs() < 0.5;
        let means: Vec<f64> = rounds
            .iter()
            .filter_map(|round| mean(round.iter().filter(|it| within(it.0)).map(|it| it.1)))
            .collect();
        if means.len() * 2 >= rounds.len() {
            let value = Case { rounds: means, ..Case::default() }.median();
            points.extend(value.map(|value| (number * span, value)));
        }
        number += 1.0;
    }
    points
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    (count > 0.0).then(|| sum / count)
}

/// Reduces the points of a line: keeps the lowest and the highest point of each span, so that
/// spikes and gaps remain visible.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    if points.len() <= 2 * SPANS {
        return points.to_vec();
    }
    let mut kept = Vec::new();
    for span in points.chunks(points.len().div_ceil(SPANS)) {
        let by_value = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
        let (Some(low), Some(high)) = (span.iter().min_by(by_value), span.iter().max_by(by_value))
        else {
            continue;
        };
        let (first, second) = if low.0 <= high.0 { (low, high) } else { (high, low) };
        kept.push(*first);
        if second.0 > first.0 {
            kept.push(*second);
        }
    }
    kept
}

fn level(points: &[(f64, f64)]) -> Option<f64> {
    let rounds = points.iter().map(|point| point.1).collect();
    Case { rounds, ..Case::default() }.median()
}

/// Plots the latency distributions of the cases that have one.
#[must_use]
pub(crate) fn distributions(scenario: &Scenario) -> Option<Plot> {
    let cases = scenario.cases.iter().zip(styles(scenario));
    let timed = cases.filter_map(|(case, style)| Some((case, style, case.percentiles.as_ref()?)));
    let mut lines = Vec::new();
    let (mut levels, mut count) = (Vec::new(), 0);
    for (case, style, percentiles) in timed {
        let mut points = percentiles.curve.clone();
        points.retain(|(percent, value)| (0.0..100.0).contains(percent) && value.is_finite());
        if percentiles.max.is_finite() {
            points.push((100.0, percentiles.max));
        }
        levels.extend([percentiles.p50, percentiles.max]);
        count = count.max(percentiles.count);
        lines.push(Line { name: case.name.clone(), style, points, rounds: Vec::new() });
    }
    let values = lines.iter().flat_map(|line| &line.points).map(|point| point.1);
    let lowest = values.reduce(f64::min)?;
    Some(Plot {
        title: "Latency distribution".to_owned(),
        note: "each further nine has the same width".to_owned(),
        // One nine for each factor of ten in the number of values: 99.9 for a thousand.
        x: Axis {
            label: "percentile".to_owned(),
            scale: Scale::Percentile(count.checked_ilog10().unwrap_or(0).clamp(2, 7)),
        },
        y: Axis::fitting("ms", &levels, lowest),
        lines,
    })
}

/// Capitalizes the first letter.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample_report;

    #[test]
    fn references_are_neutral_and_no_style_is_used_twice() {
        let results = sample_report::results();
        for scenario in &results.scenarios {
            let mut styles = styles(scenario);
            styles.sort_unstable();
            styles.dedup();
            assert_eq!(styles.len(), scenario.cases.len(), "{}", scenario.name);
        }
        assert_eq!(styles(&results.scenarios[0])[0], 0);
    }

    #[test]
    fn the_median_continues_while_half_of_the_rounds_run() {
        let round = |length: u32, value: f64| {
            (0..length).map(|second| (f64::from(second), value)).collect::<Vec<_>>()
        };
        let middle = middle(&[round(5, 1.0), round(9, 2.0), round(7, 6.0)]);
        assert_eq!(middle.len(), 7, "{middle:?}");
        assert_eq!(middle[0], (0.0, 2.0));
        assert_eq!(middle[6], (6.0, 4.0));
    }

    #[test]
    fn a_thinned_line_keeps_its_spikes() {
        let mut points: Vec<(f64, f64)> = (0..10_000).map(|n| (f64::from(n), 1.0)).collect();
        points[4_321].1 = 99.0;
        points[7_000].1 = 0.0;
        let thin = thinned(&points);
        assert!(thin.len() <= 2 * SPANS);
        assert!(thin.contains(&(4_321.0, 99.0)) && thin.contains(&(7_000.0, 0.0)));
        assert!(thin.is_sorted_by(|a, b| a.0 < b.0));
    }

    #[test]
    fn everything_sampled_has_a_plot() {
        let results = sample_report::results();
        let titles: Vec<String> =
            plots(&results.scenarios[1]).into_iter().map(|plot| plot.title).collect();
        assert_eq!(titles, ["Throughput", "Dead rows", "Claim buffers"]);
        assert_eq!(distributions(&results.scenarios[2]).unwrap().lines.len(), 3);
        assert!(distributions(&results.scenarios[0]).is_none());
    }
}
