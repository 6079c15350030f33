//! Screens about tasks: the list with its filter, one task with its status, attempts and plan,
//! the change of a task, and bulk actions.

mod attempts;
mod bulk;
mod change;
mod duration_history;
pub(crate) mod events;
pub(crate) mod list;
mod saved_plan;
mod status;
pub(crate) mod task;
mod timeline;

use axum::Router;

use crate::http::app::App;

pub(crate) fn routes() -> Router<App> {
    list::routes()
        .merge(task::routes())
        .merge(change::routes())
        .merge(events::routes())
        .merge(saved_plan::routes())
        .merge(bulk::routes())
}
