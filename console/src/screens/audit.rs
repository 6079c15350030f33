//! Who did what, the last first.

use askama::Template;
use axum::Router;
use axum::extract::Query;
use axum::routing::get;
use deadpool_postgres::Transaction;
use queue::QueueError;
use queue::audit::{self, Act, AuditFilter};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Shown;
use crate::app::App;
use crate::filter::{self, Mistake};
use crate::page::{Page, show as answer};
use crate::trouble::Trouble;
use crate::visit::Visit;
use crate::words::{self, Of};

/// One page.
const MOST: usize = 50;

/// The whole of a detail is in the JSON.
const DETAIL_CHARS: usize = 200;

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/audit", get(show))
}

/// What the address asks for; what is empty is not asked for.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Ask {
    #[serde(default)]
    subject: String,
    #[serde(default)]
    login: String,
    #[serde(default)]
    act: String,
    #[serde(default)]
    since: String,
    /// `next` of the page before.
    #[serde(default)]
    before: String,
}

/// A page of acts.
#[derive(Serialize)]
pub(crate) struct Listing {
    acts: Vec<Act>,
    /// What to ask for as `before` to go on; `None`: there is no more.
    next: Option<i64>,
}

#[derive(Template)]
#[template(path = "audit.html")]
struct Screen {
    page: Page,
    ask: Ask,
    listing: Listing,
    mistake: Option<Mistake>,
}

impl Ask {
    fn filter(&self) -> Result<AuditFilter, Mistake> {
        let given = |text: &str| Some(text.trim().to_owned()).filter(|text| !text.is_empty());
        let before = given(&self.before).map(|it| filter::number("before", &it)).transpose()?;
        let since = given(&self.since).map(|it| filter::since(&it)).transpose()?;
        Ok(AuditFilter {
            subject: given(&self.subject),
            login: given(&self.login),
            act: given(&self.act),
            since,
            before,
        })
    }

    /// The address of the same question on another page; 0: on the first.
    fn path(&self, before: impl Of<i64>) -> String {
        let before = before.value();
        let before = if before == 0 { String::new() } else { before.to_string() };
        let fields = [
            ("subject", self.subject.as_str()),
            ("login", &self.login),
            ("act", &self.act),
            ("since", &self.since),
            ("before", &before),
        ];
        let asked = fields.iter().filter(|(_, value)| !value.is_empty());
        let pairs: Vec<String> =
            asked.map(|(name, value)| format!("{name}={}", words::encoded(value))).collect();
        format!("/audit?{}", pairs.join("&"))
    }

    fn of(name: &str, value: &str) -> String {
        format!("/audit?{name}={}", words::encoded(value))
    }
}

impl Screen {
    /// The screen that shows what it was done to, if there is one.
    fn subject_path(&self, act: &Act) -> Option<String> {
        let (kind, name) = act.subject.split_once(' ')?;
        match kind {
            "task" if name.parse::<i64>().is_ok() => Some(format!("/tasks/{name}")),
            "queue" => Some(words::tasks_path("", format!("queue:\"{name}\""))),
            _ => None,
        }
    }

    /// `name: value, …` on one line.
    fn detail(&self, act: &Act) -> String {
        let told = match &act.detail {
            None => String::new(),
            Some(Value::Object(fields)) => {
                let field =
                    |(name, it): (&String, &Value)| format!("{name}: {}", terminal::value(it));
                fields.iter().map(field).collect::<Vec<_>>().join(", ")
            }
            Some(other) => terminal::value(other),
        };
        words::one_line(&told, DETAIL_CHARS)
    }
}

/// Reads one page.
pub(crate) async fn data(look: &Transaction<'_>, ask: &AuditFilter) -> Result<Listing, QueueError> {
    let limit = i64::try_from(MOST).unwrap_or(i64::MAX);
    // One more than shown, to know whether there are more.
    let mut acts = audit::acts(&**look, ask, limit + 1).await?;
    let more = acts.len() > MOST;
    acts.truncate(MOST);
    let next = acts.last().filter(|_| more).map(|act| act.id);
    Ok(Listing { acts, next })
}

/// The same for the API, where a mistake is an error.
pub(crate) async fn listing(look: &Transaction<'_>, ask: &Ask) -> Result<Listing, Trouble> {
    let filter = ask.filter().map_err(|it| Trouble::bad(it.message).hint(it.hint))?;
    Ok(data(look, &filter).await?)
}

async fn show(visit: Visit, Query(ask): Query<Ask>) -> Shown {
    let mut session = visit.session().await?;
    let look = session.look().await?;
    let viewer = visit.viewer(&look).await?;
    let (listing, mistake) = match ask.filter() {
        Ok(filter) => (data(&look, &filter).await?, None),
        Err(mistake) => (Listing { acts: Vec::new(), next: None }, Some(mistake)),
    };
    answer(&Screen { page: visit.page("Audit", viewer), ask, listing, mistake })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_keeps_the_question() {
        let ask = Ask { subject: "queue a&b".to_owned(), since: "2h".to_owned(), ..Ask::default() };
        assert_eq!(ask.path(7), "/audit?subject=queue%20a%26b&since=2h&before=7");
        assert_eq!(ask.path(0), "/audit?subject=queue%20a%26b&since=2h");
        assert!(Ask { since: "soon".to_owned(), ..Ask::default() }.filter().is_err());
    }
}
