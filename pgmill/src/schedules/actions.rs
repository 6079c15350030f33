//! `pgmill schedule enable|disable|set|remove|run-now|cancel`, `pgmill schedule sync`.

use std::time::Duration;

use cli::statement::runnable;
use cli::{Exit, Failure, exit};
use conninfo::Client;
use queue::run_queries;
use queue::{Mode, scan};
use schedule::declare::{self, PutResult};
use schedule::enums::DeclaredIn;
use schedule::reconcile::{Reconciled, reconcile};
use serde_json::{Map, Value, json};
use terminal::visible;
use tokio_postgres::Transaction;

use crate::args::{
    DryRun, ObjectName, OrOff, ScheduleCancel, ScheduleRunNow, ScheduleSet, instant,
};
use crate::output::Output;
use crate::output::format::counted;
use crate::runs::actions::cancel_runs;
use crate::schedules::fires::parse;
use crate::schedules::list::{find, missing, print_declaration_error};
use crate::session::change;

/// Enables or disables a schedule.
///
/// # Errors
/// Fails if there is no such schedule.
pub(crate) async fn enable(
    client: &mut Client,
    out: &Output,
    args: &ObjectName,
    enabled: bool,
) -> Exit {
    let ObjectName { name, dry_run } = args;
    if !change(client, *dry_run, async |to| Ok(declare::enable(to, name, enabled).await?)).await? {
        return Err(missing(name));
    }
    let words = if enabled { ("enabled", "enable") } else { ("disabled", "disable") };
    let document = json!({ "schedule": name, "enabled": enabled, "dry_run": dry_run });
    out.answer(document, result(name, *dry_run, words))
}

/// Describes what was done, or would be done.
fn result(name: &str, dry_run: DryRun, (done, would): (&str, &str)) -> String {
    if dry_run.is_set() {
        format!("would {would} schedule {name}")
    } else {
        format!("schedule {name} {done}")
    }
}

/// Overrides settings of a schedule, or declares a schedule.
///
/// # Errors
/// Fails if there is no such schedule, if the timing is invalid, or if the schedule is declared in
/// a file or a comment.
pub(crate) async fn set(client: &mut Client, out: &Output, args: &ScheduleSet) -> Exit {
    let ScheduleSet { name, dry_run, .. } = args;
    let mut declares = declared_fields(args);
    if let Some(timing) = &args.timing {
        // Normalize the timing, as for files and comments, so that another spelling of the same
        // timing is not a change.
        let timing = parse(timing)?;
        declare::check_future(client, &timing).await?;
        declares.insert("timing".to_owned(), timing.to_string().into());
    }
    let put = change(client, *dry_run, async |to| {
        let mut put = PutResult::Unchanged;
        if !declares.is_empty() || args.mode.is_some() {
            put = declare_one(to, name, declares, args.mode).await?;
        }
        let own = override_fields(args);
        if own.is_empty() {
            return Ok(put);
        }
        if !declare::override_settings(to, name, &own).await? {
            return Err(missing(name));
        }
        Ok(if put == PutResult::Unchanged { PutResult::Changed } else { put })
    })
    .await?;
    let words = match put {
        PutResult::New => ("declared", "declare"),
        PutResult::Changed => ("changed", "change"),
        PutResult::Unchanged => ("unchanged", "not change"),
    };
    let document = json!({ "schedule": name, "result": put, "dry_run": dry_run });
    out.answer(document, result(name, *dry_run, words))
}

/// Fields of a schedule with a statement; removed when it runs jobs instead.
const STATEMENT_FIELDS: [&str; 4] = ["statement", "task", "description", "category"];
const JOB_FIELDS: [&str; 2] = ["jobs", "params"];

/// Declares a schedule: merges the given fields into the existing declaration.
async fn declare_one(
    transaction: &Transaction<'_>,
    name: &str,
    fields: Map<String, Value>,
    mode: Option<Mode>,
) -> Result<PutResult, Failure> {
    declare::lock(transaction, name).await?;
    let declared = declare::declared(transaction).await?;
    let known = declared.into_iter().find(|it| it.name == name);
    let runs = ["statement", "jobs"].iter().any(|key| fields.contains_key(*key));
    let mut definition = match known {
        Some(known) => known.definition.as_object().cloned().unwrap_or_default(),
        None if runs && fields.contains_key("timing") => Map::new(),
        None => {
            return Err(missing(name)
                .hint("To define a schedule, give --timing, and --statement or --job."));
        }
    };
    if fields.contains_key("jobs") {
        definition.retain(|key, _| !STATEMENT_FIELDS.contains(&key.as_str()));
    } else if fields.contains_key("statement") {
        definition.retain(|key, _| !JOB_FIELDS.contains(&key.as_str()));
    }
    let new_statement = fields.contains_key("statement");
    definition.extend(fields);
    if let Some(mode) = mode {
        let task = definition.entry("task").or_insert_with(|| json!({}));
        task["mode"] = mode.as_str().into();
    }
    if new_statement {
        let statement = definition["statement"].as_str().unwrap_or_default();
        let statement = scan::without_byte_order_mark(statement).to_owned();
        definition.insert("statement".to_owned(), statement.as_str().into());
        // The parameters were those of the statement that is replaced. Values for a statement without
        // parameters would make each run fail.
        if !statement.contains("$1")
            && let Some(task) = definition.get_mut("task").and_then(Value::as_object_mut)
        {
            task.remove("params");
        }
        runnable(&statement).map_err(|(at, error)| {
            let message = format!("--statement, byte {}: {}", at + 1, error.message);
            Failure::usage(message).maybe_hint(error.hint)
        })?;
    }
    for (field, what) in [("description", "a description"), ("task", "a mode")] {
        if definition.contains_key("jobs") && definition.contains_key(field) {
            return Err(Failure::usage(format!(
                "schedule \"{name}\" runs jobs, so it cannot have {what}"
            )));
        }
    }
    definition.insert("name".to_owned(), name.into());
    Ok(declare::put(transaction, &Value::Object(definition), DeclaredIn::Call, None).await?)
}

