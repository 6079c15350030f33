//! Difference between the definitions before and after `apply`, as lines of text and as JSON.

use std::collections::{BTreeMap, BTreeSet};

use queue::job::Dependency;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::output::format::counted;

/// Jobs and schedules, as documents, and the dependencies that apply to every job.
pub(crate) struct Definitions {
    pub(crate) jobs: Vec<Value>,
    pub(crate) schedules: Vec<Value>,
    pub(crate) dependencies: Vec<Dependency>,
}

/// The changes of one `apply`.
#[derive(Debug, Default, Serialize)]
pub(crate) struct ApplyPlan {
    jobs: Vec<JobChange>,
    schedules: Vec<ScheduleChange>,
    dependencies: Vec<PairChange>,
}

/// Expected outcomes by (parent, child).
type Pairs<'a> = BTreeMap<(&'a str, &'a str), &'a str>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Change {
    Added,
    Changed,
    Removed,
}

#[derive(Debug, Serialize)]
struct JobChange {
    job: String,
    change: Change,
    enabled: bool,
    tasks: usize,
    /// Changed fields of the job itself.
    fields: Vec<String>,
    task_changes: Vec<TaskChange>,
    edge_changes: Vec<PairChange>,
}

#[derive(Debug, Serialize)]
struct TaskChange {
    task: String,
    change: Change,
    fields: Vec<String>,
}

/// The change of an edge of a job, or of a dependency that applies to every job.
#[derive(Debug, Serialize)]
struct PairChange {
    change: Change,
    parent: String,
    child: String,
    expected: String,
}

#[derive(Debug, Serialize)]
struct ScheduleChange {
    schedule: String,
    change: Change,
    timing: String,
    fields: Vec<String>,
}

impl Change {
    fn sign(self) -> char {
        match self {
            Self::Added => '+',
            Self::Changed => '~',
            Self::Removed => '-',
        }
    }
}

impl ApplyPlan {
    /// Computes the changes from `before` to `after`.
    pub(crate) fn between(before: &Definitions, after: &Definitions) -> Self {
        let schedule = |name: &str, change, was: Option<&Value>, is: Option<&Value>| {
            let timing = is.or(was).and_then(|it| it["timing"].as_str()).unwrap_or_default();
            let (schedule, timing) = (name.to_owned(), timing.to_owned());
            Some(ScheduleChange { schedule, change, timing, fields: fields(was, is, &[]) })
        };
        let mut dependencies =
            pair_changes(&pairs(&before.dependencies), &pairs(&after.dependencies));
        dependencies.sort_by(|a, b| (&a.child, &a.parent).cmp(&(&b.child, &b.parent)));
        Self {
            jobs: changes(&by_name(&before.jobs), &by_name(&after.jobs), job_change),
            schedules: changes(&by_name(&before.schedules), &by_name(&after.schedules), schedule),
            dependencies,
        }
    }

    /// Number of jobs, schedules and dependencies that change.
    pub(crate) fn len(&self) -> usize {
        self.jobs.len() + self.schedules.len() + self.dependencies.len()
    }

    /// Returns one line per change, and then what was done.
    pub(crate) fn text(&self, done: &str) -> String {
        self.lines().iter().map(String::as_str).chain([done]).collect::<Vec<_>>().join("\n")
    }

    /// Returns one line per change.
    fn lines(&self) -> Vec<String> {
        let jobs = self.jobs.iter().map(JobChange::line);
        let dependency = |it: &PairChange| {
            let (sign, child, parent) = (it.change.sign(), &it.child, &it.parent);
            format!("{sign} dependency {child} < {parent}{}", expected_suffix(&it.expected))
        };
        let schedule = |it: &ScheduleChange| {
            let (sign, name) = (it.change.sign(), &it.schedule);
            match it.change {
                Change::Changed => format!("{sign} schedule {name}: {}", it.fields.join(", ")),
                _ => format!("{sign} schedule {name} ({})", it.timing),
            }
        };
        let schedules = self.schedules.iter().map(schedule);
        jobs.chain(schedules).chain(self.dependencies.iter().map(dependency)).collect()
    }
}

