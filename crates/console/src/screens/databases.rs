//! Databases screen: the front page of a console with several databases, one row for each.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use futures_util::future::join_all;
use health::problems::Severity;
use tokio::time::timeout;

use crate::http::access_control::Identity;
use crate::http::app::Frame;
use crate::options::environment::Environment;
use crate::screens::fleet::overview::{self, Overview};
use crate::screens::fleet::problems::Problem;
use crate::screens::fleet::queue_stats::Count;
use crate::screens::prelude::*;

/// Time limit for the row of one database. The rows are read at the same time.
const ROW_LIMIT: Duration = Duration::from_secs(3);

struct DatabasesState {
    frame: Arc<Frame>,
    apps: Vec<App>,
}

/// Returns the route of the screen, at this path.
pub(crate) fn route<S: Clone + Send + Sync + 'static>(
    path: &str,
    frame: &Arc<Frame>,
    apps: &[App],
) -> Router<S> {
    let state = DatabasesState { frame: Arc::clone(frame), apps: apps.to_vec() };
    Router::new().route(path, get(show)).with_state(Arc::new(state))
}

#[derive(Template)]
#[template(path = "databases.html")]
struct DatabasesPage<'a> {
    base: &'a str,
    environment: Option<&'a Environment>,
    identity: &'a Identity,
    read_only: bool,
    rows: Vec<DatabaseRow<'a>>,
    total: Totals,
}

/// A database, and its state or the reason why the state is not known.
struct DatabaseRow<'a> {
    name: &'a str,
    /// Base path of its pages.
    base: &'a str,
    environment: Option<&'a Environment>,
    state: Result<DatabaseState, HttpError>,
}

struct DatabaseState {
    /// Numbers of problems by severity, most severe first.
    problems: [(Severity, usize); 3],
    /// The most severe problem.
    first: Option<Problem>,
    numbers: Totals,
}

/// Numbers of one database, or of all that answered.
#[derive(Default)]
struct Totals {
    pending: Count,
    running: Count,
    workers: usize,
    readers: i64,
    busy_readers: i64,
    /// Attempts finished per second; `None` if the rate of no database is known.
    per_second: Option<f64>,
    failed: i64,
}

impl Totals {
    fn rate(&self) -> String {
        self.per_second.map_or_else(|| "–".to_owned(), |rate| format!("{rate:.1}"))
    }

    fn add(&mut self, other: &Self) {
        for (sum, count) in
            [(&mut self.pending, &other.pending), (&mut self.running, &other.running)]
        {
            sum.count += count.count;
            sum.more |= count.more;
        }
        self.workers += other.workers;
        self.readers += other.readers;
        self.busy_readers += other.busy_readers;
        self.failed += other.failed;
        if let Some(rate) = other.per_second {
            *self.per_second.get_or_insert(0.0) += rate;
        }
    }
}

impl DatabaseState {
    fn of(overview: Overview) -> Self {
        let mut numbers = Totals {
            workers: overview.workers_alive,
            readers: overview.readers,
            busy_readers: overview.busy_readers,
            per_second: overview.hour.per_second,
            failed: overview.hour.failed,
            ..Totals::default()
        };
        for queue in &overview.queues {
            numbers.add(&Totals {
                pending: queue.pending,
                running: queue.running,
                ..Totals::default()
            });
        }
        let severities = [Severity::Critical, Severity::Warning, Severity::Info];
        let count =
            |severity| overview.problems.iter().filter(|it| it.severity == severity).count();
        Self {
            problems: severities.map(|severity| (severity, count(severity))),
            first: overview.problems.into_iter().next(),
            numbers,
        }
    }
}

async fn show(
    State(state): State<Arc<DatabasesState>>,
    Extension(identity): Extension<Identity>,
) -> HandlerResult {
    let rows = join_all(state.apps.iter().map(|app| row(app, &identity))).await;
    let mut total = Totals::default();
    for known in rows.iter().filter_map(|row| row.state.as_ref().ok()) {
        total.add(&known.numbers);
    }
    render(&DatabasesPage {
        base: &state.frame.base,
        environment: state.frame.environment.as_ref(),
        identity: &identity,
        read_only: state.apps.iter().all(|app| app.read_only),
        rows,
        total,
    })
}

async fn row<'a>(app: &'a App, identity: &Identity) -> DatabaseRow<'a> {
    let state = timeout(ROW_LIMIT, read(app, identity)).await.unwrap_or_else(|_| {
        let message = format!("no answer within {} s", ROW_LIMIT.as_secs());
        Err(HttpError::new(StatusCode::SERVICE_UNAVAILABLE, message))
    });
    DatabaseRow {
        name: app.frame.context.as_deref().unwrap_or_default(),
        base: &app.frame.base,
        environment: app.frame.environment.as_ref(),
        state,
    }
}

/// Reads the state of a database, with the role that the user has there.
async fn read(app: &App, identity: &Identity) -> Result<DatabaseState, HttpError> {
    app.throughput.mark_used();
    let mut session = app.database.session_for(&identity.rights).await?;
    let tx = session.begin_read().await?;
    let viewer = queue::insight::viewer::viewer(&*tx).await?;
    Ok(DatabaseState::of(overview::all_queues(app, &tx, &viewer).await?))
}
