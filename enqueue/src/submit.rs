//! Submits SQL as tasks.

use std::io::BufRead;
use std::vec::IntoIter;

use conninfo::{Client, GenericClient};
use indicatif::ProgressBar;
use queue::enqueue::{self, Enqueued, NewTask, TaskOptions};
use queue::{QueueError, TaskId};

use crate::failure::Failure;
use crate::source::{Lines, Source};

/// Maximum number of tasks per INSERT. To submit 200,000 short lines to a local server takes 9.9 s
/// with 10 tasks per INSERT, 4.6 s with 100, and 3.2 s with 1,000. With 10,000 tasks it takes 3.0
/// s, but twice the memory.
const CHUNK_TASKS: usize = 1000;
/// Maximum size in bytes of the SQL in one INSERT, which bounds the use of memory. A single task
/// that is longer is sent alone.
const CHUNK_BYTES: usize = 1024 * 1024;

/// Submits one task.
///
/// # Errors
/// Returns an error if the task is refused or the connection is lost. After a lost connection, it
/// can be unknown whether the task was submitted ([`Failure::InDoubt`]).
pub(crate) async fn one(
    client: &mut Client,
    task: &NewTask,
    options: &TaskOptions,
    key: Option<&str>,
) -> Result<Enqueued, Failure> {
    let enqueued = async {
        if let Some(driver) = client.driver() {
            return enqueue::enqueue(driver, task, options, key).await;
        }
        let transaction = client.transaction().await?;
        let enqueued = enqueue::enqueue(&transaction, task, options, key).await?;
        transaction.commit().await?;
        Ok(enqueued)
    };
    enqueued.await.map_err(|error| match error {
        error if error.commit_in_doubt() => Failure::InDoubt(error),
        error => Failure::Database(error),
    })
}

/// What the tasks of a batch have in common.
pub(crate) struct Batch<'a> {
    /// Name and parameters.
    pub(crate) pattern: NewTask,
    pub(crate) options: &'a TaskOptions,
    /// Whether each line is a task, and not each source.
    pub(crate) by_line: bool,
    /// Maximum size of a statement, in bytes.
    pub(crate) limit_bytes: u64,
    /// Shows the progress, in bytes read.
    pub(crate) progress: &'a ProgressBar,
}

/// Submits every statement of the sources, in order and in one transaction, so that either all or
/// none are submitted.
///
/// The transaction starts after the first chunk was read, so that it is not open while the program
/// waits for the first lines of a pipe.
///
/// # Errors
/// Returns an error if a source cannot be read, a statement is refused or the connection is lost.
/// It is unknown whether the tasks were submitted only if the answer to COMMIT was lost.
pub(crate) async fn many(
    client: &mut Client,
    sources: Vec<Source>,
    batch: &Batch<'_>,
) -> Result<Ids, Failure> {
    let mut statements = Statements { sources: sources.into_iter(), lines: None, batch };
    let mut ids = Ids::default();
    let mut chunk = statements.chunk()?;
    if chunk.is_empty() {
        return Ok(ids);
    }
    let transaction = client.transaction().await.map_err(QueueError::from)?;
    while !chunk.is_empty() {
        for id in enqueue::enqueue_many(&transaction, &chunk, batch.options).await? {
            ids.push(id);
        }
        batch.progress.set_message(format!("{} tasks", ids.count));
        chunk = statements.chunk()?;
    }
    transaction.commit().await.map_err(|error| match QueueError::from(error) {
        error if error.commit_in_doubt() => Failure::InDoubt(error),
        error => Failure::Database(error),
    })?;
    Ok(ids)
}

/// The statements of all sources.
struct Statements<'a> {
    sources: IntoIter<Source>,
    lines: Option<Lines<Box<dyn BufRead>>>,
    batch: &'a Batch<'a>,
}

impl Statements<'_> {
    fn next(&mut self) -> Result<Option<String>, Failure> {
        loop {
            if let Some(lines) = &mut self.lines {
                let before = lines.bytes_read();
                let statement = lines.next_statement()?;
                self.batch.progress.inc(lines.bytes_read() - before);
                if statement.is_some() {
                    return Ok(statement);
                }
                self.lines = None;
            }
            let Some(source) = self.sources.next() else { return Ok(None) };
            if !self.batch.by_line {
                let statement = source.statement(self.batch.limit_bytes)?;
                self.batch.progress.inc(statement.len() as u64);
                return Ok(Some(statement));
            }
            self.lines = Some(source.lines(self.batch.limit_bytes)?);
        }
    }

    fn chunk(&mut self) -> Result<Vec<NewTask>, Failure> {
        let mut tasks = Vec::new();
        let mut bytes = 0;
        while tasks.len() < CHUNK_TASKS && bytes < CHUNK_BYTES {
            let Some(statement) = self.next()? else { break };
            bytes += statement.len();
            tasks.push(NewTask { statement, ..self.batch.pattern.clone() });
        }
        Ok(tasks)
    }
}

/// Task ids in order. They are stored as ranges, because they come from a sequence, and must be
/// kept until they are printed after COMMIT.
#[derive(Default, Debug)]
pub(crate) struct Ids {
    runs: Vec<(i64, i64)>,
    count: u64,
}

impl Ids {
    fn push(&mut self, id: TaskId) {
        self.count += 1;
        match self.runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(id.0) => *last = id.0,
            _ => self.runs.push((id.0, id.0)),
        }
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = TaskId> {
        self.runs.iter().flat_map(|&(first, last)| first..=last).map(TaskId)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ids_keep_their_order(numbers in proptest::collection::vec(0_i64..20, 0..50)) {
            let mut ids = Ids::default();
            for number in &numbers {
                ids.push(TaskId(*number));
            }
            prop_assert_eq!(ids.count(), numbers.len() as u64);
            prop_assert_eq!(ids.iter().map(|id| id.0).collect::<Vec<_>>(), numbers);
        }
    }

    #[test]
    fn consecutive_ids_are_one_range() {
        let mut ids = Ids::default();
        for id in 0..100_000 {
            ids.push(TaskId(id));
        }
        assert_eq!(ids.runs, [(0, 99_999)]);
    }
}
