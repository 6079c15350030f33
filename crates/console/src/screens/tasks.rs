//! Screens about tasks, and actions on tasks.
//!
//! | screen or part | file |
//! |---|---|
//! | list of tasks that match a filter, and its download | `list` |
//! | one task with all its parts | `task` |
//! | state and its reason, blockers, and the panel that shows them | `status` |
//! | waits and attempts of a task as an SVG timeline | `timeline` |
//! | server-sent events: new contents of the panel of a live task | `events` |
//! | error position, notices and result rows of each attempt | `attempts` |
//! | durations of tasks with the same name, and their chart | `duration_history` |
//! | saved plan as a tree, compared with the previous plan | `saved_plan` |
//! | cancelling, retrying and changing a task | `actions` |
//! | cancelling or retrying all tasks that match a filter | `bulk` |

use crate::screens::prelude::*;

mod actions;
mod attempts;
mod bulk;
mod duration_history;
pub(crate) mod events;
pub(crate) mod list;
mod saved_plan;
pub(crate) mod status;
pub(crate) mod task;
mod timeline;

pub(crate) fn routes() -> Router<App> {
    list::routes()
        .merge(task::routes())
        .merge(actions::routes())
        .merge(events::routes())
        .merge(saved_plan::routes())
        .merge(bulk::routes())
}
