//! The job of a project: its tasks, their edges, and what could not be carried over.

use std::collections::{BTreeMap, BTreeSet};

use cli::statement;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::data_test;
use super::graph::Graph;
use super::manifest::{Manifest, Node};
use super::node_tasks::{Input, Step, is_of_dbt};
use super::sql::{Relation, block, literal, quoted};
use crate::dbt_keys::{NODE, RELATION, RESOURCE_TYPE};

/// Maximum length of a task's name, in bytes.
const MAX_NAME_BYTES: usize = 500;

/// Name of the task that creates the schemas.
const SCHEMAS: &str = "create schemas";

/// Macros of dbt that write the SQL of a relation. pgmill writes what dbt's own macros write.
const WRITING: [&str; 12] = [
    "create_table_as",
    "create_view_as",
    "get_create_table_as_sql",
    "get_create_view_as_sql",
    "create_indexes",
    "get_create_index_sql",
    "apply_grants",
    "get_delete_insert_merge_sql",
    "get_merge_sql",
    "snapshot_merge_sql",
    "snapshot_staging_table",
    "get_test_sql",
];

/// A remark about a node.
#[derive(Debug, Serialize)]
pub struct Finding {
    /// The node's unique id.
    pub node: String,
    /// Why the node is left out, or how it differs.
    pub reason: String,
}

/// A job, and what differs from dbt.
#[derive(Debug, Default)]
pub struct Plan {
    /// Tasks as in `mill.set_job`.
    pub tasks: Vec<Value>,
    /// Number of nodes that have tasks.
    pub nodes: usize,
    /// Nodes that cannot be carried over.
    pub left_out: Vec<Finding>,
    /// Nodes that differ from dbt.
    pub notes: Vec<Finding>,
}

/// Options that every task has.
pub(super) struct TaskDefaults<'a> {
    pub(super) queue: Option<&'a str>,
    pub(super) run_as: Option<&'a str>,
    pub(super) max_attempts: u16,
}

/// Builds the job of the selected nodes.
pub(super) fn plan(
    input: &Input<'_>,
    graph: &Graph<'_>,
    selected: &[bool],
    defaults: &TaskDefaults<'_>,
) -> Plan {
    let mut plan = Plan::default();
    let mut builder = Builder { defaults, names: BTreeMap::new(), used: BTreeSet::new() };
    let mut steps: Vec<Option<Vec<Step>>> = graph.nodes.iter().map(|_| None).collect();
    for (n, node) in graph.nodes.iter().enumerate() {
        if !selected[n] || node.is_ephemeral() {
            continue;
        }
        match input.steps(node).and_then(|it| it.steps.iter().try_for_each(runnable).map(|()| it)) {
            Ok(found) => {
                let note =
                    found.note.map(|reason| Finding { node: node.unique_id.clone(), reason });
                plan.notes.extend(note);
                steps[n] = Some(found.steps);
            }
            Err(reason) => {
                plan.left_out.push(Finding { node: node.unique_id.clone(), reason });
            }
        }
    }
    plan.notes.extend(general_notes(input.manifest));
    let kept: Vec<bool> = steps.iter().map(Option::is_some).collect();
    plan.nodes = kept.iter().filter(|kept| **kept).count();
    let mut before_all = builder.schemas(graph, &kept, &mut plan.tasks);
    for operation in operations(input.manifest, "on-run-start") {
        before_all = builder.operation(operation, &before_all, "succeeded", &mut plan);
    }
    let edges = graph.nearest(&kept);
    let tests = graph.tests_before(&edges, &kept);
    let last_tasks: Vec<Option<String>> = graph
        .nodes
        .iter()
        .zip(&steps)
        .map(|(node, steps)| steps.as_ref().map(|steps| builder.name(node, steps)))
        .collect();
    for (n, found) in steps.into_iter().enumerate() {
        let Some(found) = found else { continue };
        let parents = edges[n].iter().chain(&tests[n]);
        let mut after: Vec<String> = parents.filter_map(|it| last_tasks[*it].clone()).collect();
        if after.is_empty() {
            after.clone_from(&before_all);
        }
        builder.tasks_of(graph.nodes[n], found, after, &mut plan.tasks);
    }
    let mut last = leaves(&plan.tasks);
    for operation in operations(input.manifest, "on-run-end") {
        last = builder.operation(operation, &last, "always", &mut plan);
    }
    plan
}

