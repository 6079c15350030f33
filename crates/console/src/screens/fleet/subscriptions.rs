//! Subscriptions screen: who is notified of which events, and the notifications that were not
//! delivered.

use askama::Template;
use axum::Router;
use axum::extract::Path;
use axum::response::Response;
use axum::routing::{get, post};
use jiff::Timestamp;
use queue::subscription::{self, Notification, NotificationFilter, Subscription};

use crate::http::app::App;
use crate::http::error::{HandlerResult, HttpError};
use crate::http::request::{FormRequest, RequestContext};
use crate::page::format;
use crate::page::layout::{Layout, render};

/// Maximum number of notifications in each list.
const LISTED: i64 = 20;

pub(crate) fn routes() -> Router<App> {
    Router::new()
        .route("/subscriptions", get(show))
        .route("/subscriptions/{subscription}/enable", post(enable))
        .route("/subscriptions/{subscription}/test", post(test))
        .route("/subscriptions/{subscription}/retry", post(retry))
}

#[derive(Template)]
#[template(path = "subscriptions.html")]
struct SubscriptionsPage {
    page: Layout,
    subscriptions: Vec<Subscription>,
    /// Notifications that were not delivered, and the newest ones, of any state.
    lists: [(&'static str, Vec<Notification>); 2],
}

impl SubscriptionsPage {
    fn now(&self) -> Timestamp {
        self.page.viewer.now
    }

    fn events(&self, subscription: &Subscription) -> String {
        subscription.events.iter().map(|event| event.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// Returns what the event is about, such as the name of the task.
    fn about(&self, notification: &Notification) -> String {
        let keys = ["task", "schedule", "jobs", "queue", "host"];
        let found = keys.iter().find_map(|key| notification.document.get(*key));
        found.map(terminal::value).unwrap_or_default()
    }

    /// Returns the path of the task or run of the event.
    fn path(&self, notification: &Notification) -> Option<String> {
        let id = |key: &str| notification.document.get(key)?.as_i64();
        let task = id("task_id").map(|id| format!("/tasks/{id}"));
        task.or_else(|| Some(format!("/runs/{}", id("run_id")?)))
    }
}

async fn show(context: RequestContext) -> HandlerResult {
    let mut session = context.session().await?;
    let tx = session.begin_read().await?;
    let viewer = context.viewer(&tx).await?;
    let subscriptions = subscription::subscriptions(&*tx).await?;
    let dead = NotificationFilter { state: Some("dead".to_owned()), ..Default::default() };
    let dead = subscription::notifications(&*tx, &dead, LISTED).await?;
    let newest = subscription::notifications(&*tx, &NotificationFilter::default(), LISTED).await?;
    let lists = [("Undeliverable notifications", dead), ("Newest notifications", newest)];
    render(&SubscriptionsPage {
        page: Layout::new(&context, "Subscriptions", viewer),
        subscriptions,
        lists,
    })
}

async fn enable(Path(name): Path<String>, form: FormRequest) -> Result<Response, HttpError> {
    let enabled = form.parsed("enabled")?;
    let mut session = form.context.session().await?;
    let tx = form.begin(&mut session).await?;
    if !subscription::enable_subscription(&*tx, &name, enabled).await? {
        return Err(none());
    }
    tx.commit().await?;
    Ok(form.redirect_back("/subscriptions"))
}

async fn test(Path(name): Path<String>, form: FormRequest) -> Result<Response, HttpError> {
    let mut session = form.context.session().await?;
    let tx = form.begin(&mut session).await?;
    subscription::test_subscription(&*tx, &name).await?.ok_or_else(none)?;
    tx.commit().await?;
    Ok(form.redirect_back("/subscriptions"))
}

/// Attempts the undeliverable notifications of a subscription again.
async fn retry(Path(name): Path<String>, form: FormRequest) -> Result<Response, HttpError> {
    let mut session = form.context.session().await?;
    let tx = form.begin(&mut session).await?;
    if subscription::subscription(&*tx, &name).await?.is_none() {
        return Err(none());
    }
    subscription::retry_notifications(&*tx, Some(&name), None).await?;
    tx.commit().await?;
    Ok(form.redirect_back("/subscriptions"))
}

fn none() -> HttpError {
    HttpError::not_found("subscription not found")
}
