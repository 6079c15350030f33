//! `loadtest report`: results as one HTML page that needs nothing else, or as Markdown.
//!
//! maud writes the page: it escapes every text that stands in a template, so that no name in a file
//! of results can become markup.

mod lines;
mod scenario;
mod summary;
mod trend;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use jiff::Timestamp;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use serde::Deserialize;

use crate::number_format::{bytes, figure};
use crate::result::{FORMAT, Results};
use crate::table;

const STYLE: &str = include_str!("report/page.css");

/// Shows results as a page with tables and plots.
#[derive(Debug, clap::Args)]
pub(crate) struct ReportArgs {
    /// Results of `loadtest run`; several are shown as a trend, the latest first
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Where to write; `-` is standard output [default: report.html, with --markdown standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write a table of the goals in Markdown instead of a page
    #[arg(long)]
    markdown: bool,
}

impl ReportArgs {
    /// Reads the files and writes the page.
    ///
    /// # Errors
    /// A file cannot be read or is not in the format of this version; the page cannot be written.
    pub(crate) fn run(self) -> Result<()> {
        let results = self.files.iter().map(|file| read(file)).collect::<Result<Vec<_>>>()?;
        let (text, usual) = if self.markdown {
            let tables: Vec<String> = results.iter().map(table::markdown).collect();
            (tables.join("\n\n"), "-")
        } else {
            (page(&results), "report.html")
        };
        let output = self.output.unwrap_or_else(|| usual.into());
        if output.as_os_str() == "-" {
            return Ok(table::write(&text)?);
        }
        fs::write(&output, text + "\n").with_context(|| format!("writing {}", output.display()))?;
        terminal::print_stderr(format_args!("wrote {}", output.display()));
        Ok(())
    }
}

/// Reads what a run left behind.
///
/// # Errors
/// The file cannot be read, holds something else, or was written in another format.
pub(crate) fn read(file: &Path) -> Result<Results> {
    let text = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    parse(&text).with_context(|| format!("{} does not hold results of a load test", file.display()))
}

fn parse(text: &str) -> Result<Results> {
    #[derive(Deserialize)]
    struct Head {
        format: u32,
    }
    // First this alone, for the rest may be different in another format.
    let Head { format } = serde_json::from_str(text)?;
    if format != FORMAT {
        bail!("format {format}, this program reads {FORMAT}; use the version that wrote it");
    }
    Ok(serde_json::from_str(text)?)
}

/// The page: the latest run, the way that led there, and the earlier runs folded below.
#[must_use]
pub(crate) fn page(results: &[Results]) -> String {
    let mut runs: Vec<&Results> = results.iter().collect();
    runs.sort_by_key(|run| started(run));
    let (latest, earlier) = match runs.split_last() {
        Some((latest, earlier)) => (Some(*latest), earlier),
        None => (None, &runs[..]),
    };
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta http-equiv="Content-Security-Policy"
                    content="default-src 'none'; style-src 'unsafe-inline'; img-src data:";
                link rel="icon" href="data:,";
                title { "pgmill load test" @if let Some(run) = latest { ", " (table::day(&run.started_at)) } }
                style { (PreEscaped(STYLE)) }
            }
            body {
                @if let Some(run) = latest {
                    (heading(run))
                    (summary::tiles(run))
                    (summary::failed_checks(run))
                    (summary::goals_table(run, earlier.len()))
                    @if !earlier.is_empty() { (trend::section(&runs)) }
                    (scenarios(run, earlier.len()))
                    (place(run))
                }
                @for (number, run) in earlier.iter().enumerate().rev() {
                    details.earlier {
                        summary { "Run of " (when(run)) ", version " (run.version) ": " (table::summary(run)) }
                        (summary::failed_checks(run))
                        (summary::goals_table(run, number))
                        (scenarios(run, number))
                        (place(run))
                    }
                }
            }
        }
    };
    page.into_string()
}

/// Where a section of a run is found on the page.
fn anchor(run: usize, scenario: usize) -> String {
    format!("run{run}-{scenario}")
}

fn started(run: &Results) -> Option<Timestamp> {
    run.started_at.parse().ok()
}

/// `2026-11-21 14:24 UTC`, or as it stands in the file.
fn when(run: &Results) -> String {
    started(run)
        .map_or_else(|| run.started_at.clone(), |at| at.strftime("%Y-%m-%d %H:%M UTC").to_string())
}

fn heading(run: &Results) -> Markup {
    html! {
        header {
            h1 { "pgmill load test" }
            p.when { "version " (run.version) " · " (when(run)) }
        }
    }
}

fn scenarios(run: &Results, number: usize) -> Markup {
    html! {
        @for (nth, scenario) in run.scenarios.iter().enumerate() {
            (scenario::section(scenario, &anchor(number, nth)))
        }
    }
}

/// What a reader needs to judge the numbers, or to measure them again.
fn place(run: &Results) -> Markup {
    let Results { machine, server, .. } = run;
    let facts = [
        ("Processor", format!("{} × {}", machine.cores, machine.processor)),
        ("Memory", bytes(machine.memory_bytes)),
        ("Kernel", machine.kernel.clone()),
        ("PostgreSQL", server.version.clone()),
        ("Durable commit of one row", format!("{} ms", figure(server.commit_ms))),
        ("pgmill", run.version.clone()),
        ("Started", when(run)),
    ];
    html! {
        section.place {
            h2 { "Where it ran" }
            p { "Server and fleet share this machine. Ratios are the result; absolute numbers are its own." }
            dl.facts {
                @for (name, value) in facts { div { dt { (name) } dd { (value) } } }
            }
            @if !server.settings.is_empty() {
                h3 { "Settings of the server" }
                dl.settings {
                    @for (name, value) in &server.settings {
                        div { dt { (name) } dd { @if value.is_empty() { "–" } @else { (value) } } }
                    }
                }
            }
            h3 { "Measure it again" }
            pre { code { (run.command) } }
        }
    }
}

#[cfg(test)]
mod tests;
