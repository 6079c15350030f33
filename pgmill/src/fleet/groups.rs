//! `pgmill group`: lists, creates, changes and removes groups, and sets the default group.

use cli::{Failure, exit};
use conninfo::Client;
use queue::group::{self, Group};
use serde_json::json;

use crate::args::{GroupArgs, GroupDefaultArgs, GroupName, GroupVerb};
use crate::fleet::capacity::format_max_running;
use crate::fleet::group_import;
use crate::fleet::group_settings::apply;
use crate::output::format::local_time;
use crate::output::{Field, Output, Tone};
use crate::session::{begin_read_committed, commit_unless_dry_run};

const HEADINGS: [&str; 8] =
    ["group", "priority", "max running", "active", "pending", "running", "blocked", "description"];

/// Runs a subcommand of `pgmill group`.
pub(crate) async fn run(
    client: &mut Client,
    out: &Output,
    verb: &GroupVerb,
) -> Result<u8, Failure> {
    match verb {
        GroupVerb::List => list(client, out).await,
        GroupVerb::Set(args) => set(client, out, args).await,
        GroupVerb::Default(args) => set_default(client, out, args).await,
        GroupVerb::Import(args) => group_import::run(client, out, args).await,
        GroupVerb::Remove(args) => remove(client, out, args).await,
    }
}

/// Lists groups.
async fn list(client: &Client, out: &Output) -> Result<u8, Failure> {
    let groups = group::groups(client).await?;
    if out.json {
        out.document(&groups)?;
    } else if groups.is_empty() {
        out.note("there are no groups");
    } else {
        let row = |group: &Group| {
            vec![
                Field::new(format!(
                    "{}{}",
                    group.name,
                    if group.default { " (default)" } else { "" }
                )),
                Field::or_blank(group.priority),
                Field::new(format_max_running(group.max_running))
                    .tone(tone(group.max_running == Some(0))),
                Field::or_blank(active(group)).tone(tone(!group.open)),
                Field::count(group.pending),
                Field::count(group.running),
                Field::count(group.blocked),
                Field::or_blank(group.description.as_deref()),
            ]
        };
        out.print_table(&HEADINGS, groups.iter().map(row).collect())?;
    }
    Ok(exit::OK)
}

fn tone(odd: bool) -> Tone {
    if odd { Tone::Warning } else { Tone::Plain }
}

fn active(group: &Group) -> Option<String> {
    let period = group.active_period.as_ref()?;
    let until = group.next_change_at.map(|turn| {
        format!(", {} until {}", if group.open { "open" } else { "closed" }, local_time(turn))
    });
    Some(format!(
        "{}-{} {}{}",
        period.opens.strftime("%H:%M"),
        period.closes.strftime("%H:%M"),
        period.zone,
        until.unwrap_or_default()
    ))
}

/// Creates or changes a group.
///
/// # Errors
/// Fails for an unknown time zone.
async fn set(client: &mut Client, out: &Output, args: &GroupArgs) -> Result<u8, Failure> {
    // One transaction, so that both changes are made or none, and so that a dry run includes the
    // checks of the database.
    let transaction = begin_read_committed(client).await?;
    let is_new = !group::groups(&transaction).await?.iter().any(|group| group.name == args.name);
    apply(&transaction, args).await?;
    let groups = group::groups(&transaction).await?;
    commit_unless_dry_run(transaction, args.dry_run).await?;
    let Some(now) = groups.iter().find(|group| group.name == args.name) else {
        return Err(Failure::not_found(format!("group {} no longer exists", args.name)));
    };
    if out.json {
        out.document(&json!({ "dry_run": args.dry_run, "new": is_new, "group": now }))?;
        return Ok(exit::OK);
    }
    let verb = match (is_new, args.dry_run) {
        (true, true) => "would be created",
        (true, false) => "created",
        (false, true) => "would be changed",
        (false, false) => "changed",
    };
    let priority = now.priority.map_or("normal", queue::Priority::as_str);
    out.text(&format!(
        "group {} {verb}: priority {priority}, max running {}, active {}",
        args.name,
        format_max_running(now.max_running),
        active(now).unwrap_or_else(|| "at any time".to_owned())
    ))?;
    Ok(exit::OK)
}

/// Sets the default group.
///
/// # Errors
/// Fails if there is no such group.
async fn set_default(
    client: &mut Client,
    out: &Output,
    args: &GroupDefaultArgs,
) -> Result<u8, Failure> {
    let name = Some(args.name.as_str()).filter(|name| *name != "off");
    let transaction = begin_read_committed(client).await?;
    group::set_default_group(&transaction, name).await?;
    commit_unless_dry_run(transaction, args.dry_run).await?;
    if out.json {
        out.document(&json!({ "dry_run": args.dry_run, "default_group": name }))?;
        return Ok(exit::OK);
    }
    let verb = if args.dry_run { "would get" } else { "get" };
    out.text(&match name {
        Some(name) => format!("new tasks without a group {verb} the group {name}"),
        None => format!("new tasks without a group {verb} no group"),
    })?;
    Ok(exit::OK)
}

/// Removes a group.
///
/// # Errors
/// Fails if there is no such group, or if it has live tasks.
async fn remove(client: &mut Client, out: &Output, args: &GroupName) -> Result<u8, Failure> {
    let transaction = begin_read_committed(client).await?;
    let removed = group::drop_group(&transaction, &args.name).await?;
    commit_unless_dry_run(transaction, args.dry_run).await?;
    if !removed {
        return Err(Failure::not_found(format!("there is no group {}", args.name))
            .hint("pgmill group list"));
    }
    if out.json {
        out.document(&json!({ "group": args.name, "dry_run": args.dry_run, "removed": true }))?;
    } else {
        let verb = if args.dry_run { "would be removed" } else { "removed" };
        out.text(&format!("group {} {verb}", args.name))?;
    }
    Ok(exit::OK)
}
