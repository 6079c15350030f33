//! `pgmill queue`: lists, pauses, resumes and configures queues.

use cli::{Exit, Failure};
use conninfo::{Client, GenericClient};
use queue::operate::QueueConditions;
use queue::queue_status::{self, QueueStatus};
use queue::{LimitKind, QueueError, operate};
use serde_json::json;

use crate::args::{QueueArgs, QueuePauseArgs, QueueSetArgs, QueueVerb};
use crate::fleet::capacity::{apply_limits, format_rate};
use crate::fleet::purge;
use crate::output::format::{counted, span};
use crate::output::{Output, Row};
use crate::session::change;

/// Runs a subcommand of `pgmill queue`.
pub(crate) async fn run(client: &mut Client, out: &Output, verb: &QueueVerb) -> Exit {
    match verb {
        QueueVerb::List => {
            let queues = queue_status::queues(client).await?;
            out.list(&queues, "no queue has live tasks or settings", row)
        }
        QueueVerb::Pause(args) => pause(client, out, args).await,
        QueueVerb::Resume(args) => resume(client, out, args).await,
        QueueVerb::Set(args) => set(client, out, args).await,
        QueueVerb::Purge(args) => purge::run(client, out, args).await,
        QueueVerb::Remove(args) => remove(client, out, args).await,
    }
}

/// The row of a queue. A task can become pending shortly before it is due. Its age is then negative,
/// and shown as 0.
pub(crate) fn row(status: &QueueStatus) -> Row {
    Row::of("queue", &status.queue)
        .count("pending", status.pending)
        .maybe("oldest", status.oldest_pending_seconds.map(span))
        .count("running", status.running)
        .maybe("longest", status.longest_running_seconds.map(span))
        .count("scheduled", status.scheduled)
        .count("blocked", status.blocked)
        .text("", settings(status))
        .warn_if(status.paused || status.held_back.is_some())
}

/// Refuses a name that no task, setting or worker has, unless it is to be created: it is probably
/// misspelled.
async fn check_known(client: &impl GenericClient, name: &str, create: bool) -> Result<(), Failure> {
    if create || operate::queue_is_known(client, name).await? {
        return Ok(());
    }
    Err(Failure::not_found(format!("queue {name} has no tasks, no settings and no worker"))
        .hint("Check the name with pgmill queue list, or add --create to prepare a new queue."))
}

/// Removes the settings of a queue.
///
/// # Errors
/// Fails if the queue has no settings, or while live tasks have its limit.
async fn remove(client: &mut Client, out: &Output, args: &QueueArgs) -> Exit {
    let QueueArgs { name, dry_run } = args;
    if !change(client, *dry_run, async |to| Ok(operate::remove_queue(to, name).await?)).await? {
        return Err(
            Failure::not_found(format!("queue {name} has no settings")).hint("pgmill queue list")
        );
    }
    let would = dry_run.or("would be ", "");
    out.answer(
        json!({ "queue": name, "dry_run": dry_run, "removed": true }),
        format!("settings of queue {name} {would}removed"),
    )
}

/// Stops claiming from a queue.
///
/// # Errors
/// Fails for an unknown queue, unless it is to be created.
async fn pause(client: &mut Client, out: &Output, args: &QueuePauseArgs) -> Exit {
    let QueuePauseArgs { queue: QueueArgs { name, dry_run }, create } = args;
    let found = change(client, *dry_run, async |to| {
        check_known(to, name, *create).await?;
        let found = find(to, name).await?;
        operate::pause(to, name).await?;
        Ok(found)
    })
    .await?;
    let (was, pending, running) =
        found.map_or((false, 0, 0), |queue| (queue.paused, queue.pending, queue.running));
    let verb = if was { "already paused" } else { dry_run.or("would be paused", "paused") };
    out.answer(
        json!({ "queue": name, "dry_run": dry_run, "was_paused": was, "paused": true }),
        format!(
            "queue {name} {verb}: {} not claimed, {} {}",
            counted(pending, "pending task"),
            counted(running, "running task"),
            if running == 1 { "continues" } else { "continue" }
        ),
    )
}

/// Resumes claiming from a queue.
///
/// # Errors
/// Fails if there is no such queue.
async fn resume(client: &mut Client, out: &Output, args: &QueueArgs) -> Exit {
    let QueueArgs { name, dry_run } = args;
    let found = change(client, *dry_run, async |to| {
        let found = find(to, name).await?.ok_or_else(|| {
            Failure::not_found(format!("queue {name} has no live tasks and no settings"))
                .hint("pgmill queue list")
        })?;
        operate::resume(to, name).await?;
        Ok(found)
    })
    .await?;
    let pending = counted(found.pending, "pending task");
    let text = match found.paused {
        false => format!("queue {name} was not paused"),
        true => format!("queue {name} {}resumed: {pending}", dry_run.or("would be ", "")),
    };
    let was = found.paused;
    let document = json!({ "queue": name, "dry_run": dry_run, "was_paused": was, "paused": false });
    out.answer(document, text)
}