impl JobChange {
    fn line(&self) -> String {
        let name = &self.job;
        if self.change == Change::Added {
            let disabled = if self.enabled { "" } else { ", disabled" };
            return format!("+ job {name} ({}{disabled})", counted(self.tasks, "task"));
        }
        if self.change == Change::Removed {
            return format!("- job {name} (removed)");
        }
        let enabled = self.fields.iter().any(|field| field == "enabled");
        if enabled && self.fields.len() + self.task_changes.len() + self.edge_changes.len() == 1 {
            let (sign, word) = if self.enabled { ('+', "enabled") } else { ('-', "disabled") };
            return format!("{sign} job {name} ({word})");
        }
        let mut parts: Vec<String> = self
            .fields
            .iter()
            .map(|field| match (field.as_str(), self.enabled) {
                ("enabled", true) => "enabled".to_owned(),
                ("enabled", false) => "disabled".to_owned(),
                (field, _) => format!("~ {field}"),
            })
            .collect();
        parts.extend(self.task_changes.iter().map(|task| {
            let fields = match task.fields.join(", ") {
                none if none.is_empty() => none,
                fields => format!(" ({fields})"),
            };
            format!("{} task {}{fields}", task.change.sign(), task.task)
        }));
        parts.extend(self.edge_changes.iter().map(|edge| {
            let (sign, parent, child) = (edge.change.sign(), &edge.parent, &edge.child);
            format!("{sign} edge {parent} > {child}{}", expected_suffix(&edge.expected))
        }));
        format!("~ job {name}: {}", parts.join(", "))
    }
}

/// The expected outcome in parentheses; empty for the default.
fn expected_suffix(expected: &str) -> String {
    if expected == "succeeded" { String::new() } else { format!(" ({expected})") }
}

/// Compares two maps: returns the change of each key with a value in only one of them, or with
/// different values, in words that `describe` chooses.
fn changes<K: Copy + Ord, V: Copy + PartialEq, T>(
    was: &BTreeMap<K, V>,
    is: &BTreeMap<K, V>,
    describe: impl Fn(K, Change, Option<V>, Option<V>) -> Option<T>,
) -> Vec<T> {
    let keys: BTreeSet<K> = was.keys().chain(is.keys()).copied().collect();
    let change = |key| {
        let (was, is) = (was.get(&key).copied(), is.get(&key).copied());
        let change = match (was, is) {
            (None, _) => Change::Added,
            (_, None) => Change::Removed,
            (Some(was), Some(is)) if was == is => return None,
            _ => Change::Changed,
        };
        describe(key, change, was, is)
    };
    keys.into_iter().filter_map(change).collect()
}

fn job_change(
    name: &str,
    change: Change,
    was: Option<&Value>,
    is: Option<&Value>,
) -> Option<JobChange> {
    let tasks = |job: Option<&Value>| {
        job.and_then(|job| job["tasks"].as_array()).cloned().unwrap_or_default()
    };
    let (tasks_were, tasks_are) = (tasks(was), tasks(is));
    let task_change = |task: &str, change, was: Option<&Value>, is: Option<&Value>| {
        let fields = fields(was, is, &["after"]);
        let same = change == Change::Changed && fields.is_empty();
        (!same).then(|| TaskChange { task: task.to_owned(), change, fields })
    };
    Some(JobChange {
        job: name.to_owned(),
        change,
        enabled: is.is_some_and(|job| job["enabled"] == true),
        tasks: tasks_are.len(),
        fields: fields(was, is, &["tasks"]),
        task_changes: changes(&by_name(&tasks_were), &by_name(&tasks_are), task_change),
        edge_changes: pair_changes(&edges(&tasks_were), &edges(&tasks_are)),
    })
}

