//! Database screen: server and settings, tables of the schema, connections, lock waits, and holders
//! of old snapshots that keep VACUUM from removing dead rows.

use health::doctor_checks::{self, CheckStatus, Finding};
use queue::catalog;
use queue::doctor::{self, HorizonHolder};
use queue::insight::problems;
use queue::insight::storage::{self, Connections, Retention, Table, Wait};
use queue::insight::viewer::Viewer;
use queue::target::{self, Target};
use queue::{schema, workers};
use tokio_postgres::error::SqlState;

use crate::screens::prelude::*;

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/database", get(show))
}

/// Data of the screen. Everything except `schema` is read without access to the tables of the
/// schema, which may be locked.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct DatabaseDetail {
    pub(crate) server_version: String,
    pub(crate) connections_allowed: i32,
    pub(crate) connections_open: i64,
    /// Checks of `pgmill doctor`, except the comparison with `schema.sql`.
    pub(crate) checks: Vec<Finding>,
    pub(crate) connections: Vec<Connections>,
    pub(crate) lock_waits: Vec<Wait>,
    pub(crate) horizon: Vec<HorizonHolder>,
    /// Sizes of the tables; `None` if one of the tables is locked, so that its size cannot be read.
    pub(crate) schema: Option<Schema>,
}

/// Data read from the tables of the schema.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct Schema {
    pub(crate) version: Option<i32>,
    pub(crate) tables: Vec<Table>,
    pub(crate) retention: Retention,
    /// Other databases in which tasks run.
    pub(crate) targets: Vec<Target>,
    /// Task id and name by backend pid, for the backends listed on the screen that run a task.
    #[schema(value_type = Object)]
    pub(crate) tasks: BTreeMap<i32, (TaskId, Option<String>)>,
}

#[derive(Template)]
#[template(path = "database.html")]
struct DatabasePage {
    page: Layout,
    known: DatabaseDetail,
}

impl DatabasePage {
    /// Returns the checks with a warning or a problem.
    fn warnings(&self) -> Vec<&Finding> {
        let bad = |it: &&Finding| matches!(it.status, CheckStatus::Warning | CheckStatus::Problem);
        self.known.checks.iter().filter(bad).collect()
    }

    fn fine(&self) -> Vec<&Finding> {
        self.known.checks.iter().filter(|it| it.status == CheckStatus::Ok).collect()
    }

    /// Returns the checks that could not run.
    fn not_checked(&self) -> Vec<&Finding> {
        self.known.checks.iter().filter(|it| it.status == CheckStatus::NotChecked).collect()
    }

    /// Returns whether a check could not run, so that an empty list does not mean that there is
    /// nothing.
    fn hidden(&self, check: &str) -> bool {
        self.not_checked().iter().any(|it| it.check == check)
    }

    /// Returns the task that a backend runs.
    fn task(&self, pid: &i32) -> Option<(TaskId, String)> {
        let (id, name) = self.known.schema.as_ref()?.tasks.get(pid)?;
        Some((*id, name.clone().unwrap_or_default()))
    }

    /// Returns the task of a holder that is a session.
    fn session(&self, holder: &HorizonHolder) -> Option<(TaskId, String)> {
        if holder.kind == "session" { self.task(&holder.name.parse().ok()?) } else { None }
    }

    fn age_xids(&self, holder: &HorizonHolder) -> Option<i64> {
        holder.age_xids.map(i64::from)
    }

    fn all_bytes(&self) -> i64 {
        let tables = self.known.schema.iter().flat_map(|schema| &schema.tables);
        tables.map(|table| table.bytes + table.index_bytes).sum()
    }
}

impl DatabaseDetail {
    /// Reads the data. Queries that do not need the schema come first, because an error aborts the
    /// transaction.
    pub(crate) async fn read(tx: &Transaction<'_>, viewer: &Viewer) -> Result<Self, QueueError> {
        let server = doctor::server(tx).await?;
        let mut horizon = doctor::horizon(tx).await?;
        if !viewer.sees_statements {
            horizon.iter_mut().for_each(|holder| holder.query = None);
        }
        let mut checks = vec![doctor_checks::server(&server)];
        checks.push(doctor_checks::transaction_ids(&doctor::oldest_database(tx).await?));
        checks.extend(doctor_checks::settings(&doctor::settings(tx).await?));
        let catalog = catalog::catalog(tx, server.version_number).await?;
        checks.extend(doctor_checks::catalog(&catalog));
        checks.extend(doctor_checks::overrides(&doctor::overrides(tx).await?));
        checks.extend(doctor_checks::memberships(&doctor::memberships(tx).await?));
        checks.push(doctor_checks::horizon(&horizon, doctor::hidden_sessions(tx).await?));
        let mut known = Self {
            connections: storage::connections(tx).await?,
            lock_waits: storage::waits(tx).await?,
            connections_allowed: server.connections_allowed,
            connections_open: server.connections,
            server_version: server.version.clone(),
            schema: None,
            checks,
            horizon,
        };
        match known.read_schema(tx, &server).await {
            Ok(schema) => known.schema = Some(schema),
            Err(error) if locked(&error) => {}
            Err(error) => return Err(error),
        }
        Ok(known)
    }

    async fn read_schema(
        &mut self,
        tx: &Transaction<'_>,
        server: &doctor::Server,
    ) -> Result<Schema, QueueError> {
        let found = schema::installed(tx).await?;
        self.checks.push(doctor_checks::schema_version(found));
        let workers = workers::workers(tx).await?;
        self.checks.push(doctor_checks::workers(&workers));
        self.checks.extend(found.and_then(|found| doctor_checks::built_for(&workers, found)));
        self.checks.push(doctor_checks::connections(server, &workers));
        self.checks.extend(doctor_checks::session_roles(&doctor::session_roles(tx).await?));
        if let Some(tables) = doctor::tables(tx).await? {
            self.checks.push(doctor_checks::history(&tables));
            self.checks.push(doctor_checks::dead_rows(&tables));
        }
        let sessions = self.horizon.iter().filter_map(|holder| holder.name.parse().ok());
        let waiting =
            self.lock_waits.iter().flat_map(|it| it.blocked_by.iter().copied().chain([it.pid]));
        let pids: Vec<i32> = sessions.chain(waiting).collect();
        let backends = problems::blockers(tx, &pids).await?;
        Ok(Schema {
            version: found.map(|found| found.version),
            tables: storage::tables(tx).await?,
            retention: storage::retention(tx).await?,
            targets: target::targets(tx).await?,
            tasks: backends
                .into_iter()
                .filter_map(|it| Some((it.pid, (it.task?, it.task_name))))
                .collect(),
        })
    }
}

/// Returns whether the error means that a table of the schema is locked.
fn locked(error: &QueueError) -> bool {
    let code = error.sqlstate();
    code == Some(&SqlState::LOCK_NOT_AVAILABLE) || code == Some(&SqlState::QUERY_CANCELED)
}

async fn show(mut request: ReadRequest) -> HandlerResult {
    let read = request.begin().await?;
    let known = DatabaseDetail::read(&read.tx, &read.viewer).await?;
    render(&DatabasePage { page: read.layout("Database"), known })
}
