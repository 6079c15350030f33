//! Limits screen: every limit of a queue, a concurrency key or a group, with its use, and forms that
//! change or remove the limit.

use std::collections::HashMap;
use std::sync::Arc;

use askama::Template;
use axum::Router;
use axum::extract::Query;
use axum::response::Response;
use axum::routing::{get, post};
use deadpool_postgres::Transaction;
use jiff::Timestamp;
use queue::insight::limits::{self, LimitCursor, LimitOrder, LimitQuery, LimitUse};
use queue::{LimitKind, limit};
use serde::{Deserialize, Serialize};

use super::queues::{rate, set_limits};
use crate::http::app::App;
use crate::http::download::{DownloadFormat, DownloadPage, download, json_rows};
use crate::http::error::{HandlerResult, HttpError};
use crate::http::request::{FormRequest, RequestContext};
use crate::page::format;
use crate::page::layout::{Layout, render};

/// Limits per page.
const PAGE_SIZE: i64 = 50;

/// Maximum number of limits in a list by wait, which has no further pages.
const LONGEST: i64 = 200;

/// Limits that a download reads at a time.
const DOWNLOAD_PAGE_SIZE: i64 = 200;

/// Columns of a CSV file.
const COLUMNS: [&str; 13] = [
    "kind",
    "name",
    "run_id",
    "max_running",
    "rate",
    "active_period",
    "open",
    "running",
    "running_more",
    "waiting",
    "waiting_more",
    "waiting_since",
    "first_waiting_id",
];

/// Tabs: label, kind.
const KINDS: [(&str, &str); 4] =
    [("all", ""), ("queues", "queue"), ("groups", "group"), ("concurrency keys", "key")];

pub(crate) fn routes() -> Router<App> {
    Router::new()
        .route("/limits", get(show))
        .route("/limits/download", get(save_as))
        .route("/limits/set", post(set))
        .route("/limits/remove", post(remove))
}

/// Query parameters of the screen; empty parameters are ignored.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
pub(crate) struct LimitsParams {
    /// a part of the name
    #[serde(default)]
    q: String,
    /// object that the limit applies to
    #[serde(default)]
    #[param(value_type = LimitKind, inline)]
    kind: String,
    /// order: name (default), or wait (only limits that tasks wait for, longest wait first, of at
    /// most 1,000 concurrency keys)
    #[serde(default)]
    #[param(pattern = "^(|name|wait)$")]
    sort: String,
    /// `next` of the previous page
    #[serde(default)]
    #[param(pattern = r"^((key|group|queue)\.[0-9]{1,18}\.[^\u0000]*)?$")]
    after: String,
}

/// A page of limits.
#[derive(Default, Serialize, utoipa::ToSchema)]
#[schema(as = LimitPage)]
pub(crate) struct Listing {
    limits: Vec<LimitUse>,
    /// Value of `after` for the next page; `None` on the last page.
    next: Option<String>,
}

impl LimitsParams {
    fn query(&self) -> Result<LimitQuery, HttpError> {
        let given = |text: &str| (!text.trim().is_empty()).then(|| text.trim().to_owned());
        let order = match self.sort.trim() {
            "" | "name" => LimitOrder::Name,
            "wait" => LimitOrder::Wait,
            other => {
                return Err(HttpError::bad_request(format!("unknown order \"{other}\""))
                    .hint("name or wait"));
            }
        };
        let kind = given(&self.kind).map(|word| word.parse()).transpose();
        Ok(LimitQuery {
            text: given(&self.q),
            kind: kind.map_err(HttpError::bad_request)?,
            order,
            after: parse_cursor(&self.after)?,
        })
    }

    fn query_string(&self, kind: &str, sort: &str, more: (&str, &str)) -> String {
        format::query_string(&[("q", &self.q), ("kind", kind), ("sort", sort), more])
    }
}

fn parse_cursor(text: &str) -> Result<Option<LimitCursor>, HttpError> {
    if text.is_empty() {
        return Ok(None);
    }
    let mut parts = text.splitn(3, '.');
    let cursor = (|| {
        let (kind, run_id) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some(LimitCursor { kind, run_id, name: parts.next()?.to_owned() })
    })();
    let invalid = || HttpError::bad_request("invalid page cursor").hint("start at the first page");
    cursor.map(Some).ok_or_else(invalid)
}

fn format_cursor(cursor: &LimitCursor) -> String {
    format!("{}.{}.{}", cursor.kind, cursor.run_id, cursor.name)
}

#[derive(Template)]
#[template(path = "limits.html")]
struct LimitsPage {
    page: Layout,
    params: LimitsParams,
    listing: Listing,
    timed_out: bool,
}

impl LimitsPage {
    fn now(&self) -> Timestamp {
        self.page.viewer.now
    }

