//! What the doctor thinks of what it sees. Pure: facts in, findings out.

use queue::doctor::{HorizonHolder, Membership, Override, Server, SessionRole, Setting, Tables};
use queue::drift::Difference;
use queue::priority::PriorityStatus;
use queue::schema::{InstalledSchema, VERSION};
use queue::workers::Worker;
use queue::{Priority, QueueError};
use serde::Serialize;

use crate::format::{counted, one_line, span};

/// The check under which the differences are listed.
pub const DRIFT: &str = "schema drift";

const OLDEST_SERVER: i32 = 140_000;
/// The newest major version this program was tried with.
const NEWEST_TRIED: i32 = 189_999;

/// A transaction open this long is no accident, and the tasks table has grown meanwhile.
const LONG_OPEN_SECONDS: f64 = 5.0 * 60.0;
/// For holders that have no clock: as many transactions as a busy fleet makes in some minutes.
const LONG_OPEN_XIDS: i32 = 1_000_000;

/// Ten times what autovacuum lets stand (schema.sql: threshold 2000).
const MANY_DEAD_ROWS: i64 = 20_000;

/// What a check has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckStatus {
    /// As it should be.
    Ok,
    /// Nobody could look.
    NotChecked,
    /// It may harm.
    Warning,
    /// It harms.
    Problem,
}

/// One check and its answer.
#[derive(Debug, Serialize)]
pub struct Finding {
    /// What was looked at.
    pub check: &'static str,
    /// What it has come to.
    pub status: CheckStatus,
    /// What was seen.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
}

impl Finding {
    fn new(check: &'static str, status: CheckStatus, message: impl Into<String>) -> Self {
        Self { check, status, message: message.into(), hint: None }
    }

    /// All is well.
    #[must_use]
    pub fn ok(check: &'static str, message: impl Into<String>) -> Self {
        Self::new(check, CheckStatus::Ok, message)
    }

    /// It may harm.
    #[must_use]
    pub fn warning(check: &'static str, message: impl Into<String>) -> Self {
        Self::new(check, CheckStatus::Warning, message)
    }

    /// It harms.
    #[must_use]
    pub fn problem(check: &'static str, message: impl Into<String>) -> Self {
        Self::new(check, CheckStatus::Problem, message)
    }

    /// With what to do about it.
    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

/// The server: too old, a standby, or newer than what was tried.
#[must_use]
pub fn server(server: &Server) -> Finding {
    const CHECK: &str = "server";
    let version = format!("PostgreSQL {}", server.version);
    if server.version_number < OLDEST_SERVER {
        Finding::problem(CHECK, version).hint("pgmill needs PostgreSQL 14 or newer")
    } else if server.in_recovery {
        Finding::problem(CHECK, format!("{version}, a standby: no task can be claimed here"))
            .hint("connect to the primary, for example with target_session_attrs=read-write")
    } else if server.version_number > NEWEST_TRIED {
        Finding::warning(CHECK, format!("{version}, which is newer than any pgmill was tried with"))
    } else {
        Finding::ok(CHECK, version)
    }
}

/// The schema and this program fit together.
#[must_use]
pub fn schema_version(found: Option<InstalledSchema>) -> Finding {
    const CHECK: &str = "schema version";
    let Some(found) = found else {
        return Finding::problem(CHECK, "this database has no pgmill schema").hint("pgmill init");
    };
    let (version, serves) = (found.version, found.serves(VERSION));
    let message = format!("{version}, and this program was built for {VERSION}");
    match version {
        VERSION => Finding::ok(CHECK, VERSION.to_string()),
        ..VERSION => Finding::problem(CHECK, message).hint("bring it forward: pgmill init"),
        _ if serves => Finding::warning(CHECK, format!("{message}, which it still works with"))
            .hint("upgrade the programs"),
        _ => Finding::problem(CHECK, message)
            .hint("use the version of pgmill that the rest of the fleet runs"),
    }
}

/// Workers that the schema has left behind, if there are any.
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
        .hint("replace them one after the other; the next migration may refuse them")
    })
}

/// The schema is as `schema.sql` says.
#[must_use]
pub fn drift(compared: Result<&Option<Vec<Difference>>, &QueueError>) -> Finding {
    let differences = match compared {
        Ok(Some(differences)) => differences,
        Ok(None) => {
            return Finding::new(DRIFT, CheckStatus::NotChecked, "not checked")
                .hint("needs CREATE on the database and membership in mill_owner, on a primary");
        }
        Err(error) => {
            return Finding::warning(DRIFT, format!("not checked: {error}"));
        }
    };
    let harmful = differences.iter().filter(|difference| difference.harmful()).count();
    match (harmful, differences.len()) {
        (0, 0) => Finding::ok(DRIFT, "the schema is as schema.sql says"),
        (0, all) => Finding::warning(DRIFT, counted(all as u64, "harmless difference")),
        (_, all) => Finding::problem(DRIFT, format!("{} from schema.sql", counted(all as u64, "difference")))
            .hint("pgmill init puts back missing tables, indexes and functions, and grants; the rest takes an ALTER or DROP"),
    }
}

