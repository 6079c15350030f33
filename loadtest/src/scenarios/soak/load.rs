//! The load: different tasks at a steady rate.

use std::time::{Duration, Instant};

use anyhow::Result;
use queue::enqueue::{Due, NewTask, TaskOptions, enqueue_many};
use queue::{Backoff, Mode};
use tokio::time::sleep;

use crate::context::RunContext;
use crate::context::database::{Database, EFFECT};
use crate::fleet::Fleet;

/// Tasks per second; far below a fleet's capacity, so that any growth is not caused by the load.
pub(super) const RATE: f64 = 400.0;

const TICK: Duration = Duration::from_millis(50);

/// Maximum number of tasks in one statement.
const BATCH: usize = 1000;

/// Numbers of submitted tasks.
#[derive(Debug, Default)]
pub(super) struct Sent {
    pub(super) all: i64,
    pub(super) effects: i64,
    /// Tasks that must fail.
    pub(super) doomed: i64,
}

impl Sent {
    /// Submits at the steady rate until `length` has passed since `begun`. After a pause, it submits
    /// the tasks of the pause, too.
    pub(super) async fn submit(
        &mut self,
        context: &RunContext,
        database: &Database,
        fleet: &mut Fleet<'_>,
        (begun, length): (Instant, Duration),
    ) -> Result<()> {
        let session = &*database.session;
        while begun.elapsed() < length {
            #[expect(clippy::cast_possible_truncation, reason = "a rate times a time, in tasks")]
            let due = (begun.elapsed().as_secs_f64() * RATE) as i64;
            for (options, tasks) in mix(self, due) {
                for tasks in tasks.chunks(BATCH) {
                    enqueue_many(session, tasks, &options).await?;
                }
            }
            fleet.check()?;
            let seconds = begun.elapsed().as_secs();
            context.progress.state(&format!("{seconds} s, {} tasks", self.all));
            sleep(TICK).await;
        }
        Ok(())
    }
}

/// Returns the tasks up to this number, grouped by the options that they need.
fn mix(sent: &mut Sent, due: i64) -> [(TaskOptions, Vec<NewTask>); 4] {
    let plain = TaskOptions::default();
    let later = TaskOptions { due: Due::In(Duration::from_secs(2)), ..plain.clone() };
    let autocommit = TaskOptions { mode: Some(Mode::Autocommit), ..plain.clone() };
    let doomed = TaskOptions {
        max_attempts: Some(2),
        retry_interval: Some(Duration::from_secs(1)),
        backoff: Some(Backoff::Fixed),
        ..plain.clone()
    };
    let mut batches =
        [plain, later, autocommit, doomed].map(|options| (options, Vec::<NewTask>::new()));
    for n in sent.all..due {
        let (batch, statement) = match n % 20 {
            0..=2 => (0, "SELECT generate_series(1, 1000)".to_owned()),
            3 => (0, "DO $$ BEGIN RAISE NOTICE 'one'; RAISE NOTICE 'two'; END $$".to_owned()),
            4 => (3, "DO $$ BEGIN RAISE EXCEPTION 'as planned'; END $$".to_owned()),
            // Without an effect: a failover may run it twice.
            6 => (2, "SELECT generate_series(1, 1000)".to_owned()),
            other => {
                sent.effects += 1;
                (usize::from(other == 5), EFFECT.replace("%s", &sent.effects.to_string()))
            }
        };
        sent.doomed += i64::from(batch == 3);
        batches[batch].1.push(NewTask { statement, ..NewTask::default() });
    }
    sent.all = sent.all.max(due);
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mix_is_what_the_note_says() {
        let mut sent = Sent::default();
        let first: usize = mix(&mut sent, 7).iter().map(|(_, tasks)| tasks.len()).sum();
        let batches = mix(&mut sent, 40);
        let rest: usize = batches.iter().map(|(_, tasks)| tasks.len()).sum();
        assert_eq!((first, rest, sent.all), (7, 33, 40));
        assert_eq!((sent.effects, sent.doomed), (28, 2));
    }
}
