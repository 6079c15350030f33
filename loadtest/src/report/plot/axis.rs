//! Plot axes: positions, ticks and value formatting.

use crate::report::number_format::{exact, figure};

/// One axis of a plot.
#[derive(Clone, Debug)]
pub(crate) struct Axis {
    /// Label with the unit.
    pub(crate) label: String,
    scale: Scale,
}

#[derive(Clone, Debug)]
enum Scale {
    /// Linear from zero.
    Linear { high: f64, step: f64 },
    /// Powers of ten.
    Log { low: f64, high: f64 },
    /// Percentiles from 0; each further nine has the same width.
    Percentile { nines: f64 },
    /// Named positions.
    Places(Vec<String>),
}

/// A labelled position on the axis.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tick {
    /// Position from 0 to 1.
    pub(crate) at: f64,
    /// Label.
    pub(crate) text: String,
}

impl Axis {
    /// Creates an axis from zero to the highest value. `round_up` extends the axis to the next
    /// tick.
    #[must_use]
    pub(crate) fn linear(label: &str, highest: f64, round_up: bool) -> Self {
        let highest = if highest.is_finite() && highest > 0.0 { highest } else { 1.0 };
        let step = nice_step(highest, 5.0);
        let high = if round_up { (highest / step - 1e-9).ceil() * step } else { highest };
        Self { label: label.to_owned(), scale: Scale::Linear { high, step } }
    }

    /// Creates a logarithmic axis between round numbers around these positive values.
    #[must_use]
    pub(crate) fn log(label: &str, lowest: f64, highest: f64) -> Self {
        let round = |value: f64, up: bool| {
            let power = 10_f64.powf(value.log10().floor());
            let near =
                |factor: &f64| if up { factor * power >= value } else { factor * power <= value };
            let factors = [1.0, 2.0, 5.0, 10.0];
            let factor = if up {
                factors.iter().find(|it| near(it))
            } else {
                factors.iter().rfind(|it| near(it))
            };
            factor.unwrap_or(&1.0) * power
        };
        let low = round(lowest.max(1e-300), false);
        let high = round(highest.max(low * 1.5), true);
        Self { label: format!("{label}, log scale"), scale: Scale::Log { low, high } }
    }

    /// Creates a percentile axis for `count` values.
    #[must_use]
    pub(crate) fn percentile(label: &str, count: u64) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "its logarithm is used")]
        let nines = (count as f64).log10().clamp(2.0, 7.0);
        Self { label: label.to_owned(), scale: Scale::Percentile { nines } }
    }

    /// Creates an axis of named positions; values are indexes from 0.
    #[must_use]
    pub(crate) fn places(label: &str, names: Vec<String>) -> Self {
        Self { label: label.to_owned(), scale: Scale::Places(names) }
    }

    /// Creates a linear axis, or a logarithmic one if the levels differ too much. `levels` are the
    /// typical values of the lines, `highest` and `lowest` the extremes.
    #[must_use]
    pub(crate) fn fitting(label: &str, levels: &[f64], (lowest, highest): (f64, f64)) -> Self {
        let low = levels.iter().copied().fold(f64::INFINITY, f64::min);
        let high = levels.iter().copied().fold(0.0, f64::max);
        if lowest > 0.0 && low > 0.0 && high / low > 30.0 {
            Self::log(label, lowest, highest)
        } else {
            Self::linear(label, highest, true)
        }
    }

    /// Returns the position of a value, from 0 to 1.
    #[must_use]
    pub(crate) fn at(&self, value: f64) -> f64 {
        let at = match &self.scale {
            Scale::Linear { high, .. } => value / high,
            Scale::Log { low, high } => (value / low).log10() / (high / low).log10(),
            Scale::Percentile { nines } => -(1.0 - value / 100.0).log10() / nines,
            Scale::Places(names) => (value + 0.5) / count(names),
        };
        // The 100th percentile and the logarithm of zero are at an end of the axis.
        if at.is_nan() { 0.0 } else { at.clamp(0.0, 1.0) }
    }

    /// Returns the ticks in ascending order.
    #[must_use]
    pub(crate) fn ticks(&self) -> Vec<Tick> {
        match &self.scale {
            Scale::Linear { high, step } => {
                let values = (0..=20_u32).map(|n| f64::from(n) * step);
                let within = values.take_while(|value| *value <= high * 1.000_001);
                within.map(|value| self.tick(value, short(value, *step))).collect()
            }
            Scale::Log { low, high } => {
                log_ticks(*low, *high).map(|value| self.tick(value, short(value, value))).collect()
            }
            Scale::Percentile { nines } => {
                [0.0_f64, 50.0, 90.0, 99.0, 99.9, 99.99, 99.999, 99.9999]
                    .into_iter()
                    .filter(|percent| -(1.0 - percent / 100.0).log10() <= nines + 1e-9)
                    .map(|percent| self.tick(percent, format!("{percent}")))
                    .collect()
            }
            Scale::Places(names) => {
                // As many names as fit.
                let every = names.len().div_ceil(6).max(1);
                let places = (0_u32..).zip(names).step_by(every);
                places.map(|(n, name)| self.tick(f64::from(n), name.clone())).collect()
            }
        }
    }

    fn tick(&self, value: f64, text: String) -> Tick {
        Tick { at: self.at(value), text }
    }

    /// Formats a value for the title of a point.
    #[must_use]
    pub(crate) fn format_value(&self, value: f64) -> String {
        match &self.scale {
            Scale::Percentile { .. } => format!("p{}", (value * 1e4).round() / 1e4),
            Scale::Places(names) => {
                let nearest = (0_u32..).zip(names).find(|(n, _)| f64::from(*n) >= value - 0.5);
                nearest.map(|(_, name)| name.clone()).unwrap_or_default()
            }
            _ => figure(value),
        }
    }
}

