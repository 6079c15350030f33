//! `pgmill priority`, `pgmill limit`: weights of priorities, reserved readers, limits and rates.

use cli::{Failure, exit};
use conninfo::{Client, GenericClient};
use queue::limit::{self, Limit, Rate};
use queue::priority::{self, PriorityStatus};
use queue::{LimitKind, Priority};
use serde_json::json;
use terminal::visible;

use crate::args::{
    LimitArgs, LimitFlags, LimitRemoveArgs, LimitVerb, OrOff, PriorityVerb, ReserveArgs, WeightArgs,
};
use crate::output::format::span;
use crate::output::{Field, Output, Tone};
use crate::session::{begin_read_committed, commit_unless_dry_run};

/// Runs a subcommand of `pgmill priority`.
pub(crate) async fn run_priority(
    client: &mut Client,
    out: &Output,
    verb: &PriorityVerb,
) -> Result<u8, Failure> {
    match verb {
        PriorityVerb::List => list_priorities(client, out).await,
        PriorityVerb::Set(args) => set_weights(client, out, args).await,
        PriorityVerb::Reserve(args) => set_reserved_capacity(client, out, args).await,
    }
}

/// Runs a subcommand of `pgmill limit`.
pub(crate) async fn run_limit(
    client: &mut Client,
    out: &Output,
    verb: &LimitVerb,
) -> Result<u8, Failure> {
    match verb {
        LimitVerb::List => list_limits(client, out).await,
        LimitVerb::Set(args) => set_limit(client, out, args).await,
        LimitVerb::Remove(args) => remove_limit(client, out, args).await,
    }
}

/// Lists priorities.
async fn list_priorities(client: &Client, out: &Output) -> Result<u8, Failure> {
    let priorities = priority::priorities(client).await?;
    let capacity = priority::reserved_capacity(client).await?;
    if out.json {
        out.document(&json!({ "priorities": priorities, "reserved_capacity": capacity }))?;
        return Ok(exit::OK);
    }
    let total: f64 = priorities.iter().map(|priority| priority.weight).sum();
    let row = |status: &PriorityStatus| {
        vec![
            Field::new(status.priority),
            Field::new(status.weight),
            Field::new(format!("{:.1} %", status.weight * 100.0 / total)),
            Field::count(status.pending),
            Field::or_blank(status.oldest_pending_age.map(span)),
            Field::count(status.running),
        ]
    };
    let headings = ["priority", "weight", "share", "pending", "oldest", "running"];
    out.print_table(&headings, priorities.iter().map(row).collect())?;
    out.text(&format!("reserved capacity: {capacity}"))?;
    Ok(exit::OK)
}

/// Changes weights.
///
/// # Errors
/// Fails if all weights would be zero.
async fn set_weights(client: &mut Client, out: &Output, args: &WeightArgs) -> Result<u8, Failure> {
    let mut weights = [None; 5];
    for (priority, weight) in &args.weights {
        let place = Priority::ALL.iter().position(|known| known == priority);
        if let Some(slot) = place.and_then(|place| weights.get_mut(place)) {
            *slot = Some(*weight);
        }
    }
    let before = priority::priorities(client).await?;
    let after = before.iter().map(|status| {
        let place = Priority::ALL.iter().position(|known| *known == status.priority);
        let new = place.and_then(|place| weights[place]);
        (status.priority, new.unwrap_or(status.weight))
    });
    let after: Vec<(Priority, f64)> = after.collect();
    let total: f64 = after.iter().map(|(_, weight)| weight).sum();
    if total <= 0.0 {
        return Err(Failure::new(exit::REFUSED, "all weights would be zero")
            .hint("At least one weight must be greater than zero."));
    }
    let transaction = begin_read_committed(client).await?;
    priority::set_weights(&transaction, &weights).await?;
    commit_unless_dry_run(transaction, args.dry_run).await?;
    if out.json {
        let weights: serde_json::Map<_, _> =
            after.iter().map(|(priority, weight)| (priority.to_string(), json!(weight))).collect();
        out.document(&json!({ "dry_run": args.dry_run, "weights": weights }))?;
        return Ok(exit::OK);
    }
    let shares: Vec<String> = after
        .iter()
        .map(|(priority, weight)| format!("{priority} {:.1} %", weight * 100.0 / total))
        .collect();
    let would = if args.dry_run { " would be" } else { "" };
    out.text(&format!("shares{would}: {}", shares.join(", ")))?;
    Ok(exit::OK)
}

