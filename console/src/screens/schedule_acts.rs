//! What is done with a schedule: run now, enabled, disabled, and a tick that fires nothing.

use axum::Router;
use axum::response::Response;
use axum::routing::post;
use schedule::declare;

use super::Shown;
use super::schedule::{data, missing, screen, tested};
use crate::app::App;
use crate::trouble::Trouble;
use crate::visit::Act;
use crate::words;

pub(crate) fn routes() -> Router<App> {
    Router::new()
        .route("/schedules/run-now", post(run_now))
        .route("/schedules/enable", post(enable))
        .route("/schedules/test", post(test))
}

async fn run_now(act: Act) -> Result<Response, Trouble> {
    let name = act.field("name");
    let mut session = act.visit.session().await?;
    let transaction = act.begin(&mut session).await?;
    let started = declare::run_now(&*transaction, name, act.field("force") == "true").await?;
    let run = started.ok_or_else(|| missing(name))?;
    transaction.commit().await?;
    session.ring().await;
    Ok(act.back(&format!("/runs/{run}")))
}

async fn enable(act: Act) -> Result<Response, Trouble> {
    let name = act.field("name");
    let mut session = act.visit.session().await?;
    let transaction = act.begin(&mut session).await?;
    if !declare::enable(&*transaction, name, act.parsed("enabled")?).await? {
        return Err(missing(name));
    }
    transaction.commit().await?;
    Ok(act.back(&format!("/schedules/one?name={}", words::encoded(name))))
}

/// It only looks, but runs the SQL of whoever declared the schedule, with the rights of this login: so
/// somebody who may act has to press a button of this console.
async fn test(act: Act) -> Shown {
    let name = act.field("name").to_owned();
    let mut session = act.visit.session().await?;
    let (known, viewer) = {
        let look = session.look().await?;
        let viewer = act.visit.viewer(&look).await?;
        if !viewer.may_act {
            return Err(Trouble::forbidden("this login, or this console, may only look"));
        }
        (data(&look, &name).await?, viewer)
    };
    let look = session.look().await?;
    let test = tested(&look, &name).await?;
    drop(look);
    screen(&act.visit, viewer, known, (test, true))
}
