//! Idempotency keys: a repeated request gets the answer to the first one, and has no second effect.
//!
//! The caller begins a transaction, calls [`begin`], carries the request out, calls [`finish`] and
//! commits. So the key is stored exactly if the effects are.

use conninfo::GenericClient;
use serde_json::Value;
use tokio_postgres::types::Type;

use crate::error::QueueError;
use crate::row::scalar;

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
    let params = [(&caller as _, Type::TEXT), (&key as _, Type::TEXT), (&request as _, Type::TEXT)];
    scalar(&client.query_typed(BEGIN, &params).await?[0])
}

/// Stores the answer to a request that [`begin`] has registered.
pub async fn finish(
    client: &impl GenericClient,
    caller: &str,
    key: &str,
    answer: &Value,
) -> Result<(), QueueError> {
    let params = [(&caller as _, Type::TEXT), (&key as _, Type::TEXT), (&answer as _, Type::JSONB)];
    client.query_typed(FINISH, &params).await?;
    Ok(())
}
