//! One job: its tasks, what each waits for, and what may be done with it.

use askama::Template;
use axum::Router;
use axum::extract::Query;
use axum::response::Response;
use axum::routing::{get, post};
use deadpool_postgres::Transaction;
use jiff::Timestamp;
use queue::insight::jobs::{self, Shape, ShapeTask};
use queue::insight::runs::{self, Listed, RunQuery};
use queue::job;
use queue::lineage::{self, Link};
use queue::run::Expected;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::Shown;
use super::graph::{Drawing, MOST_EDGES, MOST_NODES};
use crate::app::App;
use crate::highlight;
use crate::page::{Markup, Page, show as answer};
use crate::trouble::Trouble;
use crate::visit::{Act, Visit};
use crate::words;

/// Runs of a page.
const RUNS: i64 = 5;

pub(crate) fn routes() -> Router<App> {
    Router::new()
        .route("/jobs/one", get(show))
        .route("/jobs/run", post(run))
        .route("/jobs/enable", post(enable))
}

#[derive(Debug, Default, Deserialize)]
struct Ask {
    #[serde(default)]
    name: String,
}

/// A job and its edges.
pub(crate) struct Known {
    pub(crate) shape: Shape,
    pub(crate) links: Vec<Link>,
}

struct Line {
    name: String,
    description: String,
    queue: String,
    priority: String,
    after: String,
    statement: Option<Markup>,
}

#[derive(Template)]
#[template(path = "job.html")]
struct Screen {
    page: Page,
    name: String,
    enabled: bool,
    facts: Vec<(&'static str, String)>,
    lines: Vec<Line>,
    params: Vec<String>,
    left_out: i64,
    runs: Vec<Listed>,
    draws: bool,
    caveat: Option<String>,
}

impl Screen {
    fn now(&self) -> Timestamp {
        self.page.viewer.now
    }

    /// Where its picture comes from.
    fn source(&self) -> String {
        format!("{}/api/v1/jobs/graph?name={}", self.page.base, words::encoded(&self.name))
    }
}

impl Known {
    /// As it is drawn.
    pub(crate) fn drawing(&self) -> Drawing {
        let names = self.shape.tasks.iter().map(|task| task.name.as_str());
        let mut drawing = Drawing::of_names(names, &self.links, "");
        drawing.left_out = self.left_out();
        drawing
    }

    fn left_out(&self) -> i64 {
        self.shape.task_count - i64::try_from(self.shape.tasks.len()).unwrap_or(i64::MAX)
    }
}

/// Reads it. Its name counts in any case of letters.
pub(crate) async fn data(look: &Transaction<'_>, name: &str) -> Result<Known, Trouble> {
    let most = i64::try_from(MOST_NODES).unwrap_or(i64::MAX);
    let shape = jobs::shape(&**look, name.trim(), most).await?.ok_or_else(|| none(name))?;
    let names: Vec<&str> = shape.tasks.iter().map(|task| task.name.as_str()).collect();
    let wanted = i64::try_from(MOST_EDGES + 1).unwrap_or(i64::MAX);
    let edges = jobs::edges(&**look, &shape.name, &names, wanted).await?;
    Ok(Known { links: lineage::links(&edges), shape })
}

fn none(name: &str) -> Trouble {
    Trouble::not_found(format!("there is no job {name}"))
}

async fn show(visit: Visit, Query(ask): Query<Ask>) -> Shown {
    let mut session = visit.session().await?;
    let look = session.look().await?;
    let viewer = visit.viewer(&look).await?;
    let known = data(&look, &ask.name).await?;
    let query = RunQuery { job: Some(known.shape.name.clone()), ..RunQuery::default() };
    let runs = runs::page(&*look, &query, RUNS).await?.runs;
    let (drawing, left_out) = (known.drawing(), known.left_out());
    let Known { shape, links } = known;
    let line = |task: ShapeTask| Line {
        after: after(&links, &task.name),
        name: task.name,
        description: task.description.unwrap_or_default(),
        queue: task.queue,
        priority: task.priority.unwrap_or_default(),
        statement: task.statement.map(|sql| highlight::statement(&sql, None)),
    };
    let facts = [
        ("description", shape.description),
        ("category", shape.category),
        ("frequency", shape.frequency),
        ("priority", shape.priority),
    ];
    answer(&Screen {
        page: visit.page(shape.name.clone(), viewer),
        name: shape.name,
        enabled: shape.enabled,
        facts: facts.into_iter().filter_map(|(key, value)| Some((key, value?))).collect(),
        lines: shape.tasks.into_iter().map(line).collect(),
        params: shape.params,
        left_out,
        runs,
        draws: drawing.worth_it(),
        caveat: drawing.caveat(),
    })
}

fn after(links: &[Link], task: &str) -> String {
    let parents = links.iter().filter(|link| link.child == task);
    let told = parents.map(|link| match link.expected {
        Expected::Succeeded => link.parent.clone(),
        expected => format!("{} ({expected})", link.parent),
    });
    words::one_line(told.collect::<Vec<_>>().join(", "), 200)
}

async fn run(act: Act) -> Result<Response, Trouble> {
    let name = act.field("name").to_owned();
    let mut session = act.visit.session().await?;
    let transaction = act.begin(&mut session).await?;
    let known = data(&transaction, &name).await?;
    let mut params = Map::new();
    for param in known.shape.params {
        let value = act.field(&format!("param:{param}"));
        if !value.is_empty() {
            // As on the command line: a number, true or false; else text.
            let read = serde_json::from_str(value).ok().filter(|it: &Value| !it.is_string());
            params.insert(param, read.unwrap_or_else(|| value.into()));
        }
    }
    let started = queue::run::start(&*transaction, &[known.shape.name], &params).await?;
    transaction.commit().await?;
    session.ring().await;
    Ok(act.back(&format!("/runs/{}", started.run)))
}

async fn enable(act: Act) -> Result<Response, Trouble> {
    let name = act.field("name").to_owned();
    let mut session = act.visit.session().await?;
    let transaction = act.begin(&mut session).await?;
    if !job::enable(&*transaction, &name, act.parsed("enabled")?).await? {
        return Err(none(&name));
    }
    transaction.commit().await?;
    Ok(act.back(&format!("/jobs/one?name={}", words::encoded(&name))))
}
