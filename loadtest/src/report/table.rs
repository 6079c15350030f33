//! Tables as text, Markdown or part of a page, and the tables of a run.

use std::fmt::Write as _;
use std::io::{self, IsTerminal};

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Color, ContentArrangement};
use terminal::visible;

use crate::report::number_format::{figure, goal, grouped, percent, ratio, with_unit};
use crate::result::{Case, Check, Results, Scenario, spread};

/// Meaning of a word; determines its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    Good,
    Bad,
}

impl Tone {
    /// Class in the style sheet of the page.
    pub(crate) fn class(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Good => "good",
            Self::Bad => "bad",
        }
    }
}

pub(crate) struct Cell {
    pub(crate) text: String,
    pub(crate) tone: Tone,
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self { text, tone: Tone::Plain }
    }
}

impl From<Option<String>> for Cell {
    fn from(text: Option<String>) -> Self {
        text.unwrap_or_default().into()
    }
}

impl From<(&str, Tone)> for Cell {
    fn from((text, tone): (&str, Tone)) -> Self {
        Self { text: text.to_owned(), tone }
    }
}

pub(crate) struct Column {
    pub(crate) heading: &'static str,
    /// Right-aligned.
    pub(crate) number: bool,
}

/// A table without its empty columns.
pub(crate) struct Table {
    pub(crate) columns: Vec<Column>,
    pub(crate) rows: Vec<Vec<Cell>>,
}

impl Table {
    /// Creates a table. As in Markdown, a colon at the end of a heading right-aligns the column.
    pub(crate) fn new(
        headings: &[&'static str],
        rows: impl IntoIterator<Item = Vec<Cell>>,
    ) -> Self {
        let mut rows: Vec<Vec<Cell>> = rows.into_iter().collect();
        let empty = |n: usize| rows.iter().all(|row| row[n].text.is_empty());
        let kept: Vec<bool> = (0..headings.len()).map(|n| !empty(n)).collect();
        for row in &mut rows {
            let mut kept = kept.iter();
            row.retain(|_| kept.next() == Some(&true));
        }
        let headings = headings.iter().zip(kept).filter(|(_, kept)| *kept);
        let column = |heading: &'static str| match heading.strip_suffix(':') {
            Some(heading) => Column { heading, number: true },
            None => Column { heading, number: false },
        };
        Self { columns: headings.map(|(heading, _)| column(heading)).collect(), rows }
    }

