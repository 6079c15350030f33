//! `pgmill schedule backfill|backfills|pause-backfill|resume-backfill|cancel-backfill`.

use cli::{Failure, exit};
use conninfo::Client;
use jiff::Timestamp;
use schedule::backfill::{self, Backfill, BackfillAction, BackfillOptions, BackfillPreview};
use schedule::enums::BackfillState;
use serde_json::json;
use terminal::visible;

use crate::args::{BackfillId, BackfillList, BackfillStart};
use crate::output::format::{counted, instant, local_time, one_line};
use crate::output::list::{close, cut};
use crate::output::{Field, Output, Tone};
use crate::schedules::list::{find, missing};
use crate::session::{begin_read_committed, commit_unless_dry_run};

/// Number of skipped instants that a dry run prints.
const SKIPPED_SHOWN: usize = 10;

const HEADINGS: [&str; 10] =
    ["backfill", "schedule", "state", "done", "running", "skipped", "failed", "from", "to", "by"];

/// Starts a backfill, or shows its instants.
///
/// # Errors
/// Fails if there is no such schedule, if it has no instants, or if the period is invalid.
pub(super) async fn start(
    client: &mut Client,
    out: &Output,
    args: &BackfillStart,
) -> Result<u8, Failure> {
    let now = queue::task_queries::now(client).await?;
    let bound = |option, bound| instant(option, Some(bound), now).map(|at| at.unwrap_or(now));
    let options = BackfillOptions {
        from: bound("--from", &args.from)?,
        to: bound("--to", &args.to)?,
        max_running: args.max_running,
        again: args.again,
        params: args.params.iter().cloned().collect(),
    };
    let transaction = begin_read_committed(client).await?;
    // The function checks the schedule and the period, also for a dry run.
    let created = backfill::create(&transaction, &args.name, &options).await?;
    let id = created.ok_or_else(|| missing(&args.name))?;
    let timing = match backfill::backfills(&transaction, None, Some(id), 1).await?.pop() {
        Some(it) => it.timing,
        None => return Err(missing(&args.name)),
    };
    let preview = backfill::preview(&transaction, &args.name, &timing, &options).await?;
    if preview.instants == 0 {
        let message = format!("schedule \"{}\" has no instant in this period", args.name);
        return Err(Failure::new(exit::REFUSED, message)
            .hint(format!("pgmill schedule next {} --from TIME", args.name)));
    }
    commit_unless_dry_run(transaction, args.dry_run).await?;
    let id = (!args.dry_run).then_some(id);
    if out.json {
        out.document(&json!({
            "schedule": args.name, "backfill_id": id, "instants": preview.instants,
            "first_at": preview.first, "last_at": preview.last, "skipped": preview.skipped,
            "dry_run": args.dry_run,
        }))?;
    } else {
        out.text(&describe(&args.name, id, &preview))?;
    }
    Ok(exit::OK)
}

fn describe(name: &str, id: Option<i64>, preview: &BackfillPreview) -> String {
    let time = |at: Option<Timestamp>| at.map(local_time).unwrap_or_default();
    let instants = counted(preview.instants as u64, "instant");
    let (first, last) = (time(preview.first), time(preview.last));
    let mut lines = vec![match id {
        Some(id) => {
            format!("backfill {id} of schedule {}: {instants}, {first} to {last}", visible(name))
        }
        None => {
            format!("would run schedule {} for {instants}, {first} to {last}", visible(name))
        }
    }];
    if !preview.skipped.is_empty() {
        let skipped = counted(preview.skipped.len() as u64, "instant");
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
pub(super) async fn list(
    client: &Client,
    out: &Output,
    args: &BackfillList,
) -> Result<u8, Failure> {
    if let Some(name) = &args.name {
        find(client, name).await?;
    }
    let wanted = args.limit + 1;
    let mut found = backfill::backfills(client, args.name.as_deref(), None, wanted).await?;
    let more = cut(&mut found, args.limit);
    if out.json {
        out.document(&found)?;
    } else if !found.is_empty() {
        out.text(&table(out, &found))?;
    }
    close(out, found.len(), more, "no matching backfill")
}

/// Formats a table of backfills, each with its error.
pub(super) fn table(out: &Output, backfills: &[Backfill]) -> String {
    let row = |it: &Backfill| {
        let tone = match it.state {
            BackfillState::Running => Tone::Plain,
            BackfillState::Finished => Tone::Success,
            BackfillState::Paused | BackfillState::Cancelled => Tone::Warning,
        };
        let all = it.instants.map_or_else(|| "?".to_owned(), |instants| instants.to_string());
        vec![
            Field::new(it.id),
            Field::new(&it.schedule),
            Field::new(it.state).tone(tone),
            Field::new(format!("{}/{all}", it.done())),
            Field::count(it.running),
            Field::count(i64::from(it.skipped)),
            Field::count(it.failed).tone(Tone::Error),
            Field::new(local_time(it.from_at)),
            Field::new(local_time(it.to_at)),
            Field::new(&it.created_by),
        ]
    };
    let mut text = out.table(&HEADINGS, backfills.iter().map(row).collect());
    for it in backfills {
        if let Some(error) = &it.error {
            text.push_str(&format!("\nbackfill {} is paused: {}", it.id, one_line(error, 200)));
        }
    }
    text
}

/// Pauses, resumes or cancels a backfill.
///
/// # Errors
/// Fails if there is no such backfill, or if it has ended.
pub(super) async fn change(
    client: &mut Client,
    out: &Output,
    args: &BackfillId,
    action: BackfillAction,
) -> Result<u8, Failure> {
    let id = args.id;
    let transaction = begin_read_committed(client).await?;
    if !backfill::change(&transaction, id, action).await? {
        return Err(Failure::not_found(format!("there is no backfill {id}"))
            .hint("pgmill schedule backfills"));
    }
    commit_unless_dry_run(transaction, args.dry_run).await?;
    let (done, would) = match action {
        BackfillAction::Pause => ("paused", "pause"),
        BackfillAction::Resume => ("resumed", "resume"),
        BackfillAction::Cancel => ("cancelled", "cancel"),
    };
    if out.json {
        out.document(&json!({ "backfill_id": id, "result": done, "dry_run": args.dry_run }))?;
    } else if args.dry_run {
        out.text(&format!("would {would} backfill {id}"))?;
    } else {
        out.text(&format!("backfill {id} {done}"))?;
    }
    Ok(exit::OK)
}
