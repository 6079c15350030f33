//! Duration history of tasks with the same name, and a chart of the latest attempts.

use std::fmt::Write;

use deadpool_postgres::Transaction;
use queue::insight::recent_attempts::{RecentAttempt, recent_attempts};
use queue::insight::{self, Durations};
use queue::{Outcome, QueueError, TaskId};
use serde::Serialize;

use crate::escape::Markup;
use crate::page::format::span;

/// Height of the chart and width of a bar, in user units.
const HEIGHT: f64 = 60.0;
const BAR: usize = 8;

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
        let Some(durations) = insight::durations_of(&**tx, queue, name).await? else {
            return Ok(None);
        };
        Ok(Some(Self { durations, recent: recent_attempts(&**tx, queue, name).await? }))
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

    /// Draws a bar per attempt, oldest first, each linked to its task. The lines mark p50 and p95.
    /// `own` is the task of the page.
    pub(crate) fn chart(&self, base: &str, own: TaskId) -> Markup {
        let longest = self.recent.iter().map(|it| it.duration_seconds).fold(0.001, f64::max);
        let top = |seconds: f64| HEIGHT - (seconds / longest * (HEIGHT - 2.0)).clamp(1.0, HEIGHT);
        let width = (self.recent.len() * BAR).max(1);
        let mut svg = format!(
            "<svg class=\"duration-history\" viewBox=\"0 0 {width} {HEIGHT}\" width=\"{}\" height=\"{HEIGHT}\" preserveAspectRatio=\"none\" role=\"group\" \
             aria-label=\"last {}, at most {}\">",
            width,
            crate::page::format::counted(i64::try_from(self.recent.len()).unwrap_or(0), "attempt"),
            span(longest),
        );
        for (place, past) in self.recent.iter().rev().enumerate() {
            let class = match past.outcome {
                Outcome::Succeeded => "ok",
                Outcome::Cancelled => "cancelled",
                _ => "bad",
            };
            let class =
                if past.task_id == own { format!("{class} this-task") } else { class.to_owned() };
            let at = top(past.duration_seconds);
            let _ = write!(
                svg,
                "<a href=\"{}/tasks/{}\"><rect class=\"{class}\" x=\"{}\" y=\"{at:.1}\" width=\"{}\" \
                 height=\"{:.1}\"><title>task {}: {}, {}</title></rect></a>",
                crate::escape::escaped(base),
                past.task_id,
                place * BAR,
                BAR - 2,
                HEIGHT - at,
                past.task_id,
                past.outcome.as_str().replace('_', " "),
                span(past.duration_seconds),
            );
        }
        let lines = [("p50", self.durations.p50_seconds), ("p95", self.durations.p95_seconds)];
        for (class, seconds) in lines.iter().filter_map(|(class, it)| Some((class, (*it)?))) {
            let at = top(seconds);
            let _ = write!(
                svg,
                "<line class=\"{class}\" x1=\"0\" x2=\"{width}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>"
            );
        }
        svg.push_str("</svg>");
        Markup(svg)
    }
}
