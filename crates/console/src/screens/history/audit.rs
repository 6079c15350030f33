//! Audit screen: the audit log, newest first.

use queue::audit::{self, AuditEntry, AuditFilter};

use crate::screens::prelude::*;

/// Entries per page.
const PAGE_SIZE: usize = 50;

/// Maximum length of a detail; the JSON has the full detail.
const DETAIL_CHARS: usize = 200;

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/audit", get(show))
}

/// Query parameters of the screen; empty parameters are ignored.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(default)]
pub(crate) struct AuditParams {
    /// subject of the action, such as task 42
    subject: String,
    /// login or actor
    login: String,
    /// name of the function
    action: String,
    /// time range up to now: 90s, 15m, 2h, 3d
    #[param(pattern = "^([0-9]{1,4}[smhd])?$")]
    since: String,
    /// entries of this time or later, such as 2026-12-01T14:00
    #[param(value_type = String, example = "2026-12-01T14:00")]
    from: String,
    /// entries of this time or earlier
    #[param(value_type = String, example = "2026-12-02T14:00")]
    to: String,
    /// time zone of `from` and `to`, such as Europe/Berlin; UTC if it is missing
    #[param(value_type = String, example = "UTC")]
    zone: String,
    /// `next` of the previous page
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
    filter_error: Option<HttpError>,
}

impl AuditParams {
    pub(crate) fn filter(&self) -> Result<AuditFilter, HttpError> {
        let before =
            filter::given(&self.before).map(|it| filter::number("before", &it)).transpose()?;
        let since = filter::given(&self.since).map(|it| filter::since(&it)).transpose()?;
        Ok(AuditFilter {
            subject: filter::given(&self.subject),
            login: filter::given(&self.login),
            action: filter::given(&self.action),
            since,
            from: filter::time_in_zone(&self.from, &self.zone)?,
            to: filter::time_in_zone(&self.to, &self.zone)?,
            before,
        })
    }

    fn of(name: &str, value: &str) -> String {
        format!("/audit?{name}={}", format::url_encode(value))
    }
}

impl AuditPage {
    /// Returns the path of the screen that shows the subject, if there is one.
    fn subject_path(&self, act: &AuditEntry) -> Option<String> {
        let (kind, name) = act.subject.split_once(' ')?;
        match kind {
            "task" if name.parse::<i64>().is_ok() => Some(format!("/tasks/{name}")),
            "queue" => Some(format::tasks_path("", filter::term("queue", name))),
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
    // One entry more than is shown tells whether there is a next page.
    let mut acts = audit::entries(tx, params, (PAGE_SIZE + 1).value()).await?;
    let more = acts.len() > PAGE_SIZE;
    acts.truncate(PAGE_SIZE);
    let next = acts.last().filter(|_| more).map(|act| act.id);
    Ok(Listing { acts, next })
}

async fn show(mut request: ReadRequest, Query(params): Query<AuditParams>) -> HandlerResult {
    let read = request.begin().await?;
    let (listing, filter_error) = match params.filter() {
        Ok(filter) => (data(&read.tx, &filter).await?, None),
        Err(error) => (Listing { acts: Vec::new(), next: None }, Some(error)),
    };
    render(&AuditPage { page: read.layout("Audit"), params, listing, filter_error })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_range_that_is_not_a_duration_is_an_error() {
        let params = AuditParams { since: "soon".to_owned(), ..AuditParams::default() };
        assert!(params.filter().is_err());
    }
}
