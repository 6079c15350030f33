//! Saved plan of a task as a tree, compared with the previous plan of the same queue and name.

use axum::http::header;
use axum::response::IntoResponse;
use queue::insight;
use terminal::{PlanNode, PlanTotals, plan_changes, plan_nodes, plan_shape, plan_totals};

use super::status::task_id;
use crate::screens::prelude::*;

/// Maximum number of nodes shown; the JSON has all of them.
const MAX_NODES: usize = 300;

/// The previous plan of a task with the same queue and name.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct PreviousPlan {
    pub(crate) task_id: TaskId,
    pub(crate) finished_at: Timestamp,
    pub(crate) shape: String,
}

/// A plan with its totals and its comparison with the previous plan.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct SavedPlan {
    pub(crate) attempt: i32,
    pub(crate) finished_at: Timestamp,
    /// Structure of the plan; equal for plans that differ only in numbers.
    pub(crate) shape: String,
    pub(crate) nodes: Vec<PlanNode>,
    pub(crate) totals: PlanTotals,
    pub(crate) previous: Option<PreviousPlan>,
    /// Removed (`-`) and added (`+`) lines compared with the previous plan; empty if the plans have
    /// the same lines.
    #[schema(value_type = Vec<Vec<String>>)]
    pub(crate) changes: Vec<(char, String)>,
    /// Whether the shape differs from the shape of the previous plan. The same nodes in another
    /// order are a different shape. `None` if there is no previous plan.
    pub(crate) changed: Option<bool>,
    /// Output of EXPLAIN (FORMAT JSON).
    pub(crate) plan: Value,
}

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/tasks/{id}/plan.json", get(raw))
}

impl SavedPlan {
    /// Returns the nodes shown on the page.
    pub(crate) fn visible_nodes(&self) -> &[PlanNode] {
        &self.nodes[..self.nodes.len().min(MAX_NODES)]
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.nodes.len() > MAX_NODES
    }

    /// Returns the share of a node in the total time, in percent, as the width of its bar.
    pub(crate) fn share(&self, node: &PlanNode) -> String {
        let all: f64 = self.nodes.iter().map(|it| it.self_seconds).sum();
        let share = if all > 0.0 { node.self_seconds / all * 100.0 } else { 0.0 };
        format!("{share:.1}")
    }
}

/// Reads the plan of the last attempt whose plan was saved; `None` if no plan was saved, or if the
/// user may not see it.
pub(crate) async fn data(
    tx: &Transaction<'_>,
    id: TaskId,
) -> Result<Option<SavedPlan>, QueueError> {
    let Some(kept) = insight::saved_plan(tx, id).await? else { return Ok(None) };
    let before = insight::previous_plan(tx, &kept).await?;
    let shape = plan_shape(&kept.plan);
    let changes =
        before.as_ref().map(|before| plan_changes(&before.plan, &kept.plan)).unwrap_or_default();
    let before = before.map(|before| PreviousPlan {
        task_id: before.task_id,
        finished_at: before.finished_at,
        shape: plan_shape(&before.plan),
    });
    Ok(Some(SavedPlan {
        attempt: kept.attempt,
        finished_at: kept.finished_at,
        nodes: plan_nodes(&kept.plan),
        totals: plan_totals(&kept.plan),
        changed: before.as_ref().map(|before| before.shape != shape),
        shape,
        previous: before,
        changes,
        plan: kept.plan,
    }))
}

/// Serves the plan in the format that plan viewers accept.
async fn raw(mut request: ReadRequest, Path(id): Path<String>) -> HandlerResult {
    let id = task_id(&id)?;
    let tx = request.transaction().await?;
    let kept = insight::saved_plan(&*tx, id).await?.ok_or_else(|| {
        HttpError::not_found(format!("task {id} has no saved plan, or the plan is hidden"))
            .hint("enqueue --explain saves the plan when the task runs")
    })?;
    let body = Value::Array(vec![kept.plan]).to_string();
    Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response())
}
