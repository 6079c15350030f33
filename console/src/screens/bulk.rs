//! Cancel or retry all tasks that match a filter: first the number, then the deed.
//!
//! The page that asks says how many match, and up to which task or time. The deed evaluates the
//! filter again, no further than that, and looks at each task once more under its lock: what has
//! moved on in between is left alone, and told.

use std::collections::BTreeMap;

use askama::Template;
use axum::Router;
use axum::extract::Query;
use axum::routing::get;
use deadpool_postgres::Transaction;
use jiff::Timestamp;
use queue::TaskId;
use queue::bulk::{self, Answer, CHUNK};
use queue::insight::tasks::{self, Behind, Found, TaskQuery};

use super::Shown;
use crate::app::App;
use crate::database::Session;
use crate::filter;
use crate::page::{Page, show as answer};
use crate::trouble::Trouble;
use crate::visit::{Act, Visit};
use crate::words;

/// One deed. What is left matches still, and can be asked for again.
const MOST: usize = 10_000;

/// Refusals that are told one by one.
const MOST_TOLD: usize = 20;

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/tasks/all", get(ask).post(act))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Cancel,
    Retry,
}

impl Verb {
    fn of(query: &TaskQuery) -> Self {
        if query.ended { Self::Retry } else { Self::Cancel }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Cancel => "cancel",
            Self::Retry => "retry",
        }
    }
}

/// The filter; or the tasks that were ticked in a list.
#[derive(Debug)]
struct Asked {
    q: String,
}

#[derive(Template)]
#[template(path = "bulk_ask.html")]
struct AskScreen {
    page: Page,
    verb: &'static str,
    q: String,
    sample: Vec<Found>,
    count: i64,
    more: bool,
    upto: String,
}

#[derive(Template)]
#[template(path = "bulk_done.html")]
struct DoneScreen {
    page: Page,
    verb: &'static str,
    q: String,
    counts: Vec<(String, i64)>,
    refused: Vec<Answer>,
    left: bool,
}

async fn ask(visit: Visit, Query(pairs): Query<Vec<(String, String)>>) -> Shown {
    let asked = Asked::from_pairs(&pairs)?;
    let mut session = visit.session().await?;
    let look = session.look().await?;
    let viewer = visit.viewer(&look).await?;
    let query = read(&asked.q)?;
    let (ids, more) = matching(&look, &query, "").await?;
    let upto = match Verb::of(&query) {
        Verb::Cancel => ids.iter().map(|id| id.0).max().unwrap_or(0).to_string(),
        Verb::Retry => viewer.now.as_microsecond().to_string(),
    };
    let sample = sample(&look, &query, &ids).await?;
    answer(&AskScreen {
        verb: Verb::of(&query).word(),
        page: visit.page(format!("{} tasks", Verb::of(&query).word()), viewer),
        q: asked.q,
        sample,
        count: i64::try_from(ids.len()).unwrap_or(i64::MAX),
        more,
        upto,
    })
}

async fn act(form: Act) -> Shown {
    let q = form.field("q").to_owned();
    let query = read(&q)?;
    let mut session = form.visit.session().await?;
    let ((ids, left), viewer) = {
        let look = session.look().await?;
        let viewer = form.visit.viewer(&look).await?;
        (matching(&look, &query, form.field("upto")).await?, viewer)
    };
    let verb = Verb::of(&query);
    let (mut counts, mut refused) = (BTreeMap::<String, i64>::new(), Vec::new());
    for chunk in ids.chunks(CHUNK) {
        for it in do_chunk(&form, &mut session, &query, chunk).await? {
            *counts.entry(it.result.clone()).or_default() += 1;
            if it.message.is_some() && refused.len() < MOST_TOLD {
                refused.push(it);
            }
        }
    }
    answer(&DoneScreen {
        page: form.visit.page(format!("{} tasks", verb.word()), viewer),
        verb: verb.word(),
        q,
        counts: counts.into_iter().collect(),
        refused,
        left,
    })
}

/// A transaction for all of them; if one is refused, which undoes the others, one for each.
async fn do_chunk(
    form: &Act,
    session: &mut Session,
    query: &TaskQuery,
    chunk: &[TaskId],
) -> Result<Vec<Answer>, Trouble> {
    let act = form.begin(session).await?;
    let together = match Verb::of(query) {
        Verb::Cancel => bulk::cancel_chunk(&*act, chunk, query.state).await,
        Verb::Retry => bulk::retry_together(&*act, chunk, query.outcome).await,
    };
    match together {
        Ok(answers) => {
            act.commit().await?;
            return Ok(answers);
        }
        Err(error) if error.refused() => drop(act),
        Err(error) => return Err(error.into()),
    }
    let mut answers = Vec::with_capacity(chunk.len());
    for id in chunk {
        let act = form.begin(session).await?;
        match bulk::retry_together(&*act, &[*id], query.outcome).await {
            Ok(answer) => {
                act.commit().await?;
                answers.extend(answer);
            }
            Err(error) if error.refused() => answers.push(Answer::refused(*id, &error)),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(answers)
}

impl Asked {
    fn from_pairs(pairs: &[(String, String)]) -> Result<Self, Trouble> {
        let values = |name: &'static str| {
            pairs.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.trim())
        };
        let ticked: Vec<&str> = values("id").collect();
        let q = values("q").next().unwrap_or_default();
        if ticked.is_empty() {
            return Ok(Self { q: q.to_owned() });
        }
        let query = read(q)?;
        let standing = if query.ended { "state:ended " } else { "" };
        Ok(Self { q: format!("{standing}id:{}", ticked.join(",")) })
    }
}

fn read(q: &str) -> Result<TaskQuery, Trouble> {
    filter::parse(q).map_err(|mistake| Trouble::bad(mistake.message).hint(mistake.hint))
}

/// The tasks, and whether there may be more; `upto` is what the page that asked said.
async fn matching(
    look: &Transaction<'_>,
    query: &TaskQuery,
    upto: &str,
) -> Result<(Vec<TaskId>, bool), Trouble> {
    let bound: Option<i64> = upto.parse().ok();
    if !query.ended {
        let ids = tasks::live_ids(&**look, query, bound.map(TaskId), MOST).await?;
        let more = ids.len() >= MOST;
        return Ok((ids, more));
    }
    let behind = bound
        .and_then(|at| Timestamp::from_microsecond(at).ok())
        .map(|at| Behind { at, id: TaskId(i64::MAX) });
    let page = tasks::ended(&**look, query, behind, MOST).await?;
    let mut ids: Vec<TaskId> = page.tasks.iter().filter(|it| !it.again).map(|it| it.id).collect();
    ids.sort_unstable();
    ids.dedup();
    Ok((ids, page.more || page.looked_back_to.is_some()))
}

/// Some of them, to recognize.
async fn sample(
    look: &Transaction<'_>,
    query: &TaskQuery,
    ids: &[TaskId],
) -> Result<Vec<Found>, Trouble> {
    let some = ids.iter().rev().take(10).map(|id| id.0).collect();
    let query = TaskQuery { ids: Some(some), ended: query.ended, ..TaskQuery::default() };
    let page = if query.ended {
        tasks::ended(&**look, &query, None, 10).await?
    } else {
        tasks::live(&**look, &query, None, 10).await?
    };
    Ok(page.tasks)
}
