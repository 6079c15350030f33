//! Formats the outcomes as a table, and writes them into a page.

use std::collections::HashMap;
use std::path::Path;

use anyhow::Result;
use page::Section;

use crate::catalog::Mutant;
use crate::outcome::{Fate, Outcome};

/// The table in a page.
const SECTION: Section = Section("mutants");

const HEAD: &str = "| mutant | file | what goes wrong | found by |\n|---|---|---|---|\n";

/// Texts of the last column if no test has failed.
const TIME_LIMIT: &str = "time limit";
const SURVIVED: &str = "no test";
const HARMLESS: &str = "no test: ";

/// Cells of a row of the table.
type Row = [String; 4];

fn row(outcome: &Outcome) -> Row {
    let mutant = &outcome.mutant;
    let found = match (&outcome.fate, &mutant.harmless) {
        (Fate::Killed(test), _) => format!("`{}`", test.rsplit("::").next().unwrap_or(test)),
        (Fate::TimeLimit, _) => TIME_LIMIT.to_owned(),
        (Fate::Survived, Some(reason)) => format!("{HARMLESS}{reason}"),
        (Fate::Survived, None) => SURVIVED.to_owned(),
    };
    [format!("`{}`", mutant.name), format!("`{}`", mutant.file), mutant.breaks.clone(), found]
}

/// Returns the number of mutants, and the share that the tests find.
pub(crate) fn totals(outcomes: &[Outcome]) -> String {
    sum(&outcomes.iter().map(row).collect::<Vec<_>>())
}

fn sum(rows: &[Row]) -> String {
    let count = |condition: &dyn Fn(&str) -> bool| {
        rows.iter().filter(|[.., found]| condition(found)).count()
    };
    let limit = count(&|found| found == TIME_LIMIT);
    let harmless = count(&|found| found.starts_with(HARMLESS));
    let survived = count(&|found| found == SURVIVED);
    let judged = rows.len() - harmless;
    let killed = judged - survived;
    let percent = (killed * 100).checked_div(judged).unwrap_or(100);
    format!(
        "{} mutants: {killed} found ({limit} of them by the time limit), {survived} not found, \
         {harmless} harmless. Share found, without the harmless ones: {percent} %.",
        rows.len()
    )
}

/// Replaces the results of these mutants in a page. Keeps the results of the other mutants of the
/// catalog.
pub(crate) fn write(page: &Path, outcomes: &[Outcome], catalog: &[Mutant]) -> Result<()> {
    SECTION.write(page, |old| merged(old, outcomes, catalog))
}

fn merged(old: &str, outcomes: &[Outcome], catalog: &[Mutant]) -> String {
    let new = outcomes.iter().map(row);
    let mut known: HashMap<String, Row> = old
        .lines()
        .filter_map(page::row)
        .chain(new)
        .map(|row: Row| (row[0].clone(), row))
        .collect();
    let names = catalog.iter().map(|mutant| format!("`{}`", mutant.name));
    let rows: Vec<Row> = names.filter_map(|name| known.remove(&name)).collect();
    let lines: String = rows.iter().map(|row| format!("| {} |\n", row.join(" | "))).collect();
    format!("{HEAD}{lines}\n{}", sum(&rows))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::catalog::mutants;

    const BEGIN: &str = "<!-- the mutants -->";
    const END: &str = "<!-- the end of the mutants -->";

    fn replace(text: &str, outcomes: &[Outcome], catalog: &[Mutant]) -> Option<String> {
        SECTION.replace(text, |old| merged(old, outcomes, catalog))
    }

    fn outcomes() -> Vec<Outcome> {
        let fates =
            [Fate::Killed("a::b".to_owned()), Fate::TimeLimit, Fate::Survived, Fate::Survived];
        let mut mutants = mutants().unwrap().into_iter().filter(|mutant| mutant.harmless.is_none());
        let mut outcomes: Vec<Outcome> = fates
            .into_iter()
            .map(|fate| Outcome { mutant: mutants.next().unwrap(), fate, took: Duration::ZERO })
            .collect();
        outcomes[3].mutant.harmless = Some("because".to_owned());
        outcomes
    }

    #[test]
    fn the_share_leaves_out_harmless_mutants() {
        let expected = "4 mutants: 2 found (1 of them by the time limit), 1 not found, 1 harmless. \
                        Share found, without the harmless ones: 66 %.";
        assert_eq!(totals(&outcomes()), expected);
        let passed: Vec<bool> = outcomes().iter().map(Outcome::passed).collect();
        assert_eq!(passed, [true, true, false, true]);
    }

    #[test]
    fn a_mutant_that_is_called_harmless_and_is_found_is_a_mistake() {
        let mut outcome = outcomes().remove(0);
        outcome.mutant.harmless = Some("because".to_owned());
        assert!(!outcome.passed());
    }

    #[test]
    fn new_results_replace_the_old_ones_of_the_page() {
        let catalog: Vec<Mutant> = outcomes().into_iter().map(|outcome| outcome.mutant).collect();
        let empty = format!("head\n{BEGIN}\n{END}\nfoot\n");
        let whole = replace(&empty, &outcomes(), &catalog).unwrap();
        assert!(whole.starts_with(&format!("head\n{BEGIN}\n\n{HEAD}| `")), "{whole}");
        assert!(whole.ends_with(&format!("{END}\nfoot\n")), "{whole}");
        assert!(
            whole.contains(" | `b` |\n") && whole.contains(" | no test: because |\n"),
            "{whole}"
        );
        // Only the third mutant is run again.
        let again = Outcome { fate: Fate::TimeLimit, ..outcomes().remove(2) };
        let merged = replace(&whole, &[again], &catalog).unwrap();
        assert_eq!(merged.matches("| time limit |").count(), 2);
        assert!(merged.contains("3 found (2 of them by the time limit), 0 not found"), "{merged}");
        // A mutant that no longer exists has no row.
        let rest = replace(&whole, &[], &catalog[1..]).unwrap();
        assert_eq!(rest.lines().filter(|line| line.starts_with("| `")).count(), 3);
        assert!(replace("head", &[], &catalog).is_none());
    }
}
