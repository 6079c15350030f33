//! Tasks screen: list of tasks that match a filter, with bulk actions.

use askama::Template;
use axum::Router;
use axum::extract::Query;
use axum::routing::get;
use deadpool_postgres::Transaction;
use jiff::Timestamp;
use queue::insight::tasks::{self, PageCursor, TaskQuery, TaskSummary};
use queue::{Outcome, TaskId};
use serde::{Deserialize, Serialize};

use crate::filter::{self, FilterError};
use crate::http::app::App;
use crate::http::error::{HandlerResult, HttpError};
use crate::http::request::RequestContext;
use crate::page::format;
use crate::page::layout::{Layout, render};

/// Tasks per page.
const PAGE_SIZE: usize = 50;

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
    Router::new().route("/tasks", get(show))
}

/// Query parameters of the screen.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
pub(crate) struct TasksParams {
    /// filter, such as queue:etl state:failed since:1h
    #[serde(default)]
    pub(crate) q: String,
    /// `next` of the previous page
    #[serde(default)]
    pub(crate) after: String,
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
}

#[derive(Template)]
#[template(path = "tasks.html")]
struct TasksPage {
    page: Layout,
    params: TasksParams,
    query: TaskQuery,
    listing: Listing,
    filter_error: Option<FilterError>,
    timed_out: bool,
}

impl TasksPage {
    fn tabs(&self) -> &'static [(&'static str, &'static str)] {
        &TABS
    }

    /// Returns whether the predefined filter selects the same states as the filter of the page,
    /// whatever other conditions the two have.
    fn current(&self, filter: &&str) -> bool {
        self.filter_error.is_none() && same_states(&self.query, filter)
    }

    /// Returns the bulk action: cancel for live tasks, retry for finished ones.
    fn verb(&self) -> &'static str {
        if self.query.finished { "retry" } else { "cancel" }
    }

    fn keys(&self) -> &'static [(&'static str, &'static str)] {
        &filter::KEYS
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

async fn show(context: RequestContext, Query(params): Query<TasksParams>) -> HandlerResult {
    let mut session = context.session().await?;
    let tx = session.begin_read().await?;
    let viewer = context.viewer(&tx).await?;
    let parsed = filter::parse(&params.q);
    let (query, filter_error) = match parsed {
        Ok(query) => (query, None),
        Err(error) => (TaskQuery::default(), Some(error)),
    };
    let mut timed_out = false;
    let listing = match filter_error {
        Some(_) => Listing::default(),
        None => match data(&tx, &query, &params).await {
            Err(error) if error.timed_out() => {
                timed_out = true;
                Listing::default()
            }
            listing => listing?,
        },
    };
    let page = Layout::new(&context, "Tasks", viewer);
    render(&TasksPage { page, params, query, listing, filter_error, timed_out })
}

/// Reads a page of tasks.
pub(crate) async fn data(
    tx: &Transaction<'_>,
    query: &TaskQuery,
    params: &TasksParams,
) -> Result<Listing, HttpError> {
    let page = if query.finished {
        tasks::finished(&**tx, query, parse_finished_cursor(&params.after)?, PAGE_SIZE).await?
    } else {
        tasks::live(&**tx, query, parse_live_cursor(&params.after)?, PAGE_SIZE).await?
    };
    let last = page.tasks.last().filter(|_| page.more);
    let next = last.map(|task| match task.state {
        Some(_) => task.id.to_string(),
        None => format!("{}.{}", task.at.as_microsecond(), task.id),
    });
    let next = next.or_else(|| {
        page.searched_back_to.map(|at| format!("{}.{}", at.as_microsecond(), i64::MAX))
    });
    Ok(Listing { tasks: page.tasks, next, searched_back_to: page.searched_back_to })
}

fn parse_live_cursor(text: &str) -> Result<Option<TaskId>, HttpError> {
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(|id| Some(TaskId(id))).map_err(|_| invalid_cursor())
}

fn parse_finished_cursor(text: &str) -> Result<Option<PageCursor>, HttpError> {
    if text.is_empty() {
        return Ok(None);
    }
    let (at, id) = text.split_once('.').ok_or_else(invalid_cursor)?;
    let at = at.parse().ok().and_then(|at| Timestamp::from_microsecond(at).ok());
    match (at, id.parse()) {
        (Some(at), Ok(id)) => Ok(Some(PageCursor { at, id: TaskId(id) })),
        _ => Err(invalid_cursor()),
    }
}

fn invalid_cursor() -> HttpError {
    HttpError::bad_request("invalid page cursor").hint("start at the first page")
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
