//! Bulk actions: cancel or retry all tasks that match a filter, after a confirmation.
//!
//! The confirmation page shows the number of matching tasks. It also stores a bound: the highest
//! task id of a cancellation, or the current time of a retry. The action evaluates the filter again
//! up to this bound, and checks each task under its row lock. Tasks that have changed state in
//! between are skipped and reported.

use queue::bulk::{self, BulkResult, CHUNK};
use queue::insight::tasks::{self, PageCursor, TaskQuery, TaskSummary};

use crate::database::Session;
use crate::screens::prelude::*;

/// Maximum tasks per action. The remaining tasks still match, so the action can be repeated.
const MAX_TASKS: usize = 10_000;

/// Maximum number of refused tasks listed individually.
const MAX_REFUSALS: usize = 20;

/// Maximum number of tasks that the confirmation page lists.
const SAMPLE: usize = 10;

/// Maximum number of rows that are read for them.
const SAMPLE_ROWS: usize = 50;

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/tasks/bulk", get(confirm).post(execute))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BulkAction {
    Cancel,
    Retry,
}

impl BulkAction {
    fn of(query: &TaskQuery) -> Self {
        if query.finished { Self::Retry } else { Self::Cancel }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Cancel => "cancel",
            Self::Retry => "retry",
        }
    }
}

/// The selected tasks as a filter.
#[derive(Debug)]
struct BulkSelection {
    q: String,
}

#[derive(Template)]
#[template(path = "bulk_confirm.html")]
struct BulkConfirmPage {
    page: Layout,
    verb: &'static str,
    q: String,
    sample: Vec<TaskSummary>,
    count: i64,
    more: bool,
    up_to: String,
}

#[derive(Template)]
#[template(path = "bulk_result.html")]
struct BulkResultPage {
    page: Layout,
    verb: &'static str,
    q: String,
    counts: Vec<(String, i64)>,
    refused: Vec<BulkResult>,
    left: bool,
}

async fn confirm(
    mut request: ReadRequest,
    Query(pairs): Query<Vec<(String, String)>>,
) -> HandlerResult {
    let selection = BulkSelection::from_pairs(&pairs)?;
    let mut read = request.begin().await?;
    let query = filter::parse(&selection.q)?;
    let (ids, more) = matching(&mut read.tx, &query, None).await?;
    let up_to = match BulkAction::of(&query) {
        BulkAction::Cancel => ids.iter().map(|it| it.id.0).max().unwrap_or(0).to_string(),
        BulkAction::Retry => read.viewer.now.as_microsecond().to_string(),
    };
    let sample = sample(&mut read.tx, &query, &ids).await?;
    render(&BulkConfirmPage {
        verb: BulkAction::of(&query).as_str(),
        page: read.layout(format!("{} tasks", BulkAction::of(&query).as_str())),
        q: selection.q,
        sample,
        count: ids.len().value(),
        more,
        up_to,
    })
}

async fn execute(form: FormRequest) -> HandlerResult {
    let q = form.field("q").to_owned();
    let query = filter::parse(&q)?;
    let up_to: i64 = form.parsed("up_to")?;
    let mut session = form.context.session().await?;
    let ((ids, left), viewer) = {
        let mut tx = session.begin_read().await?;
        let viewer = form.context.viewer(&tx).await?;
        (matching(&mut tx, &query, Some(up_to)).await?, viewer)
    };
    let verb = BulkAction::of(&query);
    let (mut counts, mut refused) = (BTreeMap::<String, i64>::new(), Vec::new());
    for (outcome, chunk) in chunks(&ids) {
        for it in execute_chunk(&form, &mut session, &query, (outcome, &chunk)).await? {
            *counts.entry(it.result.clone()).or_default() += 1;
            if it.message.is_some() && refused.len() < MAX_REFUSALS {
                refused.push(it);
            }
        }
    }
    render(&BulkResultPage {
        page: Layout::new(&form.context, format!("{} tasks", verb.as_str()), viewer),
        verb: verb.as_str(),
        q,
        counts: counts.into_iter().collect(),
        refused,
        left,
    })
}

