//! `pgmill schedule show`: one schedule with its next fires, its history and its log.

use std::fmt::Write as _;

use cli::{Failure, exit};
use schedule::queries::{self, RunHistoryFilter, ScheduleStatus};
use schedule::{Timing, describe_timing};
use serde_json::json;
use terminal::visible;
use tokio_postgres::Client;

use crate::output::Output;
use crate::output::format::{label_lines, local_time, span};
use crate::schedules::fires::table_of_fires;
use crate::schedules::list::find;
use crate::schedules::log;

/// Number of rows of history and log that `show` prints.
const LATEST: i64 = 5;

/// Shows one schedule.
///
/// # Errors
/// Fails if there is no such schedule.
pub(super) async fn show(client: &Client, out: &Output, name: &str) -> Result<u8, Failure> {
    let it = find(client, name).await?;
    let now = queue::task_queries::now(client).await?;
    let cadence = match Timing::parse(&it.timing) {
        Ok(Timing::Scheduled(cadence)) => Some(cadence),
        _ => None,
    };
    let next = cadence.iter().flat_map(|it| it.fires(now).take(5)).collect::<Vec<_>>();
    let wanted = RunHistoryFilter {
        schedule: Some(name.to_owned()),
        limit: LATEST,
        ..RunHistoryFilter::default()
    };
    let history = queries::history(client, &wanted).await?;
    let log = queries::log(client, Some(name), None, None, LATEST).await?.unwrap_or_default();
    if out.json {
        out.document(&json!({
            "schedule": it, "timing_description": describe_timing(&it.timing), "next": next, "history": history, "log": log,
        }))?;
        return Ok(exit::OK);
    }
    out.text(&heading(&it))?;
    if let Some(cadence) = cadence.filter(|_| !next.is_empty()) {
        out.text(&format!("\n{}", table_of_fires(out, &cadence, &next, now)))?;
    }
    if !history.is_empty() {
        out.text(&format!("\n{}", log::runs(out, &history)))?;
    }
    if !log.is_empty() {
        out.text(&format!("\n{}", log::events(out, &log)))?;
    }
    Ok(exit::OK)
}

fn heading(it: &ScheduleStatus) -> String {
    let mut text = format!("schedule {}: {}, {}", it.name, it.status, describe_timing(&it.timing));
    let declared = match (&it.declared_as, it.declared_in.as_str()) {
        (Some(procedure), _) => format!("in the comment of {procedure}"),
        (None, "file") => "in a file".to_owned(),
        (None, _) => "by a call".to_owned(),
    };
    let _ = write!(text, "\ntiming {}, declared {declared}", it.timing);
    let _ = write!(
        text,
        "\nruns {}, overlap {}, catch up {}",
        it.jobs.join(", "),
        it.overlap,
        it.catch_up
    );
    if let Some(seconds) = it.max_lateness_seconds {
        let _ = write!(text, " no later than {}", span(seconds));
    }
    if it.jitter_seconds > 0.0 {
        let _ = write!(text, ", jitter {}", span(it.jitter_seconds));
    }
    if let Some(max_attempts) = it.max_attempts {
        let _ = write!(text, ", max attempts {max_attempts}");
    }
    if let Some(seconds) = it.retry_interval_seconds {
        let _ = write!(text, ", retry interval {}", span(seconds));
    }
    let _ = write!(
        text,
        "\nversion {}, changed {} by {}",
        it.version,
        local_time(it.changed_at),
        it.changed_by
    );
    for (word, value) in label_lines(&it.labels) {
        let _ = write!(text, "\n{word} {value}");
    }
    for (word, at) in [
        ("next fire", it.next_fire_at),
        ("last fire", it.last_fire_at),
        ("last success", it.last_success_at),
        ("fire that waits for the run in progress", it.queued_fire_at),
        ("removed", it.removed_at),
    ] {
        if let Some(at) = at {
            let _ = write!(text, "\n{word} {}", local_time(at));
        }
    }
    if let Some(run) = it.running_run_id {
        let _ = write!(text, "\nrun {run} is in progress: pgmill run show {run}");
    }
    if let Some(error) = &it.error {
        let _ = write!(text, "\nerror: {error}");
    }
    text.lines().map(visible).collect::<Vec<_>>().join("\n")
}