/// Returns the keys whose values differ, except the keys in `but`; none without both documents.
fn fields(was: Option<&Value>, is: Option<&Value>, but: &[&str]) -> Vec<String> {
    let (Some(was), Some(is)) = (was, is) else { return Vec::new() };
    let keys = |it: &Value| it.as_object().into_iter().flat_map(Map::keys).cloned().collect();
    let (before, after): (BTreeSet<String>, BTreeSet<String>) = (keys(was), keys(is));
    let differs = |key: &&String| !but.contains(&key.as_str()) && was.get(key) != is.get(key);
    before.union(&after).filter(differs).cloned().collect()
}

fn by_name(documents: &[Value]) -> BTreeMap<&str, &Value> {
    documents.iter().filter_map(|it| Some((it["name"].as_str()?, it))).collect()
}

fn pairs(dependencies: &[Dependency]) -> Pairs<'_> {
    let pairs = dependencies.iter().map(|it| ((&*it.parent, &*it.child), it.expected.as_str()));
    pairs.collect()
}

fn pair_changes(was: &Pairs<'_>, is: &Pairs<'_>) -> Vec<PairChange> {
    changes(was, is, |(parent, child), change, was, is| {
        let [parent, child, expected] =
            [parent, child, is.or(was).unwrap_or_default()].map(str::to_owned);
        Some(PairChange { change, parent, child, expected })
    })
}

fn edges(tasks: &[Value]) -> Pairs<'_> {
    let mut edges = BTreeMap::new();
    for task in tasks {
        for edge in task["after"].as_array().into_iter().flatten() {
            let [parent, child, expected] = [&edge["task"], &task["name"], &edge["expected"]]
                .map(|value| value.as_str().unwrap_or_default());
            edges.insert((parent, child), expected);
        }
    }
    edges
}

#[cfg(test)]
mod tests {
    use queue::run::Expected;
    use serde_json::json;

    use super::*;

    fn declared(jobs: Value, dependencies: &[(&str, &str)]) -> Definitions {
        let dependency = |(child, parent): &(&str, &str)| Dependency {
            child: (*child).to_owned(),
            parent: (*parent).to_owned(),
            expected: Expected::Succeeded,
            job: None,
        };
        let Value::Array(jobs) = jobs else { panic!("no array") };
        Definitions {
            jobs,
            schedules: Vec::new(),
            dependencies: dependencies.iter().map(dependency).collect(),
        }
    }

    #[test]
    fn only_changes_are_listed() {
        let before = declared(
            json!([
                {"name": "daily", "enabled": true, "tasks": [
                    {"name": "b", "statement": "SELECT 1", "queue": "x"},
                    {"name": "c", "statement": "SELECT 1"},
                    {"name": "d", "after": [{"task": "c", "expected": "succeeded"}]},
                ]},
                {"name": "old", "enabled": true, "tasks": []},
                {"name": "same", "enabled": true, "tasks": [{"name": "a"}]},
            ]),
            &[("x", "y")],
        );
        let after = declared(
            json!([
                {"name": "daily", "enabled": true, "priority": "high", "tasks": [
                    {"name": "a", "statement": "SELECT 1"},
                    {"name": "b", "statement": "SELECT 2"},
                    {"name": "d", "after": [{"task": "a", "expected": "failed"}]},
                ]},
                {"name": "new", "enabled": true, "tasks": [{"name": "a"}]},
                {"name": "old", "enabled": false, "tasks": []},
                {"name": "same", "enabled": true, "tasks": [{"name": "a"}]},
            ]),
            &[("x", "z")],
        );
        assert_eq!(
            ApplyPlan::between(&before, &after).lines(),
            [
                "~ job daily: ~ priority, + task a, ~ task b (queue, statement), - task c, \
                 + edge a > d (failed), - edge c > d",
                "+ job new (1 task)",
                "- job old (disabled)",
                "- dependency x < y",
                "+ dependency x < z",
            ]
        );
        assert_eq!(ApplyPlan::between(&after, &after).len(), 0);
    }
}