/// Changes the settings of a queue, all of them or none.
///
/// # Errors
/// Fails for an unknown queue, unless it is to be created, and if the database refuses a setting.
async fn set(client: &mut Client, out: &Output, args: &QueueSetArgs) -> Exit {
    let QueueSetArgs { name, dry_run, .. } = args;
    let (was, now, parts) = change(client, *dry_run, async |to| {
        check_known(to, name, args.create).await?;
        let was = find(to, name).await?;
        let mut parts = Vec::new();
        if let Some(budget) = args.shared_commit.map(|budget| budget.0) {
            operate::set_shared_commit(to, name, budget).await?;
            parts.push(budget.map_or("commit separately".to_owned(), |budget| {
                format!("share commits for up to {}", span(budget.as_secs_f64()))
            }));
        }
        parts.extend(apply_limits(to, (LimitKind::Queue, name), args.limits).await?);
        parts.extend(set_storage(to, args).await?);
        parts.extend(set_conditions(to, args, was.as_ref()).await?);
        Ok((was, if out.json { find(to, name).await? } else { None }, parts))
    })
    .await?;
    out.answer(
        json!({ "queue": name, "dry_run": dry_run, "was": was, "now": now }),
        format!("tasks of queue {name}{} {}", dry_run.or(" would", ""), parts.join(", and ")),
    )
}

/// Sets what is stored of finished tasks. Returns the changes in words.
async fn set_storage(
    client: &impl GenericClient,
    args: &QueueSetArgs,
) -> Result<Vec<String>, QueueError> {
    let (params, output) = (args.store_params, args.store_output);
    if params.or(output).is_some() {
        operate::set_queue_storage(client, &args.name, params, output).await?;
    }
    let change = |(what, stored): (&str, Option<bool>)| match stored {
        Some(true) => Some(format!("store their {what}")),
        Some(false) => Some(format!("do not store their {what}")),
        None => None,
    };
    Ok([("params", params), ("output", output)].into_iter().filter_map(change).collect())
}

/// Sets the given conditions, and keeps the others. Returns the conditions in words.
async fn set_conditions(
    client: &impl GenericClient,
    args: &QueueSetArgs,
    was: Option<&QueueStatus>,
) -> Result<Vec<String>, QueueError> {
    let was = was.map(|was| was.conditions).unwrap_or_default();
    let Some(conditions) = args.conditions.merged(was) else { return Ok(Vec::new()) };
    operate::set_queue_conditions(client, &args.name, conditions).await?;
    Ok(vec![format!("start {}", describe_conditions(&conditions))])
}

/// Describes under which conditions tasks start: "only with max snapshot age 15m".
pub(crate) fn describe_conditions(conditions: &QueueConditions) -> String {
    let given = format_conditions(conditions);
    if given.is_empty() {
        "under any conditions".to_owned()
    } else {
        format!("only with {}", given.join(", "))
    }
}

/// Formats the conditions of a queue or a target.
pub(crate) fn format_conditions(conditions: &QueueConditions) -> Vec<String> {
    let QueueConditions {
        max_replication_lag_seconds,
        max_snapshot_age_seconds,
        max_active_sessions,
    } = conditions;
    let lag = max_replication_lag_seconds.map(|lag| format!("max replication lag {}", span(lag)));
    let age = max_snapshot_age_seconds.map(|age| format!("max snapshot age {}", span(age)));
    let sessions = max_active_sessions.map(|count| format!("max active sessions {count}"));
    [lag, age, sessions].into_iter().flatten().collect()
}

/// Formats the settings of a queue.
fn settings(status: &QueueStatus) -> String {
    let paused = status.paused.then(|| "paused".to_owned());
    let held_back = status.held_back.as_ref().map(|reason| format!("held back: {reason}"));
    let conditions = format_conditions(&status.conditions);
    let shared =
        status.shared_commit_seconds.map(|budget| format!("shared commit {}", span(budget)));
    let max_running = status.max_running.map(|max_running| format!("max running {max_running}"));
    let starts = status.rate.map(|starts| format!("rate {}", format_rate(starts)));
    let params = (!status.store_params).then(|| "params not stored".to_owned());
    let output = (!status.store_output).then(|| "output not stored".to_owned());
    let settings = [paused, held_back, shared, max_running, starts, params, output];
    settings.into_iter().flatten().chain(conditions).collect::<Vec<_>>().join(", ")
}

async fn find(client: &impl GenericClient, name: &str) -> Result<Option<QueueStatus>, Failure> {
    Ok(queue_status::queues(client).await?.into_iter().find(|status| status.queue == name))
}
