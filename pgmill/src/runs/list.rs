//! `pgmill run list`, and the search for one run.

use cli::Failure;
use conninfo::Client;
use queue::RunId;
use queue::insight::eta::{MAX_TASKS_OF_LIST, etas};
use queue::run::RunState;
use queue::run_queries::{self, Run, RunFilter};

use crate::args::RunList;
use crate::output::format::{local_time, period, span, with_tags};
use crate::output::list::{close, cut};
use crate::output::{Field, Output, Tone};

const RUN_HEADINGS: [&str; 11] = [
    "run",
    "jobs",
    "state",
    "tasks",
    "finished",
    "failed",
    "upstream_failed",
    "started",
    "duration",
    "expected end",
    "by",
];

/// Maximum number of runs whose expected end a list contains.
const MAX_ETAS: usize = 20;

/// Lists runs.
pub(super) async fn list(client: &Client, out: &Output, args: &RunList) -> Result<u8, Failure> {
    let filter = filter(client, args).await?;
    // Query one row more than is shown, to learn whether there are more.
    let mut runs = run_queries::runs(client, &filter, args.limit + 1).await?;
    let more = cut(&mut runs, args.limit);
    let in_progress: Vec<_> = runs.iter().filter(|it| it.state == RunState::Running).collect();
    let ids: Vec<_> = in_progress.iter().take(MAX_ETAS).map(|it| it.id).collect();
    let etas = etas(client, &ids, MAX_TASKS_OF_LIST).await?;
    for run in &mut runs {
        run.eta_at = etas.get(&run.id).and_then(|eta| eta.clone().ok());
    }
    if out.json {
        out.document(&runs)?;
    } else if !runs.is_empty() {
        let row = |run: &Run| {
            vec![
                Field::new(run.id),
                Field::new(with_tags(run.title(), &run.labels)),
                state(run),
                Field::new(run.count.tasks),
                Field::count(run.count.finished()),
                Field::count(run.count.failed).tone(Tone::Error),
                Field::count(run.count.upstream_failed),
                Field::new(local_time(run.started_at)),
                Field::new(span(run.duration.as_secs_f64())),
                Field::or_blank(run.eta_at.map(local_time)),
                Field::new(run.starter()),
            ]
        };
        out.print_table(&RUN_HEADINGS, runs.iter().map(row).collect())?;
    }
    close(out, runs.len(), more, "no matching run")
}

async fn filter(client: &Client, args: &RunList) -> Result<RunFilter, Failure> {
    let (from, to) = period(client, args.since, &args.from, &args.to).await?;
    Ok(RunFilter {
        state: args.state,
        job: args.job.clone(),
        schedule: args.schedule.clone(),
        from,
        to,
        tag: args.tag.clone(),
        slow: args.slow,
        backfill: args.backfill,
        late: args.late,
    })
}

/// Returns a run.
///
/// # Errors
/// Fails if there is no such run.
pub(super) async fn find(client: &Client, id: RunId) -> Result<Run, Failure> {
    let found = run_queries::run(client, id).await?;
    found.ok_or_else(|| Failure::not_found(format!("there is no run {id}")).hint("pgmill run list"))
}

/// Formats the state of a run, and whether it is late.
fn state(run: &Run) -> Field {
    match run.late_since {
        Some(_) => Field::new(format!("{}, late", run.state_text())).tone(Tone::Error),
        None => Field::new(run.state_text()).tone(run_tone(run.state)),
    }
}

pub(super) fn run_tone(state: RunState) -> Tone {
    match state {
        RunState::Running => Tone::Plain,
        RunState::Succeeded => Tone::Success,
        RunState::Failed => Tone::Error,
        RunState::Cancelled => Tone::Warning,
    }
}
