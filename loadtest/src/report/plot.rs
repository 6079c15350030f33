//! Figures with a plot. The page draws them with uPlot (`plot.js`). The data is JSON in an
//! attribute, so a name in the data needs only the escaping of attributes.

use maud::{Markup, html};
use serde::Serialize;

use crate::report::number_format::figure;

/// Number of styles (colour and dash), defined in `page.css`. The first style marks references.
pub(crate) const STYLES: usize = 8;

/// uPlot, its licence, and the script that draws every figure.
pub(crate) const SCRIPT: &str = concat!(
    "/*\n",
    include_str!("../../../crates/console/static/vendor/uPlot.LICENSE"),
    "*/\n",
    include_str!("../../../crates/console/static/vendor/uPlot.iife.min.js"),
    include_str!("plot.js"),
);

/// Style sheet of uPlot.
pub(crate) const STYLE: &str = include_str!("../../../crates/console/static/vendor/uPlot.min.css");

/// One axis of a plot.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Axis {
    /// Label with the unit.
    pub(crate) label: String,
    pub(crate) scale: Scale,
}

/// Positions of values on an axis.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Scale {
    /// Linear from zero.
    Linear,
    /// Powers of ten.
    Log,
    /// Percentiles from 0 to a percentile with this many nines, such as 99.9. Each nine has the
    /// same width. The maximum follows.
    Percentile(u32),
}

impl Axis {
    /// Creates a linear axis, or a logarithmic one if the levels differ too much. `levels` are the
    /// typical values of the lines, `lowest` their lowest value.
    #[must_use]
    pub(crate) fn fitting(label: &str, levels: &[f64], lowest: f64) -> Self {
        let low = levels.iter().copied().fold(f64::INFINITY, f64::min);
        let high = levels.iter().copied().fold(0.0, f64::max);
        if lowest > 0.0 && low > 0.0 && high / low > 30.0 {
            Self { label: format!("{label}, log scale"), scale: Scale::Log }
        } else {
            Self { label: label.to_owned(), scale: Scale::Linear }
        }
    }
}

/// One series: a thick line for the median and thin lines for the rounds.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Line {
    /// Name in the legend.
    pub(crate) name: String,
    /// Index into the [`STYLES`].
    pub(crate) style: usize,
    /// Points in ascending order of x.
    pub(crate) points: Vec<(f64, f64)>,
    /// Rounds whose median `points` is.
    pub(crate) rounds: Vec<Vec<(f64, f64)>>,
}

/// A plot with two axes.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Plot {
    /// Title above the plot.
    #[serde(skip)]
    pub(crate) title: String,
    /// Small text below the title.
    #[serde(skip)]
    pub(crate) note: String,
    /// Horizontal axis.
    pub(crate) x: Axis,
    /// Vertical axis.
    pub(crate) y: Axis,
    /// Lines in the order of the legend.
    pub(crate) lines: Vec<Line>,
}

impl Plot {
    /// Renders the figure: title, note, and the box of the drawing and its legend.
    #[must_use]
    pub(crate) fn render(&self) -> Markup {
        let data = serde_json::to_string(self).unwrap_or_default();
        let description =
            format!("{}: {} by {}. {}", self.title, self.y.label, self.x.label, self.aria_label());
        html! {
            figure.plot {
                figcaption {
                    strong { (self.title) }
                    @if !self.note.is_empty() { span.note { (self.note) } }
                }
                div data-plot=(data) role="img" aria-label=(description) {}
            }
        }
    }

    /// Describes the plot for screen readers: the final value of each line.
    fn aria_label(&self) -> String {
        let end =
            |line: &Line| Some(format!("{} ends at {}", line.name, figure(line.points.last()?.1)));
        self.lines.iter().filter_map(end).collect::<Vec<_>>().join("; ")
    }
}

/// Renders a sample of a line style for a table; the legends of the plots have copies.
#[must_use]
pub(crate) fn swatch(style: usize) -> Markup {
    html! {
        svg class={"swatch style" (style)} viewBox="0 0 28 12" aria-hidden="true" {
            path.middle d="M1 6H27" {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_too_much_goes_by_powers_of_ten() {
        let scale = |levels: &[f64], lowest| Axis::fitting("", levels, lowest).scale;
        assert_eq!(scale(&[20.0, 1_000.0], 18.0), Scale::Log);
        assert_eq!(scale(&[20.0, 25.0], 1.0), Scale::Linear);
        assert_eq!(scale(&[20.0, 1_000.0], 0.0), Scale::Linear);
    }
}
