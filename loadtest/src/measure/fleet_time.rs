//! Processor time of a fleet, by part: reader backends, claimer backends and worker processes. It
//! depends far less than a rate on what else the machine does.

use std::ops::Sub;

use anyhow::Result;
use tokio_postgres::Client;

use crate::measure::rounds::case;
use crate::measure::sample::cpu_seconds;
use crate::result::{Better, Case};

/// Backends of the fleet in this database.
const BACKENDS: &str = "SELECT /* loadtest.fleet_backends */ a.pid, a.application_name LIKE 'pgmill claimer %' AS claims FROM pg_stat_activity a
WHERE a.datname = current_database()
    AND (a.application_name LIKE 'pgmill reader %' OR a.application_name LIKE 'pgmill claimer %')";

const PARTS: [&str; 3] = ["readers' backends", "claimer's backend", "worker"];

/// Processor time since the processes started, in seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FleetTime {
    readers: f64,
    claimers: f64,
    workers: f64,
}

impl FleetTime {
    /// Reads the times of the running workers and their backends. The server has to run on this
    /// machine.
    pub(crate) async fn read(client: &Client, workers: &[u32]) -> Result<Self> {
        let rows = client.query_typed(BACKENDS, &[]).await?;
        let of = |claims: bool| {
            let pids: Vec<u32> = rows
                .iter()
                .filter(|row| row.get::<_, bool>(1) == claims)
                .map(|row| row.get::<_, i32>(0).cast_unsigned())
                .collect();
            cpu_seconds(&pids)
        };
        Ok(Self { readers: of(false), claimers: of(true), workers: cpu_seconds(workers) })
    }
}

impl Sub for FleetTime {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            readers: self.readers - before.readers,
            claimers: self.claimers - before.claimers,
            workers: self.workers - before.workers,
        }
    }
}

/// Cases for the processor time per task: the fleet's, and its parts.
pub(crate) struct TimeCases(Vec<Case>);

impl TimeCases {
    /// Cases without rounds; `of` says which tasks are measured.
    pub(crate) fn new(of: &str) -> Self {
        let named = |part: &str| case(format!("{of}: processor time{part}"), "µs", Better::Lower);
        let parts = PARTS.iter().map(|part| named(&format!(", {part}")));
        Self(std::iter::once(named("")).chain(parts).collect())
    }

    /// Records a round of `tasks` tasks.
    #[expect(clippy::cast_precision_loss, reason = "a count of tasks")]
    pub(crate) fn record(&mut self, time: FleetTime, tasks: i64) {
        let FleetTime { readers, claimers, workers } = time;
        let seconds = [readers + claimers + workers, readers, claimers, workers];
        for (case, seconds) in self.0.iter_mut().zip(seconds) {
            case.rounds.push(seconds * 1e6 / tasks.max(1) as f64);
        }
    }

    /// Returns the cases that have rounds.
    pub(crate) fn into_cases(self) -> impl Iterator<Item = Case> {
        self.0.into_iter().filter(|case| !case.rounds.is_empty())
    }
}
