//! Audit screen: the audit log, newest first.

use askama::Template;
use axum::Router;
use axum::extract::Query;
use axum::routing::get;
use deadpool_postgres::Transaction;
use queue::QueueError;
use queue::audit::{self, AuditEntry, AuditFilter};
use serde::{Deserialize, Serialize};

use crate::filter::{self, FilterError};
use crate::http::app::App;
use crate::http::error::{HandlerResult, HttpError};
use crate::http::request::RequestContext;
use crate::page::format::{self, ByValue};
use crate::page::layout::{Layout, render};

/// Entries per page.
const PAGE_SIZE: usize = 50;

/// Maximum length of a detail; the JSON has the full detail.
const DETAIL_CHARS: usize = 200;

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/audit", get(show))
}

/// Query parameters of the screen; empty parameters are ignored.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
pub(crate) struct AuditParams {
    /// subject of the action, such as task 42
    #[serde(default)]
    subject: String,
    /// login or actor
    #[serde(default)]
    login: String,
    /// name of the function
    #[serde(default)]
    action: String,
    /// time range up to now: 90s, 15m, 2h, 3d
    #[serde(default)]
    #[param(pattern = "^([0-9]{1,4}[smhd])?$")]
    since: String,
    /// entries of this time or later, such as 2026-12-01T14:00
    #[serde(default)]
    #[param(value_type = String, example = "2026-12-01T14:00")]
    from: String,
    /// entries of this time or earlier
    #[serde(default)]
    #[param(value_type = String, example = "2026-12-02T14:00")]
    to: String,
    /// time zone of `from` and `to`, such as Europe/Berlin; UTC if it is missing
    #[serde(default)]
    #[param(value_type = String, example = "UTC")]
    zone: String,
    /// `next` of the previous page
    #[serde(default)]
    #[param(value_type = i64)]
    before: String,
}

/// A page of audit entries.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = AuditPage)]
pub(crate) struct Listing {
    acts: Vec<AuditEntry>,
    /// Value of `before` for the next page; `None` on the last page.
    next: Option<i64>,
}

#[derive(Template)]
#[template(path = "audit.html")]
struct AuditPage {
    page: Layout,
    params: AuditParams,
    listing: Listing,
    filter_error: Option<FilterError>,
}

impl AuditParams {
    fn filter(&self) -> Result<AuditFilter, FilterError> {
        let given = |text: &str| Some(text.trim().to_owned()).filter(|text| !text.is_empty());
        let before = given(&self.before).map(|it| filter::number("before", &it)).transpose()?;
        let since = given(&self.since).map(|it| filter::since(&it)).transpose()?;
        Ok(AuditFilter {
            subject: given(&self.subject),
            login: given(&self.login),
            action: given(&self.action),
            since,
            from: filter::time_in_zone(&self.from, &self.zone)?,
            to: filter::time_in_zone(&self.to, &self.zone)?,
            before,
        })
    }

    /// Returns the URL of another page of the same search; 0 is the first page.
    fn path(&self, before: impl ByValue<i64>) -> String {
        let before = before.value();
        let before = if before == 0 { String::new() } else { before.to_string() };
        let period = !(self.from.trim().is_empty() && self.to.trim().is_empty());
        let fields = [
            ("subject", self.subject.as_str()),
            ("login", &self.login),
            ("action", &self.action),
            ("since", &self.since),
            ("from", &self.from),
            ("to", &self.to),
            ("zone", if period { &self.zone } else { "" }),
            ("before", &before),
        ];
        let asked = fields.iter().filter(|(_, value)| !value.is_empty());
        let pairs: Vec<String> =
            asked.map(|(name, value)| format!("{name}={}", format::url_encode(value))).collect();
        format!("/audit?{}", pairs.join("&"))
    }

    fn of(name: &str, value: &str) -> String {
        format!("/audit?{name}={}", format::url_encode(value))
    }
}

impl AuditPage {
    /// Returns the time zone of the period, which is that of the browser unless the URL has one.
    fn zone(&self) -> &str {
        if self.params.zone.is_empty() { self.page.zone_name() } else { &self.params.zone }
    }

    /// Returns the path of the screen that shows the subject, if there is one.
    fn subject_path(&self, act: &AuditEntry) -> Option<String> {
        let (kind, name) = act.subject.split_once(' ')?;
        match kind {
            "task" if name.parse::<i64>().is_ok() => Some(format!("/tasks/{name}")),
            "queue" => Some(format::tasks_path("", format!("queue:\"{name}\""))),
            "subscription" => Some("/subscriptions".to_owned()),
            _ => None,
        }
    }

    fn detail(&self, act: &AuditEntry) -> String {
        format::one_line(
            act.detail.as_ref().map(terminal::audit_detail).unwrap_or_default(),
            DETAIL_CHARS,
        )
    }
}

/// Reads a page of audit entries.
pub(crate) async fn data(
    tx: &Transaction<'_>,
    params: &AuditFilter,
) -> Result<Listing, QueueError> {
    let limit = i64::try_from(PAGE_SIZE).unwrap_or(i64::MAX);
    // Query one entry more than is shown, to learn whether there is a next page.
    let mut acts = audit::entries(&**tx, params, limit + 1).await?;
    let more = acts.len() > PAGE_SIZE;
    acts.truncate(PAGE_SIZE);
    let next = acts.last().filter(|_| more).map(|act| act.id);
    Ok(Listing { acts, next })
}

/// Reads a page for the API, where an invalid parameter is an error.
pub(crate) async fn listing(
    tx: &Transaction<'_>,
    params: &AuditParams,
) -> Result<Listing, HttpError> {
    let filter = params.filter().map_err(|it| HttpError::bad_request(it.message).hint(it.hint))?;
    Ok(data(tx, &filter).await?)
}

async fn show(context: RequestContext, Query(params): Query<AuditParams>) -> HandlerResult {
    let mut session = context.session().await?;
    let tx = session.begin_read().await?;
    let viewer = context.viewer(&tx).await?;
    let (listing, filter_error) = match params.filter() {
        Ok(filter) => (data(&tx, &filter).await?, None),
        Err(error) => (Listing { acts: Vec::new(), next: None }, Some(error)),
    };
    render(&AuditPage {
        page: Layout::new(&context, "Audit", viewer),
        params,
        listing,
        filter_error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_page_keeps_the_filter() {
        let params = AuditParams {
            subject: "queue a&b".to_owned(),
            since: "2h".to_owned(),
            zone: "Europe/Berlin".to_owned(),
            ..AuditParams::default()
        };
        assert_eq!(params.path(7), "/audit?subject=queue%20a%26b&since=2h&before=7");
        assert_eq!(params.path(0), "/audit?subject=queue%20a%26b&since=2h");
        let params = AuditParams { from: "2026-12-01".to_owned(), ..params };
        let period = "from=2026-12-01&zone=Europe%2FBerlin";
        assert_eq!(params.path(0), format!("/audit?subject=queue%20a%26b&since=2h&{period}"));
        assert!(
            AuditParams { since: "soon".to_owned(), ..AuditParams::default() }.filter().is_err()
        );
    }
}
