//! `pgmill run list`, and the search for one run.

use cli::{Exit, Failure};
use conninfo::Client;
use queue::RunId;
use queue::insight::eta::{MAX_TASKS_OF_LIST, etas};
use queue::run::RunState;
use queue::run_queries::{self, Run, RunFilter};

use crate::args::RunList;
use crate::output::format::{local_time, span, with_tags};
use crate::output::{Output, Row, Tone};
use crate::session::missing;

/// Maximum number of runs whose expected end a list contains.
const MAX_ETAS: usize = 20;

/// Lists runs.
pub(super) async fn list(client: &Client, out: &Output, args: &RunList) -> Exit {
    let (from, to) = args.period.bounds(queue::task_queries::now(client).await?)?;
    let filter = RunFilter {
        state: args.state,
        job: args.job.clone(),
        schedule: args.schedule.clone(),
        from,
        to,
        tag: args.tag.clone(),
        slow: args.slow,
        backfill: args.backfill,
        late: args.late,
    };
    let mut runs = run_queries::runs(client, &filter, args.limit + 1).await?;
    let in_progress: Vec<_> = runs.iter().filter(|it| it.state == RunState::Running).collect();
    let ids: Vec<_> = in_progress.iter().take(MAX_ETAS).map(|it| it.id).collect();
    let etas = etas(client, &ids, MAX_TASKS_OF_LIST).await?;
    for run in &mut runs {
        run.eta_at = etas.get(&run.id).and_then(|eta| eta.clone().ok());
    }
    out.page((runs, args.limit), "no matching run", row)
}

fn row(run: &Run) -> Row {
    let (late, tone) = match run.late_since {
        Some(_) => (", late", Tone::Error),
        None => ("", Tone::of_end(run.state.as_str())),
    };
    Row::of("run", run.id)
        .text("jobs", with_tags(run.title(), &run.labels))
        .text("state", format!("{}{late}", run.state_text()))
        .tone(tone)
        .text("tasks", run.count.tasks)
        .count("finished", run.count.finished())
        .count("failed", run.count.failed)
        .tone(Tone::Error)
        .count("upstream_failed", run.count.upstream_failed)
        .text("started", local_time(run.started_at))
        .text("duration", span(run.duration.as_secs_f64()))
        .maybe("expected end", run.eta_at.map(local_time))
        .text("by", run.starter())
}

/// Returns a run.
///
/// # Errors
/// Fails if there is no such run.
pub(super) async fn find(client: &Client, id: RunId) -> Result<Run, Failure> {
    run_queries::run(client, id).await?.ok_or_else(|| missing("run", id))
}
