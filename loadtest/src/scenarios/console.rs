//! How soon the web console answers in front of many live tasks and a long history: every screen and
//! every path of the API, as a browser would ask for them.

mod site;
mod stock;

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::time::sleep;

use self::site::Site;
use super::runs::FORGET;
use crate::bench::Bench;
use crate::database::Database;
use crate::fleet::{Crew, Fleet};
use crate::latency::Times;
use crate::result::{Better, Case, Check, Scenario};
use crate::rounds::case;
use crate::words::count_words;

/// What a person takes for at once.
const GOAL_MS: f64 = 200.0;

/// Requests for each page in a round.
const REQUESTS: usize = 20;

/// What the console's statements read, of one request.
const READ: &str = "/* loadtest.console_buffers */
SELECT coalesce(sum(s.shared_blks_hit + s.shared_blks_read), 0)::float8
FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
WHERE d.datname = current_database() AND s.query LIKE '/* queue.%'";

/// A statement is counted when its portal is closed: with the transaction, after the answer.
const UNDER_WAY: &str = "/* loadtest.console_under_way */
SELECT EXISTS (SELECT FROM pg_stat_activity a
    WHERE a.datname = current_database() AND a.state = 'idle in transaction')";

/// Tasks of every kind, for pages that show one: running, ended, failed.
const EXAMPLES: &str = "/* loadtest.console_examples */
SELECT (SELECT min(t.id) FROM mill.tasks t WHERE t.state = 'running'),
    (SELECT max(t.id) FROM mill.tasks t),
    (SELECT a.task_id FROM mill.attempts a WHERE a.outcome = 'failed' ORDER BY a.finished_at DESC LIMIT 1)";

/// Searches that find nothing, and look through all there is until they give up.
const IN_VAIN: &[&str] = &["nobodys", "state:failed+queue:etl-3", "state:ended+name:nobodys"];

/// No look may take longer, whatever it is asked: the console ends it after 2 s.
const PATIENCE_MS: f64 = 2500.0;

/// Filters that people write, beside those that a screen links to.
const FILTERS: &[&str] = &[
    "state:pending",
    "state:scheduled",
    "state:ended",
    "state:failed+since:1h",
    "state:failed+queue:etl-10",
    "state:failed+sqlstate:22*+since:3d",
    "queue:etl-3+state:pending",
    "name:%22task+78%22",
    "priority:high",
];

pub(crate) async fn run(bench: &Bench) -> Result<Scenario> {
    let live = bench.size(1_000_000, 50_000);
    let ended = bench.tasks(20_000_000, 500_000);
    let database = bench.database("console").await?;
    stock::fill(bench, &database, (live, ended)).await?;
    bench.progress.stage("console: settling");
    database.settle().await?;
    let crew = Crew::of(1, 8);
    let fleet = Fleet::start(bench, &database, &crew).await?;
    stock::hold(&database, crew.readers()).await?;
    let site = Site::start(bench, &database).await?;
    bench.progress.stage("console: reading the last hour");
    site.until_hour_is_read().await?;
    let mut pages = Vec::new();
    for path in paths(&site, &database).await? {
        pages.push(Page::new(path, GOAL_MS)?);
    }
    for filter in IN_VAIN {
        pages.push(Page::new(format!("/tasks?q={filter}"), PATIENCE_MS)?);
    }
    for round in 1..=bench.rounds() {
        bench.progress.stage(&format!("console: round {round}"));
        for page in &mut pages {
            page.measure(&site, &database).await?;
        }
        bench.keep(&pages.iter().map(|page| page.case.clone()).collect::<Vec<_>>());
    }
    // Its tasks do not end by themselves.
    drop((site, fleet));
    let counts = database.counts_statements;
    bench.drop_database(database).await?;
    let checks = vec![slowest(&pages)];
    let words = format!("{} live tasks, {} attempts", count_words(live), count_words(ended));
    let notes = vec![words, crew.words(), format!("{REQUESTS} requests a round, one at a time")];
    let cases = pages.into_iter().flat_map(|page| page.cases(counts)).collect();
    Ok(Scenario { cases, checks, notes, ..Scenario::default() })
}

/// One address.
struct Page {
    path: String,
    case: Case,
    times: Times,
    /// The least of all rounds: what is read in the background beside it does not count.
    buffers: f64,
}

impl Page {
    fn new(path: String, goal_ms: f64) -> Result<Self> {
        let case = Case { goal: Some(goal_ms), ..case(&path, "ms", Better::Lower) };
        Ok(Self { case, times: Times::new()?, path, buffers: f64::INFINITY })
    }

    async fn measure(&mut self, site: &Site, database: &Database) -> Result<()> {
        let mut times = Times::new()?;
        for _ in 0..REQUESTS {
            times.add(site.time(&self.path).await?);
        }
        self.case.rounds.push(times.at(50.0));
        self.times.merge(&times)?;
        if database.counts_statements {
            for _ in 0..3 {
                database.session.batch_execute(FORGET).await?;
                site.time(&self.path).await?;
                while database.session.query_typed(UNDER_WAY, &[]).await?[0].get(0) {
                    sleep(Duration::from_millis(1)).await;
                }
                let read: f64 = database.session.query_typed(READ, &[]).await?[0].get(0);
                self.buffers = self.buffers.min(read);
            }
        }
        Ok(())
    }

    fn cases(self, counts: bool) -> Vec<Case> {
        let timed = Case { percentiles: Some(self.times.percentiles()), ..self.case };
        let name = format!("{}: buffers", self.path);
        let read = Case { rounds: vec![self.buffers], ..case(name, "pages", Better::Lower) };
        if counts { vec![timed, read] } else { vec![timed] }
    }
}

/// Every screen of the navigation, every path of the API, some tasks and filters.
async fn paths(site: &Site, database: &Database) -> Result<Vec<String>> {
    let row = &database.session.query_typed(EXAMPLES, &[]).await?[0];
    let mut ids = Vec::new();
    for n in 0..3 {
        let id: Option<i64> = row.get(n);
        ids.push(id.context("a kind of task is missing from the fill")?);
    }
    let mut paths = site.screens().await?;
    paths.extend(ids.iter().map(|id| format!("/tasks/{id}")));
    paths.extend(FILTERS.iter().map(|filter| format!("/tasks?q={filter}")));
    paths.push("/tasks/all?q=state:pending".to_owned());
    paths.push("/failures?queue=etl-3".to_owned());
    paths.extend(site.api_paths(ids[2]).await?);
    Ok(paths)
}

fn slowest(pages: &[Page]) -> Check {
    let worst = |page: &&Page| page.times.at(100.0);
    let slowest = pages.iter().max_by(|a, b| worst(a).total_cmp(&worst(b)));
    let above: Vec<&str> = pages
        .iter()
        .filter(|page| page.case.median() > page.case.goal)
        .map(|page| page.path.as_str())
        .collect();
    let longest = slowest.map_or_else(String::new, |page| {
        format!("; the slowest of all answers took {:.0} ms: {}", worst(&page), page.path)
    });
    Check {
        what: format!(
            "every page within {GOAL_MS} ms by its median, a search in vain within {PATIENCE_MS} ms"
        ),
        passed: above.is_empty(),
        detail: format!(
            "{} of {} pages above it {}{longest}",
            above.len(),
            pages.len(),
            above.join(" ")
        ),
    }
}
