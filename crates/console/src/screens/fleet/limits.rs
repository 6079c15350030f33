//! Limits screen: every limit of a queue, a concurrency key or a group, with its use, and forms that
//! change or remove the limit.

use queue::insight::limits::{self, LimitCursor, LimitOrder, LimitQuery, LimitUse};
use queue::{LimitKind, limit};

use super::queues::Limits;
use crate::screens::prelude::*;

/// The screen to which the forms return.
const PATH: &str = "/limits";

/// Limits per page.
const PAGE_SIZE: i64 = 50;

/// Maximum number of limits in a list by wait, which has no further pages.
const LONGEST: i64 = 200;

/// Limits that a download reads at a time.
const DOWNLOAD_PAGE_SIZE: i64 = 200;

/// Tabs: label, kind.
const KINDS: [(&str, &str); 4] =
    [("all", ""), ("queues", "queue"), ("groups", "group"), ("concurrency keys", "key")];

pub(crate) fn routes() -> Router<App> {
    Router::new()
        .route("/limits", get(show))
        .route("/limits/download", get(download::<LimitsParams>))
        .route("/limits/set", post(set_key_limits))
        .route("/limits/remove", post(remove_key_limits))
}

/// Query parameters of the screen; empty parameters are ignored.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(default)]
pub(crate) struct LimitsParams {
    /// a part of the name
    q: String,
    /// object that the limit applies to
    #[param(value_type = LimitKind, inline)]
    kind: String,
    /// order: name (default), or wait (only limits that tasks wait for, longest wait first, of at
    /// most 1,000 concurrency keys)
    #[param(pattern = "^(|name|wait)$")]
    sort: String,
    /// `next` of the previous page
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
        let order = match self.sort.trim() {
            "" | "name" => LimitOrder::Name,
            "wait" => LimitOrder::Wait,
            other => {
                return Err(HttpError::bad_request(format!("unknown order \"{other}\""))
                    .hint("name or wait"));
            }
        };
        let kind = filter::given(&self.kind).map(|word| word.parse()).transpose();
        Ok(LimitQuery {
            text: filter::given(&self.q),
            kind: kind.map_err(HttpError::bad_request)?,
            order,
            after: parse_cursor(&self.after)?,
        })
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
    cursor.map(Some).ok_or_else(HttpError::invalid_cursor)
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
    fn by_wait(&self) -> bool {
        self.params.sort == "wait"
    }

    /// Returns the path of the tasks of a limit in a state.
    fn tasks_path(&self, limit: &LimitUse, state: &str) -> String {
        let name = filter::term(limit.kind.as_str(), &limit.name);
        let run = limit.run_id.map(|run| format!(" run:{run}")).unwrap_or_default();
        let filter = format!("{name}{run} state:{state}");
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
    let page = limits::page(tx, query, size).await?;
    Ok(Listing { limits: page.limits, next: page.next.as_ref().map(format_cursor) })
}

async fn show(mut request: ReadRequest, Query(params): Query<LimitsParams>) -> HandlerResult {
    let read = request.begin().await?;
    let (listing, timed_out) = HttpError::unless_timed_out(data(&read.tx, &params).await)?;
    render(&LimitsPage { page: read.layout("Limits"), params, listing, timed_out })
}

impl FileList for LimitsParams {
    const NAME: &'static str = "limits";
    const COLUMNS: &'static str = "kind name run_id max_running rate active_period open running \
        running_more waiting waiting_more waiting_since first_waiting_id";

    async fn rows(&self, tx: &mut Transaction<'_>, after: &str) -> Result<FileRows, HttpError> {
        let query = self.query()?;
        let query = LimitQuery { after: parse_cursor(after)?.or(query.after), ..query };
        let listing = page(tx, &query, DOWNLOAD_PAGE_SIZE).await?;
        Ok(FileRows::new(&listing.limits, listing.next))
    }
}

/// Sets both limits of a concurrency key; an empty field removes its limit.
async fn set_key_limits(form: FormRequest) -> HandlerResult {
    let (key, limits, create) = (form.field("key"), Limits::read(&form)?, form.flag("create"));
    if create && limits.is_empty() {
        return Err(HttpError::bad_request("a limit needs a number of tasks or a rate"));
    }
    form.change(PATH, async |tx| {
        // set_max_running creates a missing limit; a mistyped key must not.
        let known = create || limit::key_is_known(tx, key).await?;
        HttpError::unless(known, || key_not_found(key))?;
        Ok(limits.set(tx, LimitKind::Key, key).await?)
    })
    .await
}

/// Removes the limit of a concurrency key. The database refuses while the key has live tasks.
async fn remove_key_limits(form: FormRequest) -> HandlerResult {
    let key = form.field("key");
    form.change(PATH, async |tx| {
        HttpError::unless(limit::remove(tx, key).await?, || key_not_found(key))
    })
    .await
}

fn key_not_found(key: &str) -> HttpError {
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
