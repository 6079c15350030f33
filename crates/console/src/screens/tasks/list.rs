//! Tasks screen: list of tasks that match a filter, with bulk actions.

use queue::insight::tasks::{
    self, COUNT_LIMIT, PageCursor, TaskCounts, TaskOrder, TaskQuery, TaskSummary,
};

use crate::screens::prelude::*;

/// Tasks per page.
const PAGE_SIZE: usize = 50;

/// Tasks that a download reads at a time.
const DOWNLOAD_PAGE_SIZE: usize = 500;

/// Maximum number of tasks in a list by duration, which has no further pages.
const LONGEST: usize = 200;

/// Predefined filters: label, filter.
const TABS: [(&str, &str); 7] = [
    ("live", ""),
    ("running", "state:running"),
    ("pending", "state:pending"),
    ("blocked", "state:blocked"),
    ("scheduled", "state:scheduled"),
    ("failed", "state:failed,timed_out,lost,unknown since:24h"),
    ("finished", "state:finished since:24h"),
];

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/tasks", get(show)).route("/tasks/download", get(download::<TasksParams>))
}

/// Query parameters of the screen.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(default)]
pub(crate) struct TasksParams {
    /// filter, such as queue:etl state:failed since:1h
    pub(crate) q: String,
    /// `next` of the previous page
    pub(crate) after: String,
    /// order of live tasks: newest (default), oldest, or duration (running tasks only)
    #[param(pattern = "^(|newest|oldest|duration)$")]
    pub(crate) sort: String,
}

impl TasksParams {
    /// Parses the filter and the order.
    pub(crate) fn query(&self) -> Result<TaskQuery, HttpError> {
        let query = filter::parse(&self.q)?;
        let order = match self.sort.as_str() {
            "oldest" => TaskOrder::Oldest,
            "duration" if !query.finished => TaskOrder::Longest,
            "" | "newest" | "duration" => TaskOrder::Newest,
            other => {
                return Err(HttpError::bad_request(format!("unknown order \"{other}\""))
                    .hint("newest, oldest or duration"));
            }
        };
        Ok(TaskQuery { order, ..query })
    }
}

/// A page of tasks.
#[derive(Default, Serialize, utoipa::ToSchema)]
#[schema(as = TaskPage)]
pub(crate) struct Listing {
    pub(crate) tasks: Vec<TaskSummary>,
    /// Value of `after` for the next page; `None` on the last page.
    pub(crate) next: Option<String>,
    /// The time back to which history was searched, if the search stopped early.
    pub(crate) searched_back_to: Option<Timestamp>,
    /// The number of live tasks that were searched, if the search stopped early.
    pub(crate) searched_tasks: Option<i64>,
}

#[derive(Template)]
#[template(path = "tasks.html")]
struct TasksPage {
    page: Layout,
    params: TasksParams,
    query: TaskQuery,
    listing: Listing,
    filter_error: Option<HttpError>,
    timed_out: bool,
    counts: TaskCounts,
}

impl TasksPage {
    /// Returns whether the predefined filter selects the same states as the filter of the page,
    /// whatever other conditions the two have.
    fn current(&self, filter: &&str) -> bool {
        self.filter_error.is_none() && same_states(&self.query, filter)
    }

    /// Returns the number of tasks that a predefined filter selects; `None` if it is not counted.
    fn tab_count(&self, label: &&str) -> Option<String> {
        let it = &self.counts;
        let number = match *label {
            "running" => it.running,
            "pending" => it.pending,
            "blocked" => it.blocked,
            "scheduled" => it.scheduled,
            "failed" => it.failed,
            _ => return None,
        };
        Some(format::count(number.min(COUNT_LIMIT), number > COUNT_LIMIT))
    }

    /// Returns whether the list has running tasks only, so that it can be sorted by duration.
    fn only_running(&self) -> bool {
        self.query.state == Some(State::Running)
    }

    /// Returns whether the page refreshes the list. A search that reads many tasks is not repeated.
    fn live(&self) -> bool {
        let complete = self.filter_error.is_none() && !self.timed_out;
        complete && !self.query.searches_text() && self.listing.searched_back_to.is_none()
    }

    /// Returns the bulk action: cancel for live tasks, retry for finished ones.
    fn verb(&self) -> &'static str {
        if self.query.finished { "retry" } else { "cancel" }
    }
}

