//! Starts, awaits and cancels a run.

use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio_postgres::GenericClient;
use tokio_postgres::types::{ToSql, Type};

use crate::error::Error;
use crate::id::RunId;
use crate::request::RunOptions;
use crate::result::{Run, read};
use crate::statement::{self, only, seconds, texts};
use crate::vocabulary::RunState;

const START_RUN: &str = "SELECT /* pgmill.start_run */ \
pg_catalog.jsonb_build_object('run_id', r.run_id, 'dropped', coalesce(r.dropped, '{}'))::text \
FROM mill.start_run($1::text[], $2::text::jsonb, $3::text::jsonb) AS r";

const WAIT_RUN: &str =
    "CALL /* pgmill.wait_run */ mill.wait_run($1::text::bigint, $2::text::interval)";

const CANCEL_RUN: &str =
    "SELECT /* pgmill.cancel_run */ mill.cancel_run($1::text::bigint, $2::text::boolean)";

/// Starts one run of these jobs together.
///
/// # Errors
/// Fails if a job is unknown or disabled, if a parameter is missing or unknown, or if tasks wait
/// for each other.
pub async fn start_run(
    client: &impl GenericClient,
    jobs: &[String],
    params: &Map<String, Value>,
    options: &RunOptions,
) -> Result<Run, Error> {
    let mut document = options.labels.options();
    if let Some(timeout) = options.run_timeout {
        document.get_or_insert_with(|| json!({}))["run_timeout"] = seconds(timeout).into();
    }
    if let Some(traceparent) = &options.traceparent {
        document.get_or_insert_with(|| json!({}))["traceparent"] = traceparent.as_str().into();
    }
    let params = Value::Object(params.clone()).to_string();
    let options = document.map(|document| document.to_string());
    let values: [(&(dyn ToSql + Sync), Type); 3] = [
        (/* jobs */ &jobs, Type::TEXT_ARRAY),
        (/* params */ &params, Type::TEXT),
        (/* options */ &options, Type::TEXT),
    ];
    read(&only(texts(&client.query_typed(START_RUN, &values).await?)?)?)
}

/// Waits until the run has ended, and returns its state.
///
/// # Errors
/// As [`crate::wait`].
pub async fn wait_run(
    client: &impl GenericClient,
    id: RunId,
    timeout: Option<Duration>,
) -> Result<RunState, Error> {
    statement::wait(client, WAIT_RUN, id.0, timeout).await
}

/// Cancels a run; with `kill`, also its running tasks. Returns `cancelling`, or the state of a run
/// that has ended, or `not found`.
///
/// # Errors
/// Fails if the role lacks the privilege, if the isolation level of the transaction is not READ
/// COMMITTED, or if the connection is lost.
pub async fn cancel_run(
    client: &impl GenericClient,
    id: RunId,
    kill: bool,
) -> Result<String, Error> {
    statement::text(client, CANCEL_RUN, &[&id.to_string(), &kill.to_string()]).await
}