    /// Formats the table for a terminal: as wide as the terminal, or as the content.
    pub(crate) fn text(&self) -> String {
        let mut table = comfy_table::Table::new();
        table.load_style(NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
        table.set_header(self.columns.iter().map(|column| column.heading.to_uppercase()));
        for row in &self.rows {
            table.add_row(row.iter().map(|Cell { text, tone }| {
                let cell = comfy_table::Cell::new(visible(text));
                match tone {
                    Tone::Plain => cell,
                    Tone::Good => cell.fg(Color::Green),
                    Tone::Bad => cell.fg(Color::Red),
                }
            }));
        }
        for (column, Column { number, .. }) in table.column_iter_mut().zip(&self.columns) {
            column.set_padding((0, 2));
            if *number {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table.lines().map(|line| format!("  {}\n", line.trim_end())).collect()
    }

    /// Formats the table as Markdown.
    pub(crate) fn markdown(&self) -> String {
        let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
        let headings = self.columns.iter().map(|column| column.heading.to_owned()).collect();
        let rules = self.columns.iter().map(|it| if it.number { "--:" } else { "---" }.to_owned());
        let rows = self.rows.iter().map(|row| row.iter().map(|it| escaped(&it.text)).collect());
        line(headings) + &line(rules.collect()) + &rows.map(line).collect::<String>()
    }
}

const HEADINGS: [&str; 8] =
    ["scenario", "case", "median:", "spread:", "ratio:", "of", "goal:", "verdict"];

fn row(scenario: &Scenario, case: &Case) -> Vec<Cell> {
    let verdict = match (case.goal, scenario.goal_met(case)) {
        (None, _) => ("", Tone::Plain),
        (_, Some(true)) => ("met", Tone::Good),
        (_, Some(false)) => ("MISSED", Tone::Bad),
        (_, None) => ("not measured", Tone::Bad),
    };
    vec![
        scenario.name.clone().into(),
        case.name.clone().into(),
        case.median().map(|it| with_unit(it, &case.unit)).into(),
        spread(&case.rounds).map(percent).into(),
        scenario.ratio(case).map(ratio).into(),
        case.reference.clone().into(),
        goal(case).into(),
        verdict.into(),
    ]
}

/// Returns every case with a goal.
pub(crate) fn goals(results: &Results) -> Table {
    Table::new(&HEADINGS, results.goals().map(|(scenario, case)| row(scenario, case)))
}

/// Returns the cases of the scenario, and the percentiles of those with single events.
pub(crate) fn of_scenario(scenario: &Scenario) -> Vec<Table> {
    let cases = scenario.cases.iter().map(|case| row(scenario, case).split_off(1));
    let mut tables = vec![Table::new(&HEADINGS[1..], cases)];
    let timed = scenario.cases.iter().filter_map(|case| Some((case, case.percentiles.as_ref()?)));
    let timed = Table::new(
        &["ms", "p50:", "p90:", "p99:", "p99.9:", "max:", "timed:"],
        timed.map(|(case, it)| {
            let mut row: Vec<Cell> = vec![case.name.clone().into()];
            row.extend([it.p50, it.p90, it.p99, it.p999, it.max].map(|ms| figure(ms).into()));
            row.push(grouped(&it.count.to_string()).into());
            row
        }),
    );
    tables.extend((!timed.rows.is_empty()).then_some(timed));
    tables
}

/// Formats the totals: `11 of 13 goals met, 24 of 24 checks passed`.
pub(crate) fn summary(results: &Results) -> String {
    let met = results.goals().filter(|(scenario, case)| scenario.goal_met(case) == Some(true));
    let passed = results.checks().filter(|check| check.passed);
    format!(
        "{} of {} goals met, {} of {} checks passed",
        met.count(),
        results.goals().count(),
        passed.count(),
        results.checks().count()
    )
}

/// Describes what is needed to judge the numbers.
pub(crate) fn environment(results: &Results) -> String {
    let Results { machine, server, .. } = results;
    format!(
        "pgmill {} on {} × {}, {}, PostgreSQL {}, a durable commit takes {} ms; {}",
        results.version,
        machine.cores,
        machine.processor,
        machine.kernel,
        server.version,
        figure(server.commit_ms),
        results.started_at,
    )
}

/// Formats the whole run for a terminal.
pub(crate) fn text(results: &Results) -> String {
    let mut text = String::new();
    for scenario in &results.scenarios {
        let _ = writeln!(text, "{}: {}", visible(&scenario.name), visible(&scenario.title));
        for table in of_scenario(scenario) {
            let _ = write!(text, "\n{}", table.text());
        }
        text.push('\n');
        for Check { what, passed, detail } in &scenario.checks {
            let word = if *passed { "ok" } else { "FAILED" };
            let _ = writeln!(
                text,
                "{}: {} ({})",
                painted(word, *passed),
                visible(what),
                visible(detail)
            );
        }
        for note in &scenario.notes {
            let _ = writeln!(text, "note: {}", visible(note));
        }
        text.push('\n');
    }
    text + &summary(results)
}

fn painted(word: &str, good: bool) -> String {
    let code = if good { "32" } else { "31" };
    if io::stdout().is_terminal() { format!("\x1b[{code}m{word}\x1b[0m") } else { word.to_owned() }
}

/// Formats the goals of the run as Markdown, with the environment.
pub(crate) fn markdown(results: &Results) -> String {
    let mut text = format!(
        "{}: `{}`\n\n{}\n{}.",
        escaped(&environment(results)),
        results.command.replace('`', "'"),
        goals(results).markdown(),
        summary(results)
    );
    for check in results.checks().filter(|check| !check.passed) {
        let (what, detail) = (escaped(&check.what), escaped(&check.detail));
        let _ = write!(text, "\n- **failed:** {what} ({detail})");
    }
    text
}

/// Escapes text for a Markdown table.
fn escaped(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in visible(text).chars() {
        match letter {
            '\n' | '\t' => shown.push(' '),
            '|' | '\\' | '`' | '*' | '_' | '<' | '[' => shown.extend(['\\', letter]),
            other => shown.push(other),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::Better;

    fn results() -> Results {
        let ceiling = Case {
            name: "ceiling".into(),
            unit: "tasks/s".into(),
            rounds: vec![5_890.0, 6_120.0, 6_010.0],
            ..Case::default()
        };
        let case = Case {
            name: "<b> & \"odd\"".into(),
            rounds: vec![5_310.0, 5_580.0, 5_402.0],
            reference: Some("ceiling".into()),
            goal: Some(0.85),
            ..ceiling.clone()
        };
        let slow = Case {
            name: "p50".into(),
            unit: "ms".into(),
            better: Better::Lower,
            rounds: vec![2.0],
            goal: Some(1.0),
            ..Case::default()
        };
        let check = Check { what: "every effect".into(), passed: false, detail: "9 of 10".into() };
        let scenario = Scenario {
            name: "drain".into(),
            cases: vec![ceiling, case, slow],
            checks: vec![check],
            notes: vec!["a note".into()],
            ..Scenario::default()
        };
        Results { scenarios: vec![scenario], ..Results::default() }
    }

    #[test]
    fn a_row_has_median_spread_ratio_and_goal() {
        let text = text(&results());
        let row = text.lines().find(|line| line.contains("odd")).unwrap();
        let words: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(
            words.join(" "),
            "<b> & \"odd\" 5,402 tasks/s 5.0 % 0.90 × ceiling ≥ 0.85 × met"
        );
        assert!(text.contains("FAILED: every effect (9 of 10)\nnote: a note\n"), "{text}");
        assert!(text.ends_with("1 of 2 goals met, 0 of 1 checks passed"), "{text}");
        assert!(!text.contains('\u{1b}'));
    }

    #[test]
    fn markdown_is_one_table_of_goals() {
        let text = markdown(&results());
        let row = r#"| drain | \<b> & "odd" | 5,402 tasks/s | 5.0 % | 0.90 × | ceiling | ≥ 0.85 × | met |"#;
        assert!(text.contains(row), "{text}");
        let rows = text.lines().filter(|line| line.starts_with('|')).collect::<Vec<_>>();
        assert_eq!(rows.len(), 2 + results().goals().count());
        assert!(rows.iter().all(|row| row.matches('|').count() == 9), "{text}");
    }
}
