//! What the fleet stands on: the server and its settings, the schema's tables, who is connected, who
//! waits for a lock, and who keeps dead rows.

use std::collections::BTreeMap;

use askama::Template;
use axum::Router;
use axum::routing::get;
use deadpool_postgres::Transaction;
use queue::doctor::{self, Holder};
use queue::insight::storage::{self, Connections, Retention, Table, Wait};
use queue::insight::trouble;
use queue::insight::viewer::Viewer;
use queue::{QueueError, TaskId, roster, schema};
use serde::Serialize;
use terminal::judge::{self, Finding, Verdict};
use tokio_postgres::error::SqlState;

use super::Shown;
use crate::app::App;
use crate::page::{Page, show as answer};
use crate::visit::Visit;
use crate::words;

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/database", get(show))
}

/// What is known without a look at the schema's tables, which somebody may have locked.
#[derive(Serialize)]
pub(crate) struct Known {
    pub(crate) server_version: String,
    pub(crate) connections_allowed: i32,
    pub(crate) connections_open: i64,
    /// The checks of `pgmill doctor`, less the comparison with `schema.sql`.
    pub(crate) checks: Vec<Finding>,
    pub(crate) connections: Vec<Connections>,
    pub(crate) waits: Vec<Wait>,
    pub(crate) horizon: Vec<Holder>,
    /// `None`: a table is locked, and its size cannot be read.
    pub(crate) schema: Option<Schema>,
}

/// What the schema's tables say.
#[derive(Serialize)]
pub(crate) struct Schema {
    pub(crate) version: Option<i32>,
    pub(crate) tables: Vec<Table>,
    pub(crate) retention: Retention,
    /// Task and name of the backends above that run one.
    pub(crate) tasks: BTreeMap<i32, (TaskId, Option<String>)>,
}

#[derive(Template)]
#[template(path = "database.html")]
struct Screen {
    page: Page,
    known: Known,
}

impl Screen {
    /// What should be looked at.
    fn warnings(&self) -> Vec<&Finding> {
        let bad = |it: &&Finding| matches!(it.verdict, Verdict::Warning | Verdict::Problem);
        self.known.checks.iter().filter(bad).collect()
    }

    fn fine(&self) -> Vec<&Finding> {
        self.known.checks.iter().filter(|it| it.verdict == Verdict::Ok).collect()
    }

    /// The task that a backend runs.
    fn task(&self, pid: &i32) -> Option<(TaskId, String)> {
        let (id, name) = self.known.schema.as_ref()?.tasks.get(pid)?;
        Some((*id, name.clone().unwrap_or_default()))
    }

    /// The pid of a holder that is a session.
    fn session(&self, holder: &Holder) -> Option<(TaskId, String)> {
        if holder.kind == "session" { self.task(&holder.name.parse().ok()?) } else { None }
    }

    fn age_xids(&self, holder: &Holder) -> Option<i64> {
        holder.age_xids.map(i64::from)
    }

    fn all_bytes(&self) -> i64 {
        let tables = self.known.schema.iter().flat_map(|schema| &schema.tables);
        tables.map(|table| table.bytes + table.index_bytes).sum()
    }
}

impl Known {
    /// What does not need the schema comes first: an error ends the transaction.
    pub(crate) async fn read(look: &Transaction<'_>, viewer: &Viewer) -> Result<Self, QueueError> {
        let server = doctor::server(&**look).await?;
        let mut horizon = doctor::horizon(&**look).await?;
        if !viewer.sees_statements {
            horizon.iter_mut().for_each(|holder| holder.query = None);
        }
        let mut checks = vec![judge::server(&server)];
        checks.extend(judge::settings(&doctor::settings(&**look).await?));
        checks.extend(judge::overrides(&doctor::overrides(&**look).await?));
        checks.extend(judge::memberships(&doctor::memberships(&**look).await?));
        checks.push(judge::horizon(&horizon));
        let mut known = Self {
            connections: storage::connections(&**look).await?,
            waits: storage::waits(&**look).await?,
            connections_allowed: server.connections_allowed,
            connections_open: server.connections,
            server_version: server.version.clone(),
            schema: None,
            checks,
            horizon,
        };
        match known.read_schema(look, &server).await {
            Ok(schema) => known.schema = Some(schema),
            Err(error) if locked(&error) => {}
            Err(error) => return Err(error),
        }
        Ok(known)
    }

    async fn read_schema(
        &mut self,
        look: &Transaction<'_>,
        server: &doctor::Server,
    ) -> Result<Schema, QueueError> {
        let found = schema::found(&**look).await?;
        self.checks.push(judge::schema_version(found));
        let workers = roster::workers(&**look).await?;
        self.checks.push(judge::workers(&workers));
        self.checks.extend(found.and_then(|found| judge::built_for(&workers, found)));
        self.checks.push(judge::connections(server, &workers));
        self.checks.extend(judge::session_roles(&doctor::session_roles(&**look).await?));
        if let Some(tables) = doctor::tables(&**look).await? {
            self.checks.push(judge::history(&tables));
            self.checks.push(judge::dead_rows(&tables));
        }
        let sessions = self.horizon.iter().filter_map(|holder| holder.name.parse().ok());
        let waiting =
            self.waits.iter().flat_map(|it| it.blocked_by.iter().copied().chain([it.pid]));
        let pids: Vec<i32> = sessions.chain(waiting).collect();
        let backends = trouble::backends(&**look, &pids).await?;
        Ok(Schema {
            version: found.map(|found| found.version),
            tables: storage::tables(&**look).await?,
            retention: storage::retention(&**look).await?,
            tasks: backends
                .into_iter()
                .filter_map(|it| Some((it.pid, (it.task?, it.task_name))))
                .collect(),
        })
    }
}

/// Somebody holds a lock on a table of the schema.
fn locked(error: &QueueError) -> bool {
    let code = error.sqlstate();
    code == Some(&SqlState::LOCK_NOT_AVAILABLE) || code == Some(&SqlState::QUERY_CANCELED)
}

async fn show(visit: Visit) -> Shown {
    let mut session = visit.session().await?;
    let look = session.look().await?;
    let viewer = visit.viewer(&look).await?;
    let known = Known::read(&look, &viewer).await?;
    answer(&Screen { page: visit.page("Database", viewer), known })
}
