//! The plan that was kept of a task, as a tree, and whether it is another one than before.

use axum::Router;
use axum::extract::Path;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;
use deadpool_postgres::Transaction;
use jiff::Timestamp;
use queue::{QueueError, TaskId, insight};
use serde::Serialize;
use serde_json::Value;
use terminal::{Node, Sums, plan_changes, plan_nodes, plan_shape, plan_sums};

use super::Shown;
use super::task::task_id;
use crate::app::App;
use crate::trouble::Trouble;
use crate::visit::Visit;

/// More nodes are in the JSON.
const MOST_NODES: usize = 300;

/// The plan before, of a task of the same queue and name.
#[derive(Debug, Serialize)]
pub(crate) struct Before {
    pub(crate) task: TaskId,
    pub(crate) finished_at: Timestamp,
    pub(crate) shape: String,
}

/// A plan and what is known of it.
#[derive(Debug, Serialize)]
pub(crate) struct Told {
    pub(crate) attempt: i32,
    pub(crate) finished_at: Timestamp,
    /// The same for plans that differ in numbers only.
    pub(crate) shape: String,
    pub(crate) nodes: Vec<Node>,
    pub(crate) sums: Sums,
    pub(crate) before: Option<Before>,
    /// Lines that are gone (`-`) and new (`+`) since then; empty: it is the same plan.
    pub(crate) changes: Vec<(char, String)>,
    /// Nodes have the same parts in another order.
    pub(crate) changed: Option<bool>,
    /// As EXPLAIN (FORMAT JSON) told it.
    pub(crate) plan: Value,
}

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/tasks/{id}/plan.json", get(raw))
}

impl Told {
    /// The first ones.
    pub(crate) fn shown(&self) -> &[Node] {
        &self.nodes[..self.nodes.len().min(MOST_NODES)]
    }

    pub(crate) fn cut(&self) -> bool {
        self.nodes.len() > MOST_NODES
    }

    /// Width of the bar of a node: its share of the time of all, in percent.
    pub(crate) fn share(&self, node: &Node) -> String {
        let all: f64 = self.nodes.iter().map(|it| it.own_seconds).sum();
        let share = if all > 0.0 { node.own_seconds / all * 100.0 } else { 0.0 };
        format!("{share:.1}")
    }
}

/// Of the last attempt that has one; `None`: none has, or it is hidden.
pub(crate) async fn data(look: &Transaction<'_>, id: TaskId) -> Result<Option<Told>, QueueError> {
    let Some(kept) = insight::plan(&**look, id).await? else { return Ok(None) };
    let before = insight::plan_before(&**look, &kept).await?;
    let shape = plan_shape(&kept.plan);
    let changes =
        before.as_ref().map(|before| plan_changes(&before.plan, &kept.plan)).unwrap_or_default();
    let before = before.map(|before| Before {
        task: before.task_id,
        finished_at: before.finished_at,
        shape: plan_shape(&before.plan),
    });
    Ok(Some(Told {
        attempt: kept.attempt,
        finished_at: kept.finished_at,
        nodes: plan_nodes(&kept.plan),
        sums: plan_sums(&kept.plan),
        changed: before.as_ref().map(|before| before.shape != shape),
        shape,
        before,
        changes,
        plan: kept.plan,
    }))
}

/// As other programs that draw plans take it.
async fn raw(visit: Visit, Path(id): Path<String>) -> Shown {
    let id = task_id(&id)?;
    let mut session = visit.session().await?;
    let look = session.look().await?;
    let kept = insight::plan(&*look, id).await?.ok_or_else(|| {
        Trouble::not_found(format!("no plan of task {id} was kept, or it is hidden"))
            .hint("enqueue --explain keeps the plan of a task, once it has run")
    })?;
    let body = Value::Array(vec![kept.plan]).to_string();
    Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response())
}
