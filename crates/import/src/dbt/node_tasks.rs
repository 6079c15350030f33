//! The tasks of one node: hooks outside of its transaction, and the task that builds it.

use std::path::Path;

use super::data_test;
use super::hook::Hooks;
use super::incremental::{Queries, incremental};
use super::manifest::{Manifest, Node};
use super::relations;
use super::seed;
use super::snapshot::snapshot;
use super::sql::Relation;

/// The files and flags of an import that decide what the tasks of a node are.
pub(super) struct Input<'a> {
    pub(super) manifest: &'a Manifest,
    /// The manifest that was compiled for a full refresh.
    pub(super) full: Option<&'a Manifest>,
    pub(super) project: &'a Path,
    pub(super) full_refresh: bool,
}

/// A task of a node, without its edges.
#[derive(Debug)]
pub(super) struct Step {
    /// Appended to the name of the node; empty for the task that builds the node.
    pub(super) suffix: String,
    pub(super) statement: String,
    /// Whether the statement runs outside of a transaction.
    pub(super) autocommit: bool,
}

/// The tasks of a node in the order of their execution, and a remark about what differs from dbt.
#[derive(Debug)]
pub(super) struct Steps {
    pub(super) steps: Vec<Step>,
    pub(super) note: Option<String>,
}

impl Input<'_> {
    /// Returns the tasks of a node.
    ///
    /// # Errors
    /// Returns the reason if the node cannot be carried over.
    pub(super) fn steps(&self, node: &Node) -> Result<Steps, String> {
        if let Some(language) = node.language.as_deref().filter(|it| *it != "sql") {
            return Err(format!("models in {language} do not run in PostgreSQL"));
        }
        if node.resource_type == "test" {
            return self.test_steps(node);
        }
        let hooks = Hooks::of(node)?;
        let relation = Relation::of(node)?;
        let (statements, note) = self.build(node, &relation, hooks.inside)?;
        let [before, after] = hooks.outside;
        let hook = |when: &str, list: Vec<String>| {
            let step = |(n, statement): (usize, String)| Step {
                suffix: format!(": {when} {}", n + 1),
                statement,
                autocommit: true,
            };
            list.into_iter().enumerate().map(step).collect::<Vec<_>>()
        };
        let mut steps = hook("pre-hook", before);
        steps.push(main_step(statements));
        steps.extend(hook("post-hook", after));
        Ok(Steps { steps, note })
    }

    fn test_steps(&self, node: &Node) -> Result<Steps, String> {
        let query = compiled(node)?;
        let (mut steps, mut stored) = (Vec::new(), None);
        if data_test::stores_failures(node) {
            let relation = Relation::of(node)?;
            let statements = data_test::store(node, &relation, query);
            steps.push(Step { suffix: ": store failures".to_owned(), ..main_step(statements) });
            stored = Some(relation);
        }
        steps.push(main_step(data_test::test(node, stored.as_ref(), query)));
        Ok(Steps { steps, note: None })
    }

    fn build(
        &self,
        node: &Node,
        relation: &Relation,
        hooks: [Vec<String>; 2],
    ) -> Result<(Vec<String>, Option<String>), String> {
        let kind = node.settings.materialized.as_deref().unwrap_or("view");
        if let Some(name) = self.own_materialization(kind) {
            return Err(format!("the project has a materialization of its own: {name}"));
        }
        let full_refresh = self.full_refresh;
        if kind == "seed" {
            let file = seed::file(self.manifest, node, self.project)?;
            let seed = seed::seed(node, relation, &file, hooks, full_refresh)?;
            return Ok((seed, None));
        }
        let query = compiled(node)?;
        let statements = match kind {
            "table" => relations::table(node, relation, query, hooks)?,
            "view" => relations::view(node, relation, query, hooks),
            "materialized_view" => {
                relations::materialized_view(node, relation, query, hooks, full_refresh)
            }
            "snapshot" => snapshot(node, relation, query, hooks)?,
            "incremental" => {
                let queries = self.queries(node, query);
                let note = match (queries.full, queries.new_rows) {
                    (Some(_), None) if !node.is_rebuilt(full_refresh) => Some(
                        "compiled while its table did not exist: after the first run, compile and import again",
                    ),
                    (None, _) => {
                        Some("compiled while its table existed: the task does not create the table")
                    }
                    _ => None,
                };
                let statements = incremental(node, relation, &queries, hooks, full_refresh)?;
                return Ok((statements, note.map(str::to_owned)));
            }
            other => return Err(format!("the materialization \"{other}\" is not supported")),
        };
        Ok((statements, None))
    }

    /// Returns the forms of the query of an incremental model that the manifests have. dbt compiles
    /// the form for new rows only while the table exists; it then normally reads the table.
    fn queries<'q>(&'q self, node: &Node, query: &'q str) -> Queries<'q> {
        if !self.manifest.asks_if_incremental(node) {
            return Queries { full: Some(query), new_rows: Some(query) };
        }
        let own = node.relation_name.as_deref().unwrap_or_default();
        let reads_itself = !own.is_empty() && query.contains(own);
        let full = self.full.and_then(|manifest| manifest.nodes.get(&node.unique_id));
        let full = full.and_then(|node| node.compiled_code.as_deref());
        if node.is_rebuilt(self.full_refresh) {
            Queries { full: Some(query).filter(|_| !reads_itself), new_rows: None }
        } else if reads_itself || full.is_some_and(|full| full != query) {
            Queries { full, new_rows: Some(query) }
        } else {
            Queries { full: Some(query), new_rows: None }
        }
    }

    /// Returns the project's own macro for a materialization, if there is one.
    fn own_materialization(&self, kind: &str) -> Option<&str> {
        let names = ["default", "postgres"].map(|it| format!("materialization_{kind}_{it}"));
        let own = self
            .manifest
            .macros
            .values()
            .find(|it| !is_of_dbt(&it.package_name) && names.contains(&it.name));
        own.map(|it| it.name.as_str())
    }
}

/// Whether a package is a part of dbt.
pub(super) fn is_of_dbt(package: &str) -> bool {
    matches!(package, "dbt" | "dbt_postgres" | "")
}

fn main_step(statements: Vec<String>) -> Step {
    let statements: Vec<String> = statements.into_iter().filter(|it| !it.is_empty()).collect();
    Step { suffix: String::new(), statement: statements.join("\n\n"), autocommit: false }
}

fn compiled(node: &Node) -> Result<&str, String> {
    match node.compiled_code.as_deref() {
        Some(code) if !code.trim().is_empty() => Ok(code),
        _ => Err("the manifest does not have its SQL; run `dbt compile`".to_owned()),
    }
}
