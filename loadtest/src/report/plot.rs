//! Renders a plot as inline SVG.
//!
//! The SVG is written by hand, without a plotting library: colours, dashes and text sizes come from
//! the page's CSS (dark mode, print, phones), each point needs its `<title>`, and one axis counts
//! nines. plotters writes colours and sizes as attributes and supports neither classes nor titles;
//! charming and plotly draw with JavaScript, or need an embedded V8 to do it beforehand; poloto
//! supports CSS, but has had one maintenance release since 2023. What remains is an axis and a
//! polyline.

pub(crate) mod axis;
mod drawing;

use maud::{Markup, html};

use axis::Axis;
use drawing::Drawing;

/// Longest name shown next to a line; longer names go into a legend.
const SHORT_NAME: usize = 12;
/// Number of styles (colour, dash, marker), defined in `page.css` and `marker`. The first style
/// marks references.
pub(crate) const STYLES: usize = 8;

/// One series: a thick line for the median and thin lines for the rounds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Line {
    /// Name next to the line or in the legend.
    pub(crate) name: String,
    /// Index into the [`STYLES`].
    pub(crate) style: usize,
    /// Points in ascending order of x.
    pub(crate) points: Vec<(f64, f64)>,
    /// Rounds whose median `points` is.
    pub(crate) rounds: Vec<Vec<(f64, f64)>>,
}

/// A plot with two axes.
#[derive(Clone, Debug)]
pub(crate) struct Plot {
    /// Title above the plot.
    pub(crate) title: String,
    /// Small text below the title.
    pub(crate) note: String,
    /// Horizontal axis.
    pub(crate) x: Axis,
    /// Vertical axis.
    pub(crate) y: Axis,
    /// Lines in the order of the legend.
    pub(crate) lines: Vec<Line>,
}

impl Plot {
    /// Renders the figure: title, note, legend if the names do not fit next to the lines, drawing.
    #[must_use]
    pub(crate) fn render(&self) -> Markup {
        let description =
            format!("{}: {} by {}. {}", self.title, self.y.label, self.x.label, self.aria_label());
        html! {
            figure.plot {
                figcaption {
                    strong { (self.title) }
                    @if !self.note.is_empty() { span.note { (self.note) } }
                }
                @if !self.labels_at_lines() { (self.legend()) }
                svg.plot viewBox={"0 0 " (drawing::WIDTH) " " (drawing::HEIGHT)} role="img" aria-label=(description) {
                    (Drawing::new(self))
                }
            }
        }
    }

    /// Returns whether names are shown next to their lines: if they are short and few.
    fn labels_at_lines(&self) -> bool {
        let short = |line: &Line| line.name.chars().count() <= SHORT_NAME;
        self.lines.len() <= 6 && self.lines.iter().all(short)
    }

    /// Describes the plot for screen readers: the final value of each line.
    fn aria_label(&self) -> String {
        let ends = self.lines.iter().filter_map(|line| {
            let (x, y) = line.points.last()?;
            Some(format!(
                "{} ends at {} ({})",
                line.name,
                self.y.format_value(*y),
                self.x.format_value(*x)
            ))
        });
        ends.collect::<Vec<_>>().join("; ")
    }

    fn legend(&self) -> Markup {
        html! {
            ul.legend {
                @for line in &self.lines {
                    li class={"style" (line.style)} { (swatch(line.style)) (line.name) }
                }
            }
        }
    }
}

/// Renders a sample of a line style for a legend or a table.
#[must_use]
pub(crate) fn swatch(style: usize) -> Markup {
    html! {
        svg class={"swatch style" (style)} viewBox="0 0 28 12" aria-hidden="true" {
            path.middle d="M1 6H27" {}
            path.marker d=(marker(style, 14.0, 6.0)) {}
        }
    }
}

/// Returns the outline of a style's marker around a point.
fn marker(style: usize, x: f64, y: f64) -> String {
    let (x, y) = (tenths(x), tenths(y));
    let shape = match style % STYLES {
        0 => "m-3.5 0h7",
        1 => "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
        2 => "m-3.6-3.6h7.2v7.2h-7.2z",
        3 => "m0-4.6l4.4 7.8h-8.8z",
        4 => "m0-5l5 5l-5 5l-5-5z",
        5 => "m0 4.6l4.4-7.8h-8.8z",
        6 => "m-4-4l8 8m0-8l-8 8",
        _ => "m-4.5 0h9m-4.5-4.5v9",
    };
    format!("M{x} {y}{shape}")
}

/// Rounds a coordinate to tenths, the visible precision.
fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_stand_in_a_legend() {
        let line =
            |name: &str| Line { name: name.into(), points: vec![(0.0, 1.0)], ..Line::default() };
        let plot = |name| Plot {
            title: "throughput".into(),
            note: String::new(),
            x: Axis::linear("s", 1.0, true),
            y: Axis::linear("tasks/s", 1.0, true),
            lines: vec![line(name)],
        };
        let short = plot("pgmill").render().into_string();
        assert!(!short.contains("legend") && short.contains(">pgmill</text>"), "{short}");
        let long = plot("a name that needs more room").render().into_string();
        assert!(long.contains("legend") && !long.contains("</text></g></svg>"), "{long}");
    }
}
