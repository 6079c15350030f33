//! Backfills of a schedule: the form that shows or starts one, and the actions on one.

use axum::Router;
use axum::response::Response;
use axum::routing::post;
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use schedule::backfill::{self, BackfillAction, BackfillOptions};
use schedule::{jobs, queries};

use super::list::zone;
use super::schedule::{Shown, data, no_such_schedule, render_page};
use crate::http::app::App;
use crate::http::error::{HandlerResult, HttpError};
use crate::http::request::FormRequest;
use crate::page::format;

pub(crate) fn routes() -> Router<App> {
    Router::new()
        .route("/schedules/backfill", post(start))
        .route("/schedules/change-backfill", post(change))
}

/// Starts a backfill, or shows its instants on the page of the schedule.
async fn start(form: FormRequest) -> HandlerResult {
    let name = form.field("name").to_owned();
    let mut session = form.context.session().await?;
    let tx = form.begin(&mut session).await?;
    let known = queries::status(&*tx, &name).await?.ok_or_else(|| no_such_schedule(&name))?;
    let zone = zone(&known.timing);
    let options = BackfillOptions {
        from: instant(&form, "from", &zone)?,
        to: instant(&form, "to", &zone)?,
        max_running: form.optional("max_running")?.unwrap_or(1),
        again: form.field("again") == "true",
        params: form.params(&jobs::param_names(&*tx, &name).await?),
    };
    let id = backfill::create(&*tx, &name, &options).await?;
    id.ok_or_else(|| no_such_schedule(&name))?;
    let preview = backfill::preview(&*tx, &name, &known.timing, &options).await?;
    if form.field("dry_run") == "true" {
        tx.rollback().await?;
        let tx = session.begin_read().await?;
        let viewer = form.context.viewer(&tx).await?;
        let known = data(&tx, &name).await?;
        let shown = Shown { preview: Some(preview), ..Shown::default() };
        return render_page(&form.context, viewer, known, shown);
    }
    if preview.instants == 0 {
        return Err(HttpError::bad_request("the schedule has no instant in this period"));
    }
    tx.commit().await?;
    Ok(form.redirect_back(&format!("/schedules/detail?name={}", format::url_encode(&name))))
}

/// Pauses, resumes or cancels a backfill.
async fn change(form: FormRequest) -> Result<Response, HttpError> {
    let id: i64 = form.parsed("id")?;
    let action = match form.field("action") {
        "pause" => BackfillAction::Pause,
        "resume" => BackfillAction::Resume,
        "cancel" => BackfillAction::Cancel,
        _ => return Err(HttpError::bad_request("action must be pause, resume or cancel")),
    };
    let mut session = form.context.session().await?;
    let tx = form.begin(&mut session).await?;
    let found = backfill::backfills(&*tx, None, Some(id), 1).await?.pop();
    let found = found.ok_or_else(|| HttpError::not_found(format!("there is no backfill {id}")))?;
    backfill::change(&*tx, id, action).await?;
    tx.commit().await?;
    Ok(form
        .redirect_back(&format!("/schedules/detail?name={}", format::url_encode(&found.schedule))))
}

/// Reads a time in the time zone of the schedule.
pub(super) fn instant(
    form: &FormRequest,
    field: &str,
    zone: &TimeZone,
) -> Result<Timestamp, HttpError> {
    let local: DateTime = form.parsed(field)?;
    let zoned = local.to_zoned(zone.clone());
    Ok(zoned.map_err(|_| HttpError::bad_request(format!("invalid time for {field}")))?.timestamp())
}
