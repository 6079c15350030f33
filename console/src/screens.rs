//! One file each: what a screen is made of, its template, its routes. A new one is a line here.

mod attempts;
mod audit;
mod bulk;
mod database;
mod failures;
mod fill;
pub(crate) mod flows;
mod gantt;
mod graph;
mod grid;
mod groups;
mod job;
mod jobs;
mod kept_plan;
mod lately;
mod lineage;
mod live;
mod overview;
mod priorities;
mod problems;
mod queues;
mod run;
mod run_acts;
mod runs;
mod schedule;
mod schedule_acts;
mod schedules;
mod task;
mod tasks;
mod timeline;
mod workers;

use axum::Router;
use axum::response::Response;

use crate::app::App;
use crate::trouble::Trouble;

pub(crate) use audit::{Ask as AuditAsk, listing as audit_listing};
pub(crate) use database::Known as DatabaseKnown;
pub(crate) use failures::{Ask as FailuresAsk, groups as failure_groups};
pub(crate) use fill::Fleet;
pub(crate) use groups::data as groups_data;
pub(crate) use live::MOST_STREAMS;
pub(crate) use overview::{data as overview_data, show as home};
pub(crate) use task::data as task_data;
pub(crate) use tasks::{Ask, data as tasks_data};
pub(crate) use workers::data as workers_data;

/// What a handler answers.
pub(crate) type Shown = Result<Response, Trouble>;

/// A screen of the navigation.
pub(crate) struct Screen {
    /// Where it is, without the base path.
    pub(crate) path: &'static str,
    /// What it is called.
    pub(crate) label: &'static str,
    routes: fn() -> Router<App>,
}

/// In the order of the navigation.
pub(crate) const SCREENS: &[Screen] = &[
    Screen { path: "/", label: "Overview", routes: overview::routes },
    Screen { path: "/tasks", label: "Tasks", routes: tasks::routes },
    Screen { path: "/runs", label: "Runs", routes: runs::routes },
    Screen { path: "/schedules", label: "Schedules", routes: schedules::routes },
    Screen { path: "/jobs", label: "Jobs", routes: jobs::routes },
    Screen { path: "/lineage", label: "Lineage", routes: lineage::routes },
    Screen { path: "/failures", label: "Failures", routes: failures::routes },
    Screen { path: "/workers", label: "Workers", routes: workers::routes },
    Screen { path: "/queues", label: "Queues", routes: queues::routes },
    Screen { path: "/priorities", label: "Priorities", routes: priorities::routes },
    Screen { path: "/groups", label: "Groups", routes: groups::routes },
    Screen { path: "/audit", label: "Audit", routes: audit::routes },
    Screen { path: "/database", label: "Database", routes: database::routes },
];

/// The routes of every screen.
pub(crate) fn routes() -> Router<App> {
    SCREENS
        .iter()
        .fold(Router::new(), |all, screen| all.merge((screen.routes)()))
        .merge(task::routes())
        .merge(bulk::routes())
}
