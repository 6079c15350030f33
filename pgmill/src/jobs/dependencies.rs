//! `pgmill dependency`: lists, adds and removes dependencies that apply to every job.

use cli::{Failure, exit};
use conninfo::Client;
use queue::job::{self, Dependency};
use serde_json::json;
use terminal::visible;

use crate::args::{DependencyArgs, DependencyPair, DependencyVerb};
use crate::output::{Field, Output};
use crate::session::{begin_read_committed, commit_unless_dry_run};

/// Runs a subcommand of `pgmill dependency`.
pub(crate) async fn run(
    client: &mut Client,
    out: &Output,
    verb: &DependencyVerb,
) -> Result<u8, Failure> {
    match verb {
        DependencyVerb::List => list(client, out).await,
        DependencyVerb::Add(args) => add(client, out, args).await,
        DependencyVerb::Remove(args) => remove(client, out, args).await,
    }
}

async fn list(client: &Client, out: &Output) -> Result<u8, Failure> {
    let dependencies = job::dependencies(client).await?;
    if out.json {
        out.document(&dependencies)?;
    } else if dependencies.is_empty() {
        out.note("there are no dependencies that apply to every job");
    } else {
        let row = |it: &Dependency| {
            vec![Field::new(&it.child), Field::new(&it.parent), Field::new(it.expected)]
        };
        let rows = dependencies.iter().map(row).collect();
        out.print_table(&["child", "parent", "expected"], rows)?;
    }
    Ok(exit::OK)
}

async fn add(client: &mut Client, out: &Output, args: &DependencyArgs) -> Result<u8, Failure> {
    let (pair, expected) = (&args.pair, args.expected);
    let transaction = begin_read_committed(client).await?;
    let changed = job::set_dependency(&transaction, &pair.child, &pair.parent, expected).await?;
    let unknown = job::unknown_tasks(&transaction, &[&pair.child, &pair.parent]).await?;
    commit_unless_dry_run(transaction, pair.dry_run).await?;
    for name in unknown {
        out.note(visible(&format!("note: no job has a task \"{name}\" yet")));
    }
    if out.json {
        out.document(&json!({
            "child": pair.child, "parent": pair.parent, "expected": expected,
            "dry_run": pair.dry_run, "changed": changed,
        }))?;
        return Ok(exit::OK);
    }
    let waits = match (changed, pair.dry_run) {
        (false, _) => "already waits",
        (true, true) => "would wait",
        (true, false) => "now waits",
    };
    out.text(&visible(&format!(
        "{} {waits} for {} ({expected}) in every job that has both",
        pair.child, pair.parent
    )))?;
    Ok(exit::OK)
}

async fn remove(client: &mut Client, out: &Output, args: &DependencyPair) -> Result<u8, Failure> {
    let transaction = begin_read_committed(client).await?;
    let removed = job::drop_dependency(&transaction, &args.child, &args.parent).await?;
    commit_unless_dry_run(transaction, args.dry_run).await?;
    if !removed {
        let message = format!("there is no dependency {} < {}", args.child, args.parent);
        return Err(Failure::not_found(message).hint("pgmill dependency list"));
    }
    if out.json {
        out.document(&json!({
            "child": args.child, "parent": args.parent, "dry_run": args.dry_run, "removed": true,
        }))?;
        return Ok(exit::OK);
    }
    let verb = if args.dry_run { "would no longer wait" } else { "no longer waits" };
    out.text(&visible(&format!("{} {verb} for {}", args.child, args.parent)))?;
    Ok(exit::OK)
}
