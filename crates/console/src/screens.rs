//! Screens of the console, one file each with data, template and routes.
//!
//! | screens | file |
//! |---|---|
//! | names that most screens use | `prelude` |
//! | front page of a console with several databases | `databases` |
//! | overview, workers, queues, limits, priorities, groups, subscriptions, database | `fleet` |
//! | list of tasks, one task, bulk actions | `tasks` |
//! | list of runs, one run, approvals | `runs` |
//! | list and calendar of schedules, one schedule, backfills | `schedules` |
//! | list of jobs, one job, its versions, lineage | `jobs` |
//! | failures by cause, and the audit log | `history` |
//!
//! [`NAV_ITEMS`] lists the screens of the navigation.

pub(crate) mod databases;
pub(crate) mod fleet;
pub(crate) mod history;
pub(crate) mod jobs;
mod prelude;
pub(crate) mod runs;
pub(crate) mod schedules;
pub(crate) mod tasks;

use axum::Router;

use crate::http::app::{App, NavItem};

/// Screens in the order of the navigation.
pub(crate) const NAV_ITEMS: &[NavItem] = &[
    NavItem { path: "/", label: "Overview", key: 'o', routes: fleet::overview::routes },
    NavItem { path: "/tasks", label: "Tasks", key: 't', routes: tasks::routes },
    NavItem { path: "/runs", label: "Runs", key: 'r', routes: runs::routes },
    NavItem { path: "/schedules", label: "Schedules", key: 's', routes: schedules::routes },
    NavItem { path: "/jobs", label: "Jobs", key: 'j', routes: jobs::routes },
    NavItem { path: "/lineage", label: "Lineage", key: 'l', routes: jobs::lineage::routes },
    NavItem { path: "/failures", label: "Failures", key: 'f', routes: history::failures::routes },
    NavItem { path: "/workers", label: "Workers", key: 'w', routes: fleet::workers::routes },
    NavItem { path: "/queues", label: "Queues", key: 'q', routes: fleet::queues::routes },
    NavItem { path: "/limits", label: "Limits", key: 'm', routes: fleet::limits::routes },
    NavItem {
        path: "/priorities",
        label: "Priorities",
        key: 'p',
        routes: fleet::priorities::routes,
    },
    NavItem { path: "/groups", label: "Groups", key: 'g', routes: fleet::groups::routes },
    NavItem {
        path: "/subscriptions",
        label: "Subscriptions",
        key: 'n',
        routes: fleet::subscriptions::routes,
    },
    NavItem { path: "/audit", label: "Audit", key: 'a', routes: history::audit::routes },
    NavItem { path: "/database", label: "Database", key: 'd', routes: fleet::database::routes },
];

/// Returns the routes of all screens.
pub(crate) fn routes() -> Router<App> {
    NAV_ITEMS.iter().fold(Router::new(), |all, screen| all.merge((screen.routes)()))
}
