//! `pgmill import dbt`: sets the job of a compiled dbt project, and keeps it up to date.

use cli::{Exit, Failure};
use conninfo::Client;
use import::args::DbtArgs;
use import::dbt::convert;
use queue::job;
use serde_json::{Value, json};

use crate::args::DryRun;
use crate::jobs::apply_plan::{ApplyPlan, Definitions};
use crate::output::Output;
use crate::output::format::counted;
use crate::session::change;

/// Reads the manifest, sets the job, and prints the changes.
///
/// # Errors
/// Fails for a manifest that cannot be read, a selector that selects nothing, nodes that cannot be
/// carried over, or a job that the database refuses.
pub(super) async fn run(client: &mut Client, out: &Output, args: &DbtArgs) -> Exit {
    let project = convert(args)?;
    let (job, plan, dry_run) = (&project.name, &project.plan, DryRun::from(args.dry_run));
    let changes = change(client, dry_run, async |to| {
        let before = definitions(to, job).await?;
        job::set(to, &project.document).await?;
        Ok(ApplyPlan::between(&before, &definitions(to, job).await?))
    })
    .await?;
    let mut lines = Vec::new();
    for (word, list) in [("left out", &plan.left_out), ("note", &plan.notes)] {
        lines.extend(list.iter().map(|it| format!("{word}: {}: {}\n", it.node, it.reason)));
    }
    let nodes = counted(plan.nodes, "node");
    let done = match changes.len() {
        0 => format!("no changes: job {job} has {nodes}"),
        _ => format!("{} job {job} with {nodes}", dry_run.or("would set", "set")),
    };
    let document = json!({
        "dry_run": dry_run, "job": job, "nodes": plan.nodes, "tasks": plan.tasks.len(),
        "left_out": plan.left_out, "notes": plan.notes, "changed": changes.len() > 0,
        "plan": changes,
    });
    out.answer(document, lines.concat() + &changes.text(&done))
}

/// Returns the definition of the job, in the form in which plans are compared.
async fn definitions(
    client: &impl conninfo::GenericClient,
    name: &str,
) -> Result<Definitions, Failure> {
    let jobs: Vec<Value> = job::definition(client, name).await?.into_iter().collect();
    Ok(Definitions { jobs, schedules: Vec::new(), dependencies: Vec::new() })
}
