//! Samples dead rows, sizes, sessions, open files and memory once a second during a measurement.
//! Each sample costs the server about a millisecond. Throughput is not sampled, because history
//! provides it exactly afterwards.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use conninfo::Environment;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::context::RunContext;
use crate::context::database::Database;
use crate::context::session::Session;
use crate::measure::process::{open_files, resident_mb};
use crate::result::Series;

const INTERVAL: Duration = Duration::from_secs(1);

const TABLES: &str = "SELECT /* loadtest.sample */ s.n_dead_tup::float8,
    pg_relation_size(s.relid)::float8 / 1048576, pg_indexes_size(s.relid)::float8 / 1048576,
    (SELECT count(*) FROM pg_stat_activity a
        WHERE a.datname = current_database() AND a.application_name LIKE 'pgmill %')::float8
FROM pg_stat_user_tables s WHERE s.relid = 'mill.tasks'::regclass";

type Curves = BTreeMap<(&'static str, &'static str), Vec<(f64, f64)>>;

/// Background sampler.
pub(crate) struct Sampler {
    curves: Arc<Mutex<Curves>>,
    _task: JoinSet<()>,
}

impl Sampler {
    /// Starts sampling. `pids` are the workers; the curves of a worker end with its process.
    pub(crate) async fn start(
        context: &RunContext,
        database: &Database,
        pids: Vec<u32>,
    ) -> Result<Self> {
        let curves = Arc::default();
        let sampling = SamplingTask {
            url: database.url().to_owned(),
            environment: context.environment().clone(),
            pids,
            begun: Instant::now(),
            curves: Arc::clone(&curves),
        };
        let mut task = JoinSet::new();
        task.spawn(sampling.run(context.connect(database.url()).await?));
        Ok(Self { curves, _task: task })
    }

    /// Stops sampling and returns the series.
    pub(crate) fn end(self, round: usize) -> Vec<Series> {
        let curves = std::mem::take(&mut *self.curves.lock());
        let series = curves.into_iter().map(|((name, unit), points)| Series {
            name: name.to_owned(),
            unit: unit.to_owned(),
            round,
            points,
        });
        series.collect()
    }
}

struct SamplingTask {
    url: String,
    environment: Environment,
    pids: Vec<u32>,
    begun: Instant,
    curves: Arc<Mutex<Curves>>,
}

impl SamplingTask {
    /// An error leaves a gap in the curves. If the error matters, the measurement meets it, too.
    async fn run(self, mut session: Session) {
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let _ = self.sample(&session).await;
            if session.is_closed()
                && let Ok(opened) = Session::open(&self.url, &self.environment).await
            {
                session = opened;
            }
        }
    }

    async fn sample(&self, session: &Session) -> Result<()> {
        let row = &session.query_typed(TABLES, &[]).await?[0];
        let at = self.begun.elapsed().as_secs_f64();
        let mut curves = self.curves.lock();
        let mut add = |name, unit, value: Option<f64>| {
            curves.entry((name, unit)).or_default().extend(value.map(|value| (at, value)));
        };
        add("dead rows", "rows", row.get(0));
        add("table size", "MB", row.get(1));
        add("index size", "MB", row.get(2));
        add("sessions", "sessions", row.get(3));
        let files = self.pids.iter().filter_map(|pid| open_files(*pid)).max();
        add("open files", "files", files.map(f64::from));
        let memory = self.pids.iter().filter_map(|pid| resident_mb(*pid)).reduce(f64::max);
        add("worker memory", "MB", memory);
        Ok(())
    }
}