/// Sets the share of the readers that run only tasks of the priority `reserved`.
async fn set_reserved_capacity(
    client: &mut Client,
    out: &Output,
    args: &ReserveArgs,
) -> Result<u8, Failure> {
    let was = priority::reserved_capacity(client).await?;
    let transaction = begin_read_committed(client).await?;
    priority::set_reserved_capacity(&transaction, args.capacity).await?;
    commit_unless_dry_run(transaction, args.dry_run).await?;
    if out.json {
        out.document(&json!({
            "dry_run": args.dry_run, "was": was, "reserved_capacity": args.capacity,
        }))?;
        return Ok(exit::OK);
    }
    let would = if args.dry_run { "would be" } else { "is" };
    out.text(&format!("reserved capacity {would} {} (was {was})", args.capacity))?;
    Ok(exit::OK)
}

/// Lists limits.
async fn list_limits(client: &Client, out: &Output) -> Result<u8, Failure> {
    let limits = limit::limits(client).await?;
    if out.json {
        out.document(&limits)?;
        return Ok(exit::OK);
    }
    if limits.is_empty() {
        out.note("there are no limits");
        return Ok(exit::OK);
    }
    let row = |limit: &Limit| {
        let full =
            limit.max_running.is_some_and(|max_running| limit.running >= i64::from(max_running));
        vec![
            Field::new(limit.kind),
            Field::new(&limit.name),
            Field::or_blank(limit.run_id),
            Field::new(format_max_running(limit.max_running)),
            Field::or_blank(limit.rate.map(format_rate)),
            Field::count(limit.running).tone(if full { Tone::Warning } else { Tone::Plain }),
            Field::count(limit.waiting),
        ]
    };
    let headings = ["kind", "name", "run", "max running", "rate", "permits", "waiting"];
    out.print_table(&headings, limits.iter().map(row).collect())?;
    Ok(exit::OK)
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
async fn remove_limit(
    client: &mut Client,
    out: &Output,
    args: &LimitRemoveArgs,
) -> Result<u8, Failure> {
    let transaction = begin_read_committed(client).await?;
    let removed = limit::remove(&transaction, &args.key).await?;
    commit_unless_dry_run(transaction, args.dry_run).await?;
    if !removed {
        return Err(unknown_key(&args.key));
    }
    if out.json {
        out.document(&json!({ "key": args.key, "dry_run": args.dry_run, "removed": true }))?;
    } else {
        let verb = if args.dry_run { "would be removed" } else { "removed" };
        out.text(&visible(&format!("limit of the key {} {verb}", args.key)))?;
    }
    Ok(exit::OK)
}

fn unknown_key(key: &str) -> Failure {
    Failure::not_found(format!("no task has had the key {}", visible(key)))
        .hint("Check the key with pgmill limit list.")
}

/// Changes the limit of a concurrency key.
///
/// # Errors
/// Fails for an unknown key, unless it is to be created.
async fn set_limit(client: &mut Client, out: &Output, args: &LimitArgs) -> Result<u8, Failure> {
    let transaction = begin_read_committed(client).await?;
    if !args.create && !limit::key_is_known(&transaction, &args.key).await? {
        return Err(unknown_key(&args.key)
            .hint("Check the key with pgmill limit list, or add --create to prepare a new key."));
    }
    let on = (LimitKind::Key, args.key.as_str());
    let changes = apply_limits(&transaction, on, args.limits).await?;
    commit_unless_dry_run(transaction, args.dry_run).await?;
    if out.json {
        out.document(&json!({
            "key": args.key, "dry_run": args.dry_run,
            "max_running": args.limits.max_running.and_then(|it| it.0),
            "rate": args.limits.rate.and_then(|it| it.0),
        }))?;
        return Ok(exit::OK);
    }
    let would = if args.dry_run { " would" } else { "" };
    out.text(&format!("tasks with the key {}{would} {}", args.key, changes.join(", and ")))?;
    Ok(exit::OK)
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