/// Divides the tasks into chunks with one outcome each, as the check of the outcome requires.
fn chunks(tasks: &[Matching]) -> Vec<(Option<Outcome>, Vec<TaskId>)> {
    let outcomes = [None].into_iter().chain(Outcome::ALL.iter().copied().map(Some));
    let of_outcome = |outcome: Option<Outcome>| {
        let ids: Vec<TaskId> =
            tasks.iter().filter(|it| it.outcome == outcome).map(|it| it.id).collect();
        ids.chunks(CHUNK).map(|chunk| (outcome, chunk.to_vec())).collect::<Vec<_>>()
    };
    outcomes.flat_map(of_outcome).collect()
}

/// Processes a chunk in one transaction.
async fn execute_chunk(
    form: &FormRequest,
    session: &mut Session,
    query: &TaskQuery,
    (outcome, chunk): (Option<Outcome>, &[TaskId]),
) -> Result<Vec<BulkResult>, HttpError> {
    let mut tx = form.begin(session).await?;
    let answers = match BulkAction::of(query) {
        BulkAction::Cancel => bulk::cancel_chunk(&*tx, chunk, query.state).await?,
        BulkAction::Retry => bulk::retry_chunk(&mut tx, chunk, outcome).await?,
    };
    tx.commit().await?;
    Ok(answers)
}

impl BulkSelection {
    fn from_pairs(pairs: &[(String, String)]) -> Result<Self, HttpError> {
        let values = |name: &'static str| {
            pairs.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.trim())
        };
        let selected: Vec<&str> = values("id").collect();
        let q = values("q").next().unwrap_or_default();
        if selected.is_empty() {
            return Ok(Self { q: q.to_owned() });
        }
        let query = filter::parse(q)?;
        let state_filter = if query.finished { "state:finished " } else { "" };
        Ok(Self { q: format!("{state_filter}id:{}", selected.join(",")) })
    }
}

/// A task that matches the filter.
struct Matching {
    id: TaskId,
    /// `None` for a live task.
    outcome: Option<Outcome>,
}

/// Returns the matching tasks, and whether there may be more. `up_to` is the bound that the
/// confirmation page recorded: an id, or the microseconds of a time for finished tasks.
async fn matching(
    tx: &mut Transaction<'_>,
    query: &TaskQuery,
    up_to: Option<i64>,
) -> Result<(Vec<Matching>, bool), HttpError> {
    if !query.finished {
        let ids = tasks::live_ids(tx, query, up_to.map(TaskId), MAX_TASKS).await?;
        let more = ids.len() >= MAX_TASKS;
        return Ok((ids.into_iter().map(|id| Matching { id, outcome: None }).collect(), more));
    }
    let cursor = up_to
        .and_then(|at| Timestamp::from_microsecond(at).ok())
        .map(|at| PageCursor { at, id: TaskId(i64::MAX) });
    let page = tasks::finished(tx, query, cursor, MAX_TASKS).await?;
    let ended = page.tasks.iter().filter(|it| !it.retried);
    let mut found: Vec<Matching> =
        ended.map(|it| Matching { id: it.id, outcome: it.outcome }).collect();
    found.sort_unstable_by_key(|it| it.id);
    found.dedup_by_key(|it| it.id);
    Ok((found, page.more || page.searched_back_to.is_some()))
}

/// Reads a sample of the selected tasks for the confirmation page. A task that was retried has a row
/// for each time that it ended; the sample has the last one.
async fn sample(
    tx: &mut Transaction<'_>,
    query: &TaskQuery,
    ids: &[Matching],
) -> Result<Vec<TaskSummary>, HttpError> {
    let some: Vec<i64> = ids.iter().rev().take(SAMPLE).map(|it| it.id.0).collect();
    let query = TaskQuery { ids: Some(some), finished: query.finished, ..TaskQuery::default() };
    if !query.finished {
        return Ok(tasks::live(tx, &query, None, SAMPLE_ROWS).await?.tasks);
    }
    let mut tasks = tasks::finished(tx, &query, None, SAMPLE_ROWS).await?.tasks;
    let mut seen = HashSet::new();
    tasks.retain(|task| seen.insert(task.id));
    Ok(tasks)
}
