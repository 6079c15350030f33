//! Upstream and downstream tasks of a task, over all jobs.

use std::collections::{BTreeMap, BTreeSet};

use conninfo::GenericClient;
use serde::Serialize;

use crate::error::QueueError;
use crate::operator::job::Dependency;
use crate::operator::run::Expected;
use crate::row::{one, rows};

const TASK_EXISTS: &str = "SELECT /* queue.lineage_task_exists */ EXISTS (SELECT FROM mill.job_tasks t WHERE t.name = $1 AND t.disabled_at IS NULL)
    OR EXISTS (SELECT FROM mill.dependencies d WHERE $1 IN (d.child, d.parent) AND d.disabled_at IS NULL)
    AS task_exists";

const TASKS: &str =
    "SELECT /* queue.lineage_tasks */ t.name FROM (SELECT DISTINCT n.name FROM mill.lineage l
    CROSS JOIN LATERAL (VALUES (l.child::text), (l.parent::text)) AS n(name)) AS t
WHERE t.name > $1 ORDER BY t.name LIMIT $2";

/// A dependency between two tasks. If several jobs define it, they are merged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct LineageEdge {
    /// The task that the child waits for.
    pub parent: String,
    /// The task that waits.
    pub child: String,
    /// The outcome of the parent that the dependency requires.
    pub expected: Expected,
    /// Whether the dependency holds in every run that contains both tasks.
    pub everywhere: bool,
    /// Jobs that define the dependency.
    pub jobs: Vec<String>,
}

/// Merges equal dependencies. The result is sorted by parent and child.
#[must_use]
pub fn merge_edges(edges: &[Dependency]) -> Vec<LineageEdge> {
    let mut found: BTreeMap<(&str, &str, Expected), (bool, Vec<String>)> = BTreeMap::new();
    for edge in edges {
        let key = (edge.parent.as_str(), edge.child.as_str(), edge.expected);
        let (everywhere, jobs) = found.entry(key).or_default();
        *everywhere |= edge.job.is_none();
        jobs.extend(edge.job.clone());
    }
    let link = |((parent, child, expected), (everywhere, jobs)): ((&str, &str, Expected), _)| {
        LineageEdge {
            parent: parent.to_owned(),
            child: child.to_owned(),
            expected,
            everywhere,
            jobs,
        }
    };
    found.into_iter().map(link).collect()
}

/// Returns the name of the task itself and the names of both ends of every edge.
#[must_use]
pub fn task_names<'a>(name: &'a str, links: &'a [LineageEdge]) -> BTreeSet<&'a str> {
    let ends = links.iter().flat_map(|it| [it.parent.as_str(), it.child.as_str()]);
    ends.chain([name]).collect()
}

/// Returns whether a job or a dependency contains a task of this name.
pub async fn task_exists(client: &impl GenericClient, name: &str) -> Result<bool, QueueError> {
    one(client, TASK_EXISTS, &[&name]).await
}

/// Returns tasks that have dependencies, sorted by name. Begins after the given name, and returns
/// up to the given number.
pub async fn tasks(
    client: &impl GenericClient,
    after: &str,
    limit: i64,
) -> Result<Vec<String>, QueueError> {
    rows(client, TASKS, &[&after, &limit]).await
}
