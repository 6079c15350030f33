//! `pgmill pause` and `pgmill resume`: maintenance windows of the whole fleet.

use cli::{Exit, Failure};
use conninfo::Client;
use jiff::Timestamp;
use queue::maintenance::{self, MaintenanceWindow, PauseRequest};
use queue::task_queries;
use serde_json::json;

use crate::args::{PauseArgs, ResumeArgs, instant};
use crate::output::Output;
use crate::output::format::{counted, local_time, relative_time};
use crate::session::change;

/// Pauses the fleet, now or at a planned time.
///
/// # Errors
/// Fails if the pause would end before it begins.
pub(crate) async fn pause(client: &mut Client, out: &Output, args: &PauseArgs) -> Exit {
    let now = task_queries::now(client).await?;
    let request = PauseRequest {
        from: instant("--from", args.from.as_ref(), now)?,
        until: instant("--until", args.until.as_ref(), now)?,
        length: args.length,
        reason: args.reason.clone(),
    };
    let window = change(client, args.dry_run, async |to| {
        let id = maintenance::pause_fleet(to, &request).await?;
        Ok(maintenance::windows(to).await?.into_iter().find(|window| window.id == id))
    })
    .await?;
    let would = args.dry_run.or("would be", "is");
    let period = window.as_ref().map(|it| period(it, now)).unwrap_or_default();
    out.answer(
        json!({ "dry_run": args.dry_run, "window": window }),
        format!("the fleet {would} paused {period}"),
    )
}

/// Ends the pause of the fleet.
///
/// # Errors
/// Fails if the fleet is not paused, and with `--planned`, if no pause is planned either.
pub(crate) async fn resume(client: &mut Client, out: &Output, args: &ResumeArgs) -> Exit {
    let (ended, windows) = change(client, args.dry_run, async |to| {
        let ended = maintenance::resume_fleet(to, args.planned).await?;
        Ok((ended, maintenance::windows(to).await?))
    })
    .await?;
    if ended == 0 {
        let failure = Failure::not_found("the fleet is not paused");
        return Err(match windows.len() {
            0 => failure,
            planned => failure.hint(format!(
                "{} planned; pgmill resume --planned removes planned pauses.",
                counted(planned, "pause")
            )),
        });
    }
    let (would, planned) = (args.dry_run.or("would be ", ""), windows.len());
    out.answer(
        json!({ "dry_run": args.dry_run, "ended": ended, "planned": windows }),
        format!("{} {would}ended; {planned} planned", counted(ended, "pause")),
    )
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
    let reason = window.reason.as_ref().map(|reason| format!(": {}", terminal::visible(reason)));
    format!("{start}{end}{}", reason.unwrap_or_default())
}
