//! `pgmill import dbt`: makes a job of a compiled dbt project, and keeps it up to date.

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

use cli::{Failure, exit};
use conninfo::Client;
use queue::job;
use serde_json::{Value, json};

use crate::args::DbtArgs;
use crate::imports::dbt_keys::VERSION;
use crate::jobs::apply_plan::{ApplyPlan, Definitions};
use crate::output::Output;
use crate::output::format::counted;
use crate::session::{begin_read_committed, commit_unless_dry_run};

use graph::Graph;
use manifest::Manifest;
use node_tasks::Input;
use plan::{Finding, Plan, TaskDefaults};

/// Reads the manifest, sets the job, and prints the changes.
///
/// # Errors
/// Fails for a manifest that cannot be read, a selector that selects nothing, nodes that cannot be
/// carried over, or a job that the database refuses.
pub(super) async fn run(client: &mut Client, out: &Output, args: &DbtArgs) -> Result<u8, Failure> {
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
    let transaction = begin_read_committed(client).await?;
    let before = definitions(&transaction, &name).await?;
    job::set(&transaction, &document).await?;
    let changes = ApplyPlan::between(&before, &definitions(&transaction, &name).await?);
    commit_unless_dry_run(transaction, args.dry_run).await?;
    print(out, args, &name, &plan, &changes)
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

/// Returns the definition of the job, in the form in which plans are compared.
async fn definitions(
    client: &impl conninfo::GenericClient,
    name: &str,
) -> Result<Definitions, Failure> {
    let jobs: Vec<Value> = job::definition(client, name).await?.into_iter().collect();
    Ok(Definitions { jobs, schedules: Vec::new(), dependencies: Vec::new() })
}

fn print(
    out: &Output,
    args: &DbtArgs,
    job: &str,
    plan: &Plan,
    changes: &ApplyPlan,
) -> Result<u8, Failure> {
    if out.json {
        out.document(&json!({
            "dry_run": args.dry_run, "job": job, "nodes": plan.nodes, "tasks": plan.tasks.len(),
            "left_out": plan.left_out, "notes": plan.notes,
            "changed": changes.len() > 0, "plan": changes,
        }))?;
        return Ok(exit::OK);
    }
    for (word, list) in [("left out", &plan.left_out), ("note", &plan.notes)] {
        for it in list {
            out.text(&terminal::visible(&format!("{word}: {}: {}", it.node, it.reason)))?;
        }
    }
    for line in changes.lines() {
        out.text(&terminal::visible(&line))?;
    }
    let number = counted(plan.nodes as u64, "node");
    out.text(&match (changes.len(), args.dry_run) {
        (0, _) => format!("no changes: job {job} has {number}"),
        (_, true) => format!("would set job {job} with {number}"),
        (_, false) => format!("set job {job} with {number}"),
    })?;
    Ok(exit::OK)
}
