//! `pgmill subscription`, `pgmill notification`.

use std::time::Duration;

use cli::Exit;
use conninfo::Client;
use queue::subscription::{self, Notification, NotificationFilter, NotifyEvent, Subscription};
use serde_json::{Map, Value, json};

use crate::args::{
    NotificationList, NotificationRetry, NotificationVerb, ObjectName, SubscriptionSet,
    SubscriptionVerb,
};
use crate::output::format::{counted, local_time, one_line, span};
use crate::output::{Output, Row, Tone};
use crate::session::{Action, change, missing};

const KIND: &str = "subscription";

/// Runs a subcommand of `pgmill subscription`.
pub(crate) async fn run_subscription(
    client: &mut Client,
    out: &Output,
    verb: &SubscriptionVerb,
) -> Exit {
    match verb {
        SubscriptionVerb::List => {
            out.list(&subscription::subscriptions(client).await?, "there are no subscriptions", row)
        }
        SubscriptionVerb::Show { name } => show(client, out, name).await,
        SubscriptionVerb::Set(args) => set(client, out, args).await,
        SubscriptionVerb::Remove(args) => {
            let name = &args.name;
            Action { kind: KIND, done: "removed" }
                .run((client, out), args, async |to| {
                    Ok(subscription::remove_subscription(to, name).await?)
                })
                .await
        }
        SubscriptionVerb::Enable(args) => enable(client, out, args, true).await,
        SubscriptionVerb::Disable(args) => enable(client, out, args, false).await,
        SubscriptionVerb::Test(args) => test(client, out, args).await,
    }
}

/// Runs a subcommand of `pgmill notification`.
pub(crate) async fn run_notification(
    client: &mut Client,
    out: &Output,
    verb: &NotificationVerb,
) -> Exit {
    match verb {
        NotificationVerb::List(args) => list_notifications(client, out, args).await,
        NotificationVerb::Retry(args) => retry(client, out, args).await,
    }
}

fn row(it: &Subscription) -> Row {
    let name = if it.enabled { it.name.clone() } else { format!("{} (disabled)", it.name) };
    let unserved = it.workers == Some(0);
    let receiver = if unserved { receiver(it) + " (no worker)" } else { receiver(it) };
    Row::of("subscription", name)
        .text("events", events(&it.events))
        .text("filters", filters(it))
        .text("receiver", one_line(&receiver, 60))
        .warn_if(unserved)
        .count("pending", it.pending)
        .count("dead", it.dead)
        .warn_if(it.dead > 0)
        .maybe("last sent", it.last_sent_at.map(local_time))
        .maybe("last error", it.last_error.as_ref().map(|error| one_line(error, 80)))
        .warn_if(it.failures > 0)
}

fn events(events: &[NotifyEvent]) -> String {
    events.iter().map(|event| event.as_str()).collect::<Vec<_>>().join(", ")
}

fn filters(it: &Subscription) -> String {
    let filters = [
        ("queue", &it.queue),
        ("job", &it.job),
        ("schedule", &it.schedule),
        ("tag", &it.tag),
        ("task", &it.task),
    ];
    let given =
        filters.iter().filter_map(|(key, value)| Some(format!("{key} {}", (*value).as_ref()?)));
    let pending = it.min_pending.map(|count| format!("{count} pending"));
    let age = it.min_age_seconds.map(|seconds| format!("waiting {}", span(seconds)));
    given.chain(pending).chain(age).collect::<Vec<_>>().join(", ")
}

fn receiver(it: &Subscription) -> String {
    match (&it.destination, &it.channel, &it.statement) {
        (Some(destination), _, _) => format!("destination {destination}"),
        (_, Some(channel), _) => format!("channel {channel}"),
        (_, _, Some(statement)) => format!("task {statement}"),
        (None, None, None) => "task".to_owned(),
    }
}

async fn show(client: &Client, out: &Output, name: &str) -> Exit {
    let found = subscription::subscription(client, name).await?;
    let it = found.ok_or_else(|| missing(KIND, name))?;
    if out.json {
        return out.document(&it);
    }
    let rate = it.rate_messages.zip(it.rate_seconds);
    let rate = rate.map(|(messages, seconds)| {
        format!("{} in {}", counted(i64::from(messages), "message"), span(seconds))
    });
    let mut lines = vec![
        ("name", it.name.clone()),
        ("enabled", if it.enabled { "yes" } else { "no" }.to_owned()),
        ("events", events(&it.events)),
        ("filters", filters(&it)),
        ("receiver", receiver(&it)),
        ("task queue", it.task_queue.clone().unwrap_or_default()),
        ("run as", it.run_as.clone().unwrap_or_default()),
        ("workers", it.workers.map(|count| count.to_string()).unwrap_or_default()),
        ("rate", rate.unwrap_or_else(|| "off".to_owned())),
        ("description", it.description.clone().unwrap_or_default()),
        ("created by", it.created_by.clone()),
        ("changed at", local_time(it.changed_at)),
        ("messages sent", it.messages_sent.to_string()),
        ("last sent", it.last_sent_at.map(local_time).unwrap_or_default()),
        ("pending", it.pending.to_string()),
        ("dead", it.dead.to_string()),
    ];
    if let Some(error) = &it.last_error {
        lines.push(("failures", it.failures.to_string()));
        lines.push(("last error", error.clone()));
        lines.push(("next attempt", it.retry_at.map(local_time).unwrap_or_default()));
    }
    lines.retain(|(_, text)| !text.is_empty());
    let rows = lines.into_iter().map(|(key, text)| Row::of("setting", key).text("value", text));
    out.print_table(rows.collect())
}

