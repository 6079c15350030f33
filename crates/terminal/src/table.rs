//! Widths of the columns of a table on a terminal.
//!
//! A table that is wider than the terminal is wrapped between words only: an id, a state or a name
//! that is broken in the middle can be neither read nor copied. If its words do not fit either, the
//! lines run over.

use std::borrow::BorrowMut;

use unicode_width::UnicodeWidthStr;

/// Assumed width of a terminal that does not report its width, such as that of a CI job.
const DEFAULT_WIDTH: u16 = 80;

/// A column with longer texts than this is wrapped first.
const MAX_WORDS_OF_A_VALUE: usize = 3;

/// Width in columns that longer texts keep while other columns can be wrapped, because a narrower
/// text is a list of words.
const COMFORTABLE_WIDTH: usize = 20;

/// Wraps the texts of a table, so that its lines are at most as wide as the terminal, if words allow
/// that.
///
/// `width` is the width that the terminal reports, `None` without a terminal: then nothing is
/// wrapped. `padding` is the width of blanks and borders per column. Widths are in terminal columns.
pub fn wrap_table<T: BorrowMut<String>>(
    width: Option<u16>,
    padding: usize,
    headings: &mut [String],
    rows: &mut [Vec<T>],
) {
    let Some(width) = width else { return };
    let width = usize::from(if width == 0 { DEFAULT_WIDTH } else { width });
    let widths: Vec<usize> = {
        let cells = |column: usize| {
            let rows = rows.iter().filter_map(move |row| row.get(column));
            rows.map(|cell| cell.borrow().as_str()).chain(headings.get(column).map(String::as_str))
        };
        let mut columns: Vec<Column> =
            (0..headings.len()).map(|column| Column::new(cells(column))).collect();
        shrink(&mut columns, width.saturating_sub(padding * headings.len()));
        columns.iter().map(|column| column.width).collect()
    };
    for (heading, width) in headings.iter_mut().zip(&widths) {
        *heading = wrapped(heading, *width);
    }
    for row in rows {
        for (cell, width) in row.iter_mut().zip(&widths) {
            let text: &mut String = cell.borrow_mut();
            *text = wrapped(text, *width);
        }
    }
}

#[derive(Debug)]
struct Column {
    width: usize,
    longest_word: usize,
    /// Whether a cell is a text, as opposed to a value such as a time or a name.
    text: bool,
}

impl Column {
    fn new<'a>(cells: impl Iterator<Item = &'a str>) -> Self {
        let mut column = Self { width: 0, longest_word: 0, text: false };
        for line in cells.flat_map(str::lines) {
            let words = line.split_whitespace();
            column.width = column.width.max(line.width());
            column.text |= words.clone().count() > MAX_WORDS_OF_A_VALUE;
            column.longest_word = column.longest_word.max(words.map(str::width).max().unwrap_or(0));
        }
        column
    }
}

/// Shrinks the widest columns until the sum of the widths is `available`, or no column can shrink.
fn shrink(columns: &mut [Column], available: usize) {
    let rules: [fn(&Column) -> Option<usize>; 3] = [
        |column| column.text.then(|| column.longest_word.max(COMFORTABLE_WIDTH)),
        |column| (!column.text).then_some(column.longest_word),
        |column| column.text.then_some(column.longest_word),
    ];
    let mut excess =
        columns.iter().map(|column| column.width).sum::<usize>().saturating_sub(available);
    for smallest in rules {
        while excess > 0 {
            let shrinkable = columns
                .iter_mut()
                .filter(|column| smallest(column).is_some_and(|smallest| column.width > smallest));
            let Some(widest) = shrinkable.max_by_key(|column| column.width) else { break };
            widest.width -= 1;
            excess -= 1;
        }
    }
}

/// Breaks lines between words. Continued lines keep the indentation of their line, for example in a
/// tree.
fn wrapped(text: &str, width: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        if line.width() <= width {
            lines.push(line.to_owned());
            continue;
        }
        let indent: String = line.chars().take_while(|c| *c == ' ').collect();
        let mut current = String::new();
        for word in line.split_whitespace() {
            if current.is_empty() {
                current = format!("{indent}{word}");
            } else if current.width() + 1 + word.width() <= width {
                current.push(' ');
                current.push_str(word);
            } else {
                lines.push(std::mem::replace(&mut current, format!("{indent}{word}")));
            }
        }
        lines.push(current);
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn wrap(width: u16, heading: [&str; 2], row: [&str; 2]) -> (Vec<String>, Vec<String>) {
        let mut headings = heading.map(str::to_owned).to_vec();
        let mut rows = vec![row.map(str::to_owned).to_vec()];
        wrap_table(Some(width), 2, &mut headings, &mut rows);
        (headings, rows.remove(0))
    }

    #[test]
    fn longer_texts_are_wrapped_before_values() {
        let (_, row) = wrap(
            40,
            ["started", "message"],
            ["2026-11-22 16:48 UTC", "relation \"mended\" does not exist"],
        );
        assert_eq!(row, ["2026-11-22 16:48\nUTC", "relation \"mended\"\ndoes not exist"]);
    }

    #[test]
    fn words_are_never_broken_and_run_over_if_nothing_else_fits() {
        let id = "3f2a77c0-9f5e-4c52-a2dc-f04852c6aa01";
        for width in [1, 10, 40] {
            let (headings, row) = wrap(width, ["upstream_failed", "id"], ["the state of it", id]);
            assert_eq!((headings[0].as_str(), row[1].as_str()), ("upstream_failed", id));
            assert_eq!(row[0], "the state of it");
        }
    }

    #[test]
    fn a_terminal_of_width_zero_counts_as_80_columns() {
        let text =
            "one two three four five six seven eight nine ten eleven twelve thirteen fourteen";
        assert_eq!(wrap(0, ["id", "task"], ["1", text]), wrap(80, ["id", "task"], ["1", text]));
        assert_eq!(wrap(0, ["id", "task"], ["1", text]).1[1].lines().count(), 2);
    }

    #[test]
    fn continued_lines_keep_their_indentation() {
        assert_eq!(wrapped("  Seq Scan on orders", 12), "  Seq Scan\n  on orders");
        assert_eq!(wrapped("a\n\nb", 12), "a\n\nb");
    }

    proptest! {
        #[test]
        fn no_word_is_lost_or_broken(text in "( {0,3}[a-zä日]{1,12}){0,20}", width in 0_u16..200) {
            let (_, row) = wrap(width, ["id", "task"], ["17", &text]);
            let words: Vec<&str> = row[1].split_whitespace().collect();
            prop_assert_eq!(words, text.split_whitespace().collect::<Vec<_>>());
        }
    }
}