/// Checks that a worker runs the statement.
fn runnable(step: &Step) -> Result<(), String> {
    if step.statement.contains('\0') {
        return Err("its SQL contains a NUL character".to_owned());
    }
    statement::runnable(&step.statement).map_err(|(_, error)| error.message)
}

/// Returns the hooks of a project that run before or after all nodes.
fn operations<'m>(manifest: &'m Manifest, tag: &str) -> Vec<&'m Node> {
    let own = manifest.metadata.project_name.as_deref();
    let mut found: Vec<&Node> = manifest
        .nodes
        .values()
        .filter(|node| node.resource_type == "operation" && node.tags.iter().any(|it| it == tag))
        .collect();
    // Those of packages come first, as in dbt.
    found.sort_by_key(|node| {
        (own == Some(node.package_name.as_str()), &node.package_name, node.index)
    });
    found
}

/// Returns the names of the tasks that no other task waits for.
fn leaves(tasks: &[Value]) -> Vec<String> {
    let parents: BTreeSet<&str> = tasks
        .iter()
        .filter_map(|task| task["after"].as_array())
        .flatten()
        .filter_map(|edge| edge["task"].as_str())
        .collect();
    let names = tasks.iter().filter_map(|task| task["name"].as_str());
    names.filter(|name| !parents.contains(name)).map(str::to_owned).collect()
}

/// Remarks about the project as a whole.
fn general_notes(manifest: &Manifest) -> Vec<Finding> {
    let project = manifest.metadata.project_name.clone().unwrap_or_default();
    let mut notes = Vec::new();
    for it in manifest.macros.values().filter(|it| !is_of_dbt(&it.package_name)) {
        let bare = it.name.strip_prefix("postgres__").or(it.name.strip_prefix("default__"));
        if WRITING.contains(&bare.unwrap_or(&it.name)) {
            notes.push(Finding {
                node: format!("macro.{}.{}", it.package_name, it.name),
                reason: "replaces a macro of dbt; the tasks run what dbt's own macro writes"
                    .to_owned(),
            });
        }
    }
    let mut add = |number: usize, reason: &str| {
        if number > 0 {
            notes.push(Finding { node: project.clone(), reason: format!("{number} {reason}") });
        }
    };
    add(manifest.unit_tests.len(), "unit tests are left out: run them with dbt test");
    add(manifest.functions.len(), "functions are left out: create them with dbt build");
    notes
}

struct Builder<'a> {
    defaults: &'a TaskDefaults<'a>,
    /// Name of the main task by unique id.
    names: BTreeMap<&'a str, String>,
    used: BTreeSet<String>,
}

impl<'a> Builder<'a> {
    /// Reserves a name: the given one, or the id if another node has the name.
    fn reserve(&mut self, name: &str, id: &str) -> String {
        let plain = |text: &str| {
            let mut end = text.len().min(MAX_NAME_BYTES);
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            text[..end].replace(char::is_control, "_")
        };
        let mut candidates = [plain(name), plain(id)].into_iter();
        let mut chosen = candidates.find(|it| !it.is_empty() && !self.used.contains(it));
        let mut n = 1;
        while chosen.is_none() {
            n += 1;
            chosen = Some(format!("{} {n}", plain(id))).filter(|it| !self.used.contains(it));
        }
        let chosen = chosen.unwrap_or_default();
        self.used.insert(chosen.clone());
        chosen
    }

    /// Names the tasks of a node. Returns the name of the last one.
    fn name(&mut self, node: &'a Node, steps: &[Step]) -> String {
        let name = self.reserve(&node.versioned_name(), &node.unique_id);
        let mut names = steps.iter().map(|step| format!("{name}{}", step.suffix));
        self.used.extend(names.clone());
        let last = names.next_back().unwrap_or_default();
        self.names.insert(&node.unique_id, name);
        last
    }

    fn task(
        &self,
        name: &str,
        statement: &str,
        after: &[String],
        expected: &str,
    ) -> Map<String, Value> {
        let edges: Vec<Value> =
            after.iter().map(|task| json!({ "task": task, "expected": expected })).collect();
        let mut task = Map::new();
        task.insert("name".to_owned(), json!(name));
        task.insert("statement".to_owned(), json!(statement));
        task.insert("max_attempts".to_owned(), json!(self.defaults.max_attempts));
        if !edges.is_empty() {
            task.insert("after".to_owned(), Value::Array(edges));
        }
        for (key, value) in [("queue", self.defaults.queue), ("run_as", self.defaults.run_as)] {
            if let Some(value) = value {
                task.insert(key.to_owned(), json!(value));
            }
        }
        task
    }

