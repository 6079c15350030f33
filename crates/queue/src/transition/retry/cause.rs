//! The cause of an attempt's end: the task, a conflict or the server. One table decides it for
//! every SQLSTATE; `docs/tasks.md` contains the same table.

use crate::error::Condition;
use crate::transition::retry::AttemptError;

/// What ended an attempt that did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The statement, its data, or a limit or an administrator that applies to it.
    Task,
    /// Another transaction at the same time. Another attempt after its end succeeds.
    Conflict,
    /// A state of the server, which ends without a change of the task.
    Server,
}

/// SQLSTATEs, or their beginnings, with their cause. The longest beginning decides; a SQLSTATE that is not
/// listed is the task's. Class 08 is the task's because a statement raises it in a live session only about
/// a connection of its own (dblink, a foreign server, a subscription).
pub const CAUSES: &[(&str, Cause, &str)] = &[
    ("25P03", Cause::Server, "`idle_in_transaction_session_timeout` ended the session"),
    ("25P04", Cause::Task, "`transaction_timeout` ended the session"),
    ("40001", Cause::Conflict, "serialization failure"),
    ("40P01", Cause::Conflict, "deadlock"),
    ("53", Cause::Server, "disk full, out of memory, lock table full, too many connections"),
    ("53400", Cause::Task, "a configured limit is exceeded, for example `temp_file_limit`"),
    ("57P01", Cause::Server, "the server stops"),
    ("57P02", Cause::Server, "the server crashed"),
    ("57P03", Cause::Server, "the server starts or stops"),
    ("57P04", Cause::Server, "the database was dropped"),
    ("57P05", Cause::Server, "`idle_session_timeout` ended the session"),
    ("58", Cause::Server, "an error of the operating system, for example of the disk"),
];

impl Cause {
    /// Returns the cause of an attempt's error. A condition says more than the SQLSTATE, and the SQLSTATE
    /// more than a lost connection.
    #[must_use]
    pub fn of(error: &AttemptError<'_>) -> Self {
        if let Some(condition) = error.condition {
            return match condition {
                Condition::Terminated => Self::Task,
                Condition::CatalogRace | Condition::OutdatedPlan => Self::Conflict,
                Condition::OutOfTransactionIds
                | Condition::HistoryMissing
                | Condition::CompletionDelayed
                | Condition::NotBegun => Self::Server,
            };
        }
        let found = error.sqlstate.and_then(|code| {
            let matching = CAUSES.iter().filter(|(start, ..)| code.starts_with(start));
            matching.max_by_key(|(start, ..)| start.len())
        });
        match found {
            Some((_, cause, _)) => *cause,
            None if error.connection_lost => Self::Server,
            None => Self::Task,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_table_is_the_one_that_decides() {
        let docs = include_str!("../../../../../docs/tasks.md");
        let documented: Vec<&str> = docs
            .lines()
            .skip_while(|line| !line.starts_with("| SQLSTATE | cause |"))
            .skip(2)
            .take_while(|line| line.starts_with('|'))
            .collect();
        let row = |(start, cause, meaning): &(&str, Cause, &str)| {
            let cause = format!("{cause:?}").to_lowercase();
            format!("| `{start}` | {cause} | {meaning} |")
        };
        assert_eq!(documented, CAUSES.iter().map(row).collect::<Vec<_>>());
    }
}
