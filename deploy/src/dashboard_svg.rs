//! Draws a dashboard with its data as a plain SVG for the documentation, without Grafana. The
//! drawing differs in style from Grafana's but shows the same data in the same positions.

mod panel;

use std::fmt::Write;

use crate::dashboard::{Dashboard, Place};

/// One series.
#[derive(Clone, Debug)]
pub struct Line {
    /// Name in the legend.
    pub name: String,
    /// Seconds since 1970 and values, ordered by time; values may be NaN.
    pub points: Vec<(f64, f64)>,
}

/// Width of a grid column and height of a grid row in pixels.
const UNIT: (f64, f64) = (51.0, 30.0);
const GAP: f64 = 10.0;
const TOP: f64 = 54.0;

/// Draws all panels at their positions in Grafana; `lines` contains the series of each panel in the
/// same order.
#[must_use]
pub fn draw(dashboard: &Dashboard, lines: &[Vec<Line>]) -> String {
    let places = dashboard.panels.iter().map(|panel| panel.place);
    let height =
        TOP + GAP + UNIT.1 * places.fold(0.0, |max, it| it.y.max(max - it.height) + it.height);
    let width = 24.0 * UNIT.0 + GAP;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         height=\"{height}\" font-family=\"sans-serif\" font-size=\"11\" fill=\"#333\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#f4f5f7\"/>\n\
         <text x=\"{GAP}\" y=\"36\" font-size=\"20\" font-weight=\"bold\">{}</text>\n",
        escaped(&dashboard.title)
    );
    for (title, place) in &dashboard.headings {
        let (x, y, ..) = box_of(*place);
        let title = escaped(title);
        let _ = writeln!(svg, "<text x=\"{x}\" y=\"{}\" font-size=\"14\">{title}</text>", y + 17.0);
    }
    for (panel, lines) in dashboard.panels.iter().zip(lines) {
        let (x, y, width, height) = box_of(panel.place);
        let _ = writeln!(
            svg,
            "<g transform=\"translate({x} {y})\"><title>{}</title>\
             <rect width=\"{width}\" height=\"{height}\" rx=\"4\" fill=\"white\" stroke=\"#d8dbe0\"/>\
             <text x=\"12\" y=\"22\" font-size=\"13\" font-weight=\"bold\">{}</text>{}</g>",
            escaped(&panel.description),
            escaped(&panel.title),
            panel::draw(panel, lines, (width, height))
        );
    }
    svg + "</svg>\n"
}

/// Returns left, top, width and height of a position in pixels.
fn box_of(place: Place) -> (f64, f64, f64, f64) {
    let (x, y) = (GAP + place.x * UNIT.0, TOP + place.y * UNIT.1);
    (x, y, place.width * UNIT.0 - GAP, place.height * UNIT.1 - GAP)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dashboard::dashboards;

    #[test]
    fn every_dashboard_can_be_drawn_also_without_data_and_with_holes_in_it() {
        for dashboard in dashboards().unwrap() {
            let points = vec![(0.0, 1.0), (1.0, f64::NAN), (5.0, f64::INFINITY), (6.0, 2.0)];
            let line = Line { name: "<0.5>".to_owned(), points };
            for lines in [vec![], vec![line]] {
                let svg = draw(&dashboard, &vec![lines; dashboard.panels.len()]);
                assert!(!svg.contains("NaN") && !svg.contains("inf\""), "{svg}");
                assert_eq!(svg.matches("<g ").count(), dashboard.panels.len());
                assert!(!svg.contains("<0.5>"));
            }
        }
    }
}