fn seconds(span: Duration) -> Value {
    format!("{} seconds", span.as_secs_f64()).into()
}

fn declared_fields(args: &ScheduleSet) -> Map<String, Value> {
    let fields = [
        ("statement", args.statement.clone().map(Value::from)),
        ("jobs", args.jobs.clone().map(Value::from)),
        ("overlap", args.overlap.map(|overlap| overlap.as_str().into())),
        ("catch_up", args.catch_up.map(Value::from)),
        ("max_lateness", args.max_lateness.map(seconds)),
        ("expected_duration", args.expected_duration.map(seconds)),
        ("deadline", args.deadline.map(seconds)),
        ("run_timeout", args.run_timeout.map(seconds)),
        ("description", args.description.clone().map(Value::from)),
    ];
    fields.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect()
}

fn override_fields(args: &ScheduleSet) -> Map<String, Value> {
    let span = |given: OrOff<Duration>| given.0.map_or(Value::Null, seconds);
    let fields = [
        ("max_attempts", args.max_attempts.or(args.max_retries).map(|it| json!(it.0))),
        ("retry_interval", args.retry_interval.map(span)),
        ("jitter", args.jitter.map(span)),
    ];
    fields.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect()
}

/// Removes a schedule that was declared by a call or in a file.
///
/// # Errors
/// Fails if there is no such schedule, or if it is declared in a comment.
pub(crate) async fn remove(client: &mut Client, out: &Output, args: &ObjectName) -> Exit {
    let ObjectName { name, dry_run } = args;
    change(client, *dry_run, async |to| {
        let declared = declare::declared(to).await?;
        let known = declared.iter().find(|it| it.name == *name).ok_or_else(|| missing(name))?;
        if known.declared_in == DeclaredIn::Comment {
            let message = format!("schedule \"{name}\" is declared in a comment");
            return Err(Failure::new(exit::REFUSED, message).hint(
                "Remove its annotation and run pgmill schedule sync, or use pgmill schedule disable.",
            ));
        }
        declare::remove(to, std::slice::from_ref(name)).await?;
        Ok(())
    })
    .await?;
    let document = json!({ "schedule": name, "removed": true, "dry_run": dry_run });
    out.answer(document, result(name, *dry_run, ("removed", "remove")))
}

/// Starts a run of a schedule.
///
/// # Errors
/// Fails if there is no such schedule, or without `--force` if a run is in progress or the instant
/// has a run already.
pub(crate) async fn run_now(client: &mut Client, out: &Output, args: &ScheduleRunNow) -> Exit {
    let ScheduleRunNow { name, force, dry_run, .. } = args;
    let now = queue::task_queries::now(client).await?;
    let at = instant("--at", args.at.as_ref(), now)?;
    let params = args.params.iter().cloned().collect();
    let run = change(client, *dry_run, async |to| {
        declare::run_now(to, name, *force, &params, at).await?.ok_or_else(|| missing(name))
    })
    .await?;
    let shown = (!dry_run.is_set()).then_some(run);
    out.answer(
        json!({ "schedule": name, "run_id": shown, "dry_run": dry_run }),
        result(name, *dry_run, (&format!("started run {run}"), "start a run of")),
    )
}

/// Cancels the runs of a schedule that are in progress.
///
/// # Errors
/// Fails if there is no such schedule.
pub(crate) async fn cancel(client: &mut Client, out: &Output, args: &ScheduleCancel) -> Exit {
    find(client, &args.name).await?;
    let runs = run_queries::in_progress(client, Some(&args.name), true).await?;
    cancel_runs(client, out, &runs, (args.kill, args.dry_run)).await
}

/// Synchronizes schedules with the annotations in the comments of procedures.
pub(crate) async fn sync(client: &mut Client, out: &Output, dry_run: DryRun) -> Exit {
    let done = change(client, dry_run, async |to| Ok(reconcile(to).await?)).await?;
    if out.json {
        out.document(&json!({ "dry_run": dry_run, "changes": done }))?;
    } else {
        let Reconciled { new, changed, unchanged, removed, declaration_errors } = &done;
        for (sign, names) in [('+', new), ('~', changed), ('-', removed)] {
            for name in names {
                out.text(&visible(&format!("{sign} schedule {name}")))?;
            }
        }
        declaration_errors.iter().for_each(|error| print_declaration_error(out, error));
        let changes = counted(new.len() + changed.len() + removed.len(), "change");
        let made = dry_run.or("would be made", "made");
        let errors = counted(declaration_errors.len(), "error");
        out.text(&format!("{changes} {made}, {unchanged} unchanged, {errors}"))?;
    }
    Ok(if done.declaration_errors.is_empty() { exit::OK } else { exit::FAILURE })
}
