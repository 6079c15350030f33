//! Draws the content of a panel: lines, cells, bars or one number.

use std::fmt::Write;

use super::{Line, escaped};
use crate::dashboard::Panel;

/// Maximum number of names in a legend.
const NAMES: usize = 8;
/// Distinguishable with colour vision deficiency (Okabe and Ito).
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f3c8d", "#555555"];
const NO_DATA: &str = "<text x=\"12\" y=\"50\" fill=\"#666\">no data</text>";
/// Units by size with their names, largest first, and the value from which each is used.
const SECONDS: &[(f64, f64, &str)] = &[
    (172_800.0, 86_400.0, " d"),
    (7200.0, 3600.0, " h"),
    (120.0, 60.0, " min"),
    (1.0, 1.0, " s"),
    (1e-3, 1e-3, " ms"),
    (0.0, 1e-6, " µs"),
];
const BYTES: &[(f64, f64, &str)] =
    &[(1e9, 1e9, " GB"), (1e6, 1e6, " MB"), (1e3, 1e3, " kB"), (0.0, 1.0, " B")];
const NUMBERS: &[(f64, f64, &str)] =
    &[(1e9, 1e9, " G"), (1e6, 1e6, " M"), (1e4, 1e3, " k"), (0.0, 1.0, "")];

/// The plot area within a panel.
struct Plot {
    left: f64,
    top: f64,
    right: f64,
    bottom: f64,
    time: (f64, f64),
}

impl Plot {
    fn new((width, height): (f64, f64), lines: &[Line]) -> Option<Self> {
        let time = extent(lines.iter().flat_map(|line| line.points.iter().map(|it| it.0)))?;
        Some(Self { left: 62.0, top: 36.0, right: width - 14.0, bottom: height - 56.0, time })
    }

    fn x(&self, time: f64) -> f64 {
        let share = (time - self.time.0) / (self.time.1 - self.time.0).max(1.0);
        self.left + share * (self.right - self.left)
    }

    /// Draws the time axis in seconds since the first point.
    fn time_axis(&self) -> String {
        let mut svg = String::new();
        for (share, anchor) in [(0.0, "start"), (0.5, "middle"), (1.0, "end")] {
            let _ = write!(
                svg,
                "<text x=\"{}\" y=\"{}\" text-anchor=\"{anchor}\" fill=\"#666\">{:.0} s</text>",
                self.left + share * (self.right - self.left),
                self.bottom + 15.0,
                share * (self.time.1 - self.time.0)
            );
        }
        svg
    }

    fn label(&self, y: f64, text: &str) -> String {
        let x = self.left - 6.0;
        format!(
            "<text x=\"{x}\" y=\"{:.0}\" text-anchor=\"end\" fill=\"#666\">{text}</text>",
            y + 4.0
        )
    }
}

/// Draws the content of a panel of this size.
pub(super) fn draw(panel: &Panel, lines: &[Line], size: (f64, f64)) -> String {
    match panel.kind.as_str() {
        "stat" => stat(panel, lines, size),
        "bargauge" => bars(panel, lines, size),
        "heatmap" => heatmap(panel, lines, size),
        _ => chart(panel, lines, size),
    }
}

