//! Merges several jobs into one run, by the rules that the schema applies when a run starts.

use std::collections::{BTreeMap, BTreeSet};

use queue::Priority;
use queue::job::Dependency;
use queue::run::Expected;
use serde::Serialize;
use serde_json::Value;

use crate::jobs::topology;

/// The tasks and edges of merged jobs.
#[derive(Debug, Serialize)]
pub(crate) struct Merged {
    /// Ordered by level, then by name.
    pub(crate) tasks: Vec<MergedTask>,
    pub(crate) edges: Vec<Dependency>,
    /// Edges from tasks that are not in these jobs: `parent > child`.
    pub(crate) dropped: Vec<String>,
    /// Required parameters of a run.
    pub(crate) params: Vec<String>,
    /// Disabled tasks, which the run omits: `task (job)`.
    pub(crate) disabled: Vec<String>,
}

/// A task as declared by the job that gives it the highest priority.
#[derive(Debug, Serialize)]
pub(crate) struct MergedTask {
    pub(crate) name: String,
    /// Length of the longest chain of tasks before this one.
    pub(crate) level: usize,
    /// The job whose definition is used.
    pub(crate) job: String,
    pub(crate) priority: Priority,
    pub(crate) queue: String,
    pub(crate) group: Option<String>,
    pub(crate) join: String,
    /// The complete definition in the job.
    pub(crate) definition: Value,
}

/// Merges jobs in the given order. `priority_of` holds the default priorities of groups.
///
/// # Errors
/// Returns the path of a dependency cycle.
pub(crate) fn merge(
    jobs: &[Value],
    dependencies: &[Dependency],
    priority_of: &BTreeMap<String, Priority>,
) -> Result<Merged, String> {
    let mut chosen: BTreeMap<&str, MergedTask> = BTreeMap::new();
    let mut disabled = Vec::new();
    for job in jobs {
        for definition in tasks_of(job) {
            if definition["enabled"] == false {
                disabled.push(format!("{} ({})", text(definition, "name"), text(job, "name")));
                continue;
            }
            let task = merged(job, definition, priority_of);
            let name = text(definition, "name");
            // With equal priorities the first job wins.
            if chosen.get(name).is_none_or(|known| known.priority < task.priority) {
                chosen.insert(name, task);
            }
        }
    }
    let mut edges_by_names: BTreeMap<(String, String), Dependency> = BTreeMap::new();
    let of_jobs = jobs.iter().flat_map(edges_of);
    // An edge of a job takes precedence over a dependency of every job.
    for edge in of_jobs.chain(dependencies.iter().cloned()) {
        edges_by_names.entry((edge.parent.clone(), edge.child.clone())).or_insert(edge);
    }
    let inside = |name: &str| chosen.contains_key(name);
    let of_run = edges_by_names.into_values().filter(|edge| inside(&edge.child));
    let (edges, outside): (Vec<_>, Vec<_>) = of_run.partition(|edge| inside(&edge.parent));
    let ways: Vec<(&str, &str)> =
        edges.iter().map(|edge| (edge.parent.as_str(), edge.child.as_str())).collect();
    let levels = topology::levels(chosen.keys().copied(), &ways)?;
    let params: BTreeSet<String> =
        chosen.values().flat_map(|task| params_of(&task.definition)).collect();
    let mut tasks: Vec<MergedTask> = chosen
        .into_iter()
        .map(|(name, task)| MergedTask { level: levels.get(name).copied().unwrap_or(0), ..task })
        .collect();
    tasks.sort_by(|one, other| (one.level, &one.name).cmp(&(other.level, &other.name)));
    Ok(Merged {
        tasks,
        edges,
        dropped: outside.iter().map(|edge| format!("{} > {}", edge.parent, edge.child)).collect(),
        params: params.into_iter().collect(),
        disabled,
    })
}

