//! `loadtest report`: shows results as a self-contained HTML page or as Markdown. The template
//! `report.html` has the page, and `plot.js` draws its plots with uPlot.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use askama::Template;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::report::table::{self, Table};
use crate::result::{Check, FORMAT, Results, Scenario};

/// Number of colours of lines, defined in `report.css`.
const STYLES: usize = 8;

/// Show results as a page with tables and plots.
#[derive(Debug, clap::Args)]
pub(crate) struct ReportArgs {
    /// Result file, written with --json
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Output file; `-` is standard output [default: report.html, with --markdown standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write a Markdown table of the goals instead of a page
    #[arg(long)]
    markdown: bool,
}

impl ReportArgs {
    /// Reads the file and writes the page or the table.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or has another format, or the page cannot be
    /// written.
    pub(crate) fn run(self) -> Result<()> {
        let results = read(&self.file)?;
        let (text, usual) = if self.markdown {
            (table::markdown(&results), "-")
        } else {
            (page(&results)?, "report.html")
        };
        let output = self.output.unwrap_or_else(|| usual.into());
        if output.as_os_str() == "-" {
            return Ok(cli::print(|out| writeln!(out, "{text}"))?);
        }
        fs::write(&output, text + "\n")
            .with_context(|| format!("could not write {}", output.display()))?;
        terminal::print_stderr(format_args!("wrote {}", output.display()));
        Ok(())
    }
}

/// Reads the results of a run.
///
/// # Errors
/// Returns an error if the file cannot be read, is not a result file, or has another format
/// version.
pub(crate) fn read(file: &Path) -> Result<Results> {
    let text =
        fs::read_to_string(file).with_context(|| format!("could not read {}", file.display()))?;
    parse(&text).with_context(|| format!("{} is not a load test result file", file.display()))
}

fn parse(text: &str) -> Result<Results> {
    #[derive(Deserialize)]
    struct Head {
        format: u32,
    }
    // Parse only the version first: another format may differ in everything else.
    let Head { format } = serde_json::from_str(text)?;
    if format != FORMAT {
        bail!(
            "unsupported format {format}; this program reads format {FORMAT}; \
             use the version that wrote the file"
        );
    }
    Ok(serde_json::from_str(text)?)
}

#[derive(Template)]
#[template(path = "report.html")]
struct Page<'a> {
    /// Only the script of this page runs: markup in a name cannot know the nonce.
    nonce: String,
    results: &'a Results,
    environment: String,
    sections: Vec<Section<'a>>,
}

/// The goals of the run, or a scenario.
struct Section<'a> {
    name: &'a str,
    title: String,
    tables: Vec<Table>,
    plots: Vec<Plot<'a>>,
    checks: Vec<&'a Check>,
    notes: &'a [String],
}

/// Lines over the seconds of a round, or over percentiles.
#[derive(Serialize)]
struct Plot<'a> {
    #[serde(skip)]
    title: &'a str,
    unit: &'a str,
    /// Greatest percentile, as its number of nines; `None`: the axis has seconds.
    nines: Option<u32>,
    lines: Vec<Line<'a>>,
}

#[derive(Serialize)]
struct Line<'a> {
    name: &'a str,
    /// Number of the colour, below [`STYLES`].
    style: usize,
    rounds: Vec<Vec<(f64, f64)>>,
}

impl Page<'_> {
    const STYLE: &'static str = concat!(
        include_str!("../../../crates/console/static/vendor/uPlot.min.css"),
        include_str!("../../templates/report.css"),
    );
    const SCRIPT: &'static str = concat!(
        "/*\n",
        include_str!("../../../crates/console/static/vendor/uPlot.LICENSE"),
        "*/\n",
        include_str!("../../../crates/console/static/vendor/uPlot.iife.min.js"),
        include_str!("../../templates/plot.js"),
    );
}

impl Plot<'_> {
    fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Renders the page, which begins with the goals and the failed checks.
