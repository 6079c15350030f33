//! Schedules page by page, each with the states of its last runs.

pub mod calendar;

use conninfo::GenericClient;
use jiff::Timestamp;
use queue::QueueError;
use queue::row::{FromRow, Param, column, from_row, query, rows};
use serde::Serialize;

use crate::queries::{COLUMNS, ScheduleStatus};

const OVERDUE: &str = "SELECT /* schedule.overdue */ s.name, extract(epoch FROM s.overdue)::float8 AS overdue_seconds FROM mill.schedule_status s
WHERE s.name = ANY ($1) AND s.overdue IS NOT NULL";

/// With an equation, the planner may search all runs in the order of the primary key.
const RECENT: &str = "SELECT /* schedule.recent */ s.name, r.id AS run_id, r.state::text, r.fire_at,
    extract(epoch FROM coalesce(r.finished_at, now()) - r.started_at)::float8 AS duration_seconds
FROM mill.schedules s CROSS JOIN LATERAL (SELECT x.* FROM (SELECT o.id, o.state, o.fire_at, o.started_at, o.finished_at
    FROM mill.runs o WHERE o.schedule_id >= s.id AND o.schedule_id <= s.id
    ORDER BY o.schedule_id DESC, o.id DESC LIMIT $2) AS x) AS r
WHERE s.name = ANY ($1) ORDER BY s.name, r.id";

/// A run that a schedule fired.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct RecentRun {
    /// The run.
    pub run_id: i64,
    /// State of the run.
    pub state: queue::run::RunState,
    /// The instant for which it was fired.
    pub fire_at: Timestamp,
    /// Seconds from the start of the run to its end, or until now.
    pub duration_seconds: f64,
}

from_row! { RecentRun { run_id, state, fire_at, duration_seconds } }

/// A schedule in a list.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct ScheduleSummary {
    /// State of the schedule.
    #[serde(flatten)]
    pub status: ScheduleStatus,
    /// Description of the schedule's timing in words.
    pub timing_description: String,
    /// Seconds for which a tick of the schedule has been overdue.
    pub overdue_seconds: Option<f64>,
    /// Last runs of the schedule, newest last.
    pub recent: Vec<RecentRun>,
}

from_row! {
    row => ScheduleSummary {
        status: ScheduleStatus::from_row(row)?,
        timing_description: crate::describe_timing(column(row, "timing")?),
        overdue_seconds: None, recent: Vec::new(),
    }
}

/// A page of schedules, by name.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SchedulePage {
    /// The schedules.
    pub schedules: Vec<ScheduleSummary>,
    /// The name after which the next page begins; `None` on the last page.
    pub next: Option<String>,
}

/// Selects the schedules of a page.
#[derive(Clone, Copy, Debug)]
pub enum PageFrom<'a> {
    /// Schedules after this name, up to the given number.
    After(&'a str, i64),
    /// The same, with those whose declaration was removed.
    AfterWithRemoved(&'a str, i64),
    /// The schedule with this name.
    Name(&'a str),
    /// The first schedules by name that run a job, up to the given number.
    Job(&'a str, i64),
}

/// Returns a page of schedules, each with up to the given number of its last runs.
pub async fn page(
    client: &impl GenericClient,
    from: PageFrom<'_>,
    runs: i64,
) -> Result<SchedulePage, QueueError> {
    let (after, name, job, limit, removed) = match from {
        PageFrom::After(after, limit) => (after, None, None, limit, false),
        PageFrom::AfterWithRemoved(after, limit) => (after, None, None, limit, true),
        PageFrom::Name(name) => ("", Some(name), None, 1, true),
        PageFrom::Job(job, limit) => ("", None, Some(job), limit, false),
    };
    let sql = format!(
        "SELECT /* schedule.page */ {COLUMNS} FROM mill.schedule_status s
         WHERE s.name > $1 AND ($2::text IS NULL OR s.name = $2) AND ($4 OR s.removed_at IS NULL)
             AND ($5::text IS NULL OR lower($5) = ANY (SELECT lower(j) FROM unnest(s.jobs) AS j))
         ORDER BY s.name LIMIT $3"
    );
    let wanted = limit + 1;
    let params: [&dyn Param; 5] = [&after, &name, /* limit */ &wanted, &removed, &job];
    let mut schedules: Vec<ScheduleSummary> = rows(client, &sql, &params).await?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let full = schedules.len() > limit;
    schedules.truncate(limit);
    add_recent_runs(client, &mut schedules, runs).await?;
    let next = schedules.last().filter(|_| full).map(|last| last.status.name.clone());
    Ok(SchedulePage { schedules, next })
}

async fn add_recent_runs(
    client: &impl GenericClient,
    schedules: &mut [ScheduleSummary],
    runs: i64,
) -> Result<(), QueueError> {
    let names: Vec<String> = schedules.iter().map(|it| it.status.name.clone()).collect();
    let named =
        |schedules: &mut [ScheduleSummary], name: &str, change: &dyn Fn(&mut ScheduleSummary)| {
            schedules.iter_mut().filter(|it| it.status.name == name).for_each(change);
        };
    for row in query(client, OVERDUE, &[&names]).await? {
        let seconds = column(&row, "overdue_seconds")?;
        named(schedules, column(&row, "name")?, &|it| it.overdue_seconds = seconds);
    }
    for row in query(client, RECENT, &[&names, &runs]).await? {
        let recent = RecentRun::from_row(&row)?;
        named(schedules, column(&row, "name")?, &|it| it.recent.push(recent.clone()));
    }
    Ok(())
}
