//! Screens of the console, one file each with data, template and routes. [`NAV_ITEMS`] lists the
//! screens of the navigation.

mod attempts;
mod audit;
mod bulk;
mod database;
mod duration_history;
mod failures;
mod gantt;
mod graph;
mod groups;
mod job;
mod jobs;
mod lineage;
mod overview;
mod priorities;
mod problems;
mod queue_stats;
mod queues;
mod run;
mod run_actions;
mod run_comparison;
mod runs;
mod saved_plan;
mod schedule;
mod schedule_actions;
mod schedules;
mod task;
mod task_events;
mod tasks;
mod timeline;
mod workers;
pub(crate) mod workflows;

use axum::Router;
use axum::response::Response;

use crate::app::App;
use crate::http_error::HttpError;

pub(crate) use audit::{AuditParams, listing as audit_listing};
pub(crate) use database::DatabaseDetail;
pub(crate) use failures::{FailuresParams, groups as failure_groups};
pub(crate) use groups::data as groups_data;
pub(crate) use overview::{data as overview_data, show as home};
pub(crate) use queue_stats::FleetSnapshot;
pub(crate) use task::data as task_data;
pub(crate) use task_events::MAX_STREAMS;
pub(crate) use tasks::{TasksParams, data as tasks_data};
pub(crate) use workers::data as workers_data;

/// The result of a handler.
pub(crate) type HandlerResult = Result<Response, HttpError>;

/// An entry of the navigation.
pub(crate) struct NavItem {
    /// Path of the screen without the base path.
    pub(crate) path: &'static str,
    /// Link text.
    pub(crate) label: &'static str,
    routes: fn() -> Router<App>,
}

/// Screens in the order of the navigation.
pub(crate) const NAV_ITEMS: &[NavItem] = &[
    NavItem { path: "/", label: "Overview", routes: overview::routes },
    NavItem { path: "/tasks", label: "Tasks", routes: tasks::routes },
    NavItem { path: "/runs", label: "Runs", routes: runs::routes },
    NavItem { path: "/schedules", label: "Schedules", routes: schedules::routes },
    NavItem { path: "/jobs", label: "Jobs", routes: jobs::routes },
    NavItem { path: "/lineage", label: "Lineage", routes: lineage::routes },
    NavItem { path: "/failures", label: "Failures", routes: failures::routes },
    NavItem { path: "/workers", label: "Workers", routes: workers::routes },
    NavItem { path: "/queues", label: "Queues", routes: queues::routes },
    NavItem { path: "/priorities", label: "Priorities", routes: priorities::routes },
    NavItem { path: "/groups", label: "Groups", routes: groups::routes },
    NavItem { path: "/audit", label: "Audit", routes: audit::routes },
    NavItem { path: "/database", label: "Database", routes: database::routes },
];

/// Returns the routes of all screens.
pub(crate) fn routes() -> Router<App> {
    NAV_ITEMS
        .iter()
        .fold(Router::new(), |all, screen| all.merge((screen.routes)()))
        .merge(task::routes())
        .merge(bulk::routes())
}