fn count(names: &[String]) -> f64 {
    f64::from(u32::try_from(names.len().max(1)).unwrap_or(u32::MAX))
}

/// Returns 1, 2 or 5 times a power of ten, so that `highest` has about `wanted` steps.
fn nice_step(highest: f64, wanted: f64) -> f64 {
    let rough = highest / wanted;
    let power = 10_f64.powf(rough.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|factor| factor * power >= rough * 0.999);
    factor.unwrap_or(10.0) * power
}

/// Returns the powers of ten, and intermediate ticks if there are few.
fn log_ticks(low: f64, high: f64) -> impl Iterator<Item = f64> {
    let decades = (high / low).log10();
    let between: &[f64] = if decades < 2.5 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let every = (decades / 6.0).ceil().max(1.0);
    let first = low.log10().floor();
    let powers = (0..=20_u32).map(move |n| 10_f64.powf(first + f64::from(n) * every));
    let values = powers.flat_map(move |power| between.iter().map(move |factor| factor * power));
    values.filter(move |value| (low * 0.999..=high * 1.001).contains(value))
}

/// Formats a tick with the digits that its step needs; millions as `10M`.
fn short(value: f64, step: f64) -> String {
    let (value, step, unit) =
        if value.abs() >= 1e6 { (value / 1e6, step / 1e6, "M") } else { (value, step, "") };
    let scale = 10_f64.powf(-step.abs().log10().floor().min(0.0));
    format!("{}{unit}", exact((value * scale).round() / scale))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(axis: &Axis) -> Vec<String> {
        axis.ticks().into_iter().map(|tick| tick.text).collect()
    }

    #[test]
    fn ticks_are_round_numbers() {
        assert_eq!(
            texts(&Axis::linear("tasks/s", 6_120.0, true)),
            ["0", "2,000", "4,000", "6,000", "8,000"]
        );
        assert_eq!(texts(&Axis::linear("s", 39.0, false)), ["0", "10", "20", "30"]);
        assert_eq!(texts(&Axis::linear("×", 0.94, true)), ["0", "0.2", "0.4", "0.6", "0.8", "1"]);
        assert_eq!(texts(&Axis::linear("MB", 0.03, true)), ["0", "0.01", "0.02", "0.03"]);
        assert_eq!(texts(&Axis::linear("rows", 1e6, true)).last().unwrap(), "1M");
        assert_eq!(texts(&Axis::linear("rows", 2.4e6, true))[1], "500,000");
        assert_eq!(texts(&Axis::linear("rows", 0.0, true)).last().unwrap(), "1");
    }

    #[test]
    fn powers_of_ten_are_the_ticks_of_a_logarithm() {
        assert_eq!(texts(&Axis::log("ms", 0.5, 800.0)), ["1", "10", "100", "1,000"]);
        assert_eq!(texts(&Axis::log("ms", 0.6, 20.0)), ["0.5", "1", "2", "5", "10", "20"]);
        assert_eq!(texts(&Axis::log("ms", 7.0, 7.0)), ["5", "10"]);
        let axis = Axis::log("rows", 1.0, 1e6);
        assert!((axis.at(1_000.0) - 0.5).abs() < 1e-9);
    }

    #[test]
    fn each_nine_takes_the_same_room() {
        let axis = Axis::percentile("percentile", 10_000);
        assert_eq!(texts(&axis), ["0", "50", "90", "99", "99.9", "99.99"]);
        assert!((axis.at(90.0) - 0.25).abs() < 1e-9);
        assert!((axis.at(99.9) - 0.75).abs() < 1e-9);
        assert!((axis.at(100.0) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn values_lie_between_the_ends() {
        let axes = [
            Axis::linear("", 10.0, true),
            Axis::log("", 1.0, 10.0),
            Axis::percentile("", 100),
            Axis::places("", vec!["a".into(), "b".into()]),
        ];
        for axis in axes {
            for value in [f64::NAN, f64::NEG_INFINITY, -1.0, 0.0, 1e300, f64::INFINITY] {
                let at = axis.at(value);
                assert!((0.0..=1.0).contains(&at), "{axis:?} {value}: {at}");
            }
        }
    }

    #[test]
    fn what_differs_too_much_goes_by_powers_of_ten() {
        assert!(matches!(
            Axis::fitting("", &[20.0, 1_000.0], (18.0, 1_200.0)).scale,
            Scale::Log { .. }
        ));
        assert!(matches!(
            Axis::fitting("", &[20.0, 25.0], (1.0, 1_200.0)).scale,
            Scale::Linear { .. }
        ));
        assert!(matches!(
            Axis::fitting("", &[20.0, 1_000.0], (0.0, 1_200.0)).scale,
            Scale::Linear { .. }
        ));
    }
}
