//! Actions on a schedule: run now, enable, disable, and dry run.

use axum::Router;
use axum::response::Response;
use axum::routing::post;
use schedule::{declare, jobs, queries};

use super::backfills::instant;
use super::list::zone;
use super::schedule::{Shown, data, dry_run, no_such_schedule, render_page};
use crate::http::app::App;
use crate::http::error::{HandlerResult, HttpError};
use crate::http::request::FormRequest;
use crate::page::format;

pub(crate) fn routes() -> Router<App> {
    Router::new()
        .route("/schedules/run-now", post(run_now))
        .route("/schedules/enable", post(enable))
        .route("/schedules/test", post(test))
}

async fn run_now(form: FormRequest) -> Result<Response, HttpError> {
    let name = form.field("name");
    let mut session = form.context.session().await?;
    let tx = form.begin(&mut session).await?;
    let known = queries::status(&*tx, name).await?.ok_or_else(|| no_such_schedule(name))?;
    let at = match form.field("at") {
        "" => None,
        _ => Some(instant(&form, "at", &zone(&known.timing))?),
    };
    let params = form.params(&jobs::param_names(&*tx, name).await?);
    let force = form.field("force") == "true";
    let started = declare::run_now(&*tx, name, force, &params, at).await?;
    let run = started.ok_or_else(|| no_such_schedule(name))?;
    tx.commit().await?;
    Ok(form.redirect_back(&format!("/runs/{run}")))
}

async fn enable(form: FormRequest) -> Result<Response, HttpError> {
    let name = form.field("name");
    let mut session = form.context.session().await?;
    let tx = form.begin(&mut session).await?;
    if !declare::enable(&*tx, name, form.parsed("enabled")?).await? {
        return Err(no_such_schedule(name));
    }
    tx.commit().await?;
    Ok(form.redirect_back(&format!("/schedules/detail?name={}", format::url_encode(name))))
}

/// Evaluates the trigger without firing. The trigger is SQL of the schedule's owner that runs with
/// the privileges of the console's login, so a dry run requires a form submission by a user who may
/// act.
async fn test(form: FormRequest) -> HandlerResult {
    let name = form.field("name").to_owned();
    let mut session = form.context.session().await?;
    let (known, viewer) = {
        let tx = session.begin_read().await?;
        let viewer = form.context.viewer(&tx).await?;
        if !viewer.may_act {
            return Err(HttpError::forbidden("this login or this console is read-only"));
        }
        (data(&tx, &name).await?, viewer)
    };
    let tx = session.begin_read().await?;
    let test = dry_run(&tx, &name).await?;
    drop(tx);
    let shown = Shown { test, tested: true, ..Shown::default() };
    render_page(&form.context, viewer, known, shown)
}
