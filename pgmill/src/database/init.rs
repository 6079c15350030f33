//! `pgmill init`: installs the schema, or upgrades an older one.

use std::cmp::Ordering;

use cli::{Exit, Failure};
use conninfo::Client;
use queue::QueueError;
use queue::schema::{self, InstalledSchema, SCHEMA, VERSION};
use queue::sequences::{self, SequenceBehind};
use queue::upgrade::{self, MIGRATIONS, Upgrade};
use serde_json::json;
use tokio_postgres::error::SqlState;

use crate::output::Output;
use crate::session::Session;

/// Installs the schema or upgrades an older one, and reports the version found.
///
/// # Errors
/// Fails if the schema is too new, if no migration leads from its version to this one, or if a
/// needed privilege is missing.
pub(crate) async fn run(session: &Session, out: &Output, dry_run: bool) -> Exit {
    let client = &session.client;
    let found = schema::installed(client).await.map_err(privilege_failure)?;
    let mut done = Upgrade::default();
    let applied = match found.map(|found| found.version.cmp(&VERSION)) {
        // Applying the functions of this program would downgrade the schema.
        Some(Ordering::Greater) => schema::check_version(client).await,
        _ if dry_run => Ok(()),
        Some(Ordering::Less) => match upgrade::upgrade(client, MIGRATIONS, SCHEMA).await {
            Ok(upgrade) => {
                done = upgrade;
                schema::check_version(client).await
            }
            Err(error) => Err(error),
        },
        Some(Ordering::Equal) | None => {
            schema::init(client).await.map(|lock_retries| done.lock_retries = lock_retries)
        }
    };
    applied.map_err(privilege_failure)?;
    // A dry run may find a schema without the function.
    let behind = if dry_run { Vec::new() } else { sequences_behind(client).await? };
    report(out, found, dry_run, &done, &behind)
}

/// Returns the sequences that are behind their tables; none if the role may not ask. A role that may
/// apply the schema need not have the privileges of its owner.
async fn sequences_behind(client: &Client) -> Result<Vec<SequenceBehind>, QueueError> {
    match sequences::behind(client).await {
        Err(error) if error.sqlstate() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => Ok(Vec::new()),
        found => found,
    }
}

fn privilege_failure(error: QueueError) -> Failure {
    Failure::from(error).hint_if_unprivileged(
        "Run init as a superuser, or as a role with CREATEROLE and CREATE on the database.",
    )
}

fn report(
    out: &Output,
    found: Option<InstalledSchema>,
    dry_run: bool,
    done: &Upgrade,
    behind: &[SequenceBehind],
) -> Exit {
    let was = found.map(|found| found.version);
    let ahead: Vec<_> = upgrade::pending(MIGRATIONS, was.unwrap_or(VERSION)).collect();
    let migrations: Vec<&str> = ahead.iter().map(|migration| migration.name).collect();
    let document = json!({
        "dry_run": dry_run, "version": VERSION, "found": was, "migrations": migrations,
        "lock_retries": done.lock_retries, "sequences_behind": behind,
    });
    let text = match (was, dry_run) {
        (None, false) => format!(
            "installed schema version {VERSION}\nnext: start a worker, then try: enqueue --wait \
             'SELECT 1'"
        ),
        (None, true) => format!("would install schema version {VERSION} and create its roles"),
        (Some(was), _) if was > VERSION => format!(
            "schema version {was} is already installed, and supports this program, which was built \
             for version {VERSION}"
        ),
        (Some(was), false) if was < VERSION => format!(
            "upgraded the schema from version {was} to {VERSION}: {} ({})",
            done.applied.join(", "),
            match done.lock_retries {
                1 => "1 lock retry".to_owned(),
                retries => format!("{retries} lock retries"),
            }
        ),
        (Some(was), true) if was < VERSION => {
            upgrade::script(MIGRATIONS, SCHEMA, was).unwrap_or_default()
        }
        (Some(_), _) => format!("schema version {VERSION} is already installed"),
    };
    out.answer(document, format!("{text}{}", behind_text(behind)))
}

fn behind_text(behind: &[SequenceBehind]) -> String {
    if behind.is_empty() {
        return String::new();
    }
    let names: Vec<&str> = behind.iter().map(|it| it.sequence.as_str()).collect();
    format!(
        "\nsequences behind their tables: {}\nnext: start a worker, which repairs them, or run SELECT \
         mill.repair_sequences()",
        names.join(", ")
    )
}