fn chart(panel: &Panel, lines: &[Line], size: (f64, f64)) -> String {
    let Some(plot) = Plot::new(size, lines) else { return NO_DATA.to_owned() };
    let values = lines.iter().flat_map(|line| line.points.iter().map(|it| it.1));
    let max = extent(values).map_or(0.0, |(_, max)| max);
    let unit = scale(max, &panel.unit);
    let top = round_up(max / unit.0) * unit.0;
    let mut svg = plot.time_axis();
    for step in 0..=4 {
        let share = f64::from(step) / 4.0;
        let y = plot.bottom - share * (plot.bottom - plot.top);
        let (left, right) = (plot.left, plot.right);
        let _ = write!(svg, "<path d=\"M{left} {y}H{right}\" stroke=\"#e6e8eb\"/>");
        svg += &plot.label(y, &scaled(share * top, unit));
    }
    for (n, line) in lines.iter().enumerate() {
        let place = |&(time, value): &(f64, f64)| {
            let y = plot.bottom - value.clamp(0.0, top) / top * (plot.bottom - plot.top);
            format!("{:.1},{y:.1}", plot.x(time))
        };
        // A gap in the data is a gap in the line.
        let steady =
            |a: &(f64, f64), b: &(f64, f64)| b.0 - a.0 < 1.5 && a.1.is_finite() == b.1.is_finite();
        for piece in line.points.chunk_by(steady).filter(|piece| piece[0].1.is_finite()) {
            let path: Vec<String> = piece.iter().map(place).collect();
            let _ = write!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.6\" \
                 stroke-linejoin=\"round\" stroke-linecap=\"round\"/>",
                path.join(" "),
                COLOURS[n % COLOURS.len()]
            );
        }
    }
    svg + &legend(lines, size)
}

fn legend(lines: &[Line], size: (f64, f64)) -> String {
    let mut svg = String::new();
    let (mut x, mut y) = (14.0, size.1 - 24.0);
    let named = lines.iter().enumerate().filter(|(_, line)| !line.name.is_empty());
    for (n, line) in named.take(NAMES) {
        let name: String = line.name.chars().take(24).collect();
        let width = 26.0 + 6.0 * number(name.chars().count());
        if x + width > size.0 && x > 14.0 {
            (x, y) = (14.0, y + 15.0);
        }
        let _ = write!(
            svg,
            "<rect x=\"{x:.0}\" y=\"{}\" width=\"10\" height=\"4\" fill=\"{}\"/>\
             <text x=\"{:.0}\" y=\"{y}\">{}</text>",
            y - 5.0,
            COLOURS[n % COLOURS.len()],
            x + 14.0,
            escaped(&name)
        );
        x += width;
    }
    svg
}

fn last(line: &Line) -> Option<f64> {
    line.points.iter().rfind(|it| it.1.is_finite()).map(|it| it.1)
}

/// Draws the last value in large type.
fn stat(panel: &Panel, lines: &[Line], (width, height): (f64, f64)) -> String {
    let Some(value) = lines.first().and_then(last) else { return NO_DATA.to_owned() };
    let text = scaled(value, scale(value, &panel.unit));
    let (x, y) = (width / 2.0, height / 2.0 + 24.0);
    format!("<text x=\"{x}\" y=\"{y}\" font-size=\"34\" text-anchor=\"middle\">{text}</text>")
}

/// Draws the last value of each line as a bar.
fn bars(panel: &Panel, lines: &[Line], (width, _): (f64, f64)) -> String {
    let value = |line: &Line| last(line).unwrap_or_default();
    let max = lines.iter().map(value).fold(f64::MIN_POSITIVE, f64::max);
    let mut svg = String::new();
    for (n, line) in lines.iter().take(NAMES).enumerate() {
        let (y, value) = (44.0 + number(n) * 28.0, value(line));
        let _ = write!(
            svg,
            "<text x=\"14\" y=\"{}\">{}</text>\
             <rect x=\"130\" y=\"{y}\" width=\"{:.1}\" height=\"16\" rx=\"2\" fill=\"{}\"/>\
             <text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
            y + 12.0,
            escaped(&line.name.chars().take(18).collect::<String>()),
            (value / max).max(0.0) * (width - 220.0),
            COLOURS[0],
            width - 14.0,
            y + 12.0,
            scaled(value, scale(value, &panel.unit))
        );
    }
    svg
}

