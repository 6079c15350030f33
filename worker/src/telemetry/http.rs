//! HTTP server for `/metrics`, `/livez` and `/readyz`.
//!
//! `/livez` never accesses the database, so that an outage of the database does not restart the
//! fleet.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use prometheus::TEXT_FORMAT;
use tokio::net::TcpListener;

use crate::context::Context;
use crate::control::answered;
use crate::telemetry::fleet_metrics::FleetMetrics;

/// State of the handlers.
#[derive(Clone)]
pub(crate) struct HttpState {
    pub(crate) context: Arc<Context>,
    pub(crate) fleet_metrics: FleetMetrics,
}

/// Serves until the worker ends.
pub(crate) async fn run(listener: TcpListener, http: HttpState) {
    let end = http.context.shutdown.end.clone();
    let router = Router::new()
        .route("/metrics", get(metrics))
        .route("/livez", get(|| async { "alive\n" }))
        .route("/healthz", get(|| async { "alive\n" }))
        .route("/readyz", get(ready))
        .with_state(http);
    let served = axum::serve(listener, router).with_graceful_shutdown(end.cancelled_owned());
    if let Err(error) = served.await {
        tracing::error!(%error, "metrics are no longer served");
    }
}

async fn metrics(State(http): State<HttpState>) -> impl IntoResponse {
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
    let checked = async { queue::schema::check_version(&*http.context.control.get().await?).await };
    match answered(checked).await {
        Ok(()) => (StatusCode::OK, "ready\n".to_owned()),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
    }
}

impl HttpState {
    fn draining(&self) -> bool {
        self.context.shutdown.drain.is_cancelled() || self.context.wakeup.draining()
    }
}
