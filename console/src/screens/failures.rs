//! What failed, one line for each cause.

use askama::Template;
use axum::Router;
use axum::extract::Query;
use axum::routing::get;
use deadpool_postgres::Transaction;
use queue::insight::{self, FailureGroup};
use serde::Deserialize;

use super::Shown;
use crate::app::App;
use crate::filter::{self, Mistake};
use crate::page::{Page, show as answer};
use crate::trouble::Trouble;
use crate::visit::Visit;
use crate::words;

/// More causes than anybody reads.
const MOST: usize = 200;

/// Example tasks and names that are shown of each.
const MOST_SHOWN: usize = 3;

/// What is offered beside any other span.
const SPANS: [&str; 4] = ["1h", "6h", "1d", "7d"];

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/failures", get(show))
}

/// What the address asks for.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Ask {
    #[serde(default)]
    queue: String,
    /// As in the filter of tasks; empty: an hour.
    #[serde(default)]
    since: String,
}

#[derive(Template)]
#[template(path = "failures.html")]
struct Screen {
    page: Page,
    ask: Ask,
    groups: Vec<FailureGroup>,
    mistake: Option<Mistake>,
}

impl Ask {
    fn span(&self) -> &str {
        if self.since.is_empty() { SPANS[0] } else { &self.since }
    }
}

impl Screen {
    fn spans(&self) -> &'static [&'static str] {
        &SPANS
    }

    fn path(&self, since: &str) -> String {
        let queue = words::encoded(&self.ask.queue);
        let queue = if queue.is_empty() { queue } else { format!("&queue={queue}") };
        format!("{}/failures?since={}{queue}", self.page.base, words::encoded(since))
    }

    /// The message; what stands in its place where it is hidden.
    fn message<'a>(&self, group: &'a FailureGroup) -> &'a str {
        let hidden = if group.sqlstate.is_some() { terminal::HIDDEN } else { "" };
        group.message.as_deref().unwrap_or(hidden)
    }

    /// The tasks that ended so, to look at and retry.
    fn filter(&self, group: &FailureGroup) -> String {
        let queue = &self.ask.queue;
        let queue = if queue.is_empty() { String::new() } else { format!(" queue:\"{queue}\"") };
        format!("state:{} cause:{}{queue} since:{}", group.outcome, group.cause, self.ask.span())
    }

    fn retry_path(&self, group: &FailureGroup) -> String {
        format!("{}/tasks/all?q={}", self.page.base, words::encoded(&self.filter(group)))
    }

    fn names(&self, group: &FailureGroup) -> String {
        let shown = group.names.iter().take(MOST_SHOWN).map(String::as_str);
        let more = if group.names.len() > MOST_SHOWN { ", …" } else { "" };
        format!("{}{more}", shown.collect::<Vec<_>>().join(", "))
    }
}

/// Causes, the most frequent first; of a queue: those that it has a part in, with all attempts.
async fn read(
    look: &Transaction<'_>,
    ask: &Ask,
) -> Result<Result<Vec<FailureGroup>, Mistake>, Trouble> {
    let since = match filter::since(ask.span()) {
        Ok(since) => since,
        Err(mistake) => return Ok(Err(mistake)),
    };
    let mut groups = insight::failures(&**look, since).await?;
    groups.retain(|group| ask.queue.is_empty() || group.queues.contains(&ask.queue));
    groups.truncate(MOST);
    Ok(Ok(groups))
}

/// The same for the API, where a mistake is an error.
pub(crate) async fn groups(
    look: &Transaction<'_>,
    ask: &Ask,
) -> Result<Vec<FailureGroup>, Trouble> {
    read(look, ask).await?.map_err(|it| Trouble::bad(it.message).hint(it.hint))
}

async fn show(visit: Visit, Query(ask): Query<Ask>) -> Shown {
    let mut session = visit.session().await?;
    let look = session.look().await?;
    let viewer = visit.viewer(&look).await?;
    let (groups, mistake) = match read(&look, &ask).await? {
        Ok(groups) => (groups, None),
        Err(mistake) => (Vec::new(), Some(mistake)),
    };
    answer(&Screen { page: visit.page("Failures", viewer), ask, groups, mistake })
}
