//! Screens about tasks: the list with its filter, one task with its status, attempts and plan, and
//! bulk actions.

mod attempts;
pub(crate) mod bulk;
mod duration_history;
pub(crate) mod events;
pub(crate) mod list;
mod saved_plan;
pub(crate) mod task;
mod timeline;
