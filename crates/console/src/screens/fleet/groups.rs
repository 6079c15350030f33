//! Groups screen: concurrency per run, priority, and active period (the time of day in which tasks
//! may start).

use queue::group::{self, ActivePeriod, Group, GroupChange};
use queue::insight::groups;
use queue::insight::lanes::COUNT_LIMIT;
use queue::{LimitKind, Priority, limit};

use crate::screens::prelude::*;

/// The screen to which the forms return.
const PATH: &str = "/groups";

pub(crate) fn routes() -> Router<App> {
    Router::new()
        .route("/groups", get(show))
        .route("/groups/create", post(create_group))
        .route("/groups/{group}/concurrency", post(change_group))
        .route("/groups/{group}/active-period", post(set_active_period))
        .route("/groups/{group}/remove", post(remove_group))
}

#[derive(Template)]
#[template(path = "groups.html")]
struct GroupsPage {
    page: Layout,
    groups: Vec<Group>,
}

/// Reads all groups.
pub(crate) async fn data(tx: &Transaction<'_>) -> Result<Vec<Group>, QueueError> {
    groups::groups(tx).await
}

async fn show(mut request: ReadRequest) -> HandlerResult {
    let read = request.begin().await?;
    let groups = data(&read.tx).await?;
    render(&GroupsPage { page: read.layout("Groups"), groups })
}

/// Reads a form that creates or changes a group; an empty field leaves the setting
/// unchanged, except that an empty `max_running` removes the limit.
fn read_change(form: &FormRequest) -> Result<GroupChange, HttpError> {
    Ok(GroupChange {
        description: form.text("description"),
        priority: form.optional("priority")?,
        max_running: form.optional("max_running")?,
    })
}

async fn is_known(tx: &Transaction<'_>, name: &str) -> Result<bool, QueueError> {
    Ok(data(tx).await?.iter().any(|known| known.name == name))
}

async fn create_group(form: FormRequest) -> HandlerResult {
    let change = read_change(&form)?;
    let name = form.text("name").ok_or_else(|| HttpError::bad_request("a group needs a name"))?;
    form.change(PATH, async |tx| {
        if is_known(tx, &name).await? {
            return Err(HttpError::bad_request(format!("group {name} already exists")));
        }
        Ok(group::set_group(tx, &name, &change).await?)
    })
    .await
}

async fn change_group(Path(group): Path<String>, form: FormRequest) -> HandlerResult {
    let change = read_change(&form)?;
    form.change(PATH, async |tx| {
        // set_group creates a missing group; a mistyped URL must not.
        HttpError::unless(is_known(tx, &group).await?, group_not_found)?;
        group::set_group(tx, &group, &change).await?;
        if change.max_running.is_none() {
            limit::set_max_running(tx, LimitKind::Group, &group, None).await?;
        }
        Ok(())
    })
    .await
}

/// Sets the active period; two empty fields remove it.
async fn set_active_period(Path(group): Path<String>, form: FormRequest) -> HandlerResult {
    let period = match (form.optional("opens")?, form.optional("closes")?) {
        (None, None) => None,
        (Some(opens), Some(closes)) => {
            let zone = form.text("zone").unwrap_or_else(|| "UTC".to_owned());
            Some(ActivePeriod { opens, closes, zone })
        }
        _ => return Err(HttpError::bad_request("an active period needs a start and an end")),
    };
    form.change(PATH, async |tx| Ok(group::set_active_period(tx, &group, period.as_ref()).await?))
        .await
}

/// Removes a group. The database refuses while the group has live tasks.
async fn remove_group(Path(group): Path<String>, form: FormRequest) -> HandlerResult {
    form.change(PATH, async |tx| {
        HttpError::unless(group::drop_group(tx, &group).await?, group_not_found)
    })
    .await
}

fn group_not_found() -> HttpError {
    HttpError::not_found("group not found")
}
