//! `pgmill target`: the other databases in which tasks may run, and their receipts.

use std::collections::HashSet;

use cli::{Exit, Failure, exit};
use conninfo::{Client, ConnectionSource, ConnectionTarget, Environment, GenericClient};
use queue::QueueError;
use queue::profile::drop_profile;
use queue::receipt;
use queue::target::{
    Success, Target, accept_restored, set_target, set_target_conditions, successes, targets,
};
use serde_json::json;
use terminal::{counted, exact_span};

use crate::args::{ObjectName, TargetArgs, TargetCheck, TargetInit, TargetVerb};
use crate::database::profiles::open_to;
use crate::fleet::queues::{describe_conditions, format_conditions};
use crate::output::{Output, Row};
use crate::session::{Action, Session, change, missing};

/// Number of receipts that one statement looks for.
const BATCH_SIZE: usize = 1000;

/// Runs a subcommand of `pgmill target` in the queue's database.
pub(crate) async fn run(client: &mut Client, out: &Output, verb: &TargetVerb) -> Exit {
    match verb {
        TargetVerb::List => out.list(&targets(client).await?, "there are no targets", row),
        TargetVerb::Set(args) => set(client, out, args).await,
        TargetVerb::Remove(args) => remove(client, out, args).await,
        TargetVerb::Check(args) => check(client, out, args).await,
        TargetVerb::Accept(args) => accept(client, out, args).await,
        TargetVerb::Init(args) => init(client, out, args).await,
    }
}

/// Installs the schema for receipts in the database of the session.
///
/// # Errors
/// Fails if the role may not create a schema, or if a login does not exist.
async fn init(client: &Client, out: &Output, args: &TargetInit) -> Exit {
    let logins = args.logins.as_ref().map_or(&[][..], |logins| &logins.0);
    receipt::init(client, logins).await?;
    let installed = "the schema mill_target is installed".to_owned();
    let code = out.shown(&json!({ "logins": logins }), || match logins {
        [] => installed,
        logins => format!("{installed}, for {}", logins.join(", ")),
    })?;
    if logins.is_empty() && !out.json {
        out.note("no login may use it yet: pgmill target init --login LOGIN");
    }
    Ok(code)
}

fn row(target: &Target) -> Row {
    let checked = match (target.restored_at, target.checked_at) {
        (Some(at), _) => format!("restored, found {at:.0}"),
        (None, Some(at)) => format!("{at:.0}"),
        (None, None) => "never".to_owned(),
    };
    Row::of("target", &target.name)
        .text("allowed", target.allowed.join(", "))
        .count("readers", target.readers)
        .text("receipts kept", exact_span(target.receipts_kept_seconds))
        .text("checked", checked)
        .text("conditions", conditions(target))
        .maybe("description", target.description.as_deref())
}

/// Formats the conditions of a target, and which of them does not hold.
fn conditions(target: &Target) -> String {
    let held_back = target.held_back.as_ref().map(|reason| format!("held back: {reason}"));
    let parts = held_back.into_iter().chain(format_conditions(&target.conditions));
    parts.collect::<Vec<_>>().join(", ")
}

/// Creates or changes a target.
///
/// # Errors
/// Fails for a role that does not exist, for a profile in use, or without membership in mill_owner.
async fn set(client: &mut Client, out: &Output, args: &TargetArgs) -> Exit {
    let TargetArgs { name, dry_run, .. } = args;
    let (conditions, now) = change(client, *dry_run, async |to| {
        let allowed = args.allow.as_ref().map(|roles| roles.0.as_slice());
        let kept = args.keep.as_ref().map(|keep| keep.0);
        set_target(to, name, allowed, args.description.as_deref(), kept).await?;
        let was = find(to, name).await?.map(|target| target.conditions).unwrap_or_default();
        let conditions = args.conditions.merged(was);
        if let Some(conditions) = conditions {
            set_target_conditions(to, name, conditions).await?;
        }
        Ok((conditions, find(to, name).await?.ok_or_else(|| missing("target", name))?))
    })
    .await?;
    let starts = conditions.map_or_else(String::new, |conditions| {
        format!("; its tasks start {}", describe_conditions(&conditions))
    });
    let text = format!("target {name} {}{starts}", open_to(&now.allowed, *dry_run));
    let code = out.answer(json!({ "dry_run": dry_run, "target": now }), text)?;
    if now.readers == 0 && !out.json {
        out.note(format!("no live worker has [targets.{name}] in its configuration"));
    }
    Ok(code)
}

/// Removes a target and its profile.
///
/// # Errors
/// Fails if there is no such target, if tasks or jobs use it, or without membership in mill_owner.
async fn remove(client: &mut Client, out: &Output, args: &ObjectName) -> Exit {
    Action { kind: "target", done: "removed" }
        .run((client, out), args, async |to| {
            // A profile that is no target stays.
            let is_target = find(to, &args.name).await?.is_some();
            Ok(is_target && drop_profile(to, &args.name).await?)
        })
        .await
}

/// Ends the problem of a restored target.
///
/// # Errors
/// Fails if there is no such target, or if it was not restored.
async fn accept(client: &mut Client, out: &Output, args: &ObjectName) -> Exit {
    Action { kind: "target", done: "accepted" }
        .run((client, out), args, async |to| {
            if find(to, &args.name).await?.is_none() {
                return Ok(false);
            }
            if !accept_restored(to, &args.name).await? {
                let message = format!("target {} was not restored", args.name);
                return Err(Failure::new(exit::REFUSED, message));
            }
            Ok(true)
        })
        .await
}

async fn find(client: &impl GenericClient, name: &str) -> Result<Option<Target>, QueueError> {
    Ok(targets(client).await?.into_iter().find(|target| target.name == name))
}

/// Lists the successes without a receipt.
///
/// # Errors
/// Fails if the target is unreachable, or without privileges there.
async fn check(client: &Client, out: &Output, args: &TargetCheck) -> Exit {
    find(client, &args.name).await?.ok_or_else(|| missing("target", &args.name))?;
    let source = ConnectionSource::File(args.target_url_file.clone());
    let place = ConnectionTarget::from_source(Some(source), &Environment::from_process())?
        .with_safe_search_path();
    let in_target = Session::open_at(&place).await?;
    receipt::check(&in_target.client).await?;
    let successes = successes(client, &args.name, args.since.0).await?;
    let mut missing = HashSet::new();
    for batch in successes.chunks(BATCH_SIZE) {
        let receipts: Vec<_> = batch.iter().map(|success| success.receipt).collect();
        missing.extend(receipt::missing(&in_target.client, &receipts).await?);
    }
    let lost: Vec<_> = successes.iter().filter(|it| missing.contains(&it.receipt)).collect();
    let compared = successes.len();
    if out.json {
        let task =
            |it: &&Success| json!({ "task": it.task.0, "finished_at": it.finished_at.to_string() });
        let tasks: Vec<_> = lost.iter().map(task).collect();
        out.document(&json!({ "target": args.name, "compared": compared, "missing": tasks }))?;
    } else {
        let compared = counted(compared, "succeeded task");
        out.note(format!("{compared} compared, {} without a receipt", lost.len()));
        let row = |it: &&Success| {
            Row::of("task", it.task).text("finished", format!("{:.0}", it.finished_at))
        };
        out.print_table(lost.iter().map(row).collect())?;
    }
    Ok(if lost.is_empty() { exit::OK } else { exit::FAILURE })
}
