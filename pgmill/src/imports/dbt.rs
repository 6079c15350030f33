//! `pgmill import dbt`: sets the job of a compiled dbt project, and keeps it up to date.

use cli::{Failure, exit};
use conninfo::Client;
use import::args::DbtArgs;
use import::dbt::{Job, convert};
use queue::job;
use serde_json::{Value, json};

use crate::jobs::apply_plan::{ApplyPlan, Definitions};
use crate::output::Output;
use crate::output::format::counted;
use crate::session::{begin_read_committed, commit_unless_dry_run};

/// Reads the manifest, sets the job, and prints the changes.
///
/// # Errors
/// Fails for a manifest that cannot be read, a selector that selects nothing, nodes that cannot be
/// carried over, or a job that the database refuses.
pub(super) async fn run(client: &mut Client, out: &Output, args: &DbtArgs) -> Result<u8, Failure> {
    let project = convert(args)?;
    let transaction = begin_read_committed(client).await?;
    let before = definitions(&transaction, &project.name).await?;
    job::set(&transaction, &project.document).await?;
    let changes = ApplyPlan::between(&before, &definitions(&transaction, &project.name).await?);
    commit_unless_dry_run(transaction, args.dry_run).await?;
    print(out, args, &project, &changes)
}

/// Returns the definition of the job, in the form in which plans are compared.
async fn definitions(
    client: &impl conninfo::GenericClient,
    name: &str,
) -> Result<Definitions, Failure> {
    let jobs: Vec<Value> = job::definition(client, name).await?.into_iter().collect();
    Ok(Definitions { jobs, schedules: Vec::new(), dependencies: Vec::new() })
}

fn print(out: &Output, args: &DbtArgs, project: &Job, changes: &ApplyPlan) -> Result<u8, Failure> {
    let (job, plan) = (&project.name, &project.plan);
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
