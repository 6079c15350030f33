//! HTTP server for `/metrics`, `/livez` and `/readyz`.
//!
//! `/livez` never accesses the database, so that an outage of the database does not restart the
//! fleet.
//!
//! Everyone who reaches the address may send requests, so their cost is bounded: one request at a
//! time collects metrics, and `/readyz` uses a control session at most once a second, however many
//! requests arrive.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use http_server::Server;
use prometheus::TEXT_FORMAT;
use tokio::net::TcpListener;
use tokio::sync::{Mutex, watch};

use crate::claim::policy::Orders;
use crate::context::Context;
use crate::control::answered;
use crate::duties::fleet_publisher::FleetMetrics;

/// Maximum number of connections: a few scrapers and health checks.
const MAX_CONNECTIONS: usize = 64;

/// Time for which the result of a readiness check is valid: shorter than the interval of any health
/// check.
const READY_VALID: Duration = Duration::from_secs(1);

/// State of the handlers.
#[derive(Clone)]
pub(crate) struct HttpState {
    context: Arc<Context>,
    orders: watch::Receiver<Orders>,
    fleet_metrics: FleetMetrics,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// Held while metrics are collected.
    collecting: Mutex<()>,
    /// The last readiness check, and its error.
    checked: Mutex<Option<(Instant, Result<(), String>)>>,
}

impl HttpState {
    pub(crate) fn new(
        context: Arc<Context>,
        orders: watch::Receiver<Orders>,
        fleet_metrics: FleetMetrics,
    ) -> Self {
        Self { context, orders, fleet_metrics, shared: Arc::default() }
    }

    fn draining(&self) -> bool {
        self.context.shutdown.drain.is_cancelled() || self.orders.borrow().draining
    }

    /// Returns the result of the last readiness check, or of a new one.
    async fn check_database(&self) -> Result<(), String> {
        let mut checked = self.shared.checked.lock().await;
        let valid = checked.as_ref().filter(|(at, _)| at.elapsed() < READY_VALID);
        if let Some((_, result)) = valid {
            return result.clone();
        }
        let control = &self.context.control;
        let check = async { queue::schema::check_version(&*control.get().await?).await };
        let result = answered(check).await.map_err(|error| error.to_string());
        *checked = Some((Instant::now(), result.clone()));
        result
    }
}

/// Serves until the worker ends.
pub(crate) async fn run(listener: TcpListener, http: HttpState) {
    let end = http.context.shutdown.end.clone();
    let observer = http.context.metrics.refusal_observer("metrics");
    let router = Router::new()
        .route("/metrics", get(metrics))
        .route("/livez", get(|| async { "alive\n" }))
        .route("/healthz", get(|| async { "alive\n" }))
        .route("/readyz", get(ready))
        .with_state(http);
    Server::new(listener, MAX_CONNECTIONS, observer).serve(router, end.cancelled()).await;
}

async fn metrics(State(http): State<HttpState>) -> impl IntoResponse {
    let _one_at_a_time = http.shared.collecting.lock().await;
    let Context { metrics, in_flight, .. } = &*http.context;
    metrics.refresh(in_flight.busy_readers(), http.draining());
    match metrics.text(http.fleet_metrics.published().as_ref()) {
        Ok(text) => ([(header::CONTENT_TYPE, TEXT_FORMAT)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn ready(State(http): State<HttpState>) -> impl IntoResponse {
    if http.draining() {
        return (StatusCode::SERVICE_UNAVAILABLE, "draining\n".to_owned());
    }
    match http.check_database().await {
        Ok(()) => (StatusCode::OK, "ready\n".to_owned()),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
    }
}
