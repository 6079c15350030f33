//! `pgmill subscription`, `pgmill notification`.

use cli::{Failure, exit};
use conninfo::Client;
use queue::subscription::{self, Notification, NotificationFilter, NotifyEvent, Subscription};
use serde_json::{Map, Value, json};

use crate::args::{
    NotificationList, NotificationRetry, NotificationVerb, OrOff, SubscriptionName,
    SubscriptionSet, SubscriptionVerb,
};
use crate::output::format::{counted, local_time, one_line, span};
use crate::output::list::{close, cut};
use crate::output::{Field, Output, Tone};
use crate::session::{begin_read_committed, commit_unless_dry_run};

const HEADINGS: [&str; 8] =
    ["subscription", "events", "filters", "receiver", "pending", "dead", "last sent", "last error"];

/// Runs a subcommand of `pgmill subscription`.
pub(crate) async fn run_subscription(
    client: &mut Client,
    out: &Output,
    verb: &SubscriptionVerb,
) -> Result<u8, Failure> {
    match verb {
        SubscriptionVerb::List => list(client, out).await,
        SubscriptionVerb::Show { name } => show(client, out, name).await,
        SubscriptionVerb::Set(args) => set(client, out, args).await,
        SubscriptionVerb::Remove(args) => remove(client, out, args).await,
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
) -> Result<u8, Failure> {
    match verb {
        NotificationVerb::List(args) => list_notifications(client, out, args).await,
        NotificationVerb::Retry(args) => retry(client, out, args).await,
    }
}

async fn list(client: &Client, out: &Output) -> Result<u8, Failure> {
    let subscriptions = subscription::subscriptions(client).await?;
    if out.json {
        out.document(&subscriptions)?;
    } else if subscriptions.is_empty() {
        out.note("there are no subscriptions");
    } else {
        out.print_table(&HEADINGS, subscriptions.iter().map(row).collect())?;
    }
    Ok(exit::OK)
}

fn row(it: &Subscription) -> Vec<Field> {
    let name = if it.enabled { it.name.clone() } else { format!("{} (disabled)", it.name) };
    let unserved = it.workers == Some(0);
    let receiver = if unserved { receiver(it) + " (no worker)" } else { receiver(it) };
    let tone = |odd: bool| if odd { Tone::Warning } else { Tone::Plain };
    vec![
        Field::new(name),
        Field::new(events(&it.events)),
        Field::new(filters(it)),
        Field::new(one_line(&receiver, 60)).tone(tone(unserved)),
        Field::count(it.pending),
        Field::count(it.dead).tone(tone(it.dead > 0)),
        Field::or_blank(it.last_sent_at.map(local_time)),
        Field::or_blank(it.last_error.as_ref().map(|error| one_line(error, 80)))
            .tone(tone(it.failures > 0)),
    ]
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

async fn show(client: &Client, out: &Output, name: &str) -> Result<u8, Failure> {
    let found = subscription::subscription(client, name).await?;
    let it = found.ok_or_else(|| unknown(name))?;
    if out.json {
        out.document(&it)?;
        return Ok(exit::OK);
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
    let rows = lines.into_iter().map(|(key, text)| vec![Field::new(key), Field::new(text)]);
    out.print_table(&["setting", "value"], rows.collect())?;
    Ok(exit::OK)
}

/// Returns the options of `mill.set_subscription`.
fn options(args: &SubscriptionSet) -> Value {
    let mut options = Map::new();
    for key in &args.clear {
        options.insert(key.clone(), Value::Null);
    }
    let texts = [
        ("destination", &args.destination),
        ("channel", &args.channel),
        ("statement", &args.statement),
        ("task_queue", &args.task_queue),
        ("run_as", &args.run_as),
        ("queue", &args.queue),
        ("job", &args.job),
        ("schedule", &args.schedule),
        ("tag", &args.tag),
        ("task", &args.task),
        ("description", &args.description),
    ];
    for (key, value) in texts {
        if let Some(value) = value {
            options.insert(key.to_owned(), json!(value));
        }
    }
    if let Some(events) = &args.events {
        options.insert("events".to_owned(), json!(events));
    }
    if let Some(count) = args.min_pending {
        options.insert("min_pending".to_owned(), json!(count));
    }
    if let Some(age) = args.min_age {
        options.insert("min_age".to_owned(), json!(format!("{} s", age.as_secs_f64())));
    }
    match args.rate {
        None => {}
        Some(OrOff(None)) => {
            options.insert("rate_messages".to_owned(), Value::Null);
        }
        Some(OrOff(Some(rate))) => {
            options.insert("rate_messages".to_owned(), json!(rate.starts));
            let period = format!("{} s", rate.period.as_secs_f64());
            options.insert("rate_period".to_owned(), json!(period));
        }
    }
    Value::Object(options)
}

/// Creates or changes a subscription.
///
/// # Errors
/// Fails if the settings contradict each other.
async fn set(client: &mut Client, out: &Output, args: &SubscriptionSet) -> Result<u8, Failure> {
    let transaction = begin_read_committed(client).await?;
    let is_new = subscription::subscription(&transaction, &args.name).await?.is_none();
    let changed = subscription::set_subscription(&transaction, &args.name, &options(args)).await?;
    let now = subscription::subscription(&transaction, &args.name).await?;
    commit_unless_dry_run(transaction, args.dry_run).await?;
    let now = now.ok_or_else(|| unknown(&args.name))?;
    if out.json {
        out.document(&json!({
            "dry_run": args.dry_run, "new": is_new, "changed": changed, "subscription": now,
        }))?;
        return Ok(exit::OK);
    }
    let verb = match (is_new, changed, args.dry_run) {
        (_, false, _) => "is unchanged",
        (true, _, true) => "would be created",
        (true, _, false) => "created",
        (false, _, true) => "would be changed",
        (false, _, false) => "changed",
    };
    let (events, receiver) = (events(&now.events), receiver(&now));
    out.text(&format!("subscription {} {verb}: {events} to {receiver}", args.name))?;
    if now.workers == Some(0) {
        let destination = now.destination.unwrap_or_default();
        out.note(format!("no live worker has [destinations.{destination}] in its configuration"));
    }
    Ok(exit::OK)
}

/// Removes a subscription.
///
/// # Errors
/// Fails if there is no such subscription.
async fn remove(client: &mut Client, out: &Output, args: &SubscriptionName) -> Result<u8, Failure> {
    let transaction = begin_read_committed(client).await?;
    let removed = subscription::remove_subscription(&transaction, &args.name).await?;
    commit_unless_dry_run(transaction, args.dry_run).await?;
    if !removed {
        return Err(unknown(&args.name));
    }
    if out.json {
        out.document(
            &json!({ "subscription": args.name, "dry_run": args.dry_run, "removed": true }),
        )?;
    } else {
        let verb = if args.dry_run { "would be removed" } else { "removed" };
        out.text(&format!("subscription {} {verb}", args.name))?;
    }
    Ok(exit::OK)
}

async fn enable(
    client: &mut Client,
    out: &Output,
    args: &SubscriptionName,
    enabled: bool,
) -> Result<u8, Failure> {
    let transaction = begin_read_committed(client).await?;
    let exists = subscription::enable_subscription(&transaction, &args.name, enabled).await?;
    commit_unless_dry_run(transaction, args.dry_run).await?;
    if !exists {
        return Err(unknown(&args.name));
    }
    if out.json {
        out.document(&json!({
            "subscription": args.name, "dry_run": args.dry_run, "enabled": enabled,
        }))?;
        return Ok(exit::OK);
    }
    let verb = if args.dry_run { "would be" } else { "is" };
    let state = if enabled { "enabled" } else { "disabled" };
    out.text(&format!("subscription {} {verb} {state}", args.name))?;
    Ok(exit::OK)
}

/// Sends a test message.
///
/// # Errors
/// Fails if there is no such subscription, or if it is disabled.
async fn test(client: &mut Client, out: &Output, args: &SubscriptionName) -> Result<u8, Failure> {
    let transaction = begin_read_committed(client).await?;
    let id = subscription::test_subscription(&transaction, &args.name).await?;
    commit_unless_dry_run(transaction, args.dry_run).await?;
    let id = id.ok_or_else(|| unknown(&args.name))?;
    if out.json {
        out.document(&json!({
            "subscription": args.name, "dry_run": args.dry_run, "notification_id": id,
        }))?;
        return Ok(exit::OK);
    }
    let verb = if args.dry_run { "would be" } else { "is" };
    out.text(&format!("a test of subscription {} {verb} queued, as notification {id}", args.name))?;
    Ok(exit::OK)
}

fn unknown(name: &str) -> Failure {
    Failure::not_found(format!("there is no subscription {name}")).hint("pgmill subscription list")
}

async fn list_notifications(
    client: &Client,
    out: &Output,
    args: &NotificationList,
) -> Result<u8, Failure> {
    let filter = NotificationFilter {
        subscription: args.subscription.clone(),
        state: args.state.clone(),
        before: None,
    };
    // Query one row more than is shown, to learn whether there are more.
    let mut found = subscription::notifications(client, &filter, args.limit + 1).await?;
    let more = cut(&mut found, args.limit);
    if out.json {
        out.document(&found)?;
    } else if !found.is_empty() {
        let headings =
            ["id", "at", "subscription", "event", "about", "state", "attempts", "last error"];
        out.print_table(&headings, found.iter().map(notification_row).collect())?;
    }
    close(out, found.len(), more, "no matching notification")
}

fn notification_row(it: &Notification) -> Vec<Field> {
    let tone = match it.state.as_str() {
        "sent" => Tone::Success,
        "dead" => Tone::Error,
        _ => Tone::Plain,
    };
    let about = ["task", "schedule", "jobs", "queue", "host"].iter().find_map(|key| {
        let value = it.document.get(*key)?;
        Some(one_line(&terminal::value(value), 40))
    });
    vec![
        Field::new(it.id),
        Field::new(local_time(it.created_at)),
        Field::or_blank(it.subscription.as_deref()),
        Field::new(it.event),
        Field::or_blank(about),
        Field::new(&it.state).tone(tone),
        Field::count(it.attempts.into()),
        Field::or_blank(it.last_error.as_ref().map(|error| one_line(error, 80))),
    ]
}

async fn retry(client: &mut Client, out: &Output, args: &NotificationRetry) -> Result<u8, Failure> {
    let ids = Some(args.ids.as_slice()).filter(|ids| !ids.is_empty());
    let transaction = begin_read_committed(client).await?;
    let name = args.subscription.as_deref();
    if let Some(name) = name
        && subscription::subscription(&transaction, name).await?.is_none()
    {
        return Err(unknown(name));
    }
    let retried = subscription::retry_notifications(&transaction, name, ids).await?;
    commit_unless_dry_run(transaction, args.dry_run).await?;
    if out.json {
        out.document(&json!({ "dry_run": args.dry_run, "retried": retried }))?;
        return Ok(exit::OK);
    }
    let verb = if args.dry_run { "would be" } else { "are" };
    let dead = counted(i64::from(retried), "dead notification");
    out.text(&format!("{dead} {verb} pending again"))?;
    Ok(exit::OK)
}