/// Draws the cumulative buckets of a histogram as cells.
fn heatmap(panel: &Panel, lines: &[Line], size: (f64, f64)) -> String {
    let Some(plot) = Plot::new(size, lines) else { return NO_DATA.to_owned() };
    let bound = |line: &Line| line.name.parse().unwrap_or(f64::INFINITY);
    let mut buckets: Vec<(f64, &Line)> = lines.iter().map(|line| (bound(line), line)).collect();
    buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
    let count = |n: usize, at: usize| {
        let up_to = |n: usize| buckets[n].1.points.get(at).map_or(0.0, |it| it.1);
        (up_to(n) - if n == 0 { 0.0 } else { up_to(n - 1) }).max(0.0)
    };
    let columns = buckets.iter().map(|it| it.1.points.len()).max().unwrap_or(0);
    let cells = || (0..buckets.len()).flat_map(|n| (0..columns).map(move |at| (n, at)));
    let max = cells().map(|(n, at)| count(n, at)).filter(|it| it.is_finite()).fold(1.0, f64::max);
    let width = (plot.right - plot.left) / number(columns);
    let height = (plot.bottom - plot.top) / number(buckets.len());
    let mut svg = plot.time_axis();
    for (n, at) in cells().filter(|(n, at)| count(*n, *at) >= 0.5) {
        let _ = write!(
            svg,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
             fill=\"#0072b2\" fill-opacity=\"{:.2}\"/>",
            plot.left + number(at) * width,
            plot.bottom - number(n + 1) * height,
            0.12 + 0.88 * (count(n, at) / max).sqrt().min(1.0)
        );
    }
    for (n, (bound, _)) in
        buckets.iter().enumerate().filter(|(n, it)| n % 4 == 0 && it.0.is_finite())
    {
        let y = plot.bottom - number(n + 1) * height + 2.0;
        svg += &plot.label(y, &scaled(*bound, scale(*bound, &panel.unit)));
    }
    svg
}

/// Returns the minimum and maximum.
fn extent(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let mut values = values.filter(|value| value.is_finite());
    let first = values.next()?;
    Some(values.fold((first, first), |(min, max), it| (min.min(it), max.max(it))))
}

/// Returns the next higher round number whose quarters are round too.
fn round_up(max: f64) -> f64 {
    if max <= 0.0 {
        return 1.0;
    }
    let power = 10_f64.powf(max.log10().floor());
    let steps = [1.0, 1.2, 1.6, 2.0, 2.4, 3.2, 4.0, 6.0, 8.0, 10.0];
    steps.iter().map(|step| step * power).find(|end| *end >= max).unwrap_or(10.0 * power)
}

/// Returns the unit for values up to `max`.
fn scale(max: f64, unit: &str) -> (f64, &'static str) {
    let sizes = match unit {
        "s" if max == 0.0 => return (1.0, " s"),
        "s" => SECONDS,
        "bytes" => BYTES,
        "percentunit" => return (0.01, " %"),
        "ops" => return (1.0, " /s"),
        _ => NUMBERS,
    };
    let fits = sizes.iter().find(|(from, ..)| max.abs() >= *from);
    fits.map_or((1.0, ""), |(_, size, name)| (*size, name))
}

/// Formats three significant digits without trailing zeros.
fn scaled(value: f64, (size, name): (f64, &str)) -> String {
    let value = value / size;
    let digits = match value.abs() {
        100.0.. => 0,
        10.0.. => 1,
        _ => 2,
    };
    let text = format!("{value:.digits$}");
    let trimmed = if digits > 0 { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    if value == 0.0 { "0".to_owned() } else { format!("{trimmed}{name}") }
}

#[expect(clippy::cast_precision_loss, reason = "lines, letters and cells of one picture")]
fn number(count: usize) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_have_their_unit() {
        let expected = [
            (0.0024, "s", "2.4 ms"),
            (90.0, "s", "90 s"),
            (150.0, "s", "2.5 min"),
            (604_800.0, "s", "7 d"),
            (1_234_567.0, "bytes", "1.23 MB"),
            (0.055, "percentunit", "5.5 %"),
            (15_000.0, "short", "15 k"),
            (1500.0, "short", "1500"),
            (0.25, "short", "0.25"),
            (0.0, "s", "0"),
        ];
        for (value, unit, text) in expected {
            assert_eq!(scaled(value, scale(value, unit)), text);
        }
        assert!((round_up(0.33) - 0.4).abs() < 1e-9 && (round_up(8.1) - 10.0).abs() < 1e-9);
    }
}
