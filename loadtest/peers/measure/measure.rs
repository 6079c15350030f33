//! Shared code of the Rust adapters: the work of a job, and the timing of enqueues.

use std::env;
use std::error::Error;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::sync::Notify;

pub type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const EFFECT: &str = "INSERT INTO loadtest.effects (task) VALUES ($1)";
const START: &str = "INSERT INTO loadtest.starts (task, at) VALUES ($1, clock_timestamp())";

/// Parameters of a step, from the command line and the environment.
pub struct Step {
    pub name: String,
    words: Vec<String>,
    settings: Value,
}

impl Step {
    pub fn read() -> Result<Self> {
        let mut words = env::args().skip(1);
        let name = words.next().ok_or("no step named")?;
        let settings = env::var("PEER_SETTINGS").unwrap_or_else(|_| "{}".to_owned());
        Ok(Self { name, words: words.collect(), settings: serde_json::from_str(&settings)? })
    }

    pub fn word(&self, place: usize) -> Result<&str> {
        Ok(self.words.get(place).ok_or("too few arguments")?)
    }

    pub fn number(&self, place: usize) -> Result<i64> {
        Ok(self.word(place)?.parse()?)
    }

    pub fn setting(&self, name: &str) -> Option<u32> {
        self.settings[name].as_u64().and_then(|value| u32::try_from(value).ok())
    }
}

/// Opens a pool with all connections established.
pub async fn pool(connections: u32) -> Result<PgPool> {
    let options = PgPoolOptions::new().max_connections(connections).min_connections(connections);
    let pool = options.connect(&env::var("DATABASE_URL")?).await?;
    let mut connections = Vec::new();
    for _ in 0..connections {
        connections.push(pool.acquire().await?);
    }
    drop(connections);
    Ok(pool)
}

/// Runs one INSERT per job over a separate pool, until `wanted` are committed.
#[derive(Clone)]
pub struct Work(Arc<Inner>);

struct Inner {
    pool: PgPool,
    timed: bool,
    wanted: u64,
    done: AtomicU64,
    finished: Notify,
}

impl Work {
    pub async fn open(step: &Step) -> Result<Self> {
        Ok(Self(Arc::new(Inner {
            pool: pool(step.setting("pool").unwrap_or(16)).await?,
            timed: step.word(0)? == "starts",
            wanted: step.word(1)?.parse()?,
            done: AtomicU64::new(0),
            finished: Notify::new(),
        })))
    }

    pub async fn run(&self, task: i64) -> std::result::Result<(), String> {
        let inner = &*self.0;
        let statement = if inner.timed { START } else { EFFECT };
        sqlx::query(statement).bind(task).execute(&inner.pool).await.map_err(|error| error.to_string())?;
        if inner.done.fetch_add(1, Ordering::Relaxed) + 1 >= inner.wanted {
            inner.finished.notify_one();
        }
        Ok(())
    }

    pub async fn wait(&self, step: &Step) -> Result<()> {
        let limit = Duration::from_secs(step.word(2)?.parse()?);
        let _ = tokio::time::timeout(limit, self.0.finished.notified()).await;
        Ok(())
    }

    pub fn result(&self) -> Value {
        json!({"done": self.0.done.load(Ordering::Relaxed)})
    }
}

/// Returns seconds since the epoch.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |passed| passed.as_secs_f64())
}

/// Calls `add` one at a time with a varying pause of about `gap` milliseconds.
pub async fn paced<F, T>(step: &Step, add: impl Fn(i64) -> F) -> Result<Value>
where
    F: Future<Output = Result<T>>,
{
    let (first, count, gap) = (step.number(0)?, step.number(1)?, step.number(2)?);
    let mut committed_at = Vec::new();
    for task in first..first + count {
        add(task).await?;
        committed_at.push(now());
        // The pause is 12/16 to 20/16 of the gap. The order of these factors has a long period.
        let sixteenths = 12 + (task * 7 + task / 5) % 9;
        tokio::time::sleep(Duration::from_millis((gap * sixteenths / 16) as u64)).await;
    }
    Ok(json!({"committed_at": committed_at}))
}

/// Enqueues all tasks of the step in calls of 10,000.
pub async fn in_batches<F, T>(step: &Step, add: impl Fn(Vec<i64>) -> F) -> Result<Value>
where
    F: Future<Output = Result<T>>,
{
    let (first, count) = (step.number(0)?, step.number(1)?);
    let mut from = first;
    while from < first + count {
        let to = (from + 10_000).min(first + count);
        add((from..to).collect()).await?;
        from = to;
    }
    Ok(json!({}))
}
