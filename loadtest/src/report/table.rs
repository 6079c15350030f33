//! Prints results as text: tables for a terminal, and a Markdown table for the README.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};

use comfy_table::presets::NOTHING;
use comfy_table::{Cell, CellAlignment, Color, ContentArrangement, Table};
use terminal::visible;

use crate::report::goal_check::{GoalCheck, checks_passed, goals, goals_met};
use crate::report::number_format::{count, figure, goal, percent, ratio, with_unit};
use crate::result::{Case, Check, Percentiles, Results, Scenario};

/// Meaning of a word; determines its colour on a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    /// Neutral.
    Plain,
    /// Good.
    Good,
    /// Bad.
    Bad,
}

/// Prints the whole run.
///
/// # Errors
/// Returns an error if standard output cannot be written; a closed pipe is not an error.
pub(crate) fn print(results: &Results) -> io::Result<()> {
    write(&text(results))
}

/// Writes text with a final newline. A closed pipe (`loadtest … | head`) is not an error.
///
/// # Errors
/// Same as [`print()`].
pub(crate) fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.write_all(b"\n")) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.and_then(|()| out.flush()),
    }
}

/// Formats the whole run.
#[must_use]
pub(crate) fn text(results: &Results) -> String {
    let mut text = String::new();
    for scenario in &results.scenarios {
        let _ = write!(text, "{}: {}\n\n", visible(&scenario.name), visible(&scenario.title));
        text += &cases(scenario);
        text += "\n\n";
        if scenario.cases.iter().any(|case| case.percentiles.is_some()) {
            text += &percentiles(scenario);
            text += "\n\n";
        }
        for check in &scenario.checks {
            let _ = writeln!(text, "{}", check_line(check));
        }
        for note in &scenario.notes {
            let _ = writeln!(text, "note: {}", visible(note));
        }
        if !scenario.checks.is_empty() || !scenario.notes.is_empty() {
            text.push('\n');
        }
    }
    text + &summary(results)
}

/// Formats the totals: `11 of 13 goals met, 24 of 24 checks passed`.
fn summary(results: &Results) -> String {
    let ((met, goals), (passed, checks)) = (goals_met(results), checks_passed(results));
    format!("{met} of {goals} goals met, {passed} of {checks} checks passed")
}

fn cases(scenario: &Scenario) -> String {
    let ratios = scenario.cases.iter().any(|case| case.reference.is_some());
    let goals = scenario.cases.iter().any(|case| case.goal.is_some());
    let mut headings = vec!["case", "median", "spread"];
    headings.extend(ratios.then_some(["ratio", "of"]).into_iter().flatten());
    headings.extend(goals.then_some(["goal", ""]).into_iter().flatten());
    let mut table = plain(&headings, if ratios { &[1, 2, 3] } else { &[1, 2] });
    for case in &scenario.cases {
        let goal_check = GoalCheck::new(scenario, case);
        let mut texts = vec![
            case.name.clone(),
            case.median().map(|it| with_unit(it, &case.unit)).unwrap_or_default(),
            case.spread().map(percent).unwrap_or_default(),
        ];
        if ratios {
            let value = goal_check.value.filter(|_| case.reference.is_some());
            texts.push(value.map(ratio).unwrap_or_default());
            texts.push(case.reference.clone().unwrap_or_default());
        }
        let mut row: Vec<Cell> = texts.iter().map(|text| cell(text, Tone::Plain)).collect();
        if goals {
            let (word, tone) = verdict(&goal_check);
            row.push(cell(&goal(case).unwrap_or_default(), Tone::Plain));
            row.push(cell(word, tone));
        }
        table.add_row(row);
    }
    indented(&table)
}

fn percentiles(scenario: &Scenario) -> String {
    let mut table =
        plain(&["ms", "p50", "p90", "p99", "p99.9", "max", "timed"], &[1, 2, 3, 4, 5, 6]);
    for case in &scenario.cases {
        let Some(Percentiles { count: timed, p50, p90, p99, p999, max, .. }) =
            case.percentiles.as_ref()
        else {
            continue;
        };
        let mut row = vec![cell(&case.name, Tone::Plain)];
        row.extend([p50, p90, p99, p999, max].map(|value| Cell::new(figure(*value))));
        row.push(Cell::new(count(*timed)));
        table.add_row(row);
    }
    indented(&table)
}

fn check_line(check: &Check) -> String {
    let word = painted(if check.passed { "ok" } else { "FAILED" }, check.passed);
    let detail =
        if check.detail.is_empty() { String::new() } else { format!(" ({})", check.detail) };
    format!("{word}: {}{}", visible(&check.what), visible(&detail))
}

fn painted(word: &str, good: bool) -> String {
    let code = if good { "32" } else { "31" };
    if io::stdout().is_terminal() { format!("\x1b[{code}m{word}\x1b[0m") } else { word.to_owned() }
}