/// Returns the options of `mill.set_subscription`.
fn options(args: &SubscriptionSet) -> Value {
    let mut options = Map::new();
    for key in &args.clear {
        options.insert(key.clone(), Value::Null);
    }
    let same = json!({
        "events": args.events, "destination": args.destination, "channel": args.channel,
        "statement": args.statement, "task_queue": args.task_queue, "run_as": args.run_as,
        "queue": args.queue, "job": args.job, "schedule": args.schedule, "tag": args.tag,
        "task": args.task, "min_pending": args.min_pending, "description": args.description,
    });
    let given = same.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    options.extend(given.map(|(key, value)| (key.clone(), value.clone())));
    let seconds = |it: Duration| format!("{} s", it.as_secs_f64());
    let others = [
        ("min_age", args.min_age.map(|it| seconds(it).into())),
        ("rate_messages", args.rate.map(|it| json!(it.0.map(|rate| rate.starts)))),
        ("rate_period", args.rate.and_then(|it| Some(seconds(it.0?.period).into()))),
    ];
    options.extend(others.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))));
    Value::Object(options)
}

/// Creates or changes a subscription.
///
/// # Errors
/// Fails if the settings contradict each other.
async fn set(client: &mut Client, out: &Output, args: &SubscriptionSet) -> Exit {
    let SubscriptionSet { name, dry_run, .. } = args;
    let (is_new, changed, now) = change(client, *dry_run, async |to| {
        let is_new = subscription::subscription(to, name).await?.is_none();
        let changed = subscription::set_subscription(to, name, &options(args)).await?;
        let now = subscription::subscription(to, name).await?;
        Ok((is_new, changed, now.ok_or_else(|| missing(KIND, name))?))
    })
    .await?;
    let verb = match (is_new, changed) {
        (_, false) => "is unchanged",
        (true, true) => dry_run.or("would be created", "created"),
        (false, true) => dry_run.or("would be changed", "changed"),
    };
    let (events, receiver) = (events(&now.events), receiver(&now));
    let code = out.answer(
        json!({ "dry_run": dry_run, "new": is_new, "changed": changed, "subscription": now }),
        format!("subscription {name} {verb}: {events} to {receiver}"),
    )?;
    if now.workers == Some(0) && !out.json {
        let destination = now.destination.unwrap_or_default();
        out.note(format!("no live worker has [destinations.{destination}] in its configuration"));
    }
    Ok(code)
}

async fn enable(client: &mut Client, out: &Output, args: &ObjectName, enabled: bool) -> Exit {
    let ObjectName { name, dry_run } = args;
    let exists = change(client, *dry_run, async |to| {
        Ok(subscription::enable_subscription(to, name, enabled).await?)
    });
    if !exists.await? {
        return Err(missing(KIND, name));
    }
    let state = if enabled { "enabled" } else { "disabled" };
    out.answer(
        json!({ "subscription": name, "dry_run": dry_run, "enabled": enabled }),
        format!("subscription {name} {} {state}", dry_run.or("would be", "is")),
    )
}

/// Sends a test message.
///
/// # Errors
/// Fails if there is no such subscription, or if it is disabled.
async fn test(client: &mut Client, out: &Output, args: &ObjectName) -> Exit {
    let ObjectName { name, dry_run } = args;
    let id = change(client, *dry_run, async |to| {
        let id = subscription::test_subscription(to, name).await?;
        id.ok_or_else(|| missing(KIND, name))
    })
    .await?;
    let is = dry_run.or("would be", "is");
    out.answer(
        json!({ "subscription": name, "dry_run": dry_run, "notification_id": id }),
        format!("a test of subscription {name} {is} queued, as notification {id}"),
    )
}

async fn list_notifications(client: &Client, out: &Output, args: &NotificationList) -> Exit {
    let filter = NotificationFilter {
        subscription: args.subscription.clone(),
        state: args.state.clone(),
        before: None,
    };
    let found = subscription::notifications(client, &filter, args.limit + 1).await?;
    out.page((found, args.limit), "no matching notification", notification_row)
}

fn notification_row(it: &Notification) -> Row {
    let tone = match it.state.as_str() {
        "sent" => Tone::Success,
        "dead" => Tone::Error,
        _ => Tone::Plain,
    };
    let about = ["task", "schedule", "jobs", "queue", "host"].iter().find_map(|key| {
        let value = it.document.get(*key)?;
        Some(one_line(&terminal::value(value), 40))
    });
    Row::of("id", it.id)
        .text("at", local_time(it.created_at))
        .maybe("subscription", it.subscription.as_deref())
        .text("event", it.event)
        .maybe("about", about)
        .text("state", &it.state)
        .tone(tone)
        .count("attempts", it.attempts)
        .maybe("last error", it.last_error.as_ref().map(|error| one_line(error, 80)))
}

async fn retry(client: &mut Client, out: &Output, args: &NotificationRetry) -> Exit {
    let ids = Some(args.ids.as_slice()).filter(|ids| !ids.is_empty());
    let retried = change(client, args.dry_run, async |to| {
        let name = args.subscription.as_deref();
        if let Some(name) = name
            && subscription::subscription(to, name).await?.is_none()
        {
            return Err(missing(KIND, name));
        }
        Ok(subscription::retry_notifications(to, name, ids).await?)
    })
    .await?;
    let are = args.dry_run.or("would be", "are");
    out.answer(
        json!({ "dry_run": args.dry_run, "retried": retried }),
        format!("{} {are} pending again", counted(retried, "dead notification")),
    )
}
