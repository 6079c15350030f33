//! `pgmill init`.

use queue::{exit, schema};
use serde_json::json;

use crate::failure::Failure;
use crate::output::Output;
use crate::session::Session;

/// Applies the schema, and says whether it was there.
///
/// # Errors
/// Another version of the schema in place; missing rights; database trouble.
pub(crate) async fn run(session: &Session, out: &Output, dry_run: bool) -> Result<u8, Failure> {
    let client = &session.client;
    let found = schema::found_version(client)
        .await
        .map_err(|error| Failure::from(error).lacking(Some("mill_viewer"), session.user()))?;
    if found.is_some_and(|version| version != schema::VERSION) {
        schema::check_version(client).await?;
    }
    if !dry_run {
        schema::init(client).await.map_err(|error| {
            Failure::from(error).hint_if_lacking(
                "apply it as superuser, or as a role with CREATEROLE and with CREATE on the \
                 database",
            )
        })?;
    }
    let version = schema::VERSION;
    if out.json {
        let document = json!({ "dry_run": dry_run, "version": version, "found": found });
        out.document(&document)?;
    } else {
        out.text(&match (found, dry_run) {
            (None, false) => format!(
                "applied schema version {version}\nnext: start a worker, then try: enqueue --wait \
                 'SELECT 1'"
            ),
            (None, true) => format!("would apply schema version {version} and create its roles"),
            (Some(_), false) => format!("schema version {version} was there already"),
            (Some(_), true) => format!("schema version {version} is there already"),
        })?;
    }
    Ok(exit::OK)
}