/// Returns the verdict on a goal as a word.
#[must_use]
pub(crate) fn verdict(goal_check: &GoalCheck<'_>) -> (&'static str, Tone) {
    match (goal_check.case.goal, goal_check.goal_met) {
        (None, _) => ("", Tone::Plain),
        (Some(_), Some(true)) => ("met", Tone::Good),
        (Some(_), Some(false)) => ("MISSED", Tone::Bad),
        (Some(_), None) => ("not measured", Tone::Bad),
    }
}

/// Returns a table without lines, as wide as the terminal or as its content. Numeric columns are
/// right-aligned.
#[must_use]
pub(crate) fn plain(headings: &[&str], numbers: &[usize]) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(headings.iter().map(|heading| heading.to_uppercase()));
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    for column in numbers {
        if let Some(column) = table.column_mut(*column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Returns a table cell; coloured on a terminal only.
#[must_use]
pub(crate) fn cell(text: &str, tone: Tone) -> Cell {
    let cell = Cell::new(visible(text));
    match tone {
        Tone::Plain => cell,
        Tone::Good => cell.fg(Color::Green),
        Tone::Bad => cell.fg(Color::Red),
    }
}

fn indented(table: &Table) -> String {
    table.lines().map(|line| format!("  {}", line.trim_end())).collect::<Vec<_>>().join("\n")
}

/// Formats the goals of the run as one Markdown table, with the environment needed to judge them.
#[must_use]
pub(crate) fn markdown(results: &Results) -> String {
    let Results { machine, server, .. } = results;
    let mut text = format!(
        "pgmill {} on {} × {}, PostgreSQL {}, a durable commit takes {} ms; {}: `{}`\n\n\
         | scenario | what | median (spread) | ratio | goal | |\n|---|---|--:|--:|--:|---|\n",
        escaped(&results.version),
        machine.cores,
        escaped(&machine.processor),
        escaped(&server.version),
        figure(server.commit_ms),
        day(&results.started_at),
        results.command.replace('`', "'"),
    );
    for goal_check in goals(results) {
        let GoalCheck { scenario, case, value, .. } = &goal_check;
        let mark = match goal_check.goal_met {
            Some(true) => "✓",
            Some(false) => "**missed**",
            None => "not measured",
        };
        let against = case.reference.as_ref().zip(*value);
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {mark} |",
            escaped(&scenario.title),
            escaped(&case.name),
            escaped(&median_and_spread(case)),
            against.map(|(of, it)| format!("{} {}", ratio(it), escaped(of))).unwrap_or_default(),
            goal(case).map(|goal| escaped(&goal)).unwrap_or_default(),
        );
    }
    let _ = write!(text, "\n{}.", summary(results));
    for check in results.scenarios.iter().flat_map(|it| &it.checks).filter(|it| !it.passed) {
        let _ =
            write!(text, "\n- **failed:** {} ({})", escaped(&check.what), escaped(&check.detail));
    }
    text
}

fn median_and_spread(case: &Case) -> String {
    let Some(median) = case.median() else { return String::new() };
    let spread = case.spread().map(|spread| format!(" ({})", percent(spread)));
    with_unit(median, &case.unit) + &spread.unwrap_or_default()
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

/// Returns the day of an RFC 3339 time.
#[must_use]
pub(crate) fn day(time: &str) -> &str {
    time.split(['T', ' ']).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample_report;

    #[test]
    fn every_case_check_and_note_is_printed() {
        let results = sample_report::results();
        let text = text(&results);
        for scenario in &results.scenarios {
            let names = scenario.cases.iter().map(|case| &case.name);
            let checks = scenario.checks.iter().map(|check| &check.what);
            for wanted in names.chain(checks).chain(&scenario.notes).chain([&scenario.title]) {
                assert!(text.contains(wanted.as_str()), "{wanted} is not in\n{text}");
            }
        }
        assert!(text.contains("FAILED: every task was timed (9,998 of 10,000)"), "{text}");
        assert!(text.ends_with("8 of 10 goals met, 4 of 5 checks passed"), "{text}");
        assert!(!text.contains('\u{1b}'));
    }

    #[test]
    fn a_row_has_median_spread_ratio_and_goal() {
        let text = text(&sample_report::results());
        let row = text.lines().find(|line| line.contains("pgmill,")).unwrap();
        let words: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(
            words.join(" "),
            "pgmill, shared 21,600 tasks/s 12 % 0.68 × ceiling, shared ≥ 0.7 × MISSED"
        );
    }

    #[test]
    fn markdown_is_one_table_of_goals() {
        let text = markdown(&sample_report::results());
        assert!(
            text.contains("| pgmill | 5,402 tasks/s (5.0 %) | 0.90 × ceiling | ≥ 0.85 × | ✓ |")
        );
        assert!(text.contains(r#"\<b>hostile\</b> & "odd""#), "{text}");
        let rows = text.lines().filter(|line| line.starts_with('|')).collect::<Vec<_>>();
        assert_eq!(rows.len(), 2 + goals(&sample_report::results()).len());
        assert!(rows.iter().all(|row| row.matches('|').count() == 7), "{text}");
    }
}