/// Settings of the server that harm durability or upkeep.
#[must_use]
pub fn settings(settings: &[Setting]) -> Vec<Finding> {
    let mut findings: Vec<Finding> = settings
        .iter()
        .filter_map(|setting| {
            let (name, value) = (setting.name.as_str(), setting.value.as_str());
            let message = format!("{name} = {value}");
            Some(match (name, value) {
                ("fsync" | "full_page_writes", "off") => Finding::problem("settings", message)
                    .hint("a crash of the server may damage the database: switch it on"),
                ("autovacuum" | "track_counts", "off") => Finding::problem("settings", message)
                    .hint("the tasks table grows without end: switch it on"),
                ("synchronous_commit", "off") => Finding::warning("settings", message).hint(
                    "a crash of the server loses the last moments: tasks enqueued then are gone, \
                     tasks finished then run again",
                ),
                ("track_activities", "off") => Finding::warning("settings", message)
                    .hint("nobody sees what a running task waits for"),
                ("client_connection_check_interval", "0") => Finding::warning("settings", message)
                    .hint(
                        "with 10s a statement ends soon after its worker's host has died; without, \
                         it runs on until it has something to send",
                    ),
                _ => return None,
            })
        })
        .collect();
    if findings.is_empty() {
        findings.push(Finding::ok("settings", "nothing that harms durability or upkeep"));
    }
    findings
}

/// Settings that a session of a worker starts with and does not expect.
#[must_use]
pub fn overrides(overrides: &[Override]) -> Vec<Finding> {
    const CHECK: &str = "session settings";
    let mut findings: Vec<Finding> = overrides.iter().filter_map(unexpected).collect();
    if findings.is_empty() {
        findings.push(Finding::ok(CHECK, "none that would hit workers"));
    }
    return findings;

    fn unexpected(set: &Override) -> Option<Finding> {
        let (name, value) = (set.setting.name.as_str(), set.setting.value.as_str());
        let whose = match (&set.role, &set.database) {
            (Some(role), Some(database)) => format!("role {role} in database {database}"),
            (Some(role), None) => format!("role {role}"),
            (None, Some(database)) => format!("database {database}"),
            (None, None) => "every session".to_owned(),
        };
        let message = format!("{name} = {value} for {whose}");
        let zero = value.trim_start_matches('0').trim_end_matches(char::is_alphabetic).is_empty();
        match name {
            "default_transaction_read_only" if value == "on" || value == "true" => {
                Some(Finding::problem(CHECK, message).hint("workers cannot claim anything"))
            }
            "default_transaction_isolation" if value != "read committed" => {
                Some(Finding::warning(CHECK, message).hint(
                    "tasks that meet each other's rows end with a serialization failure and are \
                     tried again",
                ))
            }
            "synchronous_commit" if value == "off" => Some(Finding::warning(CHECK, message)),
            "statement_timeout"
            | "lock_timeout"
            | "idle_in_transaction_session_timeout"
            | "idle_session_timeout"
            | "transaction_timeout"
                if !zero =>
            {
                Some(Finding::warning(CHECK, message).hint(format!(
                    "it may end tasks and workers' sessions: ALTER ROLE … SET {name} = 0 for the \
                     role that workers log in as, and give tasks a --timeout"
                )))
            }
            _ => None,
        }
    }
}

/// Workers that give no sign of life, and none at all.
#[must_use]
pub fn workers(workers: &[Worker]) -> Finding {
    const CHECK: &str = "workers";
    let silent: Vec<String> = workers
        .iter()
        .filter(|worker| !worker.alive)
        .map(|worker| format!("{} for {}", worker.label(), span(worker.heartbeat_age_seconds)))
        .collect();
    let alive = workers.len() - silent.len();
    if !silent.is_empty() {
        Finding::problem(CHECK, format!("no sign of life from {}", silent.join(", ")))
            .hint("a live worker reclaims their tasks; if none does, look at its log")
    } else if alive == 0 {
        Finding::warning(CHECK, "none is registered: tasks wait").hint("start one: worker")
    } else {
        Finding::ok(CHECK, format!("{alive} alive"))
    }
}

/// Every reader holds a connection, and every worker two more.
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
    let message =
        format!("{} open of {allowed}; the fleet's readers may use {wanted}", server.connections);
    let hint = "raise max_connections, or lower the number of readers";
    if wanted > allowed {
        Finding::problem(CHECK, message).hint(hint)
    } else if wanted > allowed * 8 / 10 || server.connections > i64::from(allowed) * 9 / 10 {
        Finding::warning(CHECK, message).hint(hint)
    } else {
        Finding::ok(CHECK, message)
    }
}

