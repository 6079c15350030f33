//! Lists: as document or table, truncated to a limit, with a note if they are empty or truncated.

use std::time::Duration;

use cli::{Exit, exit};
use conninfo::Client;
use queue::{QueueError, RunId, run_queries, task_queries};
use serde::Serialize;

use crate::args::DEFAULT_SINCE;
use crate::output::format::counted;
use crate::output::{Output, Row};

impl Output {
    /// Prints items as a document or a table. If there are none, prints a note instead of the table:
    /// an empty list is not an error.
    pub(crate) fn list<T: Serialize>(
        &self,
        items: &[T],
        nothing: &str,
        row: impl FnMut(&T) -> Row,
    ) -> Exit {
        if self.json {
            return self.document(&items);
        }
        if items.is_empty() {
            self.note(nothing);
            return Ok(exit::OK);
        }
        self.print_table(items.iter().map(row).collect())
    }

    /// As [`Output::list`], for at most `limit` items. The caller reads one more, to learn whether
    /// there are more.
    pub(crate) fn page<T: Serialize>(
        &self,
        (mut items, limit): (Vec<T>, i64),
        nothing: &str,
        row: impl FnMut(&T) -> Row,
    ) -> Exit {
        let more = cut(&mut items, limit);
        self.list(&items, nothing, row)?;
        Ok(self.note_if_more(items.len(), more))
    }

    /// Says that a list is truncated. Returns the exit code of the list.
    pub(crate) fn note_if_more(&self, shown: usize, more: bool) -> u8 {
        if more {
            self.note(format_args!("{} shown, more exist; use --limit", counted(shown, "row")));
        }
        exit::OK
    }
}

/// Returns the message for an empty list of the period [`DEFAULT_SINCE`].
pub(crate) fn nothing_since(what: &str) -> String {
    let hours = DEFAULT_SINCE.as_secs() / 3600;
    format!("{what} in the last {hours}h; use --since for a longer period")
}

/// Says that a list with this number of items, if it is neither empty nor full, shows only the period
/// [`DEFAULT_SINCE`].
pub(crate) fn note_default_period(out: &Output, items: usize, limit: i64) {
    let hours = DEFAULT_SINCE.as_secs() / 3600;
    if !out.json && (1..=limit).contains(&i64::try_from(items).unwrap_or(i64::MAX)) {
        out.note(format_args!(
            "only the last {hours} hours were read; --since '7 days' reads more"
        ));
    }
}

/// Returns the period of history that a list reads if `--since` is absent. For a run, this is the
/// time since its start: the period includes every attempt of the run, and PostgreSQL reads only the
/// partitions of these days.
pub(crate) async fn default_since(
    client: &Client,
    run: Option<RunId>,
) -> Result<Option<Duration>, QueueError> {
    let Some(run) = run else { return Ok(Some(DEFAULT_SINCE)) };
    let Some(run) = run_queries::run(client, run).await? else { return Ok(None) };
    let age = task_queries::now(client).await?.duration_since(run.started_at);
    Ok(Some(Duration::try_from(age).unwrap_or_default() + Duration::from_secs(60)))
}

/// Truncates a list to `limit` items, and returns whether there were more.
pub(crate) fn cut<T>(items: &mut Vec<T>, limit: i64) -> bool {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let more = items.len() > limit;
    items.truncate(limit);
    more
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
