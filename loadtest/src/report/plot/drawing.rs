//! Draws a plot: axes, lines with markers, and their names.

use std::fmt::Write as _;

use maud::{Markup, Render, html};

use super::{Line, Plot, STYLES, marker, tenths};

/// Width in the drawing's own units, about the pixels of a desktop column.
pub(super) const WIDTH: f64 = 460.0;
pub(super) const HEIGHT: f64 = 270.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 46.0;
/// Width of a character in the large font of a phone.
const LETTER: f64 = 8.6;
/// Minimum distance between the names of two lines.
const LABEL_GAP: f64 = 16.0;
/// Maximum number of points of a line that have a tooltip.
const TARGETS: usize = 24;

/// A plot with the geometry of its drawing area.
pub(super) struct Drawing<'a> {
    plot: &'a Plot,
    /// Names are shown next to their lines.
    labels_at_lines: bool,
    left: f64,
    right: f64,
}

impl<'a> Drawing<'a> {
    /// Reserves room for the texts at both sides.
    pub(super) fn new(plot: &'a Plot) -> Self {
        let labels_at_lines = plot.labels_at_lines();
        let ticks = plot.y.ticks();
        let ticks = ticks.iter().map(|tick| tick.text.as_str());
        let names = plot.lines.iter().filter(|_| labels_at_lines).map(|line| line.name.as_str());
        let names = room(names);
        let right = WIDTH - if names > 0.0 { names + 14.0 } else { 18.0 };
        Self { plot, labels_at_lines, left: room(ticks) + 12.0, right }
    }

    fn place(&self, (x, y): (f64, f64)) -> (f64, f64) {
        let bottom = HEIGHT - BOTTOM;
        let across = self.left + self.plot.x.at(x) * (self.right - self.left);
        (across, bottom - self.plot.y.at(y) * (bottom - TOP))
    }

    fn axes(&self) -> Markup {
        let (left, right) = (self.left, self.right);
        let bottom = HEIGHT - BOTTOM;
        html! {
            @for tick in self.plot.y.ticks() {
                @let y = tenths(bottom - tick.at * (bottom - TOP));
                line.grid x1=(left) x2=(right) y1=(y) y2=(y) {}
                text.tick x=(left - 6.0) y=(y + 4.0) text-anchor="end" { (tick.text) }
            }
            @for tick in self.plot.x.ticks() {
                @let x = tenths(left + tick.at * (right - left));
                line.mark x1=(x) x2=(x) y1=(bottom) y2=(bottom + 4.0) {}
                text.tick x=(x) y=(bottom + 18.0) text-anchor="middle" { (tick.text) }
            }
            line.base x1=(left) x2=(right) y1=(bottom) y2=(bottom) {}
            text.axis x="2" y="14" { (self.plot.y.label) }
            text.axis x=(f64::midpoint(left, right)) y=(HEIGHT - 8.0) text-anchor="middle" {
                (self.plot.x.label)
            }
        }
    }

    fn line(&self, line: &Line) -> Markup {
        let every = line.points.len().div_ceil(TARGETS).max(1);
        // Offset the markers so that those of different lines do not overlap.
        let marks = line.points.iter().enumerate().filter(|(n, _)| {
            let shift = (line.style * every) / STYLES;
            line.points.len() <= TARGETS || n % every == shift.min(every - 1)
        });
        let shown = line.points.len().div_ceil(every).div_ceil(8).max(1);
        html! {
            g class={"style" (line.style)} {
                @for round in &line.rounds { path.round d=(self.path(round)) {} }
                path.middle d=(self.path(&line.points)) {}
                @for (nth, (_, point)) in marks.enumerate() {
                    @let (x, y) = self.place(*point);
                    g.point {
                        title { (line.name) ": " (self.plot.y.format_value(point.1)) " (" (self.plot.x.label) " " (self.plot.x.format_value(point.0)) ")" }
                        circle.target cx=(tenths(x)) cy=(tenths(y)) r="9" {}
                        @if nth % shown == line.style % shown {
                            path.marker d=(marker(line.style, x, y)) {}
                        }
                    }
                }
            }
        }
    }

    fn path(&self, points: &[(f64, f64)]) -> String {
        let mut path = String::new();
        for (n, point) in points.iter().enumerate() {
            let (x, y) = self.place(*point);
            let verb = if n == 0 { 'M' } else { 'L' };
            let _ = write!(path, "{verb}{} {}", tenths(x), tenths(y));
        }
        path
    }

    /// Places each name at the height where its line ends, or as close as the other names permit.
    fn names(&self) -> Markup {
        let right = self.right;
        let mut ends: Vec<(&Line, (f64, f64), f64)> = Vec::new();
        for line in &self.plot.lines {
            let Some(last) = line.points.last() else { continue };
            let end = self.place(*last);
            ends.push((line, end, end.1));
        }
        ends.sort_by(|a, b| a.2.total_cmp(&b.2));
        spread(&mut ends, HEIGHT - BOTTOM);
        html! {
            @for (line, (x, y), at) in ends {
                g class={"style" (line.style)} {
                    @if right - x > 4.0 || (at - y).abs() > 4.0 {
                        line.lead x1=(tenths(x)) y1=(tenths(y)) x2=(tenths(right + 5.0)) y2=(tenths(at)) {}
                    }
                    text.name x=(tenths(right + 8.0)) y=(tenths(at + 4.0)) { (line.name) }
                }
            }
        }
    }
}

impl Render for Drawing<'_> {
    fn render(&self) -> Markup {
        html! {
            (self.axes())
            @for line in &self.plot.lines { (self.line(line)) }
            @if self.labels_at_lines { (self.names()) }
        }
    }
}

/// Returns the width of the widest text.
fn room<'a>(texts: impl Iterator<Item = &'a str>) -> f64 {
    let letters = texts.map(|text| text.chars().count()).max().unwrap_or_default();
    f64::from(u32::try_from(letters).unwrap_or_default()) * LETTER
}

/// Separates positions that are too close, and moves them back above the bottom. Expects ascending
/// heights.
fn spread<T>(ends: &mut [(T, (f64, f64), f64)], bottom: f64) {
    for n in 1..ends.len() {
        ends[n].2 = ends[n].2.max(ends[n - 1].2 + LABEL_GAP);
    }
    let mut limit = bottom;
    for end in ends.iter_mut().rev() {
        end.2 = end.2.min(limit);
        limit = end.2 - LABEL_GAP;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_do_not_cover_each_other() {
        let mut ends =
            vec![((), (0.0, 0.0), 40.0), ((), (0.0, 0.0), 42.0), ((), (0.0, 0.0), 220.0)];
        ends.push(((), (0.0, 0.0), 224.0));
        spread(&mut ends, 224.0);
        let at: Vec<f64> = ends.iter().map(|end| end.2).collect();
        assert_eq!(at, [40.0, 56.0, 208.0, 224.0]);
    }
}
