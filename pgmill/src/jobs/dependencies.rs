//! `pgmill dependency`: lists, adds and removes dependencies that apply to every job.

use cli::{Exit, Failure};
use conninfo::Client;
use queue::job::{self, Dependency};
use serde_json::json;
use terminal::visible;

use crate::args::{DependencyArgs, DependencyPair, DependencyVerb};
use crate::output::{Output, Row};
use crate::session::change;

/// Runs a subcommand of `pgmill dependency`.
pub(crate) async fn run(client: &mut Client, out: &Output, verb: &DependencyVerb) -> Exit {
    match verb {
        DependencyVerb::List => {
            let nothing = "there are no dependencies that apply to every job";
            out.list(&job::dependencies(client).await?, nothing, row)
        }
        DependencyVerb::Add(args) => add(client, out, args).await,
        DependencyVerb::Remove(args) => remove(client, out, args).await,
    }
}

fn row(it: &Dependency) -> Row {
    Row::of("child", &it.child).text("parent", &it.parent).text("expected", it.expected)
}

async fn add(client: &mut Client, out: &Output, args: &DependencyArgs) -> Exit {
    let DependencyArgs { pair: DependencyPair { child, parent, dry_run }, expected } = args;
    let (changed, unknown) = change(client, *dry_run, async |to| {
        let changed = job::set_dependency(to, child, parent, *expected).await?;
        Ok((changed, job::unknown_tasks(to, &[child, parent]).await?))
    })
    .await?;
    for name in unknown {
        out.note(visible(&format!("note: no job has a task \"{name}\" yet")));
    }
    let waits = if changed { dry_run.or("would wait", "now waits") } else { "already waits" };
    out.answer(
        json!({
            "child": child, "parent": parent, "expected": expected, "dry_run": dry_run,
            "changed": changed,
        }),
        format!("{child} {waits} for {parent} ({expected}) in every job that has both"),
    )
}

async fn remove(client: &mut Client, out: &Output, args: &DependencyPair) -> Exit {
    let DependencyPair { child, parent, dry_run } = args;
    let removed =
        change(client, *dry_run, async |to| Ok(job::drop_dependency(to, child, parent).await?));
    if !removed.await? {
        let message = format!("there is no dependency {child} < {parent}");
        return Err(Failure::not_found(message).hint("pgmill dependency list"));
    }
    out.answer(
        json!({ "child": child, "parent": parent, "dry_run": dry_run, "removed": true }),
        format!("{child} {} for {parent}", dry_run.or("would no longer wait", "no longer waits")),
    )
}