    fn kinds(&self) -> &'static [(&'static str, &'static str)] {
        &KINDS
    }

    fn path(&self, kind: &str, sort: &str, after: &str) -> String {
        let query = self.params.query_string(kind, sort, ("after", after));
        let mark = if query.is_empty() { "" } else { "?" };
        format!("{}/limits{mark}{query}", self.page.base)
    }

    fn download_path(&self, format: &str) -> String {
        let (kind, sort) = (&self.params.kind, &self.params.sort);
        let query = self.params.query_string(kind, sort, ("format", format));
        format!("{}/limits/download?{query}", self.page.base)
    }

    fn by_wait(&self) -> bool {
        self.params.sort == "wait"
    }

    /// Returns the path of the tasks of a limit in a state.
    fn tasks_path(&self, limit: &LimitUse, state: &str) -> String {
        let key = limit.kind.as_str();
        let run = limit.run_id.map(|run| format!(" run:{run}")).unwrap_or_default();
        let filter = format!("{key}:\"{}\"{run} state:{state}", limit.name);
        format::tasks_path(&self.page.base, filter)
    }

    /// Returns whether all permits are in use.
    fn full(&self, limit: &LimitUse) -> bool {
        limit.max_running.is_some_and(|max| max > 0 && limit.running >= i64::from(max))
    }

    /// Returns the path of the form that changes the limit.
    fn action(&self, limit: &LimitUse) -> String {
        let name = format::url_encode(&limit.name);
        let path = match limit.kind {
            LimitKind::Queue => format!("queues/{name}/limit"),
            LimitKind::Group => format!("groups/{name}/concurrency"),
            LimitKind::Key | LimitKind::Crash => "limits/set".to_owned(),
        };
        format!("{}/{path}", self.page.base)
    }

    /// Returns the path of the form that removes the limit. For queues and groups, it is the form
    /// that changes the limit, without values.
    fn removal(&self, limit: &LimitUse) -> String {
        match limit.kind {
            LimitKind::Key => format!("{}/limits/remove", self.page.base),
            _ => self.action(limit),
        }
    }
}

/// Reads a page of limits.
pub(crate) async fn data(
    tx: &Transaction<'_>,
    params: &LimitsParams,
) -> Result<Listing, HttpError> {
    page(tx, &params.query()?, PAGE_SIZE).await
}

async fn page(tx: &Transaction<'_>, query: &LimitQuery, size: i64) -> Result<Listing, HttpError> {
    let size = if query.order == LimitOrder::Wait { LONGEST } else { size };
    let page = limits::page(&**tx, query, size).await?;
    Ok(Listing { limits: page.limits, next: page.next.as_ref().map(format_cursor) })
}

async fn show(context: RequestContext, Query(params): Query<LimitsParams>) -> HandlerResult {
    let mut session = context.session().await?;
    let tx = session.begin_read().await?;
    let viewer = context.viewer(&tx).await?;
    let (listing, timed_out) = match data(&tx, &params).await {
        Err(error) if error.timed_out() => (Listing::default(), true),
        listing => (listing?, false),
    };
    let page = Layout::new(&context, "Limits", viewer);
    render(&LimitsPage { page, params, listing, timed_out })
}

async fn save_as(
    context: RequestContext,
    Query(params): Query<LimitsParams>,
    Query(pairs): Query<HashMap<String, String>>,
) -> HandlerResult {
    let format = DownloadFormat::parse(pairs.get("format").map_or("", String::as_str))?;
    let shared = Arc::new((context, params.query()?));
    let read = move |after: String| {
        let shared = Arc::clone(&shared);
        async move {
            let (context, query) = &*shared;
            let after = parse_cursor(&after)?.or_else(|| query.after.clone());
            let query = LimitQuery { after, ..query.clone() };
            let mut session = context.session().await?;
            let tx = session.begin_read().await?;
            let listing = page(&tx, &query, DOWNLOAD_PAGE_SIZE).await?;
            Ok(DownloadPage { rows: json_rows(&listing.limits), next: listing.next })
        }
    };
    download(("limits", format), &COLUMNS, read).await
}

/// Sets both limits of a concurrency key; an empty field removes its limit.
async fn set(form: FormRequest) -> Result<Response, HttpError> {
    let key = form.field("key");
    let (max_running, rate): (Option<i32>, _) = (form.optional("max_running")?, rate(&form)?);
    let create = form.field("create") == "true";
    if create && max_running.is_none() && rate.is_none() {
        return Err(HttpError::bad_request("a limit needs a number of tasks or a rate"));
    }
    let mut session = form.context.session().await?;
    let tx = form.begin(&mut session).await?;
    // set_max_running creates a missing limit; a mistyped key must not.
    if !create && !limit::key_is_known(&*tx, key).await? {
        return Err(none(key));
    }
    set_limits(&tx, LimitKind::Key, key, max_running, rate).await?;
    tx.commit().await?;
    Ok(form.redirect_back("/limits"))
}

/// Removes the limit of a concurrency key. The database refuses while the key has live tasks.
async fn remove(form: FormRequest) -> Result<Response, HttpError> {
    let key = form.field("key");
    let mut session = form.context.session().await?;
    let tx = form.begin(&mut session).await?;
    if !limit::remove(&*tx, key).await? {
        return Err(none(key));
    }
    tx.commit().await?;
    Ok(form.redirect_back("/limits"))
}

fn none(key: &str) -> HttpError {
    HttpError::not_found(format!("no task has had the concurrency key \"{key}\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_keeps_any_name() {
        for name in ["etl", "a.b.c", "", "x y&z"] {
            let cursor = LimitCursor { kind: LimitKind::Group, run_id: 7, name: name.to_owned() };
            assert_eq!(parse_cursor(&format_cursor(&cursor)).unwrap(), Some(cursor));
        }
        for wrong in ["etl", "key.x.a", "job.0.a", "key.0"] {
            assert!(parse_cursor(wrong).is_err(), "{wrong}");
        }
    }
}
