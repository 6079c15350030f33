//! `pgmill profile`: lists, changes and removes the logins that tasks may run as.

use cli::Exit;
use conninfo::Client;
use queue::profile::{Profile, drop_profile, profiles, set_profile, set_profile_routines};
use serde_json::json;

use crate::args::{DryRun, ProfileArgs, ProfileVerb};
use crate::output::{Output, Row};
use crate::session::{Action, change, missing};

/// Runs a subcommand of `pgmill profile`.
pub(crate) async fn run(client: &mut Client, out: &Output, verb: &ProfileVerb) -> Exit {
    match verb {
        ProfileVerb::List => out.list(&profiles(client).await?, "there are no profiles", row),
        ProfileVerb::Set(args) => set(client, out, args).await,
        ProfileVerb::Remove(args) => {
            Action { kind: "profile", done: "removed" }
                .run((client, out), args, async |to| Ok(drop_profile(to, &args.name).await?))
                .await
        }
    }
}

fn row(profile: &Profile) -> Row {
    let routines = profile.routines.as_ref().map_or("any".to_owned(), |it| it.join(", "));
    Row::of("profile", &profile.name)
        .text("allowed", profile.allowed.join(", "))
        .text("routines", routines)
        .count("readers", profile.readers)
        .count("pending", profile.pending)
        .count("running", profile.running)
        .maybe("description", profile.description.as_deref())
}

/// Creates or changes a profile.
///
/// # Errors
/// Fails for a role that does not exist, or without membership in mill_owner.
async fn set(client: &mut Client, out: &Output, args: &ProfileArgs) -> Exit {
    let ProfileArgs { name, dry_run, .. } = args;
    let now = change(client, *dry_run, async |to| {
        let allowed = args.allow.as_ref().map(|roles| roles.0.as_slice());
        set_profile(to, name, allowed, args.description.as_deref()).await?;
        if let Some(routines) = &args.routines {
            let routines = Some(routines.0.as_slice()).filter(|names| *names != ["off"]);
            set_profile_routines(to, name, routines).await?;
        }
        let now = profiles(to).await?.into_iter().find(|profile| profile.name == *name);
        now.ok_or_else(|| missing("profile", name))
    })
    .await?;
    let text = format!("profile {name} {}", open_to(&now.allowed, *dry_run));
    let code = out.answer(json!({ "dry_run": dry_run, "profile": now }), text)?;
    if now.readers == 0 && !out.json {
        out.note(format!("no live worker has [run_as.{name}] in its configuration"));
    }
    Ok(code)
}

/// Describes who may use a profile or a target.
pub(super) fn open_to(allowed: &[String], dry_run: DryRun) -> String {
    let is = dry_run.or("would be", "is");
    match allowed.join(", ") {
        none if none.is_empty() => format!("{is} open to no role"),
        allowed => format!("{is} open to members of {allowed}"),
    }
}