fn same_states(query: &TaskQuery, filter: &str) -> bool {
    let same = |a: &[Outcome], b: &[Outcome]| a.iter().all(|it| b.contains(it));
    filter::parse(filter).is_ok_and(|other| {
        (query.finished, query.state) == (other.finished, other.state)
            && same(&query.outcomes, &other.outcomes)
            && same(&other.outcomes, &query.outcomes)
    })
}

async fn show(mut request: ReadRequest, Query(params): Query<TasksParams>) -> HandlerResult {
    let mut read = request.begin().await?;
    let (query, filter_error) = match params.query() {
        Ok(query) => (query, None),
        Err(error) => (TaskQuery::default(), Some(error)),
    };
    let (listing, timed_out) = match filter_error {
        Some(_) => Default::default(),
        None => HttpError::unless_timed_out(data(&mut read.tx, &query, &params).await)?,
    };
    // After a timeout, the transaction can be aborted, so the page has no counts either.
    let counts = if timed_out { TaskCounts::default() } else { tasks::counts(&*read.tx).await? };
    let page = read.layout("Tasks");
    render(&TasksPage { page, params, query, listing, filter_error, timed_out, counts })
}

impl FileList for TasksParams {
    const NAME: &'static str = "tasks";
    const COLUMNS: &'static str = "id state outcome queue name priority attempt max_attempts at due_at \
        duration_seconds sqlstate message worker tags statement_head";

    async fn rows(&self, tx: &mut Transaction<'_>, after: &str) -> Result<FileRows, HttpError> {
        let listing = page(tx, &self.query()?, after, DOWNLOAD_PAGE_SIZE).await?;
        Ok(FileRows::new(&listing.tasks, listing.next))
    }
}

/// Reads a page of tasks.
pub(crate) async fn data(
    tx: &mut Transaction<'_>,
    query: &TaskQuery,
    params: &TasksParams,
) -> Result<Listing, HttpError> {
    page(tx, query, &params.after, PAGE_SIZE).await
}

async fn page(
    tx: &mut Transaction<'_>,
    query: &TaskQuery,
    after: &str,
    limit: usize,
) -> Result<Listing, HttpError> {
    let by_duration = query.order == TaskOrder::Longest;
    let limit = if by_duration { LONGEST } else { limit };
    let page = if query.finished {
        tasks::finished(tx, query, parse_finished_cursor(after)?, limit).await?
    } else {
        tasks::live(&*tx, query, parse_live_cursor(after)?, limit).await?
    };
    let last = page.tasks.last().filter(|_| page.more && !by_duration);
    let next = last.map(|task| match task.state {
        Some(_) => task.id.to_string(),
        None => format!("{}.{}", task.at.as_microsecond(), task.id),
    });
    let next = next.or_else(|| {
        page.searched_back_to.map(|at| format!("{}.{}", at.as_microsecond(), i64::MAX))
    });
    let next = next.or_else(|| page.searched.map(|it| it.last.to_string()));
    Ok(Listing {
        tasks: page.tasks,
        next,
        searched_back_to: page.searched_back_to,
        searched_tasks: page.searched.map(|it| it.tasks),
    })
}

fn parse_live_cursor(text: &str) -> Result<Option<TaskId>, HttpError> {
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(|id| Some(TaskId(id))).map_err(|_| HttpError::invalid_cursor())
}

fn parse_finished_cursor(text: &str) -> Result<Option<PageCursor>, HttpError> {
    if text.is_empty() {
        return Ok(None);
    }
    let (at, id) = text.split_once('.').ok_or_else(HttpError::invalid_cursor)?;
    let at = at.parse().ok().and_then(|at| Timestamp::from_microsecond(at).ok());
    match (at, id.parse()) {
        (Some(at), Ok(id)) => Ok(Some(PageCursor { at, id: TaskId(id) })),
        _ => Err(HttpError::invalid_cursor()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_predefined_filter_is_current_with_other_conditions() {
        let current = |q: &str| -> Vec<&str> {
            let query = filter::parse(q).unwrap();
            TABS.iter().filter(|(_, tab)| same_states(&query, tab)).map(|it| it.0).collect()
        };
        assert_eq!(current("queue:etl"), ["live"]);
        assert_eq!(current("state:lost,unknown,failed,timed_out since:1h"), ["failed"]);
        assert_eq!(current("queue:etl state:finished"), ["finished"]);
        assert_eq!(current("state:pending nightly"), ["pending"]);
        assert_eq!(current("state:failed"), [""; 0], "the predefined filter has more outcomes");
    }
}
