//! `pgmill filter`, and the option `--filter` of `pgmill task list` and `pgmill run list`.

use cli::{Failure, exit};
use conninfo::Client;
use jiff::Timestamp;
use queue::insight::runs::RunQuery;
use queue::insight::tasks::{self, TaskSummary};
use queue::run_queries::RunFilter;
use queue::saved_filter::{self, SavedFilter};
use queue::task_queries;
use serde::Serialize;
use terminal::visible;

use crate::args::{FilterRemove, FilterSave, FilterScreen, FilterVerb};
use crate::output::format::{
    counted, local_time, one_line, outcome_tone, relative_time, span, state_tone, task_label,
};
use crate::output::list::close;
use crate::output::{Field, Output};
use crate::session::{begin_read_committed, commit_unless_dry_run};

const HEADINGS: [&str; 9] =
    ["id", "state", "queue", "priority", "attempt", "when", "duration", "worker", "task"];

/// Maximum characters of an error message in the list.
const MESSAGE_CHARS: usize = 160;

/// A saved filter in the list.
#[derive(Debug, Serialize)]
struct Listed {
    screen: &'static str,
    #[serde(flatten)]
    filter: SavedFilter,
}

/// Runs a subcommand of `pgmill filter`.
pub(crate) async fn run(
    client: &mut Client,
    out: &Output,
    verb: &FilterVerb,
) -> Result<u8, Failure> {
    match verb {
        FilterVerb::List => list(client, out).await,
        FilterVerb::Save(args) => save(client, out, args).await,
        FilterVerb::Remove(args) => remove(client, out, args).await,
    }
}

async fn list(client: &Client, out: &Output) -> Result<u8, Failure> {
    let mut all = Vec::new();
    for screen in [FilterScreen::Tasks.as_str(), FilterScreen::Runs.as_str()] {
        let filters = saved_filter::saved_filters(client, screen).await?;
        all.extend(filters.into_iter().map(|filter| Listed { screen, filter }));
    }
    if out.json {
        out.document(&all)?;
    } else if !all.is_empty() {
        let row = |it: &Listed| {
            let text = match it.screen {
                "tasks" => console::saved_filter_text(&it.filter.query),
                _ => console::saved_run_filter_text(&it.filter.query),
            };
            let cells = [it.screen, &it.filter.name, &text, &it.filter.saved_by];
            cells.into_iter().map(Field::new).collect()
        };
        let rows = all.iter().map(row).collect();
        out.print_table(&["screen", "name", "filter", "saved by"], rows)?;
    }
    close(out, all.len(), false, "there are no saved filters")
}

/// Saves a filter.
///
/// # Errors
/// Fails if the filter is invalid, or if there are too many filters.
async fn save(client: &mut Client, out: &Output, args: &FilterSave) -> Result<u8, Failure> {
    let query = match args.screen {
        FilterScreen::Tasks => {
            console::check_filter(&args.text).map(|_| console::saved_filter_query(&args.text))
        }
        FilterScreen::Runs => console::saved_run_filter_query(&args.text),
    };
    let query = query.map_err(invalid)?;
    if query.is_empty() {
        return Err(Failure::usage("the filter is empty").hint("for example state:failed"));
    }
    let transaction = begin_read_committed(client).await?;
    saved_filter::save(&transaction, args.screen.as_str(), &args.name, &query).await?;
    commit_unless_dry_run(transaction, args.dry_run).await?;
    if out.json {
        out.document(&serde_json::json!({
            "screen": args.screen.as_str(), "name": args.name, "query": query, "dry_run": args.dry_run,
        }))?;
    } else {
        let verb = if args.dry_run { "would be saved" } else { "saved" };
        out.text(&visible(&format!("filter {} {verb}", args.name)))?;
    }
    Ok(exit::OK)
}

fn invalid((message, hint): (String, String)) -> Failure {
    Failure::usage(message).hint(hint)
}

