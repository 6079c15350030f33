//! The checks of `pgmill doctor`. Pure: facts in, findings out.
//!
//! | checks | file |
//! |---|---|
//! | version, transaction ids and settings of the server | `server` |
//! | collations, indexes, the queue of NOTIFY, the lock table | `catalog` |
//! | two-phase commit and nodes of a coordinator of Citus | `citus` |
//! | schema, workers, roles, old snapshots, history, sequences, priorities, dead rows | this file |

mod catalog;
mod citus;
mod server;

pub use catalog::catalog;
pub use citus::citus;
pub use server::{overrides, server, settings, transaction_ids};

use queue::doctor::{ForeignGrant, HorizonHolder, Membership, Server, SessionRole, Tables};
use queue::drift::Difference;
use queue::priority::PriorityStatus;
use queue::schema::{InstalledSchema, VERSION};
use queue::sequences::SequenceBehind;
use queue::workers::Worker;
use queue::{Priority, QueueError};
use serde::Serialize;
use terminal::{counted, one_line, span};

use crate::problems::{failing_worker, unconnected_logins};

/// Name of the check that lists the differences of the schema.
pub const DRIFT: &str = "schema drift";

/// Age in seconds at which a transaction counts as open for too long, because the tasks table has
/// grown meanwhile.
const LONG_OPEN_SECONDS: f64 = 5.0 * 60.0;
/// The same limit for holders without a start time, as an age in transaction ids. A busy fleet uses
/// this many in some minutes.
const LONG_OPEN_XIDS: i32 = 1_000_000;

/// Number of dead rows that is reported: ten times the autovacuum threshold of the tasks table
/// (schema.sql: 2000).
const MANY_DEAD_ROWS: i64 = 20_000;

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CheckStatus {
    /// No problem found.
    Ok,
    /// The check could not run.
    NotChecked,
    /// A possible problem.
    Warning,
    /// A problem.
    Problem,
}

/// One check and its result.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Finding {
    /// Name of the check.
    pub check: &'static str,
    /// Result of the check.
    pub status: CheckStatus,
    /// Observed state.
    pub message: String,
    /// Recommended action.
    pub hint: Option<String>,
}

impl Finding {
    fn new(check: &'static str, status: CheckStatus, message: impl Into<String>) -> Self {
        Self { check, status, message: message.into(), hint: None }
    }

    /// Returns a finding without a problem.
    #[must_use]
    pub fn ok(check: &'static str, message: impl Into<String>) -> Self {
        Self::new(check, CheckStatus::Ok, message)
    }

    /// Returns a warning.
    #[must_use]
    pub fn warning(check: &'static str, message: impl Into<String>) -> Self {
        Self::new(check, CheckStatus::Warning, message)
    }

    /// Returns a problem.
    #[must_use]
    pub fn problem(check: &'static str, message: impl Into<String>) -> Self {
        Self::new(check, CheckStatus::Problem, message)
    }

