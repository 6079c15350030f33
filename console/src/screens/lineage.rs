//! What leads to a task and what follows from it, over all jobs.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use askama::Template;
use axum::Router;
use axum::extract::Query;
use axum::routing::get;
use deadpool_postgres::Transaction;
use queue::job;
use queue::lineage::{self, Link};
use queue::run::Expected;
use serde::Deserialize;

use super::Shown;
use super::graph::Drawing;
use crate::app::App;
use crate::page::{Page, show as answer};
use crate::trouble::Trouble;
use crate::visit::Visit;
use crate::words;

/// Tasks of a page of names.
const LIMIT: i64 = 200;

/// Lines of a list.
const MOST_LINES: usize = 500;

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/lineage", get(show))
}

/// What the address asks for.
#[derive(Debug, Default, Deserialize)]
struct Ask {
    #[serde(default)]
    name: String,
    #[serde(default)]
    behind: String,
}

/// A task and what is around it.
pub(crate) struct Known {
    pub(crate) name: String,
    pub(crate) links: Vec<Link>,
}

/// A task on the way, and what says so.
struct Line {
    name: String,
    /// 1: directly.
    distance: usize,
    /// What it is next to, on the way to the task in question.
    by: String,
    expected: Option<Expected>,
    said_by: String,
}

#[derive(Template)]
#[template(path = "lineage.html")]
struct Screen {
    page: Page,
    name: String,
    unknown: bool,
    upstream: Vec<Line>,
    downstream: Vec<Line>,
    left_out: usize,
    names: Vec<String>,
    next: Option<String>,
    draws: bool,
    caveat: Option<String>,
}

impl Screen {
    /// Both directions: heading, what is said of none, and the tasks.
    fn halves(&self) -> [(&'static str, &'static str, &[Line]); 2] {
        [
            ("Upstream: what it waits for", "It waits for nothing.", &self.upstream),
            ("Downstream: what waits for it", "Nothing waits for it.", &self.downstream),
        ]
    }

    /// Where its picture comes from.
    fn source(&self) -> String {
        format!("{}/api/v1/lineage/graph?name={}", self.page.base, words::encoded(&self.name))
    }
}

impl Known {
    /// The task itself and all the others.
    pub(crate) fn names(&self) -> BTreeSet<&str> {
        lineage::names(&self.name, &self.links)
    }

    /// As it is drawn: of too many tasks the nearest ones.
    pub(crate) fn drawing(&self) -> Drawing {
        let near = [false, true].map(|upwards| walk(&self.name, &self.links, upwards));
        let mut lines: Vec<&Line> = near.iter().flatten().collect();
        lines.sort_by_key(|line| line.distance);
        let mut seen = BTreeSet::new();
        let names = std::iter::once(self.name.as_str())
            .chain(lines.into_iter().map(|line| line.name.as_str()))
            .filter(|name| seen.insert(*name));
        Drawing::of_names(names, &self.links, &self.name)
    }
}

/// Reads it; a task without a neighbour has no links.
pub(crate) async fn data(look: &Transaction<'_>, name: &str) -> Result<Known, Trouble> {
    let name = name.trim().to_owned();
    let edges =
        if name.is_empty() { Vec::new() } else { job::lineage(&**look, &name, true, true).await? };
    if edges.is_empty() && !name.is_empty() && !lineage::known(&**look, &name).await? {
        return Err(no_such_task(&name));
    }
    Ok(Known { name, links: lineage::links(&edges) })
}

fn no_such_task(name: &str) -> Trouble {
    Trouble::not_found(format!("no job and no dependency has a task {name}"))
}

async fn show(visit: Visit, Query(ask): Query<Ask>) -> Shown {
    let mut session = visit.session().await?;
    let look = session.look().await?;
    let viewer = visit.viewer(&look).await?;
    let known = data(&look, &ask.name).await?;
    let (mut names, mut next) = (Vec::new(), None);
    if known.name.is_empty() {
        names = lineage::tasks(&*look, &ask.behind, LIMIT + 1).await?;
        let most = usize::try_from(LIMIT).unwrap_or(usize::MAX);
        if names.len() > most {
            names.truncate(most);
            next = names.last().cloned();
        }
    }
    let drawing = known.drawing();
    let mut upstream = walk(&known.name, &known.links, true);
    let mut downstream = walk(&known.name, &known.links, false);
    let all = upstream.len() + downstream.len();
    upstream.truncate(MOST_LINES);
    downstream.truncate(MOST_LINES);
    let title = if known.name.is_empty() {
        "Lineage".to_owned()
    } else {
        format!("Lineage of {}", known.name)
    };
    answer(&Screen {
        page: visit.page(title, viewer),
        unknown: known.links.is_empty(),
        left_out: all - upstream.len() - downstream.len(),
        upstream,
        downstream,
        names,
        next,
        draws: drawing.worth_it(),
        caveat: drawing.caveat(),
        name: known.name,
    })
}

/// Every task in one direction once, the nearest first.
fn walk(name: &str, links: &[Link], upwards: bool) -> Vec<Line> {
    let mut next: BTreeMap<&str, Vec<&Link>> = BTreeMap::new();
    for link in links {
        next.entry(if upwards { &link.child } else { &link.parent }).or_default().push(link);
    }
    let mut seen = BTreeSet::from([name]);
    let mut left = VecDeque::from([(name, 0)]);
    let mut lines = Vec::new();
    while let Some((at, distance)) = left.pop_front() {
        for link in next.get(at).into_iter().flatten() {
            let other = if upwards { link.parent.as_str() } else { link.child.as_str() };
            if seen.insert(other) {
                left.push_back((other, distance + 1));
                lines.push(Line {
                    name: other.to_owned(),
                    distance: distance + 1,
                    by: at.to_owned(),
                    expected: Some(link.expected).filter(|it| *it != Expected::Succeeded),
                    said_by: said_by(link),
                });
            }
        }
    }
    lines
}

/// Where the edge is written.
pub(crate) fn said_by(link: &Link) -> String {
    let everywhere = link.everywhere.then_some("every job");
    let jobs: Vec<&str> = link.jobs.iter().map(String::as_str).chain(everywhere).collect();
    words::one_line(jobs.join(", "), 120)
}
