//! Groups: concurrency within each run, a priority, and the time of day in which their tasks start.

use askama::Template;
use axum::Router;
use axum::extract::Path;
use axum::response::Response;
use axum::routing::{get, post};
use deadpool_postgres::Transaction;
use jiff::Timestamp;
use queue::group::{self, ActivePeriod, Group, GroupChange};
use queue::insight::groups;
use queue::insight::lanes::COUNTED;
use queue::{Priority, QueueError};

use super::Shown;
use crate::app::App;
use crate::page::{Page, show as answer};
use crate::trouble::Trouble;
use crate::visit::{Act, Visit};
use crate::words;

pub(crate) fn routes() -> Router<App> {
    Router::new()
        .route("/groups", get(show))
        .route("/groups/make", post(make))
        .route("/groups/{group}/concurrency", post(set))
        .route("/groups/{group}/active", post(activate))
        .route("/groups/{group}/remove", post(remove))
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

    fn priorities(&self) -> &'static [Priority] {
        Priority::ALL
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

/// Of a form that makes a group or changes one; what is empty is left as it is.
fn change(act: &Act) -> Result<GroupChange, Trouble> {
    let description = Some(act.field("description")).filter(|it| !it.is_empty());
    Ok(GroupChange {
        description: description.map(str::to_owned),
        priority: act.optional("priority")?,
        max_concurrency: act.optional("max_concurrency")?,
    })
}

async fn make(act: Act) -> Result<Response, Trouble> {
    let (name, change) = (act.field("name").to_owned(), change(&act)?);
    if name.is_empty() {
        return Err(Trouble::bad("a group has a name"));
    }
    let mut session = act.visit.session().await?;
    let transaction = act.begin(&mut session).await?;
    if groups::groups(&*transaction).await?.iter().any(|known| known.name == name) {
        return Err(Trouble::bad(format!("there is a group {name} already")));
    }
    group::set_group(&*transaction, &name, &change).await?;
    transaction.commit().await?;
    Ok(act.back("/groups"))
}

async fn set(Path(group): Path<String>, act: Act) -> Result<Response, Trouble> {
    let change = change(&act)?;
    let mut session = act.visit.session().await?;
    let transaction = act.begin(&mut session).await?;
    // set_group makes a group that is not there, and a typing error in an address must not.
    if !groups::groups(&*transaction).await?.iter().any(|known| known.name == group) {
        return Err(none());
    }
    group::set_group(&*transaction, &group, &change).await?;
    transaction.commit().await?;
    Ok(act.back("/groups"))
}

/// Sets when its tasks may start; two empty fields: at any time.
async fn activate(Path(group): Path<String>, act: Act) -> Result<Response, Trouble> {
    let period = match (act.optional("opens")?, act.optional("closes")?) {
        (None, None) => None,
        (Some(opens), Some(closes)) => {
            let zone = Some(act.field("zone")).filter(|zone| !zone.is_empty()).unwrap_or("UTC");
            Some(ActivePeriod { opens, closes, zone: zone.to_owned() })
        }
        _ => return Err(Trouble::bad("an active period has a beginning and an end")),
    };
    let mut session = act.visit.session().await?;
    let transaction = act.begin(&mut session).await?;
    group::set_active_period(&*transaction, &group, period.as_ref()).await?;
    transaction.commit().await?;
    Ok(act.back("/groups"))
}

/// The database refuses while live tasks belong to it.
async fn remove(Path(group): Path<String>, act: Act) -> Result<Response, Trouble> {
    let mut session = act.visit.session().await?;
    let transaction = act.begin(&mut session).await?;
    if !group::drop_group(&*transaction, &group).await? {
        return Err(none());
    }
    transaction.commit().await?;
    Ok(act.back("/groups"))
}

fn none() -> Trouble {
    Trouble::not_found("there is no such group")
}