    /// Adds the recommended action.
    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

/// Checks that the schema version supports this program.
#[must_use]
pub fn schema_version(found: Option<InstalledSchema>) -> Finding {
    const CHECK: &str = "schema version";
    let Some(found) = found else {
        return Finding::problem(CHECK, "this database has no pgmill schema").hint("pgmill init");
    };
    let (version, supported) = (found.version, found.supports(VERSION));
    let message = format!("{version}, and this program was built for {VERSION}");
    match version {
        VERSION => Finding::ok(CHECK, VERSION.to_string()),
        ..VERSION => Finding::problem(CHECK, message).hint("Upgrade the schema with pgmill init."),
        _ if supported => Finding::warning(CHECK, format!("{message}, which the schema supports"))
            .hint("Upgrade the programs."),
        _ => Finding::problem(CHECK, message)
            .hint("Use the version of pgmill that the rest of the fleet runs."),
    }
}

/// Reports live workers that were built for an older schema version, if there are any.
#[must_use]
pub fn built_for(workers: &[Worker], found: InstalledSchema) -> Option<Finding> {
    let older = workers.iter().filter(|worker| {
        worker.alive && worker.schema_version.is_some_and(|version| version < found.version)
    });
    let descriptions: Vec<String> = older
        .map(|worker| {
            let version = worker.version.as_deref().unwrap_or("of an unknown version");
            format!("{} ({version})", worker.label())
        })
        .collect();
    (!descriptions.is_empty()).then(|| {
        let count = counted(descriptions.len() as u64, "worker");
        Finding::warning(
            "worker versions",
            format!(
                "{count} older than schema version {}: {}",
                found.version,
                descriptions.join(", ")
            ),
        )
        .hint("Replace these workers one by one; the next migration may not support them.")
    })
}

/// Checks that the installed schema equals `schema.sql`.
#[must_use]
pub fn drift(compared: Result<&Option<Vec<Difference>>, &QueueError>) -> Finding {
    let differences = match compared {
        Ok(Some(differences)) => differences,
        Ok(None) => {
            return Finding::new(DRIFT, CheckStatus::NotChecked, "not checked").hint(
                "Requires CREATE on the database and membership in mill_owner, on a primary.",
            );
        }
        Err(error) => {
            return Finding::warning(DRIFT, format!("not checked: {error}"));
        }
    };
    let harmful = differences.iter().filter(|difference| difference.is_harmful()).count();
    match (harmful, differences.len()) {
        (0, 0) => Finding::ok(DRIFT, "no differences from schema.sql"),
        (0, all) => Finding::warning(DRIFT, counted(all as u64, "harmless difference")),
        (_, all) => Finding::problem(
            DRIFT,
            format!("{} from schema.sql", counted(all as u64, "difference")),
        )
        .hint(
            "pgmill init restores missing tables, indexes, functions and grants. Fix other \
                 differences by hand with ALTER or DROP.",
        ),
    }
}

/// Checks that workers are registered, that all of them send heartbeats, that all of their readers can
/// connect, and that none of them reports an error of its own operations.
#[must_use]
pub fn workers(workers: &[Worker]) -> Finding {
    const CHECK: &str = "workers";
    let silent: Vec<String> = workers
        .iter()
        .filter(|worker| !worker.alive)
        .map(|worker| format!("{} for {}", worker.label(), span(worker.heartbeat_age_seconds)))
        .collect();
    let alive = workers.len() - silent.len();
    if let Some(failing) = workers.iter().find_map(failing_worker) {
        Finding::problem(CHECK, failing.message)
    } else if let Some(login) = unconnected_logins(workers).into_iter().next() {
        Finding::problem(CHECK, login.message).hint(
            "Tasks of this login wait. Check its password, its rights to connect, and pg_hba.conf.",
        )
    } else if !silent.is_empty() {
        Finding::problem(CHECK, format!("no heartbeat from {}", silent.join(", ")))
            .hint("A live worker reclaims their tasks; if none does, check its log.")
    } else if alive == 0 {
        Finding::warning(CHECK, "none registered: tasks wait").hint("Start a worker.")
    } else {
        Finding::ok(CHECK, format!("{alive} alive"))
    }
}

/// Checks the number of connections: each reader needs one, and each worker two more.
#[must_use]
pub fn connections(server: &Server, workers: &[Worker]) -> Finding {
    const CHECK: &str = "connections";
    const EXTRA_CONNECTIONS: i32 = 2;
    let wanted: i32 = workers
        .iter()
        .filter(|worker| worker.alive)
        .map(|worker| worker.readers + EXTRA_CONNECTIONS)
        .sum();
    let allowed = server.connections_allowed;
    let message = format!("{} of {allowed} open; the fleet may use {wanted}", server.connections);
    let hint = "Increase max_connections, or decrease the number of readers.";
    if wanted > allowed {
        Finding::problem(CHECK, message).hint(hint)
    } else if wanted > allowed * 8 / 10 || server.connections > i64::from(allowed) * 9 / 10 {
        Finding::warning(CHECK, message).hint(hint)
    } else {
        Finding::ok(CHECK, message)
    }
}

/// Checks the memberships of the roles of pgmill.
#[must_use]
pub fn memberships(memberships: &[Membership]) -> Vec<Finding> {
    const CHECK: &str = "roles";
    let missing: Vec<&Membership> = memberships.iter().filter(|it| !it.present).collect();
    if missing.is_empty() {
        return vec![Finding::ok(
            CHECK,
            "mill_worker and mill_owner can see sessions, and workers can end them",
        )];
    }
    let finding = |it: &&Membership| {
        let (role, granted) = (&it.role, &it.granted);
        Finding::problem(CHECK, format!("{role} is not a member of {granted}"))
            .hint(format!("As superuser: GRANT {granted} TO {role};"))
    };
    missing.iter().map(finding).collect()
}

/// Checks that only the roles of pgmill have privileges in the schema.
#[must_use]
pub fn foreign_grants(grants: &[ForeignGrant]) -> Vec<Finding> {
    const CHECK: &str = "privileges";
    if grants.is_empty() {
        return vec![Finding::ok(CHECK, "only the roles of pgmill have privileges in schema mill")];
    }
    let finding = |grant: &ForeignGrant| {
        let ForeignGrant { role, privileges, objects, example } = grant;
        let objects = counted(*objects, "object");
        Finding::warning(
            CHECK,
            format!("role {role} has {privileges} on {objects} of schema mill, such as {example}"),
        )
        .hint(format!(
            "REVOKE ALL ON ALL TABLES IN SCHEMA mill FROM {role}; likewise SEQUENCES and ROUTINES. Make logins \
             members of mill_viewer, mill_producer, mill_operator or mill_worker instead."
        ))
    };
    grants.iter().map(finding).collect()
}

/// Checks that sessions of workers have no more privileges than they need.
#[must_use]
pub fn session_roles(roles: &[SessionRole]) -> Vec<Finding> {
    const CHECK: &str = "sessions";
    if roles.is_empty() {
        return vec![Finding::new(CHECK, CheckStatus::NotChecked, "no session of a worker found")];
    }
    let finding = |role: &SessionRole| {
        let what = if role.runs_tasks { "tasks run" } else { "workers are connected" };
        let message = format!("{what} as {}", role.name);
        if role.superuser {
            Finding::warning(CHECK, format!("{message}, a superuser")).hint(
                "A role that can enqueue can then do whatever a superuser can. Give tasks a login of \
                 their own with the privileges that they need: worker --task-url.",
            )
        } else if role.owner {
            Finding::warning(CHECK, format!("{message}, a member of mill_owner"))
                .hint("Tasks can change the tables of pgmill. Use another login for workers.")
        } else {
            Finding::ok(CHECK, message)
        }
    };
    roles.iter().map(finding).collect()
}

/// Checks for old snapshots, which keep dead rows from being removed.
#[must_use]
pub fn horizon(holders: &[HorizonHolder], hidden_sessions: i64) -> Finding {
    const CHECK: &str = "horizon";
    let long = |holder: &&HorizonHolder| {
        holder.age_seconds.is_some_and(|seconds| seconds > LONG_OPEN_SECONDS)
            || holder.age_xids.is_some_and(|xids| xids > LONG_OPEN_XIDS)
    };
    let descriptions: Vec<String> = holders.iter().filter(long).map(holder).collect();
    if descriptions.is_empty() && hidden_sessions > 0 {
        let hidden = counted(hidden_sessions, "session");
        let message = format!("{hidden} of other logins not visible to this login");
        return Finding::new(CHECK, CheckStatus::NotChecked, message)
            .hint("As superuser: GRANT pg_read_all_stats TO mill_owner;");
    }
    if descriptions.is_empty() {
        return Finding::ok(CHECK, "no old snapshot keeps dead rows from being removed");
    }
    let first = holders.iter().find(long);
    let inactive = first.is_some_and(|holder| holder.state.as_deref() == Some("inactive"));
    let hint = match first.map(|holder| holder.kind.as_str()) {
        Some("prepared transaction") => "Use COMMIT PREPARED or ROLLBACK PREPARED.",
        Some("replication slot") if inactive => {
            "Drop the slot if it has no consumer. Since PostgreSQL 18, \
             idle_replication_slot_timeout invalidates slots that are inactive for too long."
        }
        Some("replication slot") => "Drop the slot if it has no consumer.",
        Some("standby") => {
            "A query on the standby holds the snapshot, because hot_standby_feedback is on."
        }
        _ => {
            "Dead tasks accumulate until the session ends; SELECT pg_terminate_backend(pid) ends \
             it."
        }
    };
    return Finding::warning(CHECK, descriptions.join("; ")).hint(hint);

    fn holder(holder: &HorizonHolder) -> String {
        let mut text = format!("{} {}", holder.kind, holder.name);
        let named = [("user", &holder.user), ("application", &holder.application)];
        for (word, value) in named {
            let given = value.as_deref().filter(|value| !value.is_empty());
            text.extend(given.map(|value| format!(", {word} {value}")));
        }
        text.extend(holder.age_seconds.map(|seconds| format!(", open for {}", span(seconds))));
        let xids = holder.age_xids.map(|xids| counted(xids, "transaction"));
        text.extend(xids.map(|xids| format!(", {xids} old")));
        text.extend(holder.state.iter().map(|state| format!(", {state}")));
        text.extend(holder.query.iter().map(|query| format!(": {}", one_line(query, 80))));
        text
    }
}

/// Checks that the partitions of history exist for the coming days.
#[must_use]
pub fn history(tables: &Tables) -> Finding {
    const CHECK: &str = "history";
    if tables.missing_days.is_empty() && tables.days_overdue > 0 {
        let days = counted(tables.days_overdue, "day");
        return Finding::warning(
            CHECK,
            format!("{days} of history are older than history_retention"),
        )
        .hint(
            "A transaction that has read mill.attempts keeps workers from dropping them, or the \
                 clock has skipped a day.",
        );
    }
    if tables.missing_days.is_empty() {
        let days = counted(tables.days_ahead, "day");
        return Finding::ok(CHECK, format!("partitions exist {days} ahead"));
    }
    let days = tables.missing_days.join(" and ");
    Finding::problem(
        CHECK,
        format!("no partition of mill.attempts for {days} (UTC): tasks cannot finish on that day"),
    )
    .hint("Run SELECT mill.prepare_history(); live workers run it regularly.")
}

/// Checks that no sequence is behind the rows of its table.
#[must_use]
pub fn sequences(behind: &[SequenceBehind]) -> Finding {
    const CHECK: &str = "sequences";
    if behind.is_empty() {
        return Finding::ok(CHECK, "none is behind its table");
    }
    let description = |it: &SequenceBehind| {
        format!("{} returns {} next, and {} exists", it.sequence, it.next_id, it.highest_id)
    };
    let descriptions: Vec<String> = behind.iter().map(description).collect();
    Finding::problem(CHECK, format!("behind their tables: {}", descriptions.join("; "))).hint(
        "Run SELECT mill.repair_sequences(); a worker that starts does this. See docs/upgrade.md.",
    )
}

/// Minimum number of pending tasks for the check of priorities.
const MANY_WAITING: i64 = 100;

/// Warns if most pending tasks are urgent.
#[must_use]
pub fn priorities(priorities: &[PriorityStatus]) -> Finding {
    const CHECK: &str = "priorities";
    let waiting: i64 = priorities.iter().map(|status| status.pending).sum();
    let urgent: i64 = priorities
        .iter()
        .filter(|status| status.priority >= Priority::High)
        .map(|status| status.pending)
        .sum();
    let message =
        format!("{urgent} of {} have priority high or above", counted(waiting, "pending task"));
    if waiting >= MANY_WAITING && urgent * 2 > waiting {
        return Finding::warning(CHECK, message).hint(
            "If most tasks have a high priority, priorities have no effect: lower the priority of \
             less urgent tasks (docs/capacity.md).",
        );
    }
    Finding::ok(CHECK, message)
}

/// Checks the number of dead rows, which slow claims down.
#[must_use]
pub fn dead_rows(tables: &Tables) -> Finding {
    const CHECK: &str = "dead rows";
    let message = format!(
        "{} among {} of mill.tasks, {} MB",
        counted(tables.dead_rows, "dead row"),
        counted(tables.live_rows, "task"),
        tables.bytes / (1024 * 1024)
    );
    if tables.dead_rows > MANY_DEAD_ROWS {
        Finding::warning(CHECK, message).hint(
            "Claims slow down. Check for old snapshots, and whether autovacuum runs often enough.",
        )
    } else {
        Finding::ok(CHECK, message)
    }
}

#[cfg(test)]
mod tests;
