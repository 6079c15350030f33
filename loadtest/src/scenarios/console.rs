//! Measures the response times of the web console with many live tasks and a long history, compared
//! with a nearly empty database: every screen and every API path, requested as a browser would.

mod console_process;
mod dataset;

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::time::sleep;

use self::console_process::ConsoleProcess;
use super::runs::FORGET;
use crate::context::RunContext;
use crate::context::database::Database;
use crate::fleet::{Fleet, FleetSpec};
use crate::measure::latency::LatencyHistogram;
use crate::measure::rounds::{against, case};
use crate::report::number_format::short_count;
use crate::result::{Better, Case, Check, Scenario};

/// Response time in milliseconds that users perceive as immediate.
const GOAL_MS: f64 = 200.0;

/// Number of requests per page and round.
const REQUESTS: usize = 20;

/// Number of buffers that the console's statements have read.
const READ: &str = "SELECT /* loadtest.console_buffers */ coalesce(sum(s.shared_blks_hit + s.shared_blks_read), 0)::float8
FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
WHERE d.datname = current_database() AND s.query LIKE '%/* queue.%'";

/// Tests whether a transaction of the console is still open. pg_stat_statements counts a statement
/// only when the portal is closed, which is at the end of the transaction, after the response.
const UNDER_WAY: &str =
    "SELECT /* loadtest.console_under_way */ EXISTS (SELECT FROM pg_stat_activity a
    WHERE a.datname = current_database() AND a.state = 'idle in transaction')";

/// Ids of examples for pages about a single object: running, waiting and failed tasks, and a run.
const EXAMPLES: &str = "SELECT /* loadtest.console_examples */ (SELECT min(t.id) FROM mill.tasks t WHERE t.state = 'running'),
    (SELECT max(t.id) FROM mill.tasks t WHERE t.state = 'pending'),
    (SELECT a.task_id FROM mill.attempts a WHERE a.outcome = 'failed' ORDER BY a.finished_at DESC LIMIT 1),
    (SELECT max(r.id) FROM mill.runs r)";

/// Pages about a single object; a word in braces stands for its id, as in
/// [`ConsoleSetup::address`].
const DETAIL_PAGES: &[&str] = &[
    "/tasks/{running}",
    "/tasks/{waiting}",
    "/tasks/{failed}",
    "/runs/{run}",
    "/jobs/detail?name=it",
    "/schedules/detail?name=it",
    "/lineage?name=it",
];

/// Filters that match no task, so that the search scans until it gives up.
const EMPTY_SEARCHES: &[&str] =
    &["nobodys", "state:failed+queue:etl-3", "state:finished+name:nobodys"];

/// Maximum time of any query in milliseconds. The console cancels a query after 2 s.
const PATIENCE_MS: f64 = 2500.0;

/// Filters as users write them, in addition to those that screens link to.
const FILTERS: &[&str] = &[
    "state:pending",
    "state:scheduled",
    "state:finished",
    "state:failed+since:1h",
    "state:failed+queue:etl-10",
    "state:failed+sqlstate:22*+since:3d",
    "queue:etl-3+state:pending",
    "name:%22task+78%22",
    "priority:high",
];

