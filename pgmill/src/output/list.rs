//! The end of a printed list: truncation to a limit, and the note after an empty or truncated list.

use cli::{Failure, exit};
use terminal::print_stderr;

use crate::args::DEFAULT_SINCE;
use crate::output::Output;
use crate::output::format::counted;

/// Returns the message for an empty list of the period [`DEFAULT_SINCE`].
pub(crate) fn nothing_since(what: &str) -> String {
    let hours = DEFAULT_SINCE.as_secs() / 3600;
    format!("{what} in the last {hours}h; use --since for a longer period")
}

/// Truncates a list to `limit` items, and returns whether there were more.
pub(crate) fn cut<T>(items: &mut Vec<T>, limit: i64) -> bool {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let more = items.len() > limit;
    items.truncate(limit);
    more
}

/// Prints a note after a list that is empty or truncated. An empty list is not an error.
pub(crate) fn close(out: &Output, shown: usize, more: bool, nothing: &str) -> Result<u8, Failure> {
    if shown == 0 {
        // The empty document is already printed.
        if !out.json {
            print_stderr(nothing);
        }
        return Ok(exit::OK);
    }
    if more {
        print_stderr(format_args!(
            "{} shown, more exist; use --limit",
            counted(shown as u64, "row")
        ));
    }
    Ok(exit::OK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncation_is_detected() {
        let mut items = vec![1, 2, 3];
        assert!(!cut(&mut items, 3));
        assert!(cut(&mut items, 2));
        assert_eq!(items, [1, 2]);
    }
}
