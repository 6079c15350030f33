//! Weights of the priorities, and the share of reserved readers.

use conninfo::GenericClient;
use pgmill_client::Priority;
use serde::Serialize;

use crate::error::QueueError;
use crate::row::{Param, execute, from_row, one, rows};
use crate::task::ReservedCapacity;

const SET_WEIGHTS: &str = "SELECT /* queue.set_weights */ mill.set_weights($1, $2, $3, $4, $5)";

const SET_RESERVED_CAPACITY: &str = "SELECT /* queue.set_reserved_capacity */ mill.set_reserved_capacity($1::text::mill.reserved_capacity)";

const CAPACITY: &str =
    "SELECT /* queue.reserved_capacity */ s.reserved_capacity::text FROM mill.settings s";

const WEIGHTS: &str = "SELECT /* queue.priority_weights */ p.priority::text, p.weight FROM mill.priorities p ORDER BY p.priority";

const STATUS: &str =
    "SELECT /* queue.priority_status */ s.priority::text, s.weight, s.pending, s.running,
    extract(epoch FROM s.oldest_pending_age)::float8 AS oldest_pending_age
FROM mill.priority_status s ORDER BY s.priority DESC";

/// A priority with its weight and the numbers of its live tasks.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct PriorityStatus {
    /// The priority.
    pub priority: Priority,
    /// Weight of the priority: while all priorities have pending tasks, claims are distributed in
    /// proportion to the weights.
    pub weight: f64,
    /// Number of tasks that wait for a reader.
    pub pending: i64,
    /// Number of running tasks.
    pub running: i64,
    /// Seconds since the due time of the oldest pending task.
    #[serde(rename = "oldest_pending_seconds")]
    pub oldest_pending_age: Option<f64>,
}

from_row! { PriorityStatus { priority, weight, pending, running, oldest_pending_age } }

/// A priority and its weight.
#[derive(Clone, Copy, Debug, Serialize, utoipa::ToSchema)]
pub struct Weight {
    /// The priority.
    pub priority: Priority,
    /// Weight of the priority: while all priorities have pending tasks, claims are distributed in
    /// proportion to the weights.
    pub weight: f64,
}

from_row! { Weight { priority, weight } }

/// Returns the weights, lowest priority first. Does not count tasks.
pub async fn weights(client: &impl GenericClient) -> Result<Vec<Weight>, QueueError> {
    rows(client, WEIGHTS, &[]).await
}

/// Sets the weights that are given. They are in the order of [`Priority::ALL`].
///
/// # Errors
/// Fails if a weight is outside 0 to 1,000,000, or all of them are 0.
pub async fn set_weights(
    client: &impl GenericClient,
    weights: &[Option<f64>; 5],
) -> Result<(), QueueError> {
    execute(client, SET_WEIGHTS, &weights.each_ref().map(|weight| weight as &dyn Param)).await
}

/// Sets the share of the fleet's readers that run only tasks of priority reserved.
pub async fn set_reserved_capacity(
    client: &impl GenericClient,
    capacity: ReservedCapacity,
) -> Result<(), QueueError> {
    execute(client, SET_RESERVED_CAPACITY, &[&capacity.as_str()]).await
}

/// Returns the share of the fleet's readers that run only tasks of priority reserved.
pub async fn reserved_capacity(
    client: &impl GenericClient,
) -> Result<ReservedCapacity, QueueError> {
    one(client, CAPACITY, &[]).await
}

/// Returns every priority, highest first.
pub async fn priorities(client: &impl GenericClient) -> Result<Vec<PriorityStatus>, QueueError> {
    rows(client, STATUS, &[]).await
}
