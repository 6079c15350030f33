//! Measures the response times of the web console with many live tasks and a long history, compared
//! with a nearly empty database: every screen and every API path, requested as a browser would.

mod console_process;
mod dataset;

use anyhow::{Context, Result};

use self::console_process::ConsoleProcess;
use crate::context::RunContext;
use crate::context::database::Database;
use crate::fleet::{Fleet, FleetSpec};
use crate::measure::latency::LatencyHistogram;
use crate::measure::rounds::{Measured, against, alternate, at_most, case};
use crate::report::number_format::short_count;
use crate::result::{Better, Scenario};

/// Response time in milliseconds that users perceive as immediate.
const GOAL_MS: f64 = 200.0;

/// Number of requests per page and round.
const REQUESTS: usize = 20;

/// Ids of examples for pages about a single object: running, waiting and failed tasks, and a run.
const EXAMPLES: &str = "SELECT /* loadtest.console_examples */ (SELECT min(t.id) FROM mill.tasks t WHERE t.state = 'running'),
    (SELECT max(t.id) FROM mill.tasks t WHERE t.state = 'pending'),
    (SELECT a.task_id FROM mill.attempts a WHERE a.outcome = 'failed' ORDER BY a.finished_at DESC LIMIT 1),
    (SELECT max(r.id) FROM mill.runs r)";

/// Pages about a single object or with a filter; a word in braces stands for its id, as in
/// [`ConsoleSetup::address`].
const DETAIL_PAGES: &[&str] = &[
    "/tasks/{running}",
    "/tasks/{waiting}",
    "/tasks/{failed}",
    "/runs/{run}",
    "/jobs/detail?name=it",
    "/schedules/detail?name=it",
    "/lineage?name=it",
    "/tasks/bulk?q=state:pending",
    "/failures?queue=etl-3",
    "/?hours=6",
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
    let setups = [
        ConsoleSetup::open(context, &of_empty, &fleet_spec).await?,
        ConsoleSetup::open(context, &of_full, &fleet_spec).await?,
    ];
    let pages = pages(&setups[1].console).await?;
    let ms = |name: &str| case(name, "ms", Better::Lower);
    let mut cases = Vec::new();
    for (path, _) in &pages {
        let empty = format!("{path}, empty");
        let full = against(ms(path), &empty, None);
        cases.extend([ms(&empty), full]);
    }
    let mut scenario = alternate(context, cases, async |n, _| {
        let ((path, goal_ms), full) = (&pages[n / 2], n % 2 == 1);
        let times = setups[n % 2].request(path).await?;
        let p95 = times.at(95.0);
        let measured = Measured::of_times(times);
        Ok(match full {
            true => measured.also(at_most(format!("{path}: p95"), "ms", *goal_ms), p95),
            false => measured,
        })
    })
    .await?;
    let words = format!("{} live tasks, {} attempts", short_count(live), short_count(ended));
    scenario.notes =
        vec![words, fleet_spec.describe(), format!("{REQUESTS} requests per round, one at a time")];
    Ok(scenario)
}

/// A database, a worker whose readers are busy, and a console.
struct ConsoleSetup<'a> {
    console: ConsoleProcess,
    _fleet: Fleet<'a>,
    /// Words in braces with the ids that they stand for.
    ids: Vec<(&'static str, i64)>,
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
        let mut fleet = Fleet::start(context, database, fleet_spec).await?;
        dataset::occupy_readers(database, &mut fleet, fleet_spec.readers()).await?;
        let console = ConsoleProcess::start(context, database).await?;
        stage("reading the last hours");
        console.until_hours_are_read().await?;
        let row = &database.session.query_typed(EXAMPLES, &[]).await?[0];
        let mut ids = Vec::new();
        for (n, word) in ["{running}", "{waiting}", "{failed}", "{run}"].into_iter().enumerate() {
            let id: Option<i64> = row.get(n);
            ids.push((word, id.with_context(|| format!("no example for {word}"))?));
        }
        Ok(Self { console, _fleet: fleet, ids })
    }

    fn address(&self, path: &str) -> String {
        let fill = |path: String, (word, id): &(&str, i64)| path.replace(word, &id.to_string());
        self.ids.iter().fold(path.to_owned(), fill)
    }

    /// Sends the requests of a round.
    async fn request(&self, path: &str) -> Result<LatencyHistogram> {
        let path = self.address(path);
        let mut times = LatencyHistogram::new()?;
        for _ in 0..REQUESTS {
            times.add(self.console.time(&path).await?);
        }
        Ok(times)
    }
}

/// Returns every screen of the navigation, every API path, pages about a single object, and
/// filters, each with the goal for its time in milliseconds.
async fn pages(console: &ConsoleProcess) -> Result<Vec<(String, f64)>> {
    let mut paths = console.screens().await?;
    paths.extend(DETAIL_PAGES.iter().map(ToString::to_string));
    paths.extend(FILTERS.iter().map(|filter| format!("/tasks?q={filter}")));
    paths.extend(console.api_paths().await?);
    let in_vain = EMPTY_SEARCHES.iter().map(|filter| (format!("/tasks?q={filter}"), PATIENCE_MS));
    Ok(paths.into_iter().map(|path| (path, GOAL_MS)).chain(in_vain).collect())
}