pub(crate) async fn run(context: &RunContext) -> Result<Scenario> {
    let live = context.size(1_000_000, 50_000);
    let ended = context.tasks(20_000_000, 500_000);
    let fleet_spec = FleetSpec::new(1, 8);
    let of_empty = context.database("console_empty").await?;
    let of_full = context.database("console_full").await?;
    dataset::fill(context, &of_full, (live, ended)).await?;
    let empty = ConsoleSetup::open(context, &of_empty, &fleet_spec).await?;
    let full = ConsoleSetup::open(context, &of_full, &fleet_spec).await?;
    let mut pages = pages(&full.console).await?;
    for round in 1..=context.rounds() {
        context.progress.stage(&format!("console: round {round}"));
        for page in &mut pages {
            page.measure(&empty, &full).await?;
        }
        context.keep(&pages.iter().flat_map(Page::cases).collect::<Vec<_>>());
    }
    // Drop the workers first: their tasks do not end by themselves.
    drop((empty, full));
    context.drop_database(of_empty).await?;
    context.drop_database(of_full).await?;
    let checks = vec![slowest(&pages)];
    let words = format!("{} live tasks, {} attempts", short_count(live), short_count(ended));
    let notes =
        vec![words, fleet_spec.describe(), format!("{REQUESTS} requests per round, one at a time")];
    let cases = pages.iter().flat_map(Page::cases).collect();
    Ok(Scenario { cases, checks, notes, ..Scenario::default() })
}

/// A database, a worker whose readers are busy, and a console.
struct ConsoleSetup<'a> {
    console: ConsoleProcess,
    _fleet: Fleet<'a>,
    /// Words in braces with the ids that they stand for.
    ids: Vec<(&'static str, i64)>,
    database: &'a Database,
}

impl<'a> ConsoleSetup<'a> {
    /// Inserts one object of each kind and warms up the console.
    async fn open(
        context: &'a RunContext,
        database: &'a Database,
        fleet_spec: &FleetSpec,
    ) -> Result<Self> {
        dataset::insert_examples(database).await?;
        let stage = |what: &str| context.progress.stage(&format!("{}: {what}", database.name()));
        stage("settling");
        database.vacuum_and_checkpoint().await?;
        let fleet = Fleet::start(context, database, fleet_spec).await?;
        dataset::occupy_readers(database, fleet_spec.readers()).await?;
        let console = ConsoleProcess::start(context, database).await?;
        stage("reading the last hours");
        console.until_hours_are_read().await?;
        let row = &database.session.query_typed(EXAMPLES, &[]).await?[0];
        let mut ids = Vec::new();
        for (n, word) in ["{running}", "{waiting}", "{failed}", "{run}"].into_iter().enumerate() {
            let id: Option<i64> = row.get(n);
            ids.push((word, id.with_context(|| format!("no example for {word}"))?));
        }
        Ok(Self { console, _fleet: fleet, ids, database })
    }

    fn address(&self, path: &str) -> String {
        let fill = |path: String, (word, id): &(&str, i64)| path.replace(word, &id.to_string());
        self.ids.iter().fold(path.to_owned(), fill)
    }

    /// Sends the requests of a round; returns their median and 95th percentile.
    async fn request(&self, path: &str, all: &mut LatencyHistogram) -> Result<[f64; 2]> {
        let path = self.address(path);
        let mut times = LatencyHistogram::new()?;
        for _ in 0..REQUESTS {
            times.add(self.console.time(&path).await?);
        }
        all.merge(&times)?;
        Ok([times.at(50.0), times.at(95.0)])
    }
}

/// One page on both databases.
struct Page {
    path: String,
    goal_ms: f64,
    empty: Timed,
    full: Timed,
    /// Minimum over all rounds, which excludes concurrent background reads. Infinite if not
    /// counted.
    buffers: f64,
}

/// All timings of a page on one database.
struct Timed {
    times: LatencyHistogram,
    medians: Vec<f64>,
    p95s: Vec<f64>,
}

impl Timed {
    fn new() -> Result<Self> {
        Ok(Self { times: LatencyHistogram::new()?, medians: Vec::new(), p95s: Vec::new() })
    }

    async fn add(&mut self, setup: &ConsoleSetup<'_>, path: &str) -> Result<()> {
        let [median, p95] = setup.request(path, &mut self.times).await?;
        self.medians.push(median);
        self.p95s.push(p95);
        Ok(())
    }

