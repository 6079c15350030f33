//! `loadtest report`: shows results as a self-contained HTML page or as Markdown.
//!
//! | part of the page | file |
//! |---|---|
//! | key numbers, failed checks, and each goal with a bar | `summary` |
//! | section of a scenario: cases, percentiles, plots, checks, notes | `scenario` |
//! | plot lines from samples and latencies: each round, and the median | `lines` |
//!
//! maud renders the page and escapes every text in a template, so that no name in a result file can
//! become markup.

mod lines;
mod scenario;
mod summary;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use jiff::Timestamp;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use serde::Deserialize;
use uuid::Uuid;

use crate::report::number_format::{bytes, figure};
use crate::report::{plot, table};
use crate::result::{FORMAT, Results};

const STYLE: &str = include_str!("page.css");

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
            (page(&results), "report.html")
        };
        let output = self.output.unwrap_or_else(|| usual.into());
        if output.as_os_str() == "-" {
            return Ok(table::write(&text)?);
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

/// Renders the page.
fn page(run: &Results) -> String {
    // Only the script of this file runs: markup in a name cannot know the nonce.
    let nonce = Uuid::new_v4().simple();
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'unsafe-inline'; img-src data:"
    );
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta http-equiv="Content-Security-Policy" content=(policy);
                link rel="icon" href="data:,";
                title { "pgmill load test, " (table::day(&run.started_at)) }
                style { (PreEscaped(plot::STYLE)) (PreEscaped(STYLE)) }
                script nonce=(nonce) { (PreEscaped(plot::SCRIPT)) }
            }
            body {
                noscript { "The plots need JavaScript; the tables do not." }
                (heading(run))
                (summary::tiles(run))
                (summary::failed_checks(run))
                (summary::goals_table(run))
                @for (nth, scenario) in run.scenarios.iter().enumerate() {
                    (scenario::section(scenario, &anchor(nth)))
                }
                (place(run))
            }
        }
    };
    page.into_string()
}

/// Returns the anchor of a scenario's section.
fn anchor(scenario: usize) -> String {
    format!("scenario-{scenario}")
}

/// Formats the start time as `2026-11-21 14:24 UTC`, or verbatim if it cannot be parsed.
fn when(run: &Results) -> String {
    match run.started_at.parse::<Timestamp>() {
        Ok(at) => at.strftime("%Y-%m-%d %H:%M UTC").to_string(),
        Err(_) => run.started_at.clone(),
    }
}

fn heading(run: &Results) -> Markup {
    html! {
        header {
            h1 { "pgmill load test" }
            p.when { "version " (run.version) " · " (when(run)) }
        }
    }
}

/// Renders the environment: everything needed to judge or repeat the measurement.
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
            h2 { "Environment" }
            p { "Server and fleet share this machine. Ratios are the result; absolute numbers depend on the machine." }
            dl.facts {
                @for (name, value) in facts { div { dt { (name) } dd { (value) } } }
            }
            @if !server.settings.is_empty() {
                h3 { "Server settings" }
                dl.settings {
                    @for (name, value) in &server.settings {
                        div { dt { (name) } dd { @if value.is_empty() { "–" } @else { (value) } } }
                    }
                }
            }
            h3 { "Command" }
            pre { code { (run.command) } }
        }
    }
}

#[cfg(test)]
mod tests;
