//! Other job queues ("peers"), which run the same SQL work as pgmill's own workers. pgmill and the
//! peers take turns in one cluster; each round has a new database.
//!
//! `catalog` lists the peers and their settings, `install` installs them into a scratch folder,
//! `adapter` runs the adapter program of each peer, `round` prepares a database, `turns` alternates
//! the candidates. `backlog`, `latency` and `enqueue` are the measurements.

mod adapter;
mod backlog;
pub(crate) mod catalog;
mod enqueue;
pub(crate) mod install;
mod latency;
mod round;
mod turns;

use anyhow::Result;

use crate::context::RunContext;
use crate::result::{Case, Scenario};

use install::Participants;

/// The measurements.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PeerScenario {
    Backlog,
    Latency,
    Enqueue,
}

impl PeerScenario {
    pub(crate) const ALL: [Self; 3] = [Self::Backlog, Self::Latency, Self::Enqueue];

    /// Name in the results.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Backlog => "peers",
            Self::Latency => "peers-latency",
            Self::Enqueue => "peers-enqueue",
        }
    }

    /// One-line description.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Backlog => "a backlog, each task one INSERT, through other job queues",
            Self::Latency => {
                "pick-up latency of an idle worker: from enqueue commit to statement start"
            }
            Self::Enqueue => "enqueueing: single tasks on 1 and 10 connections, and in bulk",
        }
    }

    /// Runs the measurement.
    ///
    /// # Errors
    /// Returns an error if the database or pgmill's own worker fails. A peer's failure is part of
    /// the results.
    pub(crate) async fn run(
        self,
        context: &RunContext,
        participants: &Participants,
        tasks: i64,
    ) -> Result<Scenario> {
        let mut scenario = match self {
            Self::Backlog => backlog::run(context, participants, tasks).await,
            Self::Latency => latency::run(context, participants).await,
            Self::Enqueue => enqueue::run(context, participants, tasks).await,
        }?;
        for (name, reason) in &participants.missing {
            scenario.cases.push(Case { name: format!("{name}: not installed"), ..Case::default() });
            scenario.notes.push(format!("{name} is not installed: {reason}"));
        }
        Ok(scenario)
    }
}
