//! The data of one refresh.

use std::time::{Duration, Instant};

use conninfo::Client;
#[cfg(test)]
use jiff::Timestamp;
use queue::history;
use queue::{QueueError, TaskId};
#[cfg(test)]
use queue::{
    insight::problems::ProblemSources, queue_status::QueueStatus, task_queries::Running,
    workers::Worker,
};

use crate::fleet::status::{FleetStatus, Problem, problems};
use crate::output::Output;

/// Period over which the rate of finished tasks is measured.
const RATE_WINDOW: Duration = Duration::from_secs(10);
/// The outcomes of the last hour are counted again only after this many times the duration of the
/// previous count, so that counting takes at most 1/20 of the time.
const MAX_COUNT_SHARE: u32 = 20;

/// The fleet at one moment.
pub(super) struct Snapshot {
    pub(super) status: FleetStatus,
    pub(super) problems: Vec<Problem>,
    /// Tasks that finished per second.
    pub(super) rate: f64,
    /// Time of the last count of outcomes. Counting a long history is slow, so only some refreshes
    /// count.
    counted_at: Instant,
    count_duration: Duration,
}

impl Snapshot {
    /// Queries the fleet.
    pub(super) async fn take(client: &Client, last: Option<&Self>) -> Result<Self, QueueError> {
        let fresh =
            |last: &&Self| last.counted_at.elapsed() < last.count_duration * MAX_COUNT_SHARE;
        let (finished, counted_at, count_duration) = match last.filter(fresh) {
            Some(last) => (last.status.finished.clone(), last.counted_at, last.count_duration),
            None => {
                let begun = Instant::now();
                let finished = history::outcomes(client, crate::fleet::status::LAST).await?;
                (finished, Instant::now(), begun.elapsed())
            }
        };
        let status = FleetStatus::query(client, finished).await?;
        let recent = history::outcomes(client, RATE_WINDOW).await?;
        let recent: i64 = recent.iter().map(|finished| finished.tasks).sum();
        #[expect(clippy::cast_precision_loss, reason = "a count of tasks in ten seconds")]
        let rate = recent as f64 / RATE_WINDOW.as_secs_f64();
        let problems = problems(&status);
        Ok(Self { status, problems, rate, counted_at, count_duration })
    }
}

/// Returns everything about one task, as `pgmill task show` prints it.
pub(super) async fn task(client: &Client, id: TaskId) -> Result<String, QueueError> {
    let plain = Output::plain();
    Ok(crate::tasks::show::text(client, &plain, id)
        .await?
        .unwrap_or_else(|| format!("no live or finished task {id}")))
}

#[cfg(test)]
impl Snapshot {
    /// A fleet of one worker: queue `etl` is paused, task 7 waits for another backend.
    pub(super) fn example() -> Self {
        let now: Timestamp = "2026-12-01T03:00:00Z".parse().unwrap();
        let worker = queue::WorkerId(uuid::Uuid::from_u128(1));
        let task = |id, blocked_by| Running {
            id: TaskId(id),
            queue: "etl".to_owned(),
            name: None,
            attempt: 1,
            started_at: "2026-12-01T02:58:00Z".parse().unwrap(),
            worker_id: worker,
            host: Some("node\u{1b}".to_owned()),
            worker_pid: Some(42),
            backend_pid: 100,
            backend_state: Some("active".to_owned()),
            wait_event_type: None,
            wait_event: None,
            blocked_by,
            cancel_requested_at: None,
            progress: None,
            percent: None,
            reported_at: None,
            notices: None,
            blockers: None,
            run_id: None,
            run_as: None,
            login: None,
        };
        let queue = |name: &str, paused| QueueStatus {
            queue: name.to_owned(),
            paused,
            pending: 12,
            running: 2,
            scheduled: 0,
            blocked: 0,
            oldest_pending_seconds: Some(90.0),
            longest_running_seconds: Some(120.0),
            shared_commit_seconds: None,
            max_running: None,
            rate: None,
            store_params: true,
            store_output: true,
            conditions: Default::default(),
            held_back: None,
        };
        let status = FleetStatus {
            now,
            queues: vec![queue("default", false), queue("etl", true)],
            workers: vec![example_worker(worker, now)],
            running: vec![task(7, vec![99]), task(8, Vec::new())],
            finished: Vec::new(),
            sources: ProblemSources::default(),
        };
        let problems = problems(&status);
        let (counted_at, count_duration) = (Instant::now(), Duration::ZERO);
        Self { status, problems, rate: 1.5, counted_at, count_duration }
    }
}

#[cfg(test)]
fn example_worker(id: queue::WorkerId, now: Timestamp) -> Worker {
    Worker {
        id,
        host: Some("node".to_owned()),
        pid: Some(42),
        version: Some("0.1.0".to_owned()),
        schema_version: Some(1),
        started_at: None,
        heartbeat_at: now,
        heartbeat_age_seconds: 0.5,
        orphan_timeout_seconds: 30.0,
        alive: true,
        session_alive: true,
        draining: false,
        readers: 8,
        reserved: 0,
        running: 2,
        queues: None,
        error: None,
        error_seconds: None,
        profiles: [(String::new(), 8)].into(),
        unconnected: Vec::new(),
    }
}