fn page(results: &Results) -> Result<String> {
    let checks = results.scenarios.iter().flat_map(|scenario| &scenario.checks);
    let goals = Section {
        name: "",
        title: table::summary(results),
        tables: vec![table::goals(results)],
        plots: Vec::new(),
        checks: checks.filter(|check| !check.passed).collect(),
        notes: &[],
    };
    let scenarios = results.scenarios.iter().map(|scenario| Section {
        name: &scenario.name,
        title: scenario.title.clone(),
        tables: table::of_scenario(scenario),
        plots: plots(scenario),
        checks: scenario.checks.iter().collect(),
        notes: &scenario.notes,
    });
    let sections = std::iter::once(goals).chain(scenarios).collect();
    let environment = table::environment(results);
    let nonce = Uuid::new_v4().simple().to_string();
    Ok(Page { nonce, results, environment, sections }.render()?)
}

/// Returns one plot per sampled series, and one of the latencies.
fn plots<'a>(scenario: &'a Scenario) -> Vec<Plot<'a>> {
    let mut plots: Vec<Plot<'a>> = Vec::new();
    for (nth, case) in scenario.cases.iter().enumerate() {
        let line = |rounds| Line { name: &case.name, style: nth % STYLES, rounds };
        let mut add = |title: &'a str, unit: &'a str, nines, points| {
            let known = plots.iter().position(|plot| (plot.title, plot.unit) == (title, unit));
            let n = known.unwrap_or_else(|| {
                plots.push(Plot { title, unit, nines, lines: Vec::new() });
                plots.len() - 1
            });
            match plots[n].lines.iter_mut().find(|line| line.name == case.name) {
                Some(line) => line.rounds.push(points),
                None => plots[n].lines.push(line(vec![points])),
            }
        };
        for series in case.series.iter().filter(|series| !series.points.is_empty()) {
            add(&series.name, &series.unit, None, series.points.clone());
        }
        if let Some(percentiles) = &case.percentiles {
            let curve = percentiles.curve.iter().copied().filter(|(percent, _)| *percent < 100.0);
            // One nine for each factor of ten in the number of values: 99.9 for a thousand.
            let nines = percentiles.count.checked_ilog10().unwrap_or(0).clamp(2, 7);
            let points = curve.chain([(100.0, percentiles.max)]).collect();
            add("latency distribution", "ms", Some(nines), points);
        }
    }
    plots
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::{Case, Series};

    /// Results that the documentation quotes.
    fn quoted() -> Results {
        parse(include_str!("../../results/drain-latency.json")).unwrap()
    }

    #[test]
    fn everything_measured_is_on_the_page_which_needs_nothing_else() {
        let results = quoted();
        let page = page(&results).unwrap().replace(Page::SCRIPT, "");
        for scenario in &results.scenarios {
            for case in &scenario.cases {
                assert!(page.contains(&case.name.replace('\'', "&#39;")), "{}", case.name);
            }
            assert!(scenario.checks.iter().all(|check| page.contains(&check.detail)));
            assert!(scenario.notes.iter().all(|note| page.contains(note.as_str())));
            assert!(!plots(scenario).is_empty(), "{}", scenario.name);
        }
        for reference in ["http:", "https:", "url(", "@import", "src=", "<img"] {
            assert!(!page.contains(reference), "{reference}");
        }
    }

    #[test]
    fn names_are_text_wherever_they_stand() {
        let evil = "\"></title></style><script>alert(1)</script>".to_owned();
        let series = vec![Series {
            name: evil.clone(),
            unit: evil.clone(),
            points: vec![(0.0, 1.0)],
            ..Series::default()
        }];
        let case = Case { name: evil.clone(), unit: evil.clone(), series, ..Case::default() };
        let results = Results {
            version: evil.clone(),
            command: evil.clone(),
            scenarios: vec![Scenario {
                name: evil.clone(),
                title: evil.clone(),
                cases: vec![case],
                checks: vec![Check { what: evil.clone(), detail: evil.clone(), passed: false }],
                notes: vec![evil],
            }],
            ..Results::default()
        };
        let page = page(&results).unwrap();
        assert_eq!((page.matches("<script").count(), page.matches("</title>").count()), (1, 1));
    }

    #[test]
    fn another_format_is_refused() {
        let error = parse(r#"{"format": 9, "what": []}"#).unwrap_err().to_string();
        assert_eq!(
            error,
            "unsupported format 9; this program reads format 1; use the version that wrote the file"
        );
        assert!(parse("[]").is_err());
    }
}
