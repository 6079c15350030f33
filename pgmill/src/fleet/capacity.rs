//! `pgmill priority`, `pgmill limit`: weights of priorities, reserved readers, limits and rates.

use cli::{Exit, Failure, exit};
use conninfo::{Client, GenericClient};
use queue::limit::{self, Limit, Rate};
use queue::priority::{self, PriorityStatus};
use queue::{LimitKind, Priority};
use serde_json::{Map, Value, json};
use terminal::visible;

use crate::args::{
    LimitArgs, LimitFlags, LimitVerb, ObjectName, OrOff, PriorityVerb, ReserveArgs, WeightArgs,
};
use crate::output::format::span;
use crate::output::{Output, Row};
use crate::session::change;

/// Runs a subcommand of `pgmill priority`.
pub(crate) async fn run_priority(client: &mut Client, out: &Output, verb: &PriorityVerb) -> Exit {
    match verb {
        PriorityVerb::List => list_priorities(client, out).await,
        PriorityVerb::Set(args) => set_weights(client, out, args).await,
        PriorityVerb::Reserve(args) => set_reserved_capacity(client, out, args).await,
    }
}

/// Runs a subcommand of `pgmill limit`.
pub(crate) async fn run_limit(client: &mut Client, out: &Output, verb: &LimitVerb) -> Exit {
    match verb {
        LimitVerb::List => out.list(&limit::limits(client).await?, "there are no limits", row),
        LimitVerb::Set(args) => set_limit(client, out, args).await,
        LimitVerb::Remove(args) => remove_limit(client, out, args).await,
    }
}

/// Lists priorities.
async fn list_priorities(client: &Client, out: &Output) -> Exit {
    let priorities = priority::priorities(client).await?;
    let capacity = priority::reserved_capacity(client).await?;
    if out.json {
        let document = json!({ "priorities": priorities, "reserved_capacity": capacity });
        return out.document(&document);
    }
    let total: f64 = priorities.iter().map(|priority| priority.weight).sum();
    let row = |status: &PriorityStatus| {
        Row::of("priority", status.priority)
            .text("weight", status.weight)
            .text("share", format!("{:.1} %", status.weight * 100.0 / total))
            .count("pending", status.pending)
            .maybe("oldest", status.oldest_pending_age.map(span))
            .count("running", status.running)
    };
    out.print_table(priorities.iter().map(row).collect())?;
    out.text(&format!("reserved capacity: {capacity}"))
}

/// Changes weights.
///
/// # Errors
/// Fails if all weights would be zero.
async fn set_weights(client: &mut Client, out: &Output, args: &WeightArgs) -> Exit {
    let place = |wanted| Priority::ALL.iter().position(|known| *known == wanted);
    let mut weights = [None; 5];
    for (priority, weight) in &args.weights {
        if let Some(slot) = place(*priority).and_then(|place| weights.get_mut(place)) {
            *slot = Some(*weight);
        }
    }
    let before = priority::priorities(client).await?;
    let after = before.iter().map(|status| {
        let new = place(status.priority).and_then(|place| weights[place]);
        (status.priority, new.unwrap_or(status.weight))
    });
    let after: Vec<(Priority, f64)> = after.collect();
    let total: f64 = after.iter().map(|(_, weight)| weight).sum();
    if total <= 0.0 {
        return Err(Failure::new(exit::REFUSED, "all weights would be zero")
            .hint("At least one weight must be greater than zero."));
    }
    change(client, args.dry_run, async |to| Ok(priority::set_weights(to, &weights).await?)).await?;
    let document: Map<String, Value> =
        after.iter().map(|(priority, weight)| (priority.to_string(), json!(weight))).collect();
    let shares: Vec<String> = after
        .iter()
        .map(|(priority, weight)| format!("{priority} {:.1} %", weight * 100.0 / total))
        .collect();
    out.answer(
        json!({ "dry_run": args.dry_run, "weights": document }),
        format!("shares{}: {}", args.dry_run.or(" would be", ""), shares.join(", ")),
    )
}

