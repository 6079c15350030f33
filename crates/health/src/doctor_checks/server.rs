//! Checks of the server: its version, its transaction ids and its settings.

use jiff::civil::{Date, date};
use queue::doctor::{OldestDatabase, Override, Server, Setting};

use super::Finding;

/// A major version of PostgreSQL that pgmill supports.
struct Major {
    number: i32,
    /// The newest minor release that this program was tested with.
    tested_minor: i32,
    /// The day after which the PostgreSQL project publishes no fixes.
    end_of_life: Date,
}

/// The supported versions, oldest first. The dates are those of
/// <https://www.postgresql.org/support/versioning/>.
const MAJORS: [Major; 5] = [
    Major { number: 14, tested_minor: 23, end_of_life: date(2026, 11, 12) },
    Major { number: 15, tested_minor: 18, end_of_life: date(2027, 11, 11) },
    Major { number: 16, tested_minor: 14, end_of_life: date(2028, 11, 9) },
    Major { number: 17, tested_minor: 10, end_of_life: date(2029, 11, 8) },
    Major { number: 18, tested_minor: 4, end_of_life: date(2030, 11, 14) },
];
const OLDEST: &Major = &MAJORS[0];
const NEWEST: &Major = &MAJORS[MAJORS.len() - 1];

/// Number of minor releases behind the newest one tested that is reported. PostgreSQL has four a year.
const OLD_MINOR: i32 = 4;

/// Age of the oldest row at which the server assigns no more transaction ids: half of all ids, without a
/// reserve of three million.
pub(super) const ID_LIMIT: i32 = i32::MAX - 3_000_000;
/// Age of the oldest row that is reported: five times the age at which autovacuum freezes rows by
/// default, even if autovacuum is off.
const OLD_ROWS: i32 = 1_000_000_000;

/// Checks the server: its version, and that it is not a standby.
#[must_use]
pub fn server(server: &Server) -> Finding {
    const CHECK: &str = "server";
    let version = format!("PostgreSQL {}", server.version);
    let (number, minor) = (server.version_number / 10_000, server.version_number % 10_000);
    let (oldest, newest) = (OLDEST.number, NEWEST.number);
    if number < oldest {
        return Finding::problem(CHECK, version)
            .hint(format!("pgmill requires PostgreSQL {oldest} or newer."));
    } else if server.in_recovery {
        return Finding::problem(
            CHECK,
            format!("{version}, a standby: no task can be claimed here"),
        )
        .hint("Connect to the primary, for example with target_session_attrs=read-write.");
    }
    let Some(major) = MAJORS.iter().find(|major| major.number == number) else {
        return Finding::warning(
            CHECK,
            format!("{version}, newer than the versions tested with pgmill"),
        )
        .hint(format!("This version of pgmill was tested with PostgreSQL {oldest} to {newest}."));
    };
    let behind = major.tested_minor - minor;
    if server.today > major.end_of_life {
        let ended = major.end_of_life;
        Finding::warning(CHECK, format!("{version}, which receives no fixes since {ended}")).hint(
            format!("Upgrade the server to PostgreSQL {newest}; docs/upgrade.md describes how."),
        )
    } else if behind >= OLD_MINOR {
        let tested = major.tested_minor;
        let message = format!("{version}, {behind} minor releases older than {number}.{tested}");
        Finding::warning(CHECK, message).hint(format!(
            "Install the current minor release of PostgreSQL {number}: it contains fixes, and needs \
             only a restart of the server."
        ))
    } else {
        Finding::ok(CHECK, version)
    }
}

/// Checks that the server does not run out of transaction ids, or of multixact ids.
#[must_use]
pub fn transaction_ids(oldest: &OldestDatabase) -> Finding {
    const CHECK: &str = "transaction ids";
    let OldestDatabase { name, age } = oldest;
    let millions = age / 1_000_000;
    let message =
        format!("the oldest row of database {name} is {millions} million transactions old");
    let hint = "Remove what the check \"horizon\" shows, in all databases, and run VACUUM (FREEZE) in \
                this database if autovacuum does not; see docs/runbooks/transaction-ids-run-out.md.";
    if *age >= ID_LIMIT {
        let refused = format!("{message}: the server refuses every transaction that writes");
        Finding::problem(CHECK, refused).hint(hint)
    } else if *age > OLD_ROWS {
        Finding::problem(CHECK, format!("{message}, of 2144 million at most")).hint(hint)
    } else {
        Finding::ok(CHECK, format!("{message}, of 2144 million at most"))
    }
}

/// Checks settings of the server that affect durability and maintenance.
#[must_use]
pub fn settings(settings: &[Setting]) -> Vec<Finding> {
    let mut findings: Vec<Finding> = settings
        .iter()
        .filter_map(|setting| {
            let (name, value) = (setting.name.as_str(), setting.value.as_str());
            let message = format!("{name} = {value}");
            Some(match (name, value) {
                ("fsync" | "full_page_writes", "off") => Finding::problem("settings", message)
                    .hint("A crash of the server may corrupt the database. Set it to on."),
                ("autovacuum" | "track_counts", "off") => Finding::problem("settings", message)
                    .hint("The tasks table grows without limit. Set it to on."),
                ("synchronous_commit", "off") => Finding::warning("settings", message).hint(
                    "A crash of the server loses the latest transactions: tasks enqueued by them \
                     are lost, and tasks finished by them run again.",
                ),
                ("track_activities", "off") => Finding::warning("settings", message)
                    .hint("The wait events of running tasks are not visible."),
                ("client_connection_check_interval", "0") => Finding::warning("settings", message)
                    .hint(
                        "Set it to 1s: PostgreSQL then ends the session of a killed worker within a \
                         second. With 0 its statement continues until it sends data.",
                    ),
                _ => return None,
            })
        })
        .collect();
    if findings.is_empty() {
        findings.push(Finding::ok("settings", "no setting that affects durability or maintenance"));
    }
    findings
}

/// Checks settings of roles and databases that affect sessions of workers.
#[must_use]
pub fn overrides(overrides: &[Override]) -> Vec<Finding> {
    const CHECK: &str = "session settings";
    let mut findings: Vec<Finding> = overrides.iter().filter_map(unexpected).collect();
    if findings.is_empty() {
        findings.push(Finding::ok(CHECK, "no setting that affects workers"));
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
        if set.only_tasks {
            return (!zero).then(|| limit_of_tasks(name, &message)).flatten();
        }
        match name {
            "default_transaction_read_only" if value == "on" || value == "true" => {
                Some(Finding::problem(CHECK, message).hint("Workers cannot claim tasks."))
            }
            "default_transaction_isolation" if value != "read committed" => {
                Some(Finding::warning(CHECK, message).hint(
                    "Tasks that change the same rows fail with a serialization failure and are \
                     retried.",
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
                    "This setting may end tasks and sessions of workers. Run ALTER ROLE … SET {name} \
                     = 0 for the login of the workers, and use --timeout for tasks."
                )))
            }
            _ => None,
        }
    }

    /// Reports a time limit of a login that only runs tasks.
    fn limit_of_tasks(name: &str, message: &str) -> Option<Finding> {
        let effect = match name {
            "statement_timeout" | "transaction_timeout" => {
                "ends tasks that take longer, as failed attempts"
            }
            "idle_in_transaction_session_timeout" | "idle_session_timeout" => {
                "ends sessions of readers, which have to connect again"
            }
            _ => return None,
        };
        Some(
            Finding::warning(CHECK, format!("{message}: {effect}")).hint(format!(
                "Use --timeout to limit a task, and run ALTER ROLE … SET {name} = 0."
            )),
        )
    }
}
