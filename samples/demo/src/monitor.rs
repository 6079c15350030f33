//! Watches the fleet until a number of tasks have finished, reports events, and kills one worker
//! while it runs tasks.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use queue::Outcome;
use tokio::time::sleep;
use tokio_postgres::Client;

use crate::fleet::Fleet;
use crate::screen::Screen;
use crate::snapshot::{Attempt, Snapshot, workers_ready};

/// Interval between two polls.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Time limit of the whole scenario.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Number of tasks that finish before a worker is killed. They are the fast loads among the first
/// eight loads; the four slow loads are then still running.
const ENDED_BEFORE_KILL: usize = 4;

pub(crate) struct Monitor<'a> {
    client: &'a Client,
    screen: &'a mut Screen,
    reported: BTreeSet<(i64, i32)>,
    killed: Option<Instant>,
}

impl<'a> Monitor<'a> {
    pub(crate) fn new(client: &'a Client, screen: &'a mut Screen) -> Self {
        Self { client, screen, reported: BTreeSet::new(), killed: None }
    }

    /// Prints an event between two waits.
    pub(crate) fn event(&self, text: &str) {
        self.screen.event(text);
    }

    /// Waits until this many workers are registered.
    pub(crate) async fn until_ready(&self, fleet: &mut Fleet, workers: i64) -> Result<()> {
        while workers_ready(self.client).await? < workers {
            self.check_deadline(fleet, "the workers are not ready")?;
            sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Waits until this many tasks have finished. The first call kills a worker meanwhile.
    pub(crate) async fn until_ended(
        &mut self,
        fleet: &mut Fleet,
        tasks: usize,
    ) -> Result<Snapshot> {
        loop {
            let snapshot = Snapshot::take(self.client).await?;
            self.report_new_attempts(&snapshot, fleet);
            self.screen.show(&snapshot, fleet);
            if self.killed.is_none()
                && let Some(pid) = victim(&snapshot, fleet)
            {
                self.kill(&snapshot, fleet, pid).await?;
            }
            if snapshot.ended() >= tasks {
                return Ok(snapshot);
            }
            self.check_deadline(fleet, &unfinished(&snapshot))?;
            sleep(POLL_INTERVAL).await;
        }
    }

    async fn kill(&mut self, snapshot: &Snapshot, fleet: &mut Fleet, pid: i32) -> Result<()> {
        let names: Vec<&str> = snapshot
            .running_tasks
            .iter()
            .filter(|running_task| running_task.worker_pid == pid)
            .map(|running_task| running_task.name.as_str())
            .collect();
        fleet.kill(pid).await?;
        self.killed = Some(Instant::now());
        self.screen.event(&format!(
            "killed worker {} with SIGKILL while it ran {}",
            worker_label(fleet, pid),
            names.join(", ")
        ));
        Ok(())
    }

    /// Reports attempts that did not succeed, and the later attempts that did.
    fn report_new_attempts(&mut self, snapshot: &Snapshot, fleet: &Fleet) {
        for attempt in &snapshot.attempts {
            if self.reported.insert((attempt.task, attempt.number))
                && let Some(text) = self.attempt_line(attempt, fleet)
            {
                self.screen.event(&text);
            }
        }
    }

    fn attempt_line(&self, attempt: &Attempt, fleet: &Fleet) -> Option<String> {
        let Attempt { task, name, number, last, outcome, worker_pid, message, .. } = attempt;
        let message = message.as_deref().unwrap_or("no message");
        let task = format!("task {task} ({name})");
        Some(match (outcome, last) {
            (Outcome::Succeeded, _) if *number == 1 => return None,
            (Outcome::Succeeded, _) => {
                format!(
                    "{task} succeeded on attempt {number}, on worker {}",
                    worker_label(fleet, *worker_pid)
                )
            }
            (Outcome::Lost, false) => {
                let since = self.killed.map(|killed| killed.elapsed()).unwrap_or_default();
                format!("{task} lost, back in the queue after {:.1} s", since.as_secs_f64())
            }
            (outcome, false) => format!("{task} {outcome}, will be retried: {message}"),
            (outcome, true) => format!("{task} {outcome} permanently: {message}"),
        })
    }

    /// Returns an error if a worker has ended unexpectedly, or on timeout.
    fn check_deadline(&self, fleet: &mut Fleet, waiting_for: &str) -> Result<()> {
        fleet.check()?;
        if self.screen.elapsed() > TIMEOUT {
            bail!("not finished after {TIMEOUT:?}: {waiting_for}{}", fleet.tails());
        }
        Ok(())
    }
}

/// Formats a worker's label: `2 (pid 4711)`.
pub(crate) fn worker_label(fleet: &Fleet, pid: i32) -> String {
    match fleet.workers().iter().find(|worker| worker.pid == pid) {
        Some(worker) => format!("{} (pid {pid})", worker.number),
        None => format!("with pid {pid}"),
    }
}

/// Returns the worker with the most loads, once it is time to kill. A load sleeps in its
/// transaction and is therefore still running when the signal arrives; a merge may not be.
fn victim(snapshot: &Snapshot, fleet: &Fleet) -> Option<i32> {
    let loads = |pid: i32| {
        let own =
            snapshot.running_tasks.iter().filter(|running_task| running_task.worker_pid == pid);
        own.filter(|running_task| running_task.name.starts_with("load")).count()
    };
    let busiest = fleet.workers().iter().map(|worker| worker.pid).max_by_key(|pid| loads(*pid))?;
    (snapshot.ended() >= ENDED_BEFORE_KILL && loads(busiest) > 0).then_some(busiest)
}

fn unfinished(snapshot: &Snapshot) -> String {
    let Snapshot { pending, running, scheduled, running_tasks, .. } = snapshot;
    let names: Vec<&str> =
        running_tasks.iter().map(|running_task| running_task.name.as_str()).collect();
    format!("{pending} pending, {scheduled} scheduled, {running} running ({})", names.join(", "))
}
