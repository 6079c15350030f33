//! `pgmill pause` and `pgmill resume`: maintenance windows of the whole fleet.

use cli::{Failure, exit};
use conninfo::Client;
use jiff::Timestamp;
use queue::maintenance::{self, MaintenanceWindow, PauseRequest};
use queue::task_queries;
use serde_json::json;
use terminal::visible;

use crate::args::{PauseArgs, ResumeArgs};
use crate::output::Output;
use crate::output::format::{counted, instant, local_time, relative_time};
use crate::session::{begin_read_committed, commit_unless_dry_run};

/// Pauses the fleet, now or at a planned time.
///
/// # Errors
/// Fails if the pause would end before it begins.
pub(crate) async fn pause(
    client: &mut Client,
    out: &Output,
    args: &PauseArgs,
) -> Result<u8, Failure> {
    let now = task_queries::now(client).await?;
    let request = PauseRequest {
        from: instant("--from", args.from.as_ref(), now)?,
        until: instant("--until", args.until.as_ref(), now)?,
        length: args.length,
        reason: args.reason.clone(),
    };
    let transaction = begin_read_committed(client).await?;
    let id = maintenance::pause_fleet(&transaction, &request).await?;
    let windows = maintenance::windows(&transaction).await?;
    commit_unless_dry_run(transaction, args.dry_run).await?;
    let window = windows.iter().find(|window| window.id == id);
    if out.json {
        out.document(&json!({ "dry_run": args.dry_run, "window": window }))?;
    } else if let Some(window) = window {
        let would = if args.dry_run { "would be" } else { "is" };
        out.text(&format!("the fleet {would} paused {}", period(window, now)))?;
    }
    Ok(exit::OK)
}

/// Ends the pause of the fleet.
///
/// # Errors
/// Fails if the fleet is not paused, and with `--planned`, if no pause is planned either.
pub(crate) async fn resume(
    client: &mut Client,
    out: &Output,
    args: &ResumeArgs,
) -> Result<u8, Failure> {
    let transaction = begin_read_committed(client).await?;
    let ended = maintenance::resume_fleet(&transaction, args.planned).await?;
    let windows = maintenance::windows(&transaction).await?;
    commit_unless_dry_run(transaction, args.dry_run).await?;
    if ended == 0 {
        let failure = Failure::not_found("the fleet is not paused");
        return Err(match windows.len() {
            0 => failure,
            planned => failure.hint(format!(
                "{} planned; pgmill resume --planned removes planned pauses.",
                counted(planned as u64, "pause")
            )),
        });
    }
    if out.json {
        out.document(&json!({ "dry_run": args.dry_run, "ended": ended, "planned": windows }))?;
        return Ok(exit::OK);
    }
    let would = if args.dry_run { "would be " } else { "" };
    let ended = counted(i64::from(ended), "pause");
    out.text(&format!("{ended} {would}ended; {} planned", windows.len()))?;
    Ok(exit::OK)
}

/// Describes a planned window, or one in force, in one line.
pub(crate) fn period(window: &MaintenanceWindow, now: Timestamp) -> String {
    let start = if window.is_active {
        String::new()
    } else {
        let at = window.starts_at;
        format!("from {} ({}) ", local_time(at), relative_time(at, now))
    };
    let end = window.ends_at.map_or_else(
        || "until pgmill resume".to_owned(),
        |at| format!("until {} ({})", local_time(at), relative_time(at, now)),
    );
    let reason = window.reason.as_ref().map(|reason| format!(": {}", visible(reason)));
    format!("{start}{end}{}", reason.unwrap_or_default())
}