    /// Returns the medians and the 95th percentiles of the rounds.
    fn cases(&self, name: &str) -> [Case; 2] {
        let median = Case {
            rounds: self.medians.clone(),
            percentiles: Some(self.times.percentiles()),
            ..case(name, "ms", Better::Lower)
        };
        let p95 = case(format!("{name}: p95"), "ms", Better::Lower);
        [median, Case { rounds: self.p95s.clone(), ..p95 }]
    }

    fn median(&self) -> Option<f64> {
        Case { rounds: self.medians.clone(), ..Case::default() }.median()
    }
}

impl Page {
    fn new(path: String, goal_ms: f64) -> Result<Self> {
        let (empty, full) = (Timed::new()?, Timed::new()?);
        Ok(Self { path, goal_ms, empty, full, buffers: f64::INFINITY })
    }

    async fn measure(&mut self, empty: &ConsoleSetup<'_>, full: &ConsoleSetup<'_>) -> Result<()> {
        self.empty.add(empty, &self.path).await?;
        self.full.add(full, &self.path).await?;
        let session = &full.database.session;
        if !full.database.counts_statements {
            return Ok(());
        }
        let address = full.address(&self.path);
        for _ in 0..3 {
            session.batch_execute(FORGET).await?;
            full.console.time(&address).await?;
            while session.query_typed(UNDER_WAY, &[]).await?[0].get(0) {
                sleep(Duration::from_millis(1)).await;
            }
            let read: f64 = session.query_typed(READ, &[]).await?[0].get(0);
            self.buffers = self.buffers.min(read);
        }
        Ok(())
    }

    /// Returns the cases of the page: the median on the full database as a ratio to the median on
    /// the empty one, the p95 with its goal, the median and p95 on the empty database, and the
    /// buffers.
    fn cases(&self) -> Vec<Case> {
        let of_empty = format!("{}, empty", self.path);
        let [median, p95] = self.full.cases(&self.path);
        let mut cases =
            vec![against(median, &of_empty, None), Case { goal: Some(self.goal_ms), ..p95 }];
        cases.extend(self.empty.cases(&of_empty));
        if self.buffers.is_finite() {
            let name = format!("{}: buffers", self.path);
            cases.push(Case { rounds: vec![self.buffers], ..case(name, "pages", Better::Lower) });
        }
        cases
    }
}

/// Returns every screen of the navigation, every API path, pages about a single object, and
/// filters.
async fn pages(console: &ConsoleProcess) -> Result<Vec<Page>> {
    let mut paths = console.screens().await?;
    paths.extend(DETAIL_PAGES.iter().map(ToString::to_string));
    paths.extend(FILTERS.iter().map(|filter| format!("/tasks?q={filter}")));
    paths.extend(
        ["/tasks/bulk?q=state:pending", "/failures?queue=etl-3", "/?hours=6"].map(Into::into),
    );
    paths.extend(console.api_paths().await?);
    let pages = paths.into_iter().map(|path| Page::new(path, GOAL_MS));
    let in_vain =
        EMPTY_SEARCHES.iter().map(|filter| Page::new(format!("/tasks?q={filter}"), PATIENCE_MS));
    pages.chain(in_vain).collect()
}

fn slowest(pages: &[Page]) -> Check {
    let worst = |page: &&Page| page.full.times.at(100.0);
    let slowest = pages.iter().max_by(|a, b| worst(a).total_cmp(&worst(b)));
    let above: Vec<&str> = pages
        .iter()
        .filter(|page| page.full.median() > Some(page.goal_ms))
        .map(|page| page.path.as_str())
        .collect();
    let longest = slowest.map_or_else(String::new, |page| {
        format!("; the slowest answer took {:.0} ms: {}", worst(&page), page.path)
    });
    Check {
        what: format!(
            "median of every page within {GOAL_MS} ms, a search without a match within \
             {PATIENCE_MS} ms"
        ),
        passed: above.is_empty(),
        detail: format!(
            "{} of {} pages exceed the limit {}{longest}",
            above.len(),
            pages.len(),
            above.join(" ")
        ),
    }
}