/// Sets the share of the readers that run only tasks of the priority `reserved`.
async fn set_reserved_capacity(client: &mut Client, out: &Output, args: &ReserveArgs) -> Exit {
    let ReserveArgs { capacity, dry_run } = args;
    let was = priority::reserved_capacity(client).await?;
    change(client, *dry_run, async |to| Ok(priority::set_reserved_capacity(to, *capacity).await?))
        .await?;
    out.answer(
        json!({ "dry_run": dry_run, "was": was, "reserved_capacity": capacity }),
        format!("reserved capacity {} {capacity} (was {was})", dry_run.or("would be", "is")),
    )
}

fn row(limit: &Limit) -> Row {
    let full = limit.max_running.is_some_and(|most| limit.running >= i64::from(most));
    Row::of("kind", limit.kind)
        .text("name", &limit.name)
        .maybe("run", limit.run_id)
        .text("max running", format_max_running(limit.max_running))
        .maybe("rate", limit.rate.map(format_rate))
        .count("permits", limit.running)
        .warn_if(full)
        .count("waiting", limit.waiting)
}

/// Formats a limit of running tasks as all lists show it: `off`, `paused` or the number.
pub(crate) fn format_max_running(max_running: Option<i32>) -> String {
    match max_running {
        None => "off".to_owned(),
        Some(0) => "paused".to_owned(),
        Some(max_running) => max_running.to_string(),
    }
}

/// Formats a rate: `100 in 1m 0s`.
pub(crate) fn format_rate(rate: Rate) -> String {
    format!("{} in {}", rate.starts, span(rate.period.as_secs_f64()))
}

/// Removes the limit of a concurrency key.
///
/// # Errors
/// Fails if there is none, or while live tasks have it.
async fn remove_limit(client: &mut Client, out: &Output, args: &ObjectName) -> Exit {
    let ObjectName { name: key, dry_run } = args;
    if !change(client, *dry_run, async |to| Ok(limit::remove(to, key).await?)).await? {
        return Err(unknown_key(key));
    }
    let document = json!({ "key": key, "dry_run": dry_run, "removed": true });
    out.answer(document, format!("limit of the key {key} {}removed", dry_run.or("would be ", "")))
}

fn unknown_key(key: &str) -> Failure {
    Failure::not_found(format!("no task has had the key {}", visible(key)))
        .hint("Check the key with pgmill limit list.")
}

/// Changes the limit of a concurrency key.
///
/// # Errors
/// Fails for an unknown key, unless it is to be created.
async fn set_limit(client: &mut Client, out: &Output, args: &LimitArgs) -> Exit {
    let LimitArgs { key, limits, dry_run, .. } = args;
    let changes = change(client, *dry_run, async |to| {
        if args.create || limit::key_is_known(to, key).await? {
            return apply_limits(to, (LimitKind::Key, key), *limits).await;
        }
        Err(unknown_key(key)
            .hint("Check the key with pgmill limit list, or add --create to prepare a new key."))
    })
    .await?;
    let max_running = limits.max_running.and_then(|it| it.0);
    let rate = limits.rate.and_then(|it| it.0);
    out.answer(
        json!({ "key": key, "dry_run": dry_run, "max_running": max_running, "rate": rate }),
        format!("tasks with the key {key}{} {}", dry_run.or(" would", ""), changes.join(", and ")),
    )
}

/// Sets the given limits, and returns their descriptions.
pub(crate) async fn apply_limits(
    client: &impl GenericClient,
    on: (LimitKind, &str),
    limits: LimitFlags,
) -> Result<Vec<String>, Failure> {
    let (kind, name) = on;
    let mut parts = Vec::new();
    if let Some(OrOff(max_running)) = limits.max_running {
        limit::set_max_running(client, kind, name, max_running).await?;
        parts.push(match max_running {
            None => "run without a limit".to_owned(),
            Some(0) => "no longer start (paused)".to_owned(),
            Some(max_running) => format!("run at most {max_running} at once"),
        });
    }
    if let Some(OrOff(starts)) = limits.rate {
        limit::set_rate(client, kind, name, starts).await?;
        parts.push(starts.map_or("start without a rate limit".to_owned(), |starts| {
            format!("start at most {}", format_rate(starts))
        }));
    }
    Ok(parts)
}