    /// Adds the tasks of a node, one after the other.
    fn tasks_of(&self, node: &Node, steps: Vec<Step>, after: Vec<String>, tasks: &mut Vec<Value>) {
        let Some(name) = self.names.get(node.unique_id.as_str()) else { return };
        let mut after = after;
        for step in steps {
            let own = format!("{name}{}", step.suffix);
            let mut task = self.task(&own, &step.statement, &after, "succeeded");
            if step.autocommit {
                task.insert("mode".to_owned(), json!("autocommit"));
            }
            let tags: BTreeSet<&str> = node.tags.iter().map(String::as_str).collect();
            let tags: Vec<&str> = tags.into_iter().filter(|tag| !tag.trim().is_empty()).collect();
            if !tags.is_empty() {
                task.insert("tags".to_owned(), json!(tags));
            }
            let mut metadata = json!({ NODE: node.unique_id, RESOURCE_TYPE: node.resource_type });
            if node.resource_type != "test" || data_test::stores_failures(node) {
                metadata[RELATION] = json!(node.relation_name);
            }
            let description = node.description.lines().next().unwrap_or_default().trim();
            if step.suffix.is_empty() && !description.is_empty() {
                task.insert("description".to_owned(), json!(description));
            }
            task.insert("metadata".to_owned(), metadata);
            tasks.push(Value::Object(task));
            after = vec![own];
        }
    }

    /// Adds the task that creates the schemas of the nodes. Returns its name.
    fn schemas(&mut self, graph: &Graph<'_>, kept: &[bool], tasks: &mut Vec<Value>) -> Vec<String> {
        let needed = graph.nodes.iter().zip(kept).filter(|(node, kept)| {
            **kept && (node.resource_type != "test" || data_test::stores_failures(node))
        });
        let schemas: BTreeSet<String> = needed
            .filter_map(|(node, _)| Relation::of(node).ok())
            .map(|relation| relation.schema)
            .collect();
        let databases: BTreeSet<&str> =
            graph.nodes.iter().filter_map(|node| node.database.as_deref()).collect();
        let mut body = Vec::new();
        if let [database] = databases.iter().collect::<Vec<_>>()[..] {
            body.push(format!(
                "IF lower(current_database()) <> lower({}) THEN\n    RAISE EXCEPTION USING ERRCODE = 'MT900', \
                 MESSAGE = 'the project was compiled for another database than ' || current_database();\nEND IF;",
                literal(database)
            ));
        }
        body.extend(schemas.iter().map(|schema| {
            let exists = format!("pg_catalog.to_regnamespace({})", literal(&quoted(schema)));
            format!(
                "IF {exists} IS NULL THEN\n    CREATE SCHEMA IF NOT EXISTS {};\nEND IF;",
                quoted(schema)
            )
        }));
        if body.is_empty() {
            return Vec::new();
        }
        let name = self.reserve(SCHEMAS, SCHEMAS);
        tasks.push(Value::Object(self.task(&name, &block("", &body.join("\n")), &[], "succeeded")));
        vec![name]
    }

    /// Adds a hook of the whole run. Returns the tasks that the next one waits for.
    fn operation(
        &mut self,
        node: &Node,
        after: &[String],
        expected: &str,
        plan: &mut Plan,
    ) -> Vec<String> {
        let statement = node.compiled_code.clone().unwrap_or_default();
        if statement.trim().is_empty() {
            return after.to_vec();
        }
        let step = Step { suffix: String::new(), statement, autocommit: false };
        if let Err(reason) = runnable(&step) {
            plan.left_out.push(Finding { node: node.unique_id.clone(), reason });
            return after.to_vec();
        }
        let name = self.reserve(&node.name, &node.unique_id);
        let mut task = self.task(&name, &step.statement, after, expected);
        task.insert("metadata".to_owned(), json!({ NODE: node.unique_id }));
        plan.tasks.push(Value::Object(task));
        vec![name]
    }
}