fn merged(job: &Value, task: &Value, priority_of: &BTreeMap<String, Priority>) -> MergedTask {
    let word = |value: &Value| value["priority"].as_str().and_then(|word| word.parse().ok());
    let group = task["group"].as_str();
    let of_group = group.and_then(|group| priority_of.get(group).copied());
    let priority = word(task).or_else(|| word(job)).or(of_group).unwrap_or(Priority::Normal);
    MergedTask {
        name: text(task, "name").to_owned(),
        level: 0,
        job: text(job, "name").to_owned(),
        priority,
        queue: text(task, "queue").to_owned(),
        group: group.map(str::to_owned),
        join: text(task, "join").to_owned(),
        definition: task.clone(),
    }
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

fn array<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn tasks_of(job: &Value) -> &[Value] {
    array(job, "tasks")
}

fn edges_of(job: &Value) -> Vec<Dependency> {
    let edge = |child: &Value, edge: &Value| Dependency {
        parent: text(edge, "task").to_owned(),
        child: text(child, "name").to_owned(),
        expected: text(edge, "expected").parse().unwrap_or(Expected::Succeeded),
        job: Some(text(job, "name").to_owned()),
    };
    let of_task =
        |task: &'_ Value| array(task, "after").iter().map(|it| edge(task, it)).collect::<Vec<_>>();
    tasks_of(job).iter().flat_map(of_task).collect()
}

fn params_of(task: &Value) -> Vec<String> {
    let named = |param: &Value| param["$param"].as_str().map(str::to_owned);
    array(task, "params").iter().filter_map(named).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn job(name: &str, priority: &str, tasks: &Value) -> Value {
        json!({"name": name, "priority": priority, "enabled": true, "tasks": tasks})
    }

    fn after(name: &str, parents: &[&str]) -> Value {
        let edge = |parent: &&str| json!({"task": parent, "expected": "succeeded"});
        json!({"name": name, "queue": "default", "join": "all", "params": [{"$param": "day"}],
            "after": parents.iter().map(edge).collect::<Vec<_>>()})
    }

    fn everywhere(child: &str, parent: &str) -> Dependency {
        let (child, parent) = (child.to_owned(), parent.to_owned());
        Dependency { child, parent, expected: Expected::Finished, job: None }
    }

    #[test]
    fn a_task_of_two_jobs_is_included_once_with_the_higher_priority() {
        let jobs = [
            job("daily", "normal", &json!([after("a", &[]), after("b", &["a"])])),
            job("sunday", "high", &json!([after("b", &[]), after("c", &[])])),
        ];
        let dependencies = [everywhere("c", "b"), everywhere("b", "a"), everywhere("a", "gone")];
        let merged = merge(&jobs, &dependencies, &BTreeMap::new()).unwrap();
        let order: Vec<_> =
            merged.tasks.iter().map(|it| (it.level, it.name.as_str(), it.job.as_str())).collect();
        assert_eq!(order, [(0, "a", "daily"), (1, "b", "sunday"), (2, "c", "sunday")]);
        let edges: Vec<_> = merged
            .edges
            .iter()
            .map(|it| format!("{}>{} {}", it.parent, it.child, it.expected))
            .collect();
        assert_eq!(edges, ["a>b succeeded", "b>c finished"]);
        assert_eq!(merged.dropped, ["gone > a"]);
        assert_eq!(merged.params, ["day"]);
    }

    #[test]
    fn a_disabled_task_is_omitted_unless_another_job_has_it() {
        let off = |name: &str, parents: &[&str]| {
            let mut task = after(name, parents);
            task["enabled"] = json!(false);
            task
        };
        let jobs = [
            job(
                "daily",
                "high",
                &json!([after("a", &[]), off("b", &["a"]), after("c", &["b"]), off("d", &[])]),
            ),
            job("sunday", "low", &json!([after("d", &[])])),
        ];
        let merged = merge(&jobs, &[], &BTreeMap::new()).unwrap();
        let names: Vec<_> =
            merged.tasks.iter().map(|it| format!("{} {}", it.name, it.job)).collect();
        assert_eq!(names, ["a daily", "c daily", "d sunday"]);
        assert_eq!(merged.dropped, ["b > c"]);
        assert_eq!(merged.disabled, ["b (daily)", "d (daily)"]);
    }

    #[test]
    fn a_cycle_is_reported_with_its_path() {
        let jobs = [job("x", "low", &json!([after("a", &[]), after("b", &["a"])]))];
        let circle = merge(&jobs, &[everywhere("a", "b")], &BTreeMap::new());
        assert_eq!(circle.unwrap_err(), "a > b > a");
    }
}
