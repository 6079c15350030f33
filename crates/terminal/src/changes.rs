//! Lines that differ between two texts.

/// Number of equal lines shown before and after the changed lines.
const CONTEXT: usize = 3;

/// Returns the removed (`-`) and added (`+`) lines between two texts, with up to three equal lines
/// (a space) before and after them. Everything between the first and the last line that differ
/// counts as changed.
#[must_use]
pub fn line_changes(old: &str, new: &str) -> Vec<(char, String)> {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let shorter = old.len().min(new.len());
    let head = old.iter().zip(&new).take_while(|(old, new)| old == new).count();
    let tail = old.iter().rev().zip(new.iter().rev()).take(shorter - head);
    let tail = tail.take_while(|(old, new)| old == new).count();
    let of = |sign: char, lines: &[&str]| -> Vec<(char, String)> {
        lines.iter().map(|line| (sign, (*line).to_owned())).collect()
    };
    let end = old.len() - tail;
    [
        of(' ', &old[head.saturating_sub(CONTEXT)..head]),
        of('-', &old[head..end]),
        of('+', &new[head..new.len() - tail]),
        of(' ', &old[end..old.len().min(end + CONTEXT)]),
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use super::line_changes;

    fn text(old: &str, new: &str) -> String {
        let lines = line_changes(old, new);
        lines.iter().map(|(sign, line)| format!("{sign}{line}")).collect::<Vec<_>>().join("|")
    }

    #[test]
    fn changed_lines_have_equal_lines_around_them() {
        assert_eq!(
            text("a\nb\nc\nd\ne\nf\ng\nh\ni", "a\nb\nc\nd\nE\nf\ng\nh\ni"),
            " b| c| d|-e|+E| f| g| h"
        );
        assert_eq!(text("x", "x\ny"), " x|+y");
        assert_eq!(text("x\nx", "x"), " x|-x");
        assert_eq!(text("", "x"), "+x");
    }
}
