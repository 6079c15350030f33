//! Failures screen: failed attempts grouped by cause.

use queue::insight::{self, FailureGroup};

use crate::screens::prelude::*;

/// Maximum number of causes shown.
const MAX_GROUPS: usize = 200;

/// Maximum number of example tasks and names per cause.
const MAX_EXAMPLES: usize = 3;

/// Predefined time ranges.
const SPANS: [&str; 4] = ["1h", "6h", "1d", "7d"];

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/failures", get(show))
}

/// Query parameters of the screen.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(default)]
pub(crate) struct FailuresParams {
    /// only causes that occur in this queue
    pub(crate) queue: String,
    /// time range up to now: 90s, 15m, 2h, 3d; default 1h
    #[param(pattern = "^([0-9]{1,4}[smhd])?$")]
    since: String,
}

#[derive(Template)]
#[template(path = "failures.html")]
struct FailuresPage {
    page: Layout,
    params: FailuresParams,
    groups: Vec<FailureGroup>,
    filter_error: Option<HttpError>,
}

impl FailuresParams {
    pub(crate) fn since(&self) -> Result<Duration, HttpError> {
        filter::since(self.span())
    }

    fn span(&self) -> &str {
        if self.since.is_empty() { SPANS[0] } else { &self.since }
    }
}

impl FailuresPage {
    /// Returns the message, or a placeholder if it is hidden.
    fn message<'a>(&self, group: &'a FailureGroup) -> &'a str {
        let hidden = if group.sqlstate.is_some() { terminal::HIDDEN } else { "" };
        group.message.as_deref().unwrap_or(hidden)
    }

    /// Returns the filter that selects the tasks with this cause.
    fn filter(&self, group: &FailureGroup) -> String {
        let queue = filter::given(&self.params.queue);
        let queue = queue.map(|queue| filter::term(" queue", queue)).unwrap_or_default();
        format!("state:{} cause:{}{queue} since:{}", group.outcome, group.cause, self.params.span())
    }

    fn retry_path(&self, group: &FailureGroup) -> String {
        format!("{}/tasks/bulk?q={}", self.page.base, format::url_encode(&self.filter(group)))
    }

    fn names(&self, group: &FailureGroup) -> String {
        let shown = group.names.iter().take(MAX_EXAMPLES).map(String::as_str);
        let more = if group.names.len() > MAX_EXAMPLES { ", …" } else { "" };
        format!("{}{more}", shown.collect::<Vec<_>>().join(", "))
    }
}

/// Reads the causes, most frequent first. With a queue: the causes that occur in that queue, with
/// their attempts in all queues.
pub(crate) async fn groups(
    tx: &Transaction<'_>,
    queue: &str,
    since: Duration,
) -> Result<Vec<FailureGroup>, QueueError> {
    let mut groups = insight::failures(tx, since).await?;
    groups.retain(|group| queue.is_empty() || group.queues.iter().any(|it| it == queue));
    groups.truncate(MAX_GROUPS);
    Ok(groups)
}

async fn show(mut request: ReadRequest, Query(params): Query<FailuresParams>) -> HandlerResult {
    let read = request.begin().await?;
    let (groups, filter_error) = match params.since() {
        Ok(since) => (groups(&read.tx, &params.queue, since).await?, None),
        Err(error) => (Vec::new(), Some(error)),
    };
    render(&FailuresPage { page: read.layout("Failures"), params, groups, filter_error })
}