/// The roles of pgmill have what they need.
#[must_use]
pub fn memberships(memberships: &[Membership]) -> Vec<Finding> {
    const CHECK: &str = "roles";
    let missing: Vec<&Membership> = memberships.iter().filter(|it| !it.present).collect();
    if missing.is_empty() {
        return vec![Finding::ok(
            CHECK,
            "mill_worker and mill_owner see sessions, and workers may end them",
        )];
    }
    let finding = |it: &&Membership| {
        let (role, granted) = (&it.role, &it.granted);
        Finding::problem(CHECK, format!("{role} is no member of {granted}"))
            .hint(format!("as superuser: GRANT {granted} TO {role};"))
    };
    missing.iter().map(finding).collect()
}

/// Sessions that may do more than they need.
#[must_use]
pub fn session_roles(roles: &[SessionRole]) -> Vec<Finding> {
    const CHECK: &str = "sessions";
    if roles.is_empty() {
        return vec![Finding::new(
            CHECK,
            CheckStatus::NotChecked,
            "no session of a worker to look at",
        )];
    }
    let finding = |role: &SessionRole| {
        let what = if role.runs_tasks { "tasks run" } else { "workers are connected" };
        let message = format!("{what} as {}", role.name);
        if role.superuser {
            Finding::warning(CHECK, format!("{message}, a superuser")).hint(
                "whoever may enqueue may do everything: let workers log in as a role with \
                 mill_worker and no more rights than the tasks need",
            )
        } else if role.owner {
            Finding::warning(CHECK, format!("{message}, a member of mill_owner"))
                .hint("a task may change pgmill's own tables: let workers log in as another role")
        } else {
            Finding::ok(CHECK, message)
        }
    };
    roles.iter().map(finding).collect()
}

/// Who keeps dead rows from being removed, for long.
#[must_use]
pub fn horizon(holders: &[HorizonHolder]) -> Finding {
    const CHECK: &str = "horizon";
    let long = |holder: &&HorizonHolder| {
        holder.age_seconds.is_some_and(|seconds| seconds > LONG_OPEN_SECONDS)
            || holder.age_xids.is_some_and(|xids| xids > LONG_OPEN_XIDS)
    };
    let descriptions: Vec<String> = holders.iter().filter(long).map(holder).collect();
    if descriptions.is_empty() {
        return Finding::ok(CHECK, "nothing old keeps dead rows from being removed");
    }
    let hint = match holders.iter().find(long).map(|holder| holder.kind.as_str()) {
        Some("prepared transaction") => "COMMIT PREPARED or ROLLBACK PREPARED",
        Some("replication slot") => "drop the slot if nobody reads from it",
        Some("standby") => "a query on the standby holds it, by hot_standby_feedback",
        _ => "dead tasks pile up until it ends: SELECT pg_terminate_backend(pid) ends it",
    };
    return Finding::warning(CHECK, descriptions.join("; ")).hint(hint);

    fn holder(holder: &HorizonHolder) -> String {
        let mut text = format!("{} {}", holder.kind, holder.name);
        let named = [("user", &holder.user), ("application", &holder.application)];
        for (word, value) in named {
            if let Some(value) = value.as_deref().filter(|value| !value.is_empty()) {
                text.push_str(&format!(", {word} {value}"));
            }
        }
        if let Some(seconds) = holder.age_seconds {
            text.push_str(&format!(", open for {}", span(seconds)));
        }
        if let Some(xids) = holder.age_xids {
            text.push_str(&format!(", {} old", counted(xids, "transaction")));
        }
        text.extend(holder.state.iter().map(|state| format!(", {state}")));
        text.extend(holder.query.iter().map(|query| format!(": {}", one_line(query, 80))));
        text
    }
}

/// Days that history has no partition for.
#[must_use]
pub fn history(tables: &Tables) -> Finding {
    const CHECK: &str = "history";
    if tables.missing_days.is_empty() {
        return Finding::ok(CHECK, format!("{} made ahead", counted(tables.days_ahead, "day")));
    }
    let days = tables.missing_days.join(" and ");
    Finding::problem(
        CHECK,
        format!("no partition of mill.attempts for {days} (UTC): tasks cannot finish then"),
    )
    .hint("SELECT mill.prepare_history(); a live worker does it by itself")
}

/// Below so many there is nothing to tell.
const MANY_WAITING: i64 = 100;

/// Too much that is urgent.
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
        return Finding::warning(CHECK, message)
            .hint("where most is urgent, nothing is: lower what can wait (docs/capacity.md)");
    }
    Finding::ok(CHECK, message)
}

/// Dead rows that slow claims down.
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
            "claims slow down: look at the horizon above, and whether autovacuum gets its turn",
        )
    } else {
        Finding::ok(CHECK, message)
    }
}

#[cfg(test)]
mod tests;
