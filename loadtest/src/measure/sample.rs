//! Samples dead rows, sizes, claim buffers, sessions, open files, memory and processor time once a second during a
//! measurement. Each sample costs the server about a millisecond. Throughput is not sampled,
//! because history provides it exactly afterwards.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use cluster::Cluster;
use conninfo::Environment;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::context::RunContext;
use crate::context::database::Database;
use crate::context::session::Session;
use crate::measure::process::{children, cpu_time, open_files, resident_bytes};
use crate::result::Series;

const INTERVAL: Duration = Duration::from_secs(1);

const TABLES: &str = "SELECT /* loadtest.sample */ (pg_current_wal_insert_lsn() - '0/0')::float8, s.n_dead_tup::float8,
    pg_relation_size(s.relid)::float8, pg_indexes_size(s.relid)::float8,
    (SELECT count(*) FROM pg_stat_activity a
        WHERE a.datname = current_database() AND a.application_name LIKE 'pgmill %')::float8
FROM pg_stat_user_tables s WHERE s.relid = 'mill.tasks'::regclass";

/// Buffers, calls and rows of the claim statement since the server started.
const CLAIMS: &str =
    "SELECT /* loadtest.claims */ coalesce(sum(s.shared_blks_hit + s.shared_blks_read), 0)::float8,
    coalesce(sum(s.calls), 0)::float8, coalesce(sum(s.rows), 0)::float8
FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
WHERE d.datname = current_database() AND s.query LIKE '%/* queue.claim */%'";

const MB: f64 = 1024.0 * 1024.0;

type Curves = BTreeMap<(&'static str, &'static str), Vec<(f64, f64)>>;

/// One reading of the claim counters.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Claims {
    pub(crate) buffers: f64,
    pub(crate) calls: f64,
    pub(crate) rows: f64,
}

impl Claims {
    /// Returns the difference from an earlier reading.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            buffers: self.buffers - before.buffers,
            calls: self.calls - before.calls,
            rows: self.rows - before.rows,
        }
    }
}

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
        let sampling = SamplingTask {
            url: database.url().to_owned(),
            environment: context.environment().clone(),
            counts_statements: database.counts_statements,
            pids,
            cluster: context.cluster().cloned(),
            begun: Instant::now(),
            curves: Arc::default(),
        };
        let curves = Arc::clone(&sampling.curves);
        let mut task = JoinSet::new();
        task.spawn(sampling.run(context.connect(database.url()).await?));
        Ok(Self { curves, _task: task })
    }

    /// Stops sampling and returns the series.
    pub(crate) fn end(self, round: usize) -> Vec<Series> {
        let curves = std::mem::take(&mut *self.curves.lock());
        curves
            .into_iter()
            .map(|((name, unit), points)| Series {
                name: name.to_owned(),
                unit: unit.to_owned(),
                round,
                points,
            })
            .collect()
    }
}

struct SamplingTask {
    url: String,
    environment: Environment,
    counts_statements: bool,
    pids: Vec<u32>,
    /// The private server. A failover replaces it.
    cluster: Option<Arc<Mutex<Cluster>>>,
    begun: Instant,
    curves: Arc<Mutex<Curves>>,
}

/// Previous reading, for differences.
struct Before {
    at: f64,
    wal: f64,
    cpu: f64,
    server_cpu: f64,
    claims: Claims,
}

impl SamplingTask {
    /// An error leaves a gap in the curves. If the error matters, the measurement meets it, too.
    async fn run(self, mut session: Session) {
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut before = None;
        loop {
            ticks.tick().await;
            before = self.sample(&session, before).await.ok();
            if session.is_closed()
                && let Ok(opened) = Session::open(&self.url, &self.environment).await
            {
                session = opened;
            }
        }
    }

    /// Returns the pid of the private server's postmaster, unless the server is being replaced.
    fn postmaster(&self) -> Option<u32> {
        self.cluster.as_ref()?.try_lock()?.pid()
    }

    async fn sample(&self, session: &Session, before: Option<Before>) -> Result<Before> {
        let row = session.query_typed(TABLES, &[]).await?;
        let [wal, dead, size, indexes, sessions]: [f64; 5] = [0, 1, 2, 3, 4].map(|n| row[0].get(n));
        let claims = match self.counts_statements {
            true => claims(session).await?,
            false => Claims::default(),
        };
        let at = self.begun.elapsed().as_secs_f64();
        let cpu = cpu_seconds(&self.pids);
        let postmaster = self.postmaster();
        let server_cpu = postmaster.map_or(0.0, |pid| cpu_seconds(&children(pid)));
        let mut curves = self.curves.lock();
        let mut add = |name, unit, value| {
            curves.entry((name, unit)).or_default().push((at, value));
        };
        add("dead rows", "rows", dead);
        add("table size", "MB", size / MB);
        add("index size", "MB", indexes / MB);
        add("sessions", "sessions", sessions);
        let files = self.pids.iter().filter_map(|pid| open_files(*pid)).max();
        if let Some(files) = files {
            add("open files", "files", f64::from(files));
        }
        let memory = self.pids.iter().filter_map(|pid| resident_bytes(*pid)).max();
        if let Some(bytes) = memory {
            #[expect(clippy::cast_precision_loss, reason = "a size in MB")]
            add("worker memory", "MB", bytes as f64 / MB);
        }
        if let Some(before) = before {
            let seconds = (at - before.at).max(f64::EPSILON);
            add("WAL", "MB/s", (wal - before.wal) / MB / seconds);
            if !self.pids.is_empty() {
                add("worker CPU", "cores", ((cpu - before.cpu) / seconds).max(0.0));
            }
            if postmaster.is_some() {
                add("server CPU", "cores", ((server_cpu - before.server_cpu) / seconds).max(0.0));
            }
            let calls = claims.calls - before.claims.calls;
            if calls > 0.0 {
                add(
                    "claim buffers",
                    "buffers/claim",
                    (claims.buffers - before.claims.buffers) / calls,
                );
                add("claimed at once", "tasks/claim", (claims.rows - before.claims.rows) / calls);
            }
        }
        Ok(Before { at, wal, cpu, server_cpu, claims })
    }
}

/// Reads the counters of the claim statement in this database.
pub(crate) async fn claims(session: &Session) -> Result<Claims> {
    let row = &session.query_typed(CLAIMS, &[]).await?[0];
    Ok(Claims { buffers: row.get(0), calls: row.get(1), rows: row.get(2) })
}

/// Returns the processor time of these processes. A process that has ended no longer counts.
pub(crate) fn cpu_seconds(pids: &[u32]) -> f64 {
    pids.iter().filter_map(|pid| cpu_time(*pid)).sum::<Duration>().as_secs_f64()
}
