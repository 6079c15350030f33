//! Commands about tasks: list, show, cancel and retry them, and explain why one does not run.

pub(crate) mod actions;
pub(crate) mod list;
pub(crate) mod plan;
pub(crate) mod show;
