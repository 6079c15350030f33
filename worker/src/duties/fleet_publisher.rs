//! Fleet-wide metrics, published by one worker at a time.
//!
//! If each of N workers counted the queue, the counts would cost N times as much, and their sum
//! would be N times too large.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use prometheus::Registry;
use queue::QueueError;
use queue::fleet::fleet;
use queue::priority::priorities;
use queue::queue_status::{hold_publisher, queues};
use queue::target::targets_held_back;
use schedule::queries::{health, instants};
use tokio::time::sleep;
use tokio_postgres::Client;

use crate::context::Context;
use crate::control::answered;
use crate::duties::duty::Duty;
use crate::telemetry::fleet_gauges::{self, FleetCounts};

/// Maximum number of schedules that have series of their own, which bounds the load on Prometheus.
const NAMED_SCHEDULES: i64 = 1000;

/// Fleet-wide gauges, present only while this worker is the publisher; clones share them.
#[derive(Clone, Default)]
pub(crate) struct FleetMetrics(Arc<Mutex<Option<Registry>>>);

impl FleetMetrics {
    /// Returns the registry to serve in addition to the worker's own metrics.
    pub(crate) fn published(&self) -> Option<Registry> {
        self.0.lock().clone()
    }

    fn publish(&self, registry: Option<Registry>) {
        *self.0.lock() = registry;
    }
}

/// The publisher stays publisher for this multiple of the interval between counts, unless it stops.
const HELD_INTERVALS: u32 = 3;

/// Counts and publishes while this worker holds the lock of the publisher.
pub(crate) struct FleetPublisher {
    context: Arc<Context>,
    metrics: FleetMetrics,
    interval: Duration,
    session: Option<Client>,
    publisher: bool,
    first: bool,
}

impl FleetPublisher {
    pub(crate) fn new(context: Arc<Context>, metrics: FleetMetrics, interval: Duration) -> Self {
        Self { context, metrics, interval, session: None, publisher: false, first: true }
    }

    /// Returns the counts, or `None` if another worker is the publisher.
    async fn scrape(&mut self) -> Result<Option<Registry>, QueueError> {
        let client = match self.session.take() {
            Some(client) => client,
            None => self.context.control.dedicated_session("publisher").await?.client,
        };
        let held_for = self.interval * HELD_INTERVALS;
        let held = hold_publisher(&client, self.context.worker, held_for);
        self.publisher = answered(held).await?;
        let registry = if self.publisher { Some(answered(count(&client)).await?) } else { None };
        self.session = Some(client);
        Ok(registry)
    }
}

impl Duty for FleetPublisher {
    const NAME: &'static str = "publish_fleet_metrics";
    /// Zero, because the interval between counts is already the wait after a failure.
    const MAX_BACKOFF: Duration = Duration::ZERO;
    type Cause = ();

    async fn next(&mut self) -> Option<()> {
        if !std::mem::take(&mut self.first) {
            sleep(self.interval).await;
        }
        Some(())
    }

    async fn run_once(&mut self, (): ()) -> Result<u64, QueueError> {
        let scraped = self.scrape().await;
        // Whoever becomes the publisher meanwhile publishes as well, and the alert takes the maximum.
        self.metrics.publish(match &scraped {
            Ok(registry) => registry.clone(),
            Err(_) if self.publisher => fleet_gauges::failed().ok(),
            Err(_) => None,
        });
        scraped.map(|registry| registry.is_some().into())
    }

    /// Lets another worker publish at once.
    async fn stop(&mut self) {
        if let Some(client) = self.session.take().filter(|_| self.publisher) {
            let _ = hold_publisher(&client, self.context.worker, Duration::ZERO).await;
        }
    }
}

async fn count(client: &Client) -> Result<Registry, QueueError> {
    let begun = Instant::now();
    let counts = FleetCounts {
        queues: queues(client).await?,
        priorities: priorities(client).await?,
        targets: targets_held_back(client).await?,
        fleet: fleet(client).await?,
        schedules: health(client).await?,
        instants: instants(client, NAMED_SCHEDULES).await?,
        duration: begun.elapsed(),
    };
    let filled = counts.registry();
    filled.map_err(|error| QueueError::Refused { message: error.to_string(), hint: None })
}
