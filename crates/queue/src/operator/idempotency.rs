//! Idempotency keys: a repeated request gets the answer to the first one, and has no second effect.
//!
//! The caller begins a transaction, calls [`begin`], carries the request out, calls [`finish`] and
//! commits. So the key is stored exactly if the effects are.

use conninfo::GenericClient;
use serde_json::Value;

use crate::error::QueueError;
use crate::row::{execute, one};

const BEGIN: &str = "SELECT /* queue.begin_request */ mill.begin_request($1, $2, $3)";
const FINISH: &str = "SELECT /* queue.finish_request */ mill.finish_request($1, $2, $3)";

/// Registers a request. Returns the answer to the same request, if it was carried out before; then
/// there is nothing to do. Waits while another transaction carries out a request with this key.
///
/// # Errors
/// Fails if the key belongs to another request.
pub async fn begin(
    client: &impl GenericClient,
    caller: &str,
    key: &str,
    request: &str,
) -> Result<Option<Value>, QueueError> {
    one(client, BEGIN, &[&caller, &key, &request]).await
}

/// Stores the answer to a request that [`begin`] has registered.
pub async fn finish(
    client: &impl GenericClient,
    caller: &str,
    key: &str,
    answer: &Value,
) -> Result<(), QueueError> {
    execute(client, FINISH, &[&caller, &key, &answer]).await
}
