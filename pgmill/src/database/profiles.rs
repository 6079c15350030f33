//! `pgmill profile`: lists, changes and removes the logins that tasks may run as.

use cli::{Failure, exit};
use conninfo::Client;
use queue::profile::{Profile, drop_profile, profiles, set_profile, set_profile_routines};
use serde_json::json;

use crate::args::{ProfileArgs, ProfileName, ProfileVerb};
use crate::output::{Field, Output};
use crate::session::{begin_read_committed, commit_unless_dry_run};

const HEADINGS: [&str; 7] =
    ["profile", "allowed", "routines", "readers", "pending", "running", "description"];

/// Runs a subcommand of `pgmill profile`.
pub(crate) async fn run(
    client: &mut Client,
    out: &Output,
    verb: &ProfileVerb,
) -> Result<u8, Failure> {
    match verb {
        ProfileVerb::List => list(client, out).await,
        ProfileVerb::Set(args) => set(client, out, args).await,
        ProfileVerb::Remove(args) => remove(client, out, args).await,
    }
}

/// Lists profiles.
async fn list(client: &Client, out: &Output) -> Result<u8, Failure> {
    let profiles = profiles(client).await?;
    if out.json {
        out.document(&profiles)?;
    } else if profiles.is_empty() {
        out.note("there are no profiles");
    } else {
        let row = |profile: &Profile| {
            vec![
                Field::new(&profile.name),
                Field::new(profile.allowed.join(", ")),
                Field::new(profile.routines.as_ref().map_or("any".to_owned(), |it| it.join(", "))),
                Field::count(profile.readers),
                Field::count(profile.pending),
                Field::count(profile.running),
                Field::or_blank(profile.description.as_deref()),
            ]
        };
        out.print_table(&HEADINGS, profiles.iter().map(row).collect())?;
    }
    Ok(exit::OK)
}

/// Creates or changes a profile.
///
/// # Errors
/// Fails for a role that does not exist, or without membership in mill_owner.
async fn set(client: &mut Client, out: &Output, args: &ProfileArgs) -> Result<u8, Failure> {
    let transaction = begin_read_committed(client).await?;
    let name = &args.name;
    let allowed = args.allow.as_ref().map(|roles| roles.0.as_slice());
    set_profile(&transaction, name, allowed, args.description.as_deref()).await?;
    if let Some(routines) = &args.routines {
        let routines = Some(routines.0.as_slice()).filter(|names| *names != ["off"]);
        set_profile_routines(&transaction, name, routines).await?;
    }
    let profiles = profiles(&transaction).await?;
    commit_unless_dry_run(transaction, args.dry_run).await?;
    let Some(now) = profiles.iter().find(|profile| profile.name == *name) else {
        return Err(Failure::not_found(format!("profile {name} no longer exists")));
    };
    if out.json {
        out.document(&json!({ "dry_run": args.dry_run, "profile": now }))?;
        return Ok(exit::OK);
    }
    let verb = if args.dry_run { "would be" } else { "is" };
    let allowed = match now.allowed.join(", ") {
        none if none.is_empty() => "no role".to_owned(),
        allowed => format!("members of {allowed}"),
    };
    out.text(&format!("profile {name} {verb} open to {allowed}"))?;
    if now.readers == 0 {
        out.note(format!("no live worker has [run_as.{name}] in its configuration"));
    }
    Ok(exit::OK)
}

/// Removes a profile.
///
/// # Errors
/// Fails if there is no such profile, if tasks or jobs use it, or without membership in mill_owner.
async fn remove(client: &mut Client, out: &Output, args: &ProfileName) -> Result<u8, Failure> {
    let transaction = begin_read_committed(client).await?;
    let removed = drop_profile(&transaction, &args.name).await?;
    commit_unless_dry_run(transaction, args.dry_run).await?;
    if !removed {
        return Err(Failure::not_found(format!("there is no profile {}", args.name))
            .hint("pgmill profile list"));
    }
    if out.json {
        out.document(&json!({ "profile": args.name, "dry_run": args.dry_run, "removed": true }))?;
    } else {
        let verb = if args.dry_run { "would be removed" } else { "removed" };
        out.text(&format!("profile {} {verb}", args.name))?;
    }
    Ok(exit::OK)
}
