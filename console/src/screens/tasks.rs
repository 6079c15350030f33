//! The list of tasks: a filter, a page, and what may be done to all that match.

use askama::Template;
use axum::Router;
use axum::extract::Query;
use axum::routing::get;
use deadpool_postgres::Transaction;
use jiff::Timestamp;
use queue::TaskId;
use queue::insight::tasks::{self, Behind, Found, TaskQuery};
use serde::{Deserialize, Serialize};

use super::Shown;
use crate::app::App;
use crate::filter::{self, Mistake};
use crate::page::{Page, show as answer};
use crate::trouble::Trouble;
use crate::visit::Visit;
use crate::words;

/// Tasks of a page.
const LIMIT: usize = 50;

/// Filters that one click gives.
const TABS: [(&str, &str); 7] = [
    ("live", ""),
    ("running", "state:running"),
    ("pending", "state:pending"),
    ("blocked", "state:blocked"),
    ("scheduled", "state:scheduled"),
    ("failed", "state:failed since:24h"),
    ("ended", "state:ended since:24h"),
];

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/tasks", get(show))
}

/// What the address asks for.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Ask {
    /// The filter.
    #[serde(default)]
    pub(crate) q: String,
    /// Where the page begins: behind this task.
    #[serde(default)]
    pub(crate) behind: String,
}

/// One page.
#[derive(Default, Serialize)]
pub(crate) struct Listing {
    pub(crate) tasks: Vec<Found>,
    /// What `behind` is for the next page; `None`: this was the last.
    pub(crate) next: Option<String>,
    /// History was looked at back to then, and no further.
    pub(crate) looked_back_to: Option<Timestamp>,
}

#[derive(Template)]
#[template(path = "tasks.html")]
struct Screen {
    page: Page,
    ask: Ask,
    query: TaskQuery,
    listing: Listing,
    mistake: Option<Mistake>,
    slow: bool,
}

impl Screen {
    fn tabs(&self) -> &'static [(&'static str, &'static str)] {
        &TABS
    }

    fn current(&self, filter: &&str) -> bool {
        self.ask.q.trim() == *filter
    }

    /// Live tasks can be cancelled, ended ones retried; a page of other ones neither.
    fn verb(&self) -> &'static str {
        if self.query.ended { "retry" } else { "cancel" }
    }

    fn keys(&self) -> &'static [(&'static str, &'static str)] {
        &filter::KEYS
    }
}

async fn show(visit: Visit, Query(ask): Query<Ask>) -> Shown {
    let mut session = visit.session().await?;
    let look = session.look().await?;
    let viewer = visit.viewer(&look).await?;
    let parsed = filter::parse(&ask.q);
    let (query, mistake) = match parsed {
        Ok(query) => (query, None),
        Err(mistake) => (TaskQuery::default(), Some(mistake)),
    };
    let mut slow = false;
    let listing = match mistake {
        Some(_) => Listing::default(),
        None => match data(&look, &query, &ask).await {
            Err(trouble) if trouble.slow() => {
                slow = true;
                Listing::default()
            }
            listing => listing?,
        },
    };
    let page = visit.page("Tasks", viewer);
    answer(&Screen { page, ask, query, listing, mistake, slow })
}

/// Reads a page.
pub(crate) async fn data(
    look: &Transaction<'_>,
    query: &TaskQuery,
    ask: &Ask,
) -> Result<Listing, Trouble> {
    let page = if query.ended {
        tasks::ended(&**look, query, behind_ended(&ask.behind)?, LIMIT).await?
    } else {
        tasks::live(&**look, query, behind_live(&ask.behind)?, LIMIT).await?
    };
    let last = page.tasks.last().filter(|_| page.more);
    let next = last.map(|task| match task.state {
        Some(_) => task.id.to_string(),
        None => format!("{}.{}", task.at.as_microsecond(), task.id),
    });
    let next = next
        .or_else(|| page.looked_back_to.map(|at| format!("{}.{}", at.as_microsecond(), i64::MAX)));
    Ok(Listing { tasks: page.tasks, next, looked_back_to: page.looked_back_to })
}

fn behind_live(text: &str) -> Result<Option<TaskId>, Trouble> {
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(|id| Some(TaskId(id))).map_err(|_| no_place())
}

fn behind_ended(text: &str) -> Result<Option<Behind>, Trouble> {
    if text.is_empty() {
        return Ok(None);
    }
    let (at, id) = text.split_once('.').ok_or_else(no_place)?;
    let at = at.parse().ok().and_then(|at| Timestamp::from_microsecond(at).ok());
    match (at, id.parse()) {
        (Some(at), Ok(id)) => Ok(Some(Behind { at, id: TaskId(id) })),
        _ => Err(no_place()),
    }
}

fn no_place() -> Trouble {
    Trouble::bad("the list has no such page").hint("begin at its first page")
}
