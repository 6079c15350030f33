//! The end of a printed list: truncation to a limit, and the note after an empty or truncated list.

use std::time::Duration;

use cli::{Failure, exit};
use conninfo::Client;
use queue::{QueueError, RunId, run_queries, task_queries};

use crate::args::DEFAULT_SINCE;
use crate::output::Output;
use crate::output::format::counted;

/// Returns the message for an empty list of the period [`DEFAULT_SINCE`].
pub(crate) fn nothing_since(what: &str) -> String {
    let hours = DEFAULT_SINCE.as_secs() / 3600;
    format!("{what} in the last {hours}h; use --since for a longer period")
}

/// Says that a list which is not full shows only the period [`DEFAULT_SINCE`].
pub(crate) fn note_default_period(out: &Output) {
    let hours = DEFAULT_SINCE.as_secs() / 3600;
    out.note(format_args!("only the last {hours} hours were read; --since '7 days' reads more"));
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

/// Prints a note after a list that is empty or truncated. An empty list is not an error.
pub(crate) fn close(out: &Output, shown: usize, more: bool, nothing: &str) -> Result<u8, Failure> {
    if shown == 0 {
        // The empty document is already printed.
        if !out.json {
            out.note(nothing);
        }
        return Ok(exit::OK);
    }
    if more {
        out.note(format_args!("{} shown, more exist; use --limit", counted(shown as u64, "row")));
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
