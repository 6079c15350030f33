//! `pgmill group`: lists, creates, changes and removes groups, and sets the default group.

use cli::Exit;
use conninfo::Client;
use queue::group::{self, Group};
use serde_json::json;

use crate::args::{GroupArgs, GroupVerb, ObjectName};
use crate::fleet::capacity::format_max_running;
use crate::fleet::group_import;
use crate::fleet::group_settings::apply;
use crate::output::format::local_time;
use crate::output::{Output, Row};
use crate::session::{Action, change, missing};

/// Runs a subcommand of `pgmill group`.
pub(crate) async fn run(client: &mut Client, out: &Output, verb: &GroupVerb) -> Exit {
    match verb {
        GroupVerb::List => out.list(&group::groups(client).await?, "there are no groups", row),
        GroupVerb::Set(args) => set(client, out, args).await,
        GroupVerb::Default(args) => set_default(client, out, args).await,
        GroupVerb::Import(args) => group_import::run(client, out, args).await,
        GroupVerb::Remove(args) => {
            Action { kind: "group", done: "removed" }
                .run((client, out), args, async |to| Ok(group::drop_group(to, &args.name).await?))
                .await
        }
    }
}

fn row(group: &Group) -> Row {
    let name = format!("{}{}", group.name, if group.default { " (default)" } else { "" });
    Row::of("group", name)
        .maybe("priority", group.priority)
        .text("max running", format_max_running(group.max_running))
        .warn_if(group.max_running == Some(0))
        .maybe("active", active(group))
        .warn_if(!group.open)
        .count("pending", group.pending)
        .count("running", group.running)
        .count("blocked", group.blocked)
        .maybe("description", group.description.as_deref())
}

fn active(group: &Group) -> Option<String> {
    let period = group.active_period.as_ref()?;
    let until = group.next_change_at.map(|turn| {
        format!(", {} until {}", if group.open { "open" } else { "closed" }, local_time(turn))
    });
    let (opens, closes) = (period.opens.strftime("%H:%M"), period.closes.strftime("%H:%M"));
    Some(format!("{opens}-{closes} {}{}", period.zone, until.unwrap_or_default()))
}

/// Creates or changes a group.
///
/// # Errors
/// Fails for an unknown time zone.
async fn set(client: &mut Client, out: &Output, args: &GroupArgs) -> Exit {
    let GroupArgs { name, dry_run, .. } = args;
    let (is_new, groups) = change(client, *dry_run, async |to| {
        let is_new = !group::groups(to).await?.iter().any(|group| group.name == *name);
        apply(to, args).await?;
        Ok((is_new, group::groups(to).await?))
    })
    .await?;
    let now = groups.iter().find(|group| group.name == *name);
    let now = now.ok_or_else(|| missing("group", name))?;
    let verb = if is_new { "created" } else { "changed" };
    let priority = now.priority.map_or("normal", queue::Priority::as_str);
    out.answer(
        json!({ "dry_run": dry_run, "new": is_new, "group": now }),
        format!(
            "group {name} {}{verb}: priority {priority}, max running {}, active {}",
            dry_run.or("would be ", ""),
            format_max_running(now.max_running),
            active(now).unwrap_or_else(|| "at any time".to_owned())
        ),
    )
}

/// Sets the default group.
///
/// # Errors
/// Fails if there is no such group.
async fn set_default(client: &mut Client, out: &Output, args: &ObjectName) -> Exit {
    let name = Some(args.name.as_str()).filter(|name| *name != "off");
    change(client, args.dry_run, async |to| Ok(group::set_default_group(to, name).await?)).await?;
    let get = args.dry_run.or("would get", "get");
    let text = match name {
        Some(name) => format!("new tasks without a group {get} the group {name}"),
        None => format!("new tasks without a group {get} no group"),
    };
    out.answer(json!({ "dry_run": args.dry_run, "default_group": name }), text)
}
