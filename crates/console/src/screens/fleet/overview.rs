//! Overview screen: problems, queues and throughput plots.

use queue::insight::problems::{WaitingLimit, problem_sources};
use queue::insight::viewer::Viewer;
use queue::task_queries as tasks;

use super::problems::{FleetFacts, Problem, problems};
use super::queue_stats::{FleetSnapshot, LastHour, QueueStats};
use crate::http::app::AppState;
use crate::page::plots::{HOUR_CHOICES, PlotParams, ThroughputColumns};
use crate::screens::prelude::*;
use crate::throughput::minutes::HOUR_MINUTES;

/// Maximum number of queues shown; the Queues screen lists all of them.
const MAX_QUEUES: usize = 200;

/// Number of problems that are visible before the user expands the list. More would push the queues
/// out of sight.
const TOP_PROBLEMS: usize = 8;

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/", get(show))
}

/// Data of the screen.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct Overview {
    /// Time of the database clock.
    pub(crate) now: Timestamp,
    pub(crate) problems: Vec<Problem>,
    /// Limits for which tasks wait.
    pub(crate) limits: Vec<WaitingLimit>,
    pub(crate) queues: Vec<QueueStats>,
    pub(crate) hour: LastHour,
    pub(crate) readers: i64,
    pub(crate) busy_readers: i64,
    pub(crate) workers_alive: usize,
    /// Number of minutes of the last hour that are loaded.
    pub(crate) minutes_read: i64,
}

#[derive(Template)]
#[template(path = "overview.html")]
struct OverviewPage {
    page: Layout,
    it: Overview,
    hours: i64,
    /// Queue of the plots; empty for all queues.
    queue: String,
    columns: ThroughputColumns,
}

impl OverviewPage {
    fn top_problems(&self) -> &[Problem] {
        &self.it.problems[..self.it.problems.len().min(TOP_PROBLEMS)]
    }

    fn more_problems(&self) -> &[Problem] {
        self.it.problems.get(TOP_PROBLEMS..).unwrap_or_default()
    }

    fn describe(&self, limit: &WaitingLimit) -> String {
        health::problems::describe_limit(limit, self.it.now)
    }

    /// Returns the URL of the page with plots of a queue over `hours`.
    fn plots_path(&self, hours: &i64, queue: &str) -> String {
        format!("{}/?{}#plots", self.page.base, plots_query(*hours, queue))
    }

    /// Returns the URL of the plot data.
    fn source(&self) -> String {
        let query = plots_query(self.hours, &self.queue);
        format!("{}/api/v1/throughput?{query}", self.page.base)
    }
}

fn plots_query(hours: i64, queue: &str) -> String {
    format::query_string(&[("hours", &hours.to_string()), ("queue", queue)])
}

pub(crate) async fn show(
    mut request: ReadRequest,
    Query(params): Query<PlotParams>,
) -> HandlerResult {
    let hours = params.hours()?;
    let read = request.begin().await?;
    let it = data(&read.context.app, &read.tx, &read.viewer).await?;
    let columns =
        ThroughputColumns::of(&read.context.app.throughput, &params.queue, hours, read.viewer.now);
    render(&OverviewPage { page: read.layout("Overview"), it, hours, queue: params.queue, columns })
}

/// Reads the data of the screen.
pub(crate) async fn data(
    app: &AppState,
    tx: &Transaction<'_>,
    viewer: &Viewer,
) -> Result<Overview, QueueError> {
    let mut overview = all_queues(app, tx, viewer).await?;
    overview.queues.truncate(MAX_QUEUES);
    Ok(overview)
}

/// Reads the data of the screen for all queues.
pub(crate) async fn all_queues(
    app: &AppState,
    tx: &Transaction<'_>,
    viewer: &Viewer,
) -> Result<Overview, QueueError> {
    let fleet = FleetSnapshot::read_with_rates(tx, &app.throughput, viewer.now).await?;
    let queues = fleet.queues();
    let running = tasks::running(tx, None).await?;
    let sources = problem_sources(tx).await?;
    let problems = problems(&FleetFacts {
        fleet: &fleet,
        queues: &queues,
        running: &running,
        sources: &sources,
    });
    let (busy_readers, readers) = fleet.readers();
    Ok(Overview {
        now: viewer.now,
        problems,
        limits: sources.limits,
        queues,
        hour: fleet.hour(),
        readers,
        busy_readers,
        workers_alive: fleet.workers.iter().filter(|worker| worker.alive).count(),
        minutes_read: app.throughput.read_minutes(viewer.now, HOUR_MINUTES),
    })
}
