//! Actions on a schedule: run now, enable, disable, dry run, and backfills.

use schedule::backfill::{self, BackfillAction, BackfillOptions};
use schedule::{declare, jobs, queries};

use super::list::zone;
use super::schedule::{Shown, data, no_such_schedule, render_page};
use crate::screens::prelude::*;

pub(crate) fn routes() -> Router<App> {
    Router::new()
        .route("/schedules/run-now", post(start_run))
        .route("/schedules/enable", post(enable_schedule))
        .route("/schedules/test", post(test_schedule))
        .route("/schedules/backfill", post(start_backfill))
        .route("/schedules/change-backfill", post(change_backfill))
}

fn path(name: &str) -> String {
    format!("/schedules/detail?name={}", format::url_encode(name))
}

async fn start_run(form: FormRequest) -> HandlerResult {
    let name = form.field("name");
    form.change_and_open(async |tx| {
        let known = queries::status(tx, name).await?.ok_or_else(|| no_such_schedule(name))?;
        let at = match form.field("at") {
            "" => None,
            _ => Some(form.instant("at", &zone(&known.timing))?),
        };
        let params = form.params(&jobs::param_names(tx, name).await?);
        let started = declare::run_now(tx, name, form.flag("force"), &params, at).await?;
        started.map(|run| format!("/runs/{run}")).ok_or_else(|| no_such_schedule(name))
    })
    .await
}

async fn enable_schedule(form: FormRequest) -> HandlerResult {
    let (name, enabled) = (form.field("name"), form.parsed("enabled")?);
    form.change(&path(name), async |tx| {
        HttpError::unless(declare::enable(tx, name, enabled).await?, || no_such_schedule(name))
    })
    .await
}

/// Evaluates the trigger without firing. The trigger is SQL of the schedule's owner that runs with
/// the privileges of the console's login, so a dry run requires a form submission by a user who may
/// act.
async fn test_schedule(form: FormRequest) -> HandlerResult {
    let name = form.field("name");
    let mut session = form.context.session().await?;
    let (known, viewer) = {
        let tx = session.begin_read().await?;
        let viewer = form.context.viewer(&tx).await?;
        if !viewer.may_act {
            return Err(HttpError::forbidden("this login or this console is read-only"));
        }
        (data(&tx, name).await?, viewer)
    };
    let test = queries::test(&*session.begin_read().await?, name).await?;
    let shown = Shown { test, tested: true, ..Shown::default() };
    let name = known.schedule.status.name.clone();
    render_page(Layout::new(&form.context, name, viewer), known, shown)
}

/// Starts a backfill, or shows its instants on the page of the schedule.
async fn start_backfill(form: FormRequest) -> HandlerResult {
    let name = form.field("name");
    let mut session = form.context.session().await?;
    let tx = form.begin(&mut session).await?;
    let known = queries::status(&*tx, name).await?.ok_or_else(|| no_such_schedule(name))?;
    let zone = zone(&known.timing);
    let options = BackfillOptions {
        from: form.instant("from", &zone)?,
        to: form.instant("to", &zone)?,
        max_running: form.optional("max_running")?.unwrap_or(1),
        again: form.flag("again"),
        params: form.params(&jobs::param_names(&*tx, name).await?),
    };
    backfill::create(&*tx, name, &options).await?.ok_or_else(|| no_such_schedule(name))?;
    let preview = backfill::preview(&*tx, name, &known.timing, &options).await?;
    if form.flag("dry_run") {
        tx.rollback().await?;
        let tx = session.begin_read().await?;
        let viewer = form.context.viewer(&tx).await?;
        let known = data(&tx, name).await?;
        let shown = Shown { preview: Some(preview), ..Shown::default() };
        let name = known.schedule.status.name.clone();
        return render_page(Layout::new(&form.context, name, viewer), known, shown);
    }
    if preview.instants == 0 {
        return Err(HttpError::bad_request("the schedule has no instant in this period"));
    }
    tx.commit().await?;
    Ok(form.redirect_back(&path(name)))
}

/// Pauses, resumes or cancels a backfill.
async fn change_backfill(form: FormRequest) -> HandlerResult {
    let id: i64 = form.parsed("id")?;
    let action = match form.field("action") {
        "pause" => BackfillAction::Pause,
        "resume" => BackfillAction::Resume,
        "cancel" => BackfillAction::Cancel,
        _ => return Err(HttpError::bad_request("action must be pause, resume or cancel")),
    };
    form.change_and_open(async |tx| {
        let known = backfill::backfills(tx, None, Some(id), 1).await?.pop();
        let known =
            known.ok_or_else(|| HttpError::not_found(format!("there is no backfill {id}")))?;
        backfill::change(tx, id, action).await?;
        Ok(path(&known.schedule))
    })
    .await
}
