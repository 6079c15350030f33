//! JSON API below `/api/v1` with the data of the screens. Times are RFC 3339 in UTC, durations are
//! in seconds.
//!
//! | task | file |
//! |---|---|
//! | names that all handlers use, and the macros that define handlers | `prelude` |
//! | handlers that read runs, schedules, jobs and lineage | `workflows` |
//! | handlers that change something | `write` |

mod prelude;
mod workflows;
mod write;

use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use queue::group::Group;
use queue::insight::FailureGroup;
use queue::priority::Weight;
use queue::subscription::{self, Subscription};

use self::prelude::*;
use crate::openapi;
use crate::page::plots::{PlotParams, ThroughputColumns};
use crate::screens::fleet::database::DatabaseDetail;
use crate::screens::fleet::limits::LimitsParams;
use crate::screens::fleet::queue_stats::{FleetSnapshot, PriorityStats, QueueStats};
use crate::screens::fleet::workers::WorkerStatus;
use crate::screens::history::audit::AuditParams;
use crate::screens::history::failures::FailuresParams;
use crate::screens::tasks::list::TasksParams;
use crate::screens::tasks::status::task_id;
use crate::screens::{fleet, history, tasks};

// Responses that wrap a list, because the screens have no type for them.

#[derive(Serialize, ToSchema)]
struct Failures {
    groups: Vec<FailureGroup>,
}

#[derive(Serialize, ToSchema)]
struct Workers {
    workers: Vec<WorkerStatus>,
}

#[derive(Serialize, ToSchema)]
struct Queues {
    queues: Vec<QueueStats>,
}

#[derive(Serialize, ToSchema)]
struct Priorities {
    priorities: Vec<PriorityStats>,
    weights: Vec<Weight>,
}

#[derive(Serialize, ToSchema)]
struct Groups {
    groups: Vec<Group>,
}

#[derive(Serialize, ToSchema)]
struct Subscriptions {
    subscriptions: Vec<Subscription>,
}

/// Returns the routes, and the route of their description.
pub(crate) fn routes() -> Router<App> {
    let all = described().merge(workflows::described()).merge(write::routes());
    let (router, api) = all.split_for_parts();
    let document = Arc::new(openapi::document(&api));
    router.route("/api/v1/openapi.json", get(async move || json_response(&*document)))
}

reads! {
    /// Problems, queues, readers, and the last hour
    "/api/v1/overview" overview(read = begin) [] -> [fleet::overview::Overview] =
        fleet::overview::data(&read.context.app, &read.tx, &read.viewer).await?;

    /// Tasks that match a filter, newest first, 50 per page
    "/api/v1/tasks" tasks(tx = transaction, params: Query<TasksParams>) [TasksParams] -> [tasks::list::Listing] = {
        let mut tx = tx;
        tasks::list::data(&mut tx, &params.query()?, &params).await?
    };

    /// One task with its attempts, blockers, duration history and plan
    "/api/v1/tasks/{id}" task(tx = transaction, id: Path<String>) [("id" = i64, Path, minimum = 1)]
        -> [tasks::task::TaskDetail] = tasks::task::data(&tx, task_id(&id)?).await?;

    /// Failures by cause, most frequent first
    "/api/v1/failures" failures(tx = transaction, params: Query<FailuresParams>) [FailuresParams] -> [Failures] =
        Failures { groups: history::failures::groups(&tx, &params.queue, params.since()?).await? };

    /// The server, checks of pgmill doctor, locks, connections, tables, retention
    "/api/v1/database" database(read = begin) [] -> [DatabaseDetail] =
        DatabaseDetail::read(&read.tx, &read.viewer).await?;

    /// Workers and their running tasks
    "/api/v1/workers" workers(tx = transaction) [] -> [Workers] =
        Workers { workers: fleet::workers::data(&tx).await? };

    /// Queues; a count with `more` is a lower bound
    "/api/v1/queues" queues(read = begin) [] -> [Queues] = {
        let fleet = FleetSnapshot::read_with_rates(&read.tx, &read.context.app.throughput, read.viewer.now);
        Queues { queues: fleet.await?.queues() }
    };

    /// Priorities and their weights
    "/api/v1/priorities" priorities(read = begin) [] -> [Priorities] = Priorities {
        priorities: FleetSnapshot::of(&read).await?.priorities(),
        weights: queue::priority::weights(&*read.tx).await?,
    };

    /// Groups; counts stop at 10,000
    "/api/v1/groups" groups(tx = transaction) [] -> [Groups] = Groups { groups: fleet::groups::data(&tx).await? };

    /// Limits of queues, groups and concurrency keys with their use, 50 per page
    ///
    /// A count with `_more` true is a lower bound.
    "/api/v1/limits" limits(tx = transaction, params: Query<LimitsParams>) [LimitsParams]
        -> [fleet::limits::Listing] = fleet::limits::data(&tx, &params).await?;

    /// Subscriptions with the state of their delivery
    "/api/v1/subscriptions" subscriptions(tx = transaction) [] -> [Subscriptions] =
        Subscriptions { subscriptions: subscription::subscriptions(&*tx).await? };

    /// Audit log, newest first, 50 per page
    "/api/v1/audit" audit(tx = transaction, params: Query<AuditParams>) [AuditParams] -> [history::audit::Listing] =
        history::audit::data(&tx, &params.filter()?).await?;

    /// Finished attempts, wait times, durations and waiting tasks of each minute of the last hours
    ///
    /// A value that is not known is null.
    "/api/v1/throughput" throughput(read = begin, params: Query<PlotParams>) [PlotParams] -> [ThroughputColumns] =
        ThroughputColumns::of(&read.context.app.throughput, &params.queue, params.hours()?, read.viewer.now);
}
