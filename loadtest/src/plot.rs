//! A plot as inline SVG.
//!
//! Own SVG instead of a plotting library: colours, dashes and text sizes have to come from the
//! page's CSS (dark mode, print, phones), each point wants its `<title>`, and one axis counts nines.
//! plotters writes colours and sizes as attributes and knows neither classes nor titles; charming
//! and plotly draw with JavaScript, or need an embedded V8 to do it beforehand; poloto can be styled
//! by CSS, but has seen one clean-up since 2023. What is left for us is an axis and a polyline.

pub(crate) mod axis;
mod drawing;

use maud::{Markup, html};

use axis::Axis;
use drawing::Drawing;

/// Names of more letters stand in a legend, shorter ones beside their lines.
const SHORT_NAME: usize = 12;
/// Looks there are: colour, dash and marker, in `page.css` and `marker`. The first is for what
/// others are compared with.
pub(crate) const STYLES: usize = 8;

/// One thing shown: a thick line, and thin ones that it stands for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Line {
    /// Beside the line, or in the legend.
    pub(crate) name: String,
    /// Which of the [`STYLES`].
    pub(crate) style: usize,
    /// Rising in x.
    pub(crate) points: Vec<(f64, f64)>,
    /// What `points` is the middle of.
    pub(crate) rounds: Vec<Vec<(f64, f64)>>,
}

/// Lines over two axes.
#[derive(Clone, Debug)]
pub(crate) struct Plot {
    /// Above the plot.
    pub(crate) title: String,
    /// Small, below the title.
    pub(crate) note: String,
    /// To the right.
    pub(crate) x: Axis,
    /// Upwards.
    pub(crate) y: Axis,
    /// In the order of the legend.
    pub(crate) lines: Vec<Line>,
}

impl Plot {
    /// The figure: title, note, legend if the lines cannot be named beside them, drawing.
    #[must_use]
    pub(crate) fn render(&self) -> Markup {
        let caption =
            format!("{}: {} by {}. {}", self.title, self.y.label, self.x.label, self.aria_label());
        html! {
            figure.plot {
                figcaption {
                    strong { (self.title) }
                    @if !self.note.is_empty() { span.note { (self.note) } }
                }
                @if !self.labels_at_lines() { (self.legend()) }
                svg.plot viewBox={"0 0 " (drawing::WIDTH) " " (drawing::HEIGHT)} role="img" aria-label=(caption) {
                    (Drawing::new(self))
                }
            }
        }
    }

    /// Names stand beside their lines if they are short and few.
    fn labels_at_lines(&self) -> bool {
        let short = |line: &Line| line.name.chars().count() <= SHORT_NAME;
        self.lines.len() <= 6 && self.lines.iter().all(short)
    }

    /// For those who do not see it: how each line ends.
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

/// How the lines of this style are drawn, for a legend or a table.
#[must_use]
pub(crate) fn swatch(style: usize) -> Markup {
    html! {
        svg class={"swatch style" (style)} viewBox="0 0 28 12" aria-hidden="true" {
            path.middle d="M1 6H27" {}
            path.marker d=(marker(style, 14.0, 6.0)) {}
        }
    }
}

/// The outline of a style's marker around a point.
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

/// A coordinate without digits that nobody sees.
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
