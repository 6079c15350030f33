//! `pgmill import dbt`: makes a job of a compiled dbt project.
//!
//! | step | file |
//! |---|---|
//! | the file `manifest.json`: nodes, sources, macros and settings | `manifest` |
//! | graph of the nodes, and the tests that each node waits for | `graph` |
//! | the nodes that `--select`, `--exclude` and `--resource-type` choose | `selection` |
//! | the job: its tasks, their edges, and remarks on differences from dbt | `plan` |
//! | tasks of one node: hooks outside of its transaction, and its build | `node_tasks` |
//! | hooks of a node as SQL, with the name of its relation | `hook` |
//! | SQL of views, tables and materialized views | `relations` |
//! | SQL of incremental models: the first table, then the new rows | `incremental` |
//! | SQL of snapshots, which keep each version of a row | `snapshot` |
//! | SQL of seeds: a CSV file with the types that dbt infers | `seed` |
//! | SQL of data tests, and of the rows that fail them | `data_test` |
//! | grants and comments of a relation, and the columns of a contract | `attributes` |
//! | quoted names and texts, relations, and blocks that drop or swap them | `sql` |

mod attributes;
mod data_test;
mod graph;
mod hook;
mod incremental;
mod manifest;
mod node_tasks;
mod plan;
mod relations;
mod seed;
mod selection;
mod snapshot;
mod sql;

use std::path::{Path, PathBuf};

use cli::Failure;
use serde_json::{Value, json};

use crate::args::DbtArgs;
use crate::dbt_keys::VERSION;

use graph::Graph;
use manifest::Manifest;
use node_tasks::Input;
use plan::TaskDefaults;
pub use plan::{Finding, Plan};

/// The job of a project.
#[derive(Debug)]
pub struct Job {
    /// Name of the job.
    pub name: String,
    /// The argument of `queue::job::set`.
    pub document: Value,
    /// Its tasks, and what differs from dbt.
    pub plan: Plan,
}

/// Reads the manifest, and makes a job of the selected nodes.
///
/// # Errors
/// Fails for a manifest that cannot be read, a selector that selects nothing, or nodes that cannot
/// be carried over; for a project without a name, if the arguments do not name the job.
pub fn convert(args: &DbtArgs) -> Result<Job, Failure> {
    let manifest = Manifest::read(&args.manifest)?;
    let plan = read(&manifest, args)?;
    if !plan.left_out.is_empty() && !args.partial {
        return Err(refusal(&args.manifest, &plan.left_out));
    }
    let name = match (&args.job, &manifest.metadata.project_name) {
        (Some(name), _) | (None, Some(name)) => name.clone(),
        (None, None) => {
            return Err(
                Failure::usage("the manifest has no project name").hint("Name the job with --job.")
            );
        }
    };
    let document = json!({
        "name": name,
        "tasks": plan.tasks,
        "tags": ["dbt"],
        "metadata": {
            "dbt_project": manifest.metadata.project_name,
            VERSION: manifest.metadata.dbt_version,
        },
    });
    Ok(Job { name, document, plan })
}

/// Plans the job of the selected nodes.
fn read(manifest: &Manifest, args: &DbtArgs) -> Result<Plan, Failure> {
    let place = args.manifest.display();
    let graph = Graph::of(manifest).map_err(|circle| {
        let nodes = circle.iter().take(5).copied().collect::<Vec<_>>().join(", ");
        Failure::usage(format!("{place}: dependency cycle among these nodes: {nodes}"))
    })?;
    let full = args.full_refresh_manifest.as_deref().map(Manifest::read).transpose()?;
    let selected =
        selection::select(manifest, &graph, &args.select, &args.exclude, &args.resource_type)?;
    if !selected.contains(&true) {
        return Err(Failure::usage(format!("{place}: no node is selected")));
    }
    let project = args.project_dir.clone().unwrap_or_else(|| project_of(&args.manifest));
    let input =
        Input { manifest, full: full.as_ref(), project: &project, full_refresh: args.full_refresh };
    let defaults = TaskDefaults {
        queue: args.queue.as_deref(),
        run_as: args.run_as.as_deref(),
        max_attempts: args.max_attempts,
    };
    Ok(plan::plan(&input, &graph, &selected, &defaults))
}

/// Returns the folder above the one of the manifest.
fn project_of(manifest: &Path) -> PathBuf {
    let folder = manifest.parent().unwrap_or(Path::new(""));
    match folder.parent() {
        Some(project) if folder.file_name().is_some() => project.to_owned(),
        _ => folder.join(".."),
    }
}

fn refusal(manifest: &Path, left_out: &[Finding]) -> Failure {
    let one = |it: &Finding| {
        let message = format!("{} cannot be carried over: {}", it.node, it.reason);
        Failure::usage(message).at(&manifest.display().to_string())
    };
    let hint = "Exclude these nodes with --exclude, or import the project without them: --partial.";
    let all = Failure::all(left_out.iter().map(one));
    all.unwrap_or_else(|| Failure::usage("nothing is left out")).hint(hint)
}
