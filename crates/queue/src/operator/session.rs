//! Settings of a session that keep an operator's statement from running. A pooler gives a session of the server to
//! one client after another, with what the clients before have set.

use conninfo::GenericClient;
use tokio_postgres::error::SqlState;

use crate::error::QueueError;
use crate::row::{first, from_row};

const SETTINGS: &str = "SELECT /* queue.session_settings */ s.setting = 'on' AND NOT pg_is_in_recovery() AS read_only,
    s.source, current_user::text AS role, session_user::text AS login, current_setting('role') <> 'none' AS assumed
FROM pg_settings s WHERE s.name = 'default_transaction_read_only'";

struct Settings {
    read_only: bool,
    /// Where the value comes from, as in `pg_settings`.
    source: String,
    role: String,
    login: String,
    assumed: bool,
}

from_row! { Settings { read_only, source, role, login, assumed } }

/// A refusal of the server that a setting of the session can have caused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The transaction is read-only.
    ReadOnly,
    /// A privilege is missing.
    Unprivileged,
}

impl Refusal {
    /// Returns what the error says, if it is a refusal.
    #[must_use]
    pub fn of(error: &QueueError) -> Option<Self> {
        let sqlstate = error.sqlstate()?;
        if *sqlstate == SqlState::READ_ONLY_SQL_TRANSACTION {
            Some(Self::ReadOnly)
        } else if *sqlstate == SqlState::INSUFFICIENT_PRIVILEGE {
            Some(Self::Unprivileged)
        } else {
            None
        }
    }

    /// Asks the server for the setting of the session that has caused the refusal. `None` if there is none.
    pub async fn cause(self, client: &impl GenericClient) -> Option<String> {
        let settings: Option<Settings> = first(client, SETTINGS, &[]).await.ok()?;
        let Settings { read_only, source, role, login, assumed } = settings?;
        match self {
            Self::ReadOnly => read_only.then(|| read_only_cause(&source)),
            Self::Unprivileged => assumed.then(|| {
                format!(
                    "another client of a pooler, or ALTER ROLE … SET role, has given the session the role {role} \
                     instead of {login}"
                )
            }),
        }
    }
}

fn read_only_cause(source: &str) -> String {
    let place = match source {
        "session" => ", which another client of a pooler has left in the session",
        "database" => " for the database",
        "user" | "database user" => " for the login",
        _ => "",
    };
    format!("default_transaction_read_only is on{place}")
}
