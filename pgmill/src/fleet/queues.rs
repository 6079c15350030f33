//! `pgmill queue`: lists, pauses, resumes and configures queues.

use cli::{Failure, exit};
use conninfo::{Client, GenericClient};
use queue::queue_status::{self, QueueConditions, QueueStatus};
use queue::{LimitKind, QueueError, operate};
use serde_json::json;

use crate::args::{QueueArgs, QueuePauseArgs, QueueSetArgs, QueueVerb};
use crate::fleet::capacity::{apply_limits, format_rate};
use crate::fleet::purge;
use crate::output::format::{counted, span};
use crate::output::{Field, Output, Tone};
use crate::session::{begin_read_committed, commit_unless_dry_run};

const HEADINGS: [&str; 8] =
    ["queue", "pending", "oldest", "running", "longest", "scheduled", "blocked", ""];

/// Runs a subcommand of `pgmill queue`.
pub(crate) async fn run(
    client: &mut Client,
    out: &Output,
    verb: &QueueVerb,
) -> Result<u8, Failure> {
    match verb {
        QueueVerb::List => list(client, out).await,
        QueueVerb::Pause(args) => pause(client, out, args).await,
        QueueVerb::Resume(args) => resume(client, out, args).await,
        QueueVerb::Set(args) => set(client, out, args).await,
        QueueVerb::Purge(args) => purge::run(client, out, args).await,
        QueueVerb::Remove(args) => remove(client, out, args).await,
    }
}

/// Lists queues.
async fn list(client: &Client, out: &Output) -> Result<u8, Failure> {
    let queues = queue_status::queues(client).await?;
    if out.json {
        out.document(&queues)?;
    } else if queues.is_empty() {
        out.note("no queue has live tasks or settings");
    } else {
        out.print_table(&HEADINGS, rows(&queues))?;
    }
    Ok(exit::OK)
}

pub(crate) fn table(out: &Output, queues: &[QueueStatus]) -> String {
    out.table(&HEADINGS, rows(queues))
}

fn rows(queues: &[QueueStatus]) -> Vec<Vec<Field>> {
    let row = |status: &QueueStatus| {
        vec![
            Field::new(&status.queue),
            Field::count(status.pending),
            // A task can become pending shortly before it is due. Its age is then negative, and
            // shown as 0.
            Field::or_blank(status.oldest_pending_seconds.map(span)),
            Field::count(status.running),
            Field::or_blank(status.longest_running_seconds.map(span)),
            Field::count(status.scheduled),
            Field::count(status.blocked),
            Field::new(settings(status)).tone(if status.paused || status.held_back.is_some() {
                Tone::Warning
            } else {
                Tone::Plain
            }),
        ]
    };
    queues.iter().map(row).collect()
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
async fn remove(client: &mut Client, out: &Output, args: &QueueArgs) -> Result<u8, Failure> {
    let transaction = begin_read_committed(client).await?;
    let removed = operate::remove_queue(&transaction, &args.name).await?;
    commit_unless_dry_run(transaction, args.dry_run).await?;
    if !removed {
        return Err(Failure::not_found(format!("queue {} has no settings", args.name))
            .hint("pgmill queue list"));
    }
    if out.json {
        out.document(&json!({ "queue": args.name, "dry_run": args.dry_run, "removed": true }))?;
    } else {
        let verb = if args.dry_run { "would be removed" } else { "removed" };
        out.text(&format!("settings of queue {} {verb}", args.name))?;
    }
    Ok(exit::OK)
}

/// Stops claiming from a queue.
///
/// # Errors
/// Fails for an unknown queue, unless it is to be created.
async fn pause(client: &mut Client, out: &Output, args: &QueuePauseArgs) -> Result<u8, Failure> {
    let QueuePauseArgs { queue: args, create } = args;
    let transaction = begin_read_committed(client).await?;
    check_known(&transaction, &args.name, *create).await?;
    let found = find(&transaction, &args.name).await?;
    operate::pause(&transaction, &args.name).await?;
    commit_unless_dry_run(transaction, args.dry_run).await?;
    let (was, pending, running) =
        found.as_ref().map_or((false, 0, 0), |queue| (queue.paused, queue.pending, queue.running));
    if out.json {
        return answer(out, args, (was, true));
    }
    let verb = match (was, args.dry_run) {
        (true, _) => "already paused",
        (false, true) => "would be paused",
        (false, false) => "paused",
    };
    out.text(&format!(
        "queue {} {verb}: {} not claimed, {} {}",
        args.name,
        counted(pending, "pending task"),
        counted(running, "running task"),
        if running == 1 { "continues" } else { "continue" }
    ))?;
    Ok(exit::OK)
}

/// Resumes claiming from a queue.
///
/// # Errors
/// Fails if there is no such queue.
async fn resume(client: &mut Client, out: &Output, args: &QueueArgs) -> Result<u8, Failure> {
    let transaction = begin_read_committed(client).await?;
    let Some(found) = find(&transaction, &args.name).await? else {
        return Err(Failure::not_found(format!(
            "queue {} has no live tasks and no settings",
            args.name
        ))
        .hint("pgmill queue list"));
    };
    operate::resume(&transaction, &args.name).await?;
    commit_unless_dry_run(transaction, args.dry_run).await?;
    if out.json {
        return answer(out, args, (found.paused, false));
    }
    let pending = counted(found.pending, "pending task");
    out.text(&match (found.paused, args.dry_run) {
        (false, _) => format!("queue {} was not paused", args.name),
        (true, true) => format!("queue {} would be resumed: {pending}", args.name),
        (true, false) => format!("queue {} resumed: {pending}", args.name),
    })?;
    Ok(exit::OK)
}

/// Changes the settings of a queue, all of them or none.
///
/// # Errors
/// Fails for an unknown queue, unless it is to be created, and if the database refuses a setting.
async fn set(client: &mut Client, out: &Output, args: &QueueSetArgs) -> Result<u8, Failure> {
    let transaction = begin_read_committed(client).await?;
    check_known(&transaction, &args.name, args.create).await?;
    let was = find(&transaction, &args.name).await?;
    let mut parts = Vec::new();
    if let Some(budget) = args.shared_commit.map(|budget| budget.0) {
        operate::set_shared_commit(&transaction, &args.name, budget).await?;
        parts.push(budget.map_or("commit separately".to_owned(), |budget| {
            format!("share commits for up to {}", span(budget.as_secs_f64()))
        }));
    }
    let on = (LimitKind::Queue, args.name.as_str());
    parts.extend(apply_limits(&transaction, on, args.limits).await?);
    parts.extend(set_storage(&transaction, args).await?);
    parts.extend(set_conditions(&transaction, args, was.as_ref()).await?);
    let now = if out.json { find(&transaction, &args.name).await? } else { None };
    commit_unless_dry_run(transaction, args.dry_run).await?;
    if out.json {
        out.document(&json!({
            "queue": args.name, "dry_run": args.dry_run, "was": was, "now": now,
        }))?;
        return Ok(exit::OK);
    }
    let would = if args.dry_run { " would" } else { "" };
    out.text(&format!("tasks of queue {}{would} {}", args.name, parts.join(", and ")))?;
    Ok(exit::OK)
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

fn answer(out: &Output, args: &QueueArgs, (was, paused): (bool, bool)) -> Result<u8, Failure> {
    out.document(&json!({
        "queue": args.name, "dry_run": args.dry_run, "was_paused": was, "paused": paused,
    }))?;
    Ok(exit::OK)
}