/// Removes a saved filter.
///
/// # Errors
/// Fails if there is no such filter.
async fn remove(client: &mut Client, out: &Output, args: &FilterRemove) -> Result<u8, Failure> {
    let transaction = begin_read_committed(client).await?;
    let removed = saved_filter::remove(&transaction, args.screen.as_str(), &args.name).await?;
    commit_unless_dry_run(transaction, args.dry_run).await?;
    if !removed {
        return Err(unknown(&args.name));
    }
    if out.json {
        out.document(&serde_json::json!({
            "name": args.name, "dry_run": args.dry_run, "removed": true,
        }))?;
    } else {
        let verb = if args.dry_run { "would be removed" } else { "removed" };
        out.text(&visible(&format!("filter {} {verb}", args.name)))?;
    }
    Ok(exit::OK)
}

fn unknown(name: &str) -> Failure {
    Failure::not_found(format!("there is no saved filter {}", visible(name)))
        .hint("pgmill filter list")
}

async fn find(client: &Client, screen: FilterScreen, name: &str) -> Result<SavedFilter, Failure> {
    let filters = saved_filter::saved_filters(client, screen.as_str()).await?;
    filters.into_iter().find(|it| it.name == name).ok_or_else(|| unknown(name))
}

/// Returns the filter of runs with this name.
///
/// # Errors
/// Fails if there is no such filter.
pub(crate) async fn of_runs(client: &Client, name: &str) -> Result<RunFilter, Failure> {
    let filter = find(client, FilterScreen::Runs, name).await?;
    let query = console::parse_saved_run_filter(&filter.query).map_err(invalid)?;
    let RunQuery { state, job, schedule, from, to, after: _ } = query;
    Ok(RunFilter { state, job, schedule, from, to, ..RunFilter::default() })
}

/// Lists the tasks that a saved filter selects.
///
/// # Errors
/// Fails if there is no such filter.
pub(super) async fn list_tasks(
    client: &mut Client,
    out: &Output,
    name: &str,
    limit: i64,
) -> Result<u8, Failure> {
    let filter = find(client, FilterScreen::Tasks, name).await?;
    let query = console::parse_saved_filter(&filter.query).map_err(invalid)?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let page = if query.finished {
        tasks::finished(client, &query, None, limit).await?
    } else {
        tasks::live(client, &query, None, limit).await?
    };
    if out.json {
        out.document(&page.tasks)?;
    } else if !page.tasks.is_empty() {
        let now = task_queries::now(client).await?;
        let rows = page.tasks.iter().map(|task| row(task, now)).collect();
        out.print_table(&HEADINGS, rows)?;
    }
    if let Some(at) = page.searched_back_to {
        out.note(format_args!("searched back to {}, not further", local_time(at)));
    }
    if let Some(search) = page.searched {
        let read = counted(search.tasks.unsigned_abs(), "live task");
        out.note(format_args!("searched {read}, not more"));
    }
    close(out, page.tasks.len(), page.more, "no matching task")
}

fn row(task: &TaskSummary, now: Timestamp) -> Vec<Field> {
    let state = match (task.state, task.outcome) {
        (Some(state), _) => Field::new(state).tone(state_tone(state)),
        (None, Some(outcome)) => Field::new(outcome).tone(outcome_tone(outcome)),
        (None, None) => Field::new(""),
    };
    let (name, statement) = (task.name.as_deref(), task.statement_head.as_deref());
    let mut what = task_label(name, statement, &task.options.labels);
    if let Some(message) = &task.message {
        let code = task.sqlstate.as_ref().map(|code| format!(" ({code})")).unwrap_or_default();
        what.push_str(&format!("\n{}{code}", one_line(message, MESSAGE_CHARS)));
    }
    vec![
        Field::new(task.id),
        state,
        Field::new(&task.queue),
        Field::new(task.priority),
        Field::count(task.attempt.into()),
        Field::new(relative_time(task.at, now)),
        Field::or_blank(task.duration_seconds.map(span)),
        Field::or_blank(task.worker.as_deref()),
        Field::new(what),
    ]
}
