//! `pgmill target`: the other databases in which tasks may run, and their receipts.

use std::collections::HashSet;

use cli::{Failure, exit};
use conninfo::{Client, ConnectionSource, ConnectionTarget, Environment, GenericClient};
use queue::QueueError;
use queue::profile::drop_profile;
use queue::receipt;
use queue::target::{
    Success, Target, accept_restored, set_target, set_target_conditions, successes, targets,
};
use serde_json::json;
use terminal::{counted, exact_span};

use crate::args::{TargetArgs, TargetCheck, TargetInit, TargetName, TargetVerb};
use crate::fleet::queues::{describe_conditions, format_conditions};
use crate::output::{Field, Output};
use crate::session::{Session, begin_read_committed, commit_unless_dry_run};

const HEADINGS: [&str; 7] =
    ["target", "allowed", "readers", "receipts kept", "checked", "conditions", "description"];

/// Number of receipts that one statement looks for.
const BATCH_SIZE: usize = 1000;

/// Runs a subcommand of `pgmill target` in the queue's database.
pub(crate) async fn run(
    client: &mut Client,
    out: &Output,
    verb: &TargetVerb,
) -> Result<u8, Failure> {
    match verb {
        TargetVerb::List => list(client, out).await,
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
async fn init(client: &Client, out: &Output, args: &TargetInit) -> Result<u8, Failure> {
    let logins = args.logins.as_ref().map_or(&[][..], |logins| &logins.0);
    receipt::init(client, logins).await?;
    if out.json {
        out.document(&json!({ "logins": logins }))?;
    } else if logins.is_empty() {
        out.text("the schema mill_target is installed")?;
        out.note("no login may use it yet: pgmill target init --login LOGIN");
    } else {
        out.text(&format!("the schema mill_target is installed, for {}", logins.join(", ")))?;
    }
    Ok(exit::OK)
}

async fn list(client: &Client, out: &Output) -> Result<u8, Failure> {
    let targets = targets(client).await?;
    if out.json {
        out.document(&targets)?;
    } else if targets.is_empty() {
        out.note("there are no targets");
    } else {
        let row = |target: &Target| {
            vec![
                Field::new(&target.name),
                Field::new(target.allowed.join(", ")),
                Field::count(target.readers),
                Field::new(exact_span(target.receipts_kept_seconds)),
                match (target.restored_at, target.checked_at) {
                    (Some(at), _) => Field::new(format!("restored, found {at:.0}")),
                    (None, Some(at)) => Field::new(format!("{at:.0}")),
                    (None, None) => Field::new("never"),
                },
                Field::new(conditions(target)),
                Field::or_blank(target.description.as_deref()),
            ]
        };
        out.print_table(&HEADINGS, targets.iter().map(row).collect())?;
    }
    Ok(exit::OK)
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
async fn set(client: &mut Client, out: &Output, args: &TargetArgs) -> Result<u8, Failure> {
    let transaction = begin_read_committed(client).await?;
    let name = &args.name;
    let allowed = args.allow.as_ref().map(|roles| roles.0.as_slice());
    let kept = args.keep.as_ref().map(|keep| keep.0);
    set_target(&transaction, name, allowed, args.description.as_deref(), kept).await?;
    let was = find(&transaction, name).await?.map(|target| target.conditions).unwrap_or_default();
    let conditions = args.conditions.merged(was);
    if let Some(conditions) = conditions {
        set_target_conditions(&transaction, name, conditions).await?;
    }
    let now = find(&transaction, name).await?;
    commit_unless_dry_run(transaction, args.dry_run).await?;
    let Some(now) = now else {
        return Err(Failure::not_found(format!("target {name} no longer exists")));
    };
    if out.json {
        out.document(&json!({ "dry_run": args.dry_run, "target": now }))?;
        return Ok(exit::OK);
    }
    let verb = if args.dry_run { "would be" } else { "is" };
    let allowed = match now.allowed.join(", ") {
        none if none.is_empty() => "no role".to_owned(),
        allowed => format!("members of {allowed}"),
    };
    let starts = conditions.map_or_else(String::new, |conditions| {
        format!("; its tasks start {}", describe_conditions(&conditions))
    });
    out.text(&format!("target {name} {verb} open to {allowed}{starts}"))?;
    if now.readers == 0 {
        out.note(format!("no live worker has [targets.{name}] in its configuration"));
    }
    Ok(exit::OK)
}

/// Removes a target and its profile.
///
/// # Errors
/// Fails if there is no such target, if tasks or jobs use it, or without membership in mill_owner.
async fn remove(client: &mut Client, out: &Output, args: &TargetName) -> Result<u8, Failure> {
    known(client, &args.name).await?;
    let transaction = begin_read_committed(client).await?;
    drop_profile(&transaction, &args.name).await?;
    commit_unless_dry_run(transaction, args.dry_run).await?;
    report(out, args, "removed")
}

/// Ends the problem of a restored target.
///
/// # Errors
/// Fails if there is no such target.
async fn accept(client: &mut Client, out: &Output, args: &TargetName) -> Result<u8, Failure> {
    known(client, &args.name).await?;
    let transaction = begin_read_committed(client).await?;
    let restored = accept_restored(&transaction, &args.name).await?;
    commit_unless_dry_run(transaction, args.dry_run).await?;
    if !restored {
        return Err(Failure::new(exit::REFUSED, format!("target {} was not restored", args.name)));
    }
    report(out, args, "accepted")
}

fn report(out: &Output, args: &TargetName, done: &str) -> Result<u8, Failure> {
    let TargetName { name, dry_run } = args;
    if out.json {
        out.document(&json!({ "target": name, "dry_run": dry_run, done: true }))?;
    } else {
        let verb = if *dry_run { format!("would be {done}") } else { done.to_owned() };
        out.text(&format!("target {name} {verb}"))?;
    }
    Ok(exit::OK)
}

/// Fails if there is no such target.
async fn known(client: &Client, name: &str) -> Result<(), Failure> {
    if find(client, name).await?.is_some() {
        return Ok(());
    }
    Err(Failure::not_found(format!("there is no target {name}")).hint("pgmill target list"))
}

async fn find(client: &impl GenericClient, name: &str) -> Result<Option<Target>, QueueError> {
    Ok(targets(client).await?.into_iter().find(|target| target.name == name))
}

/// Lists the successes without a receipt.
///
/// # Errors
/// Fails if the target is unreachable, or without privileges there.
async fn check(client: &Client, out: &Output, args: &TargetCheck) -> Result<u8, Failure> {
    known(client, &args.name).await?;
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
    if out.json {
        let tasks: Vec<_> = lost
            .iter()
            .map(|it| json!({ "task": it.task.0, "finished_at": it.finished_at.to_string() }))
            .collect();
        out.document(
            &json!({ "target": args.name, "compared": successes.len(), "missing": tasks }),
        )?;
    } else {
        let compared =
            counted(i64::try_from(successes.len()).unwrap_or(i64::MAX), "succeeded task");
        out.note(format!("{compared} compared, {} without a receipt", lost.len()));
        let row = |it: &&Success| {
            vec![Field::new(it.task.to_string()), Field::new(format!("{:.0}", it.finished_at))]
        };
        if !lost.is_empty() {
            out.print_table(&["task", "finished"], lost.iter().map(row).collect())?;
        }
    }
    Ok(if lost.is_empty() { exit::OK } else { exit::FAILURE })
}
