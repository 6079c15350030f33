//! Screens of the console, one file each with data, template and routes. [`NAV_ITEMS`] lists the
//! screens of the navigation.

pub(crate) mod fleet;
pub(crate) mod history;
pub(crate) mod jobs;
pub(crate) mod runs;
pub(crate) mod schedules;
pub(crate) mod tasks;

use axum::Router;

use crate::http::app::{App, NavItem};

/// Screens in the order of the navigation.
pub(crate) const NAV_ITEMS: &[NavItem] = &[
    NavItem { path: "/", label: "Overview", routes: fleet::overview::routes },
    NavItem { path: "/tasks", label: "Tasks", routes: tasks::routes },
    NavItem { path: "/runs", label: "Runs", routes: runs::routes },
    NavItem { path: "/schedules", label: "Schedules", routes: schedules::routes },
    NavItem { path: "/jobs", label: "Jobs", routes: jobs::routes },
    NavItem { path: "/lineage", label: "Lineage", routes: jobs::lineage::routes },
    NavItem { path: "/failures", label: "Failures", routes: history::failures::routes },
    NavItem { path: "/workers", label: "Workers", routes: fleet::workers::routes },
    NavItem { path: "/queues", label: "Queues", routes: fleet::queues::routes },
    NavItem { path: "/priorities", label: "Priorities", routes: fleet::priorities::routes },
    NavItem { path: "/groups", label: "Groups", routes: fleet::groups::routes },
    NavItem { path: "/audit", label: "Audit", routes: history::audit::routes },
    NavItem { path: "/database", label: "Database", routes: fleet::database::routes },
];

/// Returns the routes of all screens.
pub(crate) fn routes() -> Router<App> {
    NAV_ITEMS.iter().fold(Router::new(), |all, screen| all.merge((screen.routes)()))
}
