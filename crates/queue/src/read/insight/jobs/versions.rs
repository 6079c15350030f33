//! Versions of jobs, and their differences per task and field.

use std::collections::{BTreeMap, BTreeSet};

use conninfo::GenericClient;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::error::QueueError;
use crate::row::{from_row, rows};

const VERSIONS: &str = "SELECT /* queue.insight_job_versions */ v.job, v.version, v.changed_at, v.changed_by, v.definition FROM mill.visible_job_versions v
WHERE v.job = (SELECT j.name FROM mill.jobs j WHERE lower(j.name) = lower($1)) ORDER BY v.version DESC";

/// Field of a change that adds or removes a whole task.
pub const WHOLE_TASK: &str = "task";

/// A version of a job.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct JobVersion {
    /// Name of the job.
    pub job: String,
    /// Version number, from 1; increases with each change.
    pub version: i32,
    /// Time of the change.
    pub changed_at: Timestamp,
    /// The role that made the change.
    pub changed_by: String,
    /// The definition; without statements and parameters if the role may not see them.
    pub definition: Value,
}

from_row! { JobVersion { job, version, changed_at, changed_by, definition } }

/// A field that differs between two versions of a job.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct FieldChange {
    /// The task; `None` for a field of the job itself.
    pub task: Option<String>,
    /// Name of the field, or [`WHOLE_TASK`] if only one of the versions has the task.
    pub field: String,
    /// Value in the old version; `None` if the old version has no value.
    pub old: Option<Value>,
    /// Value in the new version; `None` if the new version has no value.
    pub new: Option<Value>,
}

/// Returns the versions of a job that the database keeps, newest first. The name matches in any
/// letter case. A job has no versions if it has not been changed since an upgrade from a schema
/// without versions.
pub async fn job_versions(
    client: &impl GenericClient,
    job: &str,
) -> Result<Vec<JobVersion>, QueueError> {
    rows(client, VERSIONS, &[&job]).await
}

/// Returns the differences between two definitions of a job: first those of the job itself, then
/// those of its tasks by name.
#[must_use]
pub fn job_changes(old: &Value, new: &Value) -> Vec<FieldChange> {
    let mut changes = field_changes(None, &fields(old, "tasks"), &fields(new, "tasks"));
    let (old, new) = (tasks(old), tasks(new));
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    for name in names {
        match (old.get(name), new.get(name)) {
            (Some(old), Some(new)) => changes.extend(field_changes(Some(name), old, new)),
            (old, new) => changes.push(FieldChange {
                task: Some(name.clone()),
                field: WHOLE_TASK.to_owned(),
                old: old.cloned().map(Value::Object),
                new: new.cloned().map(Value::Object),
            }),
        }
    }
    changes
}

/// Returns the fields of an object without one of them.
fn fields(object: &Value, without: &str) -> Map<String, Value> {
    let mut fields = object.as_object().cloned().unwrap_or_default();
    fields.remove(without);
    fields
}

/// Returns the fields of each task by its name.
fn tasks(definition: &Value) -> BTreeMap<String, Map<String, Value>> {
    let tasks = definition["tasks"].as_array().map(Vec::as_slice).unwrap_or_default();
    let named = |task: &Value| Some((task["name"].as_str()?.to_owned(), fields(task, "name")));
    tasks.iter().filter_map(named).collect()
}

fn field_changes(
    task: Option<&String>,
    old: &Map<String, Value>,
    new: &Map<String, Value>,
) -> Vec<FieldChange> {
    let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let change = |key: &String| FieldChange {
        task: task.cloned(),
        field: key.clone(),
        old: old.get(key).cloned(),
        new: new.get(key).cloned(),
    };
    keys.into_iter().map(change).filter(|change| change.old != change.new).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn changes_name_the_task_and_the_field() {
        let old = json!({"name": "daily", "priority": "low", "tasks": [
            {"name": "a", "statement": "SELECT 1", "queue": "etl"}, {"name": "gone", "statement": "x"}]});
        let new = json!({"name": "daily", "description": "new", "tasks": [
            {"name": "added", "statement": "y"}, {"name": "a", "statement": "SELECT 2", "queue": "etl"}]});
        let found: Vec<_> = job_changes(&old, &new)
            .into_iter()
            .map(|it| (it.task.unwrap_or_default(), it.field, it.old.is_some(), it.new.is_some()))
            .collect();
        let expected = [
            ("", "description", false, true),
            ("", "priority", true, false),
            ("a", "statement", true, true),
            ("added", "task", false, true),
            ("gone", "task", true, false),
        ];
        let expected =
            expected.map(|(task, field, old, new)| (task.to_owned(), field.to_owned(), old, new));
        assert_eq!(found, expected);
        assert_eq!(job_changes(&new, &new), []);
    }
}
