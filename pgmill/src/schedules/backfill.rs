//! `pgmill schedule backfill|backfills|pause-backfill|resume-backfill|cancel-backfill`.

use cli::{Exit, Failure, exit};
use conninfo::Client;
use jiff::Timestamp;
use schedule::backfill::{self, Backfill, BackfillAction, BackfillOptions, BackfillPreview};
use schedule::enums::BackfillState;
use serde_json::json;

use crate::args::{BackfillId, BackfillList, BackfillStart, instant};
use crate::output::format::{counted, local_time, one_line};
use crate::output::{Output, Row, Tone};
use crate::schedules::list::{find, missing};
use crate::session::change;

/// Number of skipped instants that a dry run prints.
const SKIPPED_SHOWN: usize = 10;

/// Starts a backfill, or shows its instants.
///
/// # Errors
/// Fails if there is no such schedule, if it has no instants, or if the period is invalid.
pub(super) async fn start(client: &mut Client, out: &Output, args: &BackfillStart) -> Exit {
    let BackfillStart { name, dry_run, .. } = args;
    let now = queue::task_queries::now(client).await?;
    let bound = |option, bound| instant(option, Some(bound), now).map(|at| at.unwrap_or(now));
    let options = BackfillOptions {
        from: bound("--from", &args.from)?,
        to: bound("--to", &args.to)?,
        max_running: args.max_running,
        again: args.again,
        params: args.params.iter().cloned().collect(),
    };
    let (id, preview) = change(client, *dry_run, async |to| {
        // The function checks the schedule and the period, also for a dry run.
        let created = backfill::create(to, name, &options).await?;
        let id = created.ok_or_else(|| missing(name))?;
        let created = backfill::backfills(to, None, Some(id), 1).await?.pop();
        let timing = created.ok_or_else(|| missing(name))?.timing;
        let preview = backfill::preview(to, name, &timing, &options).await?;
        if preview.instants == 0 {
            let message = format!("schedule \"{name}\" has no instant in this period");
            return Err(Failure::new(exit::REFUSED, message)
                .hint(format!("pgmill schedule next {name} --from TIME")));
        }
        Ok((id, preview))
    })
    .await?;
    let id = (!dry_run.is_set()).then_some(id);
    let document = json!({
        "schedule": name, "backfill_id": id, "instants": preview.instants,
        "first_at": preview.first, "last_at": preview.last, "skipped": preview.skipped,
        "dry_run": dry_run,
    });
    out.answer(document, describe(name, id, &preview))
}

fn describe(name: &str, id: Option<i64>, preview: &BackfillPreview) -> String {
    let time = |at: Option<Timestamp>| at.map(local_time).unwrap_or_default();
    let instants = counted(preview.instants, "instant");
    let (first, last) = (time(preview.first), time(preview.last));
    let mut lines = vec![match id {
        Some(id) => format!("backfill {id} of schedule {name}: {instants}, {first} to {last}"),
        None => format!("would run schedule {name} for {instants}, {first} to {last}"),
    }];
    if !preview.skipped.is_empty() {
        let skipped = counted(preview.skipped.len(), "instant");
        lines.push(format!("skipped, because a run exists: {skipped}; --again runs them, too"));
        lines.extend(
            preview.skipped.iter().take(SKIPPED_SHOWN).map(|at| format!("  {}", local_time(*at))),
        );
        if preview.skipped.len() > SKIPPED_SHOWN {
            lines.push(format!("  and {} more", preview.skipped.len() - SKIPPED_SHOWN));
        }
    }
    lines.join("\n")
}

/// Lists backfills.
///
/// # Errors
/// Fails if there is no such schedule.
pub(super) async fn list(client: &Client, out: &Output, args: &BackfillList) -> Exit {
    if let Some(name) = &args.name {
        find(client, name).await?;
    }
    let found = backfill::backfills(client, args.name.as_deref(), None, args.limit + 1).await?;
    let shown = usize::try_from(args.limit).unwrap_or(usize::MAX);
    let errors: Vec<String> = found
        .iter()
        .take(shown)
        .filter_map(|it| {
            let error = one_line(it.error.as_ref()?, 200);
            Some(format!("backfill {} is paused: {error}", it.id))
        })
        .collect();
    let code = out.page((found, args.limit), "no matching backfill", row)?;
    if out.json || errors.is_empty() { Ok(code) } else { out.text(&errors.join("\n")) }
}

fn row(it: &Backfill) -> Row {
    let tone = match it.state {
        BackfillState::Running => Tone::Plain,
        BackfillState::Finished => Tone::Success,
        BackfillState::Paused | BackfillState::Cancelled => Tone::Warning,
    };
    let all = it.instants.map_or_else(|| "?".to_owned(), |instants| instants.to_string());
    Row::of("backfill", it.id)
        .text("schedule", &it.schedule)
        .text("state", it.state)
        .tone(tone)
        .text("done", format!("{}/{all}", it.done()))
        .count("running", it.running)
        .count("skipped", it.skipped)
        .count("failed", it.failed)
        .tone(Tone::Error)
        .text("from", local_time(it.from_at))
        .text("to", local_time(it.to_at))
        .text("by", &it.created_by)
}

/// Pauses, resumes or cancels a backfill.
///
/// # Errors
/// Fails if there is no such backfill, or if it has ended.
pub(super) async fn change_state(
    client: &mut Client,
    out: &Output,
    args: &BackfillId,
    action: BackfillAction,
) -> Exit {
    let BackfillId { id, dry_run } = args;
    if !change(client, *dry_run, async |to| Ok(backfill::change(to, *id, action).await?)).await? {
        return Err(Failure::not_found(format!("there is no backfill {id}"))
            .hint("pgmill schedule backfills"));
    }
    let (done, would) = match action {
        BackfillAction::Pause => ("paused", "pause"),
        BackfillAction::Resume => ("resumed", "resume"),
        BackfillAction::Cancel => ("cancelled", "cancel"),
    };
    let text = match dry_run.is_set() {
        true => format!("would {would} backfill {id}"),
        false => format!("backfill {id} {done}"),
    };
    out.answer(json!({ "backfill_id": id, "result": done, "dry_run": dry_run }), text)
}
