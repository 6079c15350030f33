//! Groups: concurrency within each run, and the time of day in which their tasks start.

use askama::Template;
use axum::Router;
use axum::extract::Path;
use axum::response::Response;
use axum::routing::{get, post};
use deadpool_postgres::Transaction;
use jiff::Timestamp;
use queue::QueueError;
use queue::group::Group;
use queue::group::{self, GroupChange};
use queue::insight::groups;
use queue::insight::lanes::COUNTED;

use super::Shown;
use crate::app::App;
use crate::page::{Page, show as answer};
use crate::trouble::Trouble;
use crate::visit::{Act, Visit};
use crate::words;

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/groups", get(show)).route("/groups/{group}/concurrency", post(set))
}

#[derive(Template)]
#[template(path = "groups.html")]
struct Screen {
    page: Page,
    groups: Vec<Group>,
}

impl Screen {
    fn now(&self) -> Timestamp {
        self.page.viewer.now
    }

    fn count(&self, number: &i64) -> String {
        words::count(*number, *number >= COUNTED)
    }
}

/// Reads them.
pub(crate) async fn data(look: &Transaction<'_>) -> Result<Vec<Group>, QueueError> {
    groups::groups(&**look).await
}

async fn show(visit: Visit) -> Shown {
    let mut session = visit.session().await?;
    let look = session.look().await?;
    let viewer = visit.viewer(&look).await?;
    let groups = data(&look).await?;
    answer(&Screen { page: visit.page("Groups", viewer), groups })
}

async fn set(Path(group): Path<String>, act: Act) -> Result<Response, Trouble> {
    let most: i32 = act.parsed("max_concurrency")?;
    let mut session = act.visit.session().await?;
    let transaction = act.begin(&mut session).await?;
    // set_group makes a group that is not there, and a typing error in an address must not.
    if !groups::groups(&*transaction).await?.iter().any(|known| known.name == group) {
        return Err(Trouble::not_found("there is no such group"));
    }
    let change = GroupChange { max_concurrency: Some(most), ..GroupChange::default() };
    group::set_group(&*transaction, &group, &change).await?;
    transaction.commit().await?;
    Ok(act.back("/groups"))
}
