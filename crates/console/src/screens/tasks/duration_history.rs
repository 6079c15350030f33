//! Duration history of tasks with the same name, and a chart of the latest attempts.

use queue::insight::recent_attempts::{RecentAttempt, recent_attempts};
use queue::insight::{self, Durations};

use crate::screens::prelude::*;

/// Height of the chart and width of a bar, in user units.
pub(super) const HEIGHT: f64 = 60.0;
pub(super) const BAR: usize = 8;

/// Duration statistics of a name.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct DurationHistory {
    pub(crate) durations: Durations,
    /// The latest attempts, newest first.
    pub(crate) recent: Vec<RecentAttempt>,
}

impl DurationHistory {
    /// Reads the history; `None` if the task has no name or no task with the name has run.
    pub(crate) async fn of(
        tx: &Transaction<'_>,
        queue: &str,
        name: Option<&str>,
    ) -> Result<Option<Self>, QueueError> {
        let Some(name) = name else { return Ok(None) };
        let Some(durations) = insight::durations_of(tx, queue, name).await? else {
            return Ok(None);
        };
        Ok(Some(Self { durations, recent: recent_attempts(tx, queue, name).await? }))
    }

    /// Describes how the latest durations compare with earlier ones; `None` without enough
    /// attempts.
    pub(crate) fn trend(&self) -> Option<String> {
        let trend = self.durations.trend?;
        match trend {
            1.25.. => {
                Some(format!("the last 20 attempts took {trend:.1} times as long as earlier ones"))
            }
            ..0.8 => {
                Some(format!("the last 20 attempts took {trend:.2} times as long as earlier ones"))
            }
            _ => Some("no significant change".to_owned()),
        }
    }

    /// Returns the width of the chart, with a bar per attempt, oldest first.
    pub(crate) fn width(&self) -> usize {
        (self.recent.len() * BAR).max(1)
    }

    /// Returns the duration of the longest of the latest attempts.
    pub(crate) fn longest(&self) -> f64 {
        self.recent.iter().map(|it| it.duration_seconds).fold(0.001, f64::max)
    }

    /// Returns the height of a bar of this duration.
    pub(crate) fn height(&self, seconds: impl ByValue<f64>) -> f64 {
        (seconds.value() / self.longest() * (HEIGHT - 2.0)).clamp(1.0, HEIGHT)
    }

    /// Returns the class of the bar of an attempt.
    pub(crate) fn class(&self, past: &RecentAttempt) -> &'static str {
        match past.outcome {
            Outcome::Succeeded => "ok",
            Outcome::Cancelled => "cancelled",
            _ => "bad",
        }
    }

    /// Returns the lines at p50 and p95.
    pub(crate) fn lines(&self) -> Vec<(&'static str, f64)> {
        let lines = [("p50", self.durations.p50_seconds), ("p95", self.durations.p95_seconds)];
        lines.into_iter().filter_map(|(class, seconds)| Some((class, seconds?))).collect()
    }
}
