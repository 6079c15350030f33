//! Subscriptions screen: who is notified of which events, and the notifications that were not
//! delivered.

use queue::subscription::{self, Notification, NotificationFilter, Subscription};

use crate::screens::prelude::*;

/// The screen to which the forms return.
const PATH: &str = "/subscriptions";

/// Maximum number of notifications in each list.
const LISTED: i64 = 20;

pub(crate) fn routes() -> Router<App> {
    Router::new()
        .route("/subscriptions", get(show))
        .route("/subscriptions/{subscription}/enable", post(enable_subscription))
        .route("/subscriptions/{subscription}/test", post(test_subscription))
        .route("/subscriptions/{subscription}/retry", post(retry_notifications))
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

async fn show(mut request: ReadRequest) -> HandlerResult {
    let read = request.begin().await?;
    let subscriptions = subscription::subscriptions(&*read.tx).await?;
    let dead = NotificationFilter { state: Some("dead".to_owned()), ..Default::default() };
    let dead = subscription::notifications(&*read.tx, &dead, LISTED).await?;
    let all = NotificationFilter::default();
    let newest = subscription::notifications(&*read.tx, &all, LISTED).await?;
    let lists = [("Undeliverable notifications", dead), ("Newest notifications", newest)];
    render(&SubscriptionsPage { page: read.layout("Subscriptions"), subscriptions, lists })
}

async fn enable_subscription(Path(name): Path<String>, form: FormRequest) -> HandlerResult {
    let enabled = form.parsed("enabled")?;
    form.change(PATH, async |tx| {
        let known = subscription::enable_subscription(tx, &name, enabled).await?;
        HttpError::unless(known, subscription_not_found)
    })
    .await
}

async fn test_subscription(Path(name): Path<String>, form: FormRequest) -> HandlerResult {
    form.change(PATH, async |tx| {
        subscription::test_subscription(tx, &name).await?.ok_or_else(subscription_not_found)
    })
    .await
}

/// Attempts the undeliverable notifications of a subscription again.
async fn retry_notifications(Path(name): Path<String>, form: FormRequest) -> HandlerResult {
    form.change(PATH, async |tx| {
        subscription::subscription(tx, &name).await?.ok_or_else(subscription_not_found)?;
        Ok(subscription::retry_notifications(tx, Some(&name), None).await?)
    })
    .await
}

fn subscription_not_found() -> HttpError {
    HttpError::not_found("subscription not found")
}
