//! The list of runs: by state, job and schedule, page by page.

use askama::Template;
use axum::Router;
use axum::extract::Query;
use axum::routing::get;
use deadpool_postgres::Transaction;
use queue::insight::runs::{self, COUNTED, Listed, Page as Listing, RunQuery};
use serde::Deserialize;

use super::Shown;
use crate::app::App;
use crate::page::{Page, show as answer};
use crate::trouble::Trouble;
use crate::visit::Visit;
use crate::words;

/// Runs of a page.
const LIMIT: i64 = 50;

const STATES: [(&str, &str); 5] = [
    ("all", ""),
    ("running", "running"),
    ("failed", "failed"),
    ("succeeded", "succeeded"),
    ("cancelled", "cancelled"),
];

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/runs", get(show)).merge(super::run::routes())
}

/// What the address asks for; empty: any.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Ask {
    #[serde(default)]
    pub(crate) state: String,
    #[serde(default)]
    pub(crate) job: String,
    #[serde(default)]
    pub(crate) schedule: String,
    #[serde(default)]
    pub(crate) behind: String,
}

impl Ask {
    fn query(&self) -> Result<RunQuery, Trouble> {
        let given = |text: &str| (!text.trim().is_empty()).then(|| text.trim().to_owned());
        let state = given(&self.state).map(|word| word.parse()).transpose();
        let behind = given(&self.behind).map(|id| id.parse()).transpose();
        Ok(RunQuery {
            state: state.map_err(Trouble::bad)?,
            job: given(&self.job),
            schedule: given(&self.schedule),
            behind: behind.map_err(|_| {
                Trouble::bad("the list has no such page").hint("begin at its first page")
            })?,
        })
    }

    /// The address of the list with another state, or from another place on.
    fn path(&self, base: &str, state: &str, behind: &str) -> String {
        let pairs = [
            ("state", state),
            ("job", self.job.trim()),
            ("schedule", self.schedule.trim()),
            ("behind", behind),
        ];
        let given = pairs.iter().filter(|(_, value)| !value.is_empty());
        let query: Vec<String> =
            given.map(|(name, value)| format!("{name}={}", words::encoded(value))).collect();
        let mark = if query.is_empty() { "" } else { "?" };
        format!("{base}/runs{mark}{}", query.join("&"))
    }
}

#[derive(Template)]
#[template(path = "runs.html")]
struct Screen {
    page: Page,
    ask: Ask,
    listing: Listing,
    slow: bool,
}

impl Screen {
    fn states(&self) -> &'static [(&'static str, &'static str)] {
        &STATES
    }

    fn with_state(&self, state: &&str) -> String {
        self.ask.path(&self.page.base, state, "")
    }

    fn behind(&self, id: &i64) -> String {
        self.ask.path(&self.page.base, &self.ask.state, &id.to_string())
    }

    fn failed(&self, run: &Listed) -> String {
        words::count(run.failed, run.ended_at.is_none() && run.failed >= COUNTED)
    }
}

/// Reads a page.
pub(crate) async fn data(look: &Transaction<'_>, ask: &Ask) -> Result<Listing, Trouble> {
    Ok(runs::page(&**look, &ask.query()?, LIMIT).await?)
}

async fn show(visit: Visit, Query(ask): Query<Ask>) -> Shown {
    let mut session = visit.session().await?;
    let look = session.look().await?;
    let viewer = visit.viewer(&look).await?;
    let mut slow = false;
    let listing = match data(&look, &ask).await {
        Err(trouble) if trouble.slow() => {
            slow = true;
            Listing::default()
        }
        listing => listing?,
    };
    answer(&Screen { page: visit.page("Runs", viewer), ask, listing, slow })
}
